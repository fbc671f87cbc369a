//! The table at the end, and whether it is right.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use postroom_tests::received::Received;
use postroom_tests::verdict::{Verdict, check};

use crate::billing::Invoices;
use crate::shop::Books;
use crate::steps::Steps;

/// A message committed so shortly before the kill may have been waiting for its confirm.
const AROUND_KILL: Duration = Duration::from_secs(1);

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Report {
    verdict: Verdict,
    rolled_back: usize,
    unknown: usize,
    orders: i64,
    waiting: i64,
    twice: (usize, usize),
    invoices: Invoices,
    /// From commit to arrival, sorted: what was committed before the kill, and all.
    quiet: Vec<Duration>,
    all: Vec<Duration>,
}

/// A line of the table: name, value, remark, and whether it is as it must be, where something must be.
type Line = (&'static str, String, String, Option<bool>);

/// A line that must be zero.
fn none(name: &'static str, list: usize, remark: &str) -> Line {
    (name, grouped(list), remark.to_owned(), Some(list == 0))
}

impl Report {
    pub(crate) fn new(
        books: &Books,
        received: &[Received],
        (orders, waiting): (i64, i64),
        invoices: Invoices,
        kill: Instant,
    ) -> Self {
        let mut report = Self {
            verdict: check(&books.ledger, received),
            rolled_back: books.ledger.rolled_back(),
            unknown: books.ledger.unknown(),
            orders,
            waiting,
            twice: books.twice(),
            invoices,
            quiet: Vec::new(),
            all: Vec::new(),
        };
        let committed_at = books.committed_at();
        let mut seen = HashSet::new();
        for message in received {
            let Some(id) = message.id().filter(|id| seen.insert(*id)) else {
                continue;
            };
            if let Some(committed) = committed_at.get(&id) {
                let delay = message.arrived.saturating_duration_since(*committed);
                report.all.push(delay);
                if *committed + AROUND_KILL < kill {
                    report.quiet.push(delay);
                }
            }
        }
        drop(committed_at);
        report.all.sort();
        report.quiet.sort();
        report
    }

    /// Whether everything is as it must be. Repeats may happen, because a worker was killed.
    pub(crate) fn is_right(&self) -> bool {
        self.lines()
            .iter()
            .all(|(_, _, _, right)| *right != Some(false))
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = self.outbox_lines();
        lines.extend(self.inbox_lines());
        lines
    }

    /// What the shop has sent.
    fn outbox_lines(&self) -> Vec<Line> {
        let verdict = &self.verdict;
        let orders = usize::try_from(self.orders).unwrap_or(0);
        let waiting = usize::try_from(self.waiting).unwrap_or(usize::MAX);
        let (twice, once) = self.twice;
        vec![
            (
                "committed",
                grouped(verdict.committed),
                format!("and {} rows in the shop's table of orders", grouped(orders)),
                Some(orders == verdict.committed && self.unknown == 0),
            ),
            (
                "rolled back",
                grouped(self.rolled_back),
                String::new(),
                None,
            ),
            (
                "received",
                grouped(verdict.received),
                "different messages".to_owned(),
                None,
            ),
            none(
                "missing",
                verdict.missing.len(),
                "committed, but did not arrive",
            ),
            none(
                "unexpected",
                verdict.unexpected.len(),
                "arrived, but was not committed",
            ),
            none(
                "out of order",
                verdict.out_of_order.len(),
                "within a customer's stream",
            ),
            none(
                "changed",
                verdict.changed.len(),
                "another body, or another header on a repeat",
            ),
            none("still waiting", waiting, "rows left in the outbox"),
            (
                "repeated",
                grouped(verdict.repeats),
                "allowed: the worker was killed before it could note a confirm".to_owned(),
                None,
            ),
            (
                "sent twice",
                grouped(twice),
                format!("with one key each; {} of them stored once", grouped(once)),
                Some(once == twice),
            ),
        ]
    }

    /// What the other service made of it.
    fn inbox_lines(&self) -> Vec<Line> {
        let orders = self.verdict.committed;
        vec![
            (
                "delivered again",
                grouped(self.invoices.again),
                "to the inbox, on purpose".to_owned(),
                None,
            ),
            (
                "invoices",
                grouped(self.invoices.written),
                "written by the inbox's handler, one for each order".to_owned(),
                Some(self.invoices.written == orders),
            ),
            none(
                "written twice",
                self.invoices.twice,
                "a second invoice for one order",
            ),
            none(
                "written in disorder",
                self.invoices.out_of_order,
                "customers whose invoices are not in the order of their orders",
            ),
            none(
                "left in the inbox",
                self.invoices.left,
                "not handled, or given up",
            ),
        ]
    }

    /// The table as text.
    pub(crate) fn table(&self, steps: &Steps) -> String {
        let lines = self.lines();
        let width = lines
            .iter()
            .map(|(_, value, _, _)| value.len())
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for (name, value, remark, right) in lines {
            let mark = match right {
                Some(true) => steps.green("ok   "),
                Some(false) => steps.red("WRONG"),
                None => "     ".to_owned(),
            };
            text += &format!("  {name:<19}  {value:>width$}  {mark}  {remark}\n");
        }
        for (delays, when) in [
            (&self.quiet, "before the kill"),
            (
                &self.all,
                "in all, with the time until others had taken over",
            ),
        ] {
            text += &format!("  commit to arrival    {}  {when}\n", percentiles(delays));
        }
        text
    }

    /// The first of each kind of fault, to look for.
    pub(crate) fn samples(&self) -> String {
        self.verdict
            .require(usize::MAX)
            .err()
            .map(|error| format!(" {error}"))
            .unwrap_or_default()
    }
}

fn percentiles(sorted: &[Duration]) -> String {
    let at = |percent: usize| {
        let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(place).map_or("-".to_owned(), |delay| {
            format!("{:.1} ms", delay.as_secs_f64() * 1_000.0)
        })
    };
    format!("p50 {}, p99 {}", at(50), at(99))
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let delays: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentiles(&delays), "p50 100.0 ms, p99 198.0 ms");
        assert_eq!(percentiles(&delays[..1]), "p50 1.0 ms, p99 1.0 ms");
        assert_eq!(percentiles(&[]), "p50 -, p99 -");
    }

    #[test]
    fn digits_stand_in_threes() {
        assert_eq!(
            [0, 12, 999, 1_000, 1_234_567].map(grouped),
            ["0", "12", "999", "1,000", "1,234,567"]
        );
    }
}
