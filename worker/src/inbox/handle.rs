//! One session with the database: runs the SQL handler for the messages it is given, and reports each outcome.
//!
//! Invariants: every message handed in comes back exactly once; nothing is begun after the lease's trusted time
//! or the signal to stop; a failure counts against a message only when it ran alone or raised it itself.
//!
//! A batch is tried whole. Where something fails that none of its messages can be blamed for, such as a time-out, a
//! dead-lock or a constraint that is checked at the commit, it is halved until the one that fails is alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postroom_crds::inbox_outbox::inbox::SqlFunction;
use sqlx::postgres::PgRow;
use sqlx::{Executor, Row as _};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::database::{Link, Session};
use crate::engine::message::Message;
use crate::engine::outcome::Outcome;
use crate::engine::runners::{Order, Report};
use crate::hooks;
use crate::lease::Trust;
use crate::reason::Reason;
use crate::store::interval;

/// A batch begins no further message after this.
const LONGEST: Duration = Duration::from_millis(200);
/// The server ends a call by itself; this much later it is given up here.
const GRACE: Duration = Duration::from_secs(5);

/// One runner of an inbox.
#[derive(Debug)]
pub struct Handler {
    /// Its number within the endpoint.
    pub runner: usize,
    /// Name of the endpoint.
    pub endpoint: String,
    /// The function and its limits.
    pub function: Arc<SqlFunction>,
    /// This process.
    pub worker: Uuid,
    /// How long this process may act on its lease.
    pub trust: Trust,
    /// Own session.
    pub session: Session,
    /// Set when the process drains.
    pub draining: watch::Receiver<bool>,
    /// Takes the time of a transaction, divided by its messages.
    pub duration: prometheus::Histogram,
}

/// A message with the epoch of its partition when it was handed out.
type Waiting = (Arc<Message>, i64);

/// What the database says of a batch.
struct Answer {
    outcomes: Vec<Outcome>,
    freed: Vec<(i16, i64)>,
    incarnation: Option<Uuid>,
    /// Messages that were not begun; they are the last ones.
    left: usize,
}

/// Why a whole call failed.
enum Failure {
    /// Something in it, by its SQLSTATE: the transaction is undone.
    Batch(String, Reason),
    /// The function is missing, or the right to call it.
    Endpoint(Reason),
    /// The session: nothing is known of the messages.
    Session(Reason),
}

impl Handler {
    /// Runs what is ordered until the endpoint hangs up.
    pub async fn run(mut self, mut orders: mpsc::Receiver<Order>, reports: mpsc::Sender<Report>) {
        let most = self.function.batch_size as usize;
        let mut waiting = VecDeque::new();
        let mut size = most;
        let mut backoff = Backoff::default();
        if reports.send(Report::Ready(self.runner)).await.is_err() {
            return;
        }
        loop {
            if waiting.is_empty() {
                let Some(order) = orders.recv().await else {
                    return;
                };
                take(&mut waiting, order);
            }
            while let Ok(order) = orders.try_recv() {
                take(&mut waiting, order);
            }
            let count = size.min(waiting.len());
            let batch: Vec<_> = waiting.drain(..count).collect();
            let report = if *self.draining.borrow() || !self.trust.holds() {
                give_back(batch)
            } else {
                match self.call(&batch).await {
                    Ok(answer) => {
                        size = (size * 2).min(most);
                        backoff = Backoff::default();
                        for waits in batch.iter().rev().take(answer.left) {
                            waiting.push_front(waits.clone());
                        }
                        decided(batch, answer)
                    }
                    Err(Failure::Batch(..)) if batch.len() > 1 => {
                        size = batch.len() / 2;
                        for waits in batch.into_iter().rev() {
                            waiting.push_front(waits);
                        }
                        continue;
                    }
                    Err(Failure::Batch(code, reason)) => failed_alone(batch, &code, &reason),
                    Err(Failure::Endpoint(reason)) => {
                        batch_and_rest(&reports, batch, &mut waiting).await;
                        self.closed(&reports, reason, true).await;
                        continue;
                    }
                    Err(Failure::Session(reason)) => {
                        batch_and_rest(&reports, batch, &mut waiting).await;
                        self.closed(&reports, reason, false).await;
                        tokio::time::sleep(backoff.next_pause()).await;
                        drop(reports.send(Report::Ready(self.runner)).await);
                        continue;
                    }
                }
            };
            if reports.send(report).await.is_err() {
                return;
            }
        }
    }

    /// It takes no messages, and, where only the endpoint has to wait, takes them again.
    async fn closed(&self, reports: &mpsc::Sender<Report>, reason: Reason, by_message: bool) {
        let closed = Report::Closed {
            runner: self.runner,
            reason,
            by_message,
            suspects: Vec::new(),
        };
        // Nobody listens any more only when the endpoint has ended.
        drop(reports.send(closed).await);
        if by_message {
            drop(reports.send(Report::Ready(self.runner)).await);
        }
    }

    async fn call(&mut self, batch: &[Waiting]) -> Result<Answer, Failure> {
        hooks::abort_at("handling");
        for (message, _) in batch {
            hooks::abort_at_type(&message.kind);
        }
        let limit = Duration::from_secs(u64::from(self.function.timeout_seconds)) + LONGEST;
        let (worker, endpoint, function) = (self.worker, &self.endpoint, &self.function.name);
        let began = Instant::now();
        let mut code = None;
        let answer = self
            .session
            .call(limit + GRACE, async |link| {
                if hooks::broken("two-commits") {
                    effect_alone(link, function, batch).await?;
                }
                let answer = run_inbox_handler(link, worker, endpoint, batch, limit).await;
                if let Err(sqlx::Error::Database(error)) = &answer {
                    code = error.code().map(std::borrow::Cow::into_owned);
                }
                answer
            })
            .await;
        hooks::abort_at("handled");
        match answer {
            Ok(answer) => {
                let handled = batch.len() - answer.left;
                #[expect(clippy::cast_precision_loss, reason = "a share of a second")]
                let share = began.elapsed().as_secs_f64() / handled.max(1) as f64;
                self.duration.observe(share);
                Ok(answer)
            }
            Err(reason) => Err(failure(code, reason, &self.function.name)),
        }
    }
}

fn take(waiting: &mut VecDeque<Waiting>, order: Order) {
    let epochs = order.epochs;
    let epoch = |message: &Arc<Message>| epochs.get(&message.identity.key.partition).copied();
    waiting.extend(order.messages.into_iter().map(|message| {
        let epoch = epoch(&message).unwrap_or_default();
        (message, epoch)
    }));
}

fn give_back(batch: impl IntoIterator<Item = Waiting>) -> Report {
    let back = batch.into_iter();
    Report::outcomes(
        back.map(|(message, _)| (message, Outcome::Unknown))
            .collect(),
    )
}

async fn batch_and_rest(
    reports: &mpsc::Sender<Report>,
    batch: Vec<Waiting>,
    waiting: &mut VecDeque<Waiting>,
) {
    let all = batch.into_iter().chain(std::mem::take(waiting));
    drop(reports.send(give_back(all)).await);
}

fn decided(batch: Vec<Waiting>, answer: Answer) -> Report {
    let messages = batch.into_iter().map(|(message, _)| message);
    Report::Outcomes {
        outcomes: messages.zip(answer.outcomes).collect(),
        freed: answer.freed,
        incarnation: answer.incarnation,
    }
}

/// A message was alone in a transaction that failed as a whole.
fn failed_alone(batch: Vec<Waiting>, code: &str, reason: &Reason) -> Report {
    let error = format!("{code}: {}", reason.message);
    let outcomes = batch
        .into_iter()
        .map(|(message, _)| (message, Outcome::HandlerFailed(error.clone())));
    Report::outcomes(outcomes.collect())
}

/// Whom a failure of the whole call concerns.
fn failure(code: Option<String>, reason: Reason, function: &str) -> Failure {
    match code.as_deref() {
        Some("42883") => Failure::Endpoint(Reason::new(
            "HandlerMissing",
            reason.message,
            "Create the function with one argument of type inbox_message, or correct handler.sqlFunction.name; messages wait until it is there.",
        )),
        Some("42501") => Failure::Endpoint(Reason::new(
            "AccessRefused",
            reason.message,
            "Grant the worker's login usage on the schema of the function and execute on it; messages wait until then.",
        )),
        // The server goes, or cannot write: the next connect tells more.
        Some(code) if code.starts_with("57P") || code == "25006" || code.starts_with("08") => {
            Failure::Session(reason)
        }
        Some(code) => {
            let message = match code {
                "57014" => format!("{function} did not end within its time"),
                _ => reason.message,
            };
            Failure::Batch(code.to_owned(), Reason { message, ..reason })
        }
        None => Failure::Session(reason),
    }
}

/// Effect, completion and what the handler enqueues, all in one transaction.
async fn run_inbox_handler(
    link: &mut Link<'_>,
    worker: Uuid,
    endpoint: &str,
    batch: &[Waiting],
    limit: Duration,
) -> Result<Answer, sqlx::Error> {
    let timeout = link
        .query("select set_config('statement_timeout', $1, $2)")
        .bind(format!("{}ms", limit.as_millis()))
        .bind(link.is_pooled());
    link.connection.execute(timeout).await?;
    let keys = batch.iter().map(|(message, _)| message.identity.key);
    let query = link
        .query(
            "select outcomes, codes, errors, details, freed_partitions, freed_removals, incarnation \
             from @schema@.run_inbox_handler($1, $2, $3, $4, $5::text[]::xid8[], $6, $7, $8)",
        )
        .bind(worker)
        .bind(endpoint)
        .bind(keys.clone().map(|key| key.partition).collect::<Vec<_>>())
        .bind(batch.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>())
        .bind(keys.clone().map(|key| key.place.xact.to_string()).collect::<Vec<_>>())
        .bind(keys.map(|key| key.place.id).collect::<Vec<_>>())
        .bind(batch.iter().map(|(message, _)| message.identity.message_id).collect::<Vec<_>>())
        .bind(interval(LONGEST));
    read(&link.connection.fetch_one(query).await?, batch)
}

/// The broken variant whose effect and completion are two transactions.
async fn effect_alone(
    link: &mut Link<'_>,
    function: &str,
    batch: &[Waiting],
) -> Result<(), sqlx::Error> {
    let call = format!(
        "select {function}((b.endpoint, b.message_id, b.tenant, b.stream, b.type, b.payload, b.payload_bytes, b.content_type, b.headers, b.routing_key, b.correlation_id, \
         b.causation_id, b.traceparent, b.request_id, b.foreign_id, b.idempotency_key, b.id, b.created_at, 0)::@schema@.inbox_message) from @schema@.inbox b where b.message_id = any ($1)"
    );
    let ids = batch.iter().map(|(message, _)| message.identity.message_id);
    let query = link.query(&call).bind(ids.collect::<Vec<_>>());
    link.connection.execute(query).await?;
    hooks::abort_at("effect");
    Ok(())
}

fn read(row: &PgRow, batch: &[Waiting]) -> Result<Answer, sqlx::Error> {
    let words: Vec<String> = row.try_get(0)?;
    let (codes, errors): (Vec<Option<String>>, Vec<Option<String>>) =
        (row.try_get(1)?, row.try_get(2)?);
    let details: Vec<Option<String>> = row.try_get(3)?;
    let (partitions, removals): (Vec<i16>, Vec<i64>) = (row.try_get(4)?, row.try_get(5)?);
    let mut answer = Answer {
        outcomes: Vec::with_capacity(batch.len()),
        freed: partitions.into_iter().zip(removals).collect(),
        incarnation: row.try_get(6)?,
        left: 0,
    };
    for (i, word) in words.iter().enumerate() {
        let outcome = match word.as_str() {
            "handled" => Outcome::Handled,
            "gone" => Outcome::Gone,
            "lost" => Outcome::Lost(batch[i].1),
            "failed" => raised(
                codes[i].as_deref().unwrap_or_default(),
                errors[i].as_deref().unwrap_or_default(),
                details[i].as_deref().unwrap_or_default(),
            ),
            _ => {
                answer.left = batch.len() - i;
                break;
            }
        };
        answer.outcomes.push(outcome);
    }
    Ok(answer)
}

/// What an error that the handler raised means (contracts: PR100, PR101, PR102).
fn raised(code: &str, message: &str, detail: &str) -> Outcome {
    let error = format!("{code}: {message}");
    match code {
        "PR100" => Outcome::HandlerRefused(error),
        "PR101" => match seconds(detail) {
            Some(delay) => Outcome::RetryIn(delay, error),
            None => Outcome::HandlerFailed(error),
        },
        "PR102" => Outcome::NotHandled(error),
        _ => Outcome::HandlerFailed(error),
    }
}

/// Longest wait that a handler may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 24 * 3600);

/// The duration in DETAIL of PR101: a number with `ms`, `s`, `m` or `h`.
fn seconds(text: &str) -> Option<Duration> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..end].parse().ok()?;
    let milliseconds = match text[end..].trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(milliseconds)?).min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Failure, failure, raised, seconds};
    use crate::engine::outcome::Outcome;
    use crate::reason::Reason;

    #[test]
    fn codes_of_the_contract_decide_what_becomes_of_a_message() {
        assert_eq!(
            raised("PR100", "no", ""),
            Outcome::HandlerRefused("PR100: no".to_owned())
        );
        assert_eq!(
            raised("PR101", "later", "5 s"),
            Outcome::RetryIn(Duration::from_secs(5), "PR101: later".to_owned())
        );
        assert_eq!(
            raised("PR101", "later", "soon"),
            Outcome::HandlerFailed("PR101: later".to_owned())
        );
        assert_eq!(
            raised("PR102", "what", ""),
            Outcome::NotHandled("PR102: what".to_owned())
        );
        assert_eq!(
            raised("23505", "twice", ""),
            Outcome::HandlerFailed("23505: twice".to_owned())
        );
    }

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        assert_eq!(seconds("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(seconds(" 2 h "), Some(Duration::from_secs(7_200)));
        for text in ["", "5", "s", "-5 s", "5 days", "99999999999999999999 s"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn a_failure_concerns_the_batch_the_endpoint_or_the_session() {
        let of = |code: Option<&str>| {
            let reason = Reason::new("DatabaseError", "text", "");
            match failure(code.map(str::to_owned), reason, "app.f") {
                Failure::Batch(..) => "batch",
                Failure::Endpoint(_) => "endpoint",
                Failure::Session(_) => "session",
            }
        };
        assert_eq!(of(Some("40P01")), "batch");
        assert_eq!(of(Some("57014")), "batch");
        assert_eq!(of(Some("23505")), "batch");
        assert_eq!(of(Some("42883")), "endpoint");
        assert_eq!(of(Some("42501")), "endpoint");
        assert_eq!(of(Some("57P01")), "session");
        assert_eq!(of(None), "session");
    }
}
