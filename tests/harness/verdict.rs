//! The verdict on what arrived, by the ledger of what was written.
//!
//! What it checks: nothing committed is missing (G1), nothing rolled back arrives (G2), the order of a stream holds
//! wherever one transaction had committed before another began (G3), and a repeat is the same message to the last
//! header (G4). A transaction whose commit got no answer may have happened or not: its messages may arrive or not, and
//! nothing can be said to have come after it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Debug, Display};
use std::time::Instant;

use anyhow::{Result, bail};
use lapin::types::{FieldTable, ShortString};
use uuid::Uuid;

use crate::ledger::{Ledger, Outcome, Transaction, digest};
use crate::received::Received;

/// The part of a delivery that the verdict rests on.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// The queue it came from; order is judged within a queue.
    pub queue: String,
    /// The message id; none if it was not a UUID.
    pub id: Option<Uuid>,
    /// A hash of the body.
    pub body: u64,
    /// A hash of all headers and properties.
    pub rest: u64,
    /// A repeat made by the broker.
    pub redelivered: bool,
}

impl From<&Received> for Arrival {
    fn from(received: &Received) -> Self {
        let properties = received
            .properties
            .clone()
            .with_headers(without_counts(received));
        let rest = format!(
            "{properties:?} {} {}",
            received.exchange, received.routing_key
        );
        Self {
            queue: received.queue.clone(),
            id: received.id(),
            body: digest(&received.body),
            rest: digest(rest.as_bytes()),
            redelivered: received.redelivered,
        }
    }
}

/// The headers, without the one that a quorum queue adds to what it delivers again.
fn without_counts(received: &Received) -> FieldTable {
    let headers = received.headers.iter();
    headers
        .filter(|(name, _)| *name != "x-delivery-count" && *name != "x-acquired-count")
        .map(|(name, value)| (ShortString::from(name.as_str()), value.clone()))
        .collect::<BTreeMap<_, _>>()
        .into()
}

/// Two messages of a stream that arrived the wrong way round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// Their stream.
    pub stream: String,
    /// The one that should have come first.
    pub earlier: Uuid,
    /// The one that did.
    pub later: Uuid,
}

/// What a message differed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Its body is not what was written.
    BodyFromWritten,
    /// A repeat has another body than the first one.
    BodyOnRepeat,
    /// A repeat has another header, property, exchange or routing key.
    HeadersOnRepeat,
}

/// What came of it.
#[derive(Debug, Default, Clone)]
pub struct Verdict {
    /// Messages committed for sure.
    pub committed: usize,
    /// Different messages that arrived.
    pub received: usize,
    /// Committed and not here.
    pub missing: Vec<Uuid>,
    /// Here and not committed: rolled back, or never written, or without a proper id (those as the nil id).
    pub unexpected: Vec<Uuid>,
    /// Breaches of a stream's order: for each later message at most one.
    pub out_of_order: Vec<Breach>,
    /// Messages that came again, as often as they did, without the broker's own repeats.
    pub repeats: usize,
    /// Messages that came otherwise than they were written or than they came before.
    pub changed: Vec<(Uuid, Change)>,
}

impl Verdict {
    /// Takes messages that are known to be parked or dead out of what is missing.
    #[must_use]
    pub fn excuse(mut self, ids: &HashSet<Uuid>) -> Self {
        self.missing.retain(|id| !ids.contains(id));
        self
    }

    /// Requires that nothing is wrong and that there are at most so many repeats.
    ///
    /// # Errors
    /// When something is; the message shows the first of each kind.
    pub fn require(&self, most_repeats: usize) -> Result<()> {
        let sound = self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.out_of_order.is_empty()
            && self.changed.is_empty();
        if sound && self.repeats <= most_repeats {
            return Ok(());
        }
        bail!("{self}\nallowed repeats: {most_repeats}{}", self.samples())
    }

    fn samples(&self) -> String {
        fn some<T: Debug>(name: &str, list: &[T]) -> String {
            if list.is_empty() {
                String::new()
            } else {
                format!("\n{name}: {:?}", &list[..list.len().min(5)])
            }
        }
        some("missing", &self.missing)
            + &some("unexpected", &self.unexpected)
            + &some("out of order", &self.out_of_order)
            + &some("changed", &self.changed)
    }
}

impl Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            committed,
            received,
            missing,
            unexpected,
            out_of_order,
            repeats,
            changed,
        } = self;
        write!(
            formatter,
            "committed {committed} received {received} missing {} unexpected {} out of order {} repeats {repeats} changed {}",
            missing.len(),
            unexpected.len(),
            out_of_order.len(),
            changed.len()
        )
    }
}

/// The first delivery of a message.
struct First {
    position: usize,
    arrival: Arrival,
}

/// Judges deliveries, in their order of arrival, by the ledger.
pub fn check(ledger: &Ledger, received: &[Received]) -> Verdict {
    check_arrivals(
        ledger,
        &received.iter().map(Arrival::from).collect::<Vec<_>>(),
    )
}

/// The same over the parts that matter.
pub fn check_arrivals(ledger: &Ledger, arrivals: &[Arrival]) -> Verdict {
    let transactions = ledger.entries();
    let mut verdict = Verdict::default();
    let firsts = first_appearances(arrivals, &mut verdict);
    judge_presence(&transactions, &firsts, &mut verdict);
    verdict.out_of_order = judge_order(&transactions, &firsts);
    verdict
}

fn first_appearances(arrivals: &[Arrival], verdict: &mut Verdict) -> HashMap<Uuid, First> {
    let mut firsts = HashMap::new();
    for (position, arrival) in arrivals.iter().enumerate() {
        let Some(id) = arrival.id else {
            verdict.unexpected.push(Uuid::nil());
            continue;
        };
        match firsts.entry(id) {
            Entry::Vacant(slot) => {
                slot.insert(First {
                    position,
                    arrival: arrival.clone(),
                });
            }
            Entry::Occupied(slot) => {
                let first: &First = slot.get();
                verdict.repeats += usize::from(!arrival.redelivered);
                if arrival.body != first.arrival.body {
                    verdict.changed.push((id, Change::BodyOnRepeat));
                }
                if arrival.rest != first.arrival.rest {
                    verdict.changed.push((id, Change::HeadersOnRepeat));
                }
            }
        }
    }
    verdict.received = firsts.len();
    firsts
}

fn judge_presence(
    transactions: &[Transaction],
    firsts: &HashMap<Uuid, First>,
    verdict: &mut Verdict,
) {
    let mut allowed = HashSet::new();
    for transaction in transactions
        .iter()
        .filter(|transaction| transaction.outcome != Outcome::RolledBack)
    {
        for message in &transaction.messages {
            allowed.insert(message.id);
            verdict.committed += usize::from(transaction.outcome == Outcome::Committed);
            match firsts.get(&message.id) {
                Some(first) if first.arrival.body != message.body => {
                    verdict.changed.push((message.id, Change::BodyFromWritten))
                }
                Some(_) => {}
                None if transaction.outcome == Outcome::Committed => {
                    verdict.missing.push(message.id)
                }
                None => {}
            }
        }
    }
    let mut unexpected: Vec<_> = firsts
        .iter()
        .filter(|(id, _)| !allowed.contains(id))
        .collect();
    unexpected.sort_by_key(|(_, first)| first.position);
    verdict
        .unexpected
        .extend(unexpected.into_iter().map(|(id, _)| *id));
}

/// A message of one stream that arrived.
struct Placed {
    began: Instant,
    /// None: nobody knows when it was committed, so nothing has to come after it.
    ended: Option<Instant>,
    position: usize,
    id: Uuid,
}

/// Within a stream and a queue: every message must come after all messages whose transaction had ended before its own
/// began, and after those before it in its own transaction. Sorted by end, the furthest position of all that had ended
/// before is one look into a running maximum, so a million messages take a second and not a day.
fn judge_order(transactions: &[Transaction], firsts: &HashMap<Uuid, First>) -> Vec<Breach> {
    let mut streams: BTreeMap<(&str, &str), Vec<Placed>> = BTreeMap::new();
    let mut breaches = Vec::new();
    for transaction in transactions {
        let mut furthest: HashMap<(&str, &str), (usize, Uuid)> = HashMap::new();
        for message in transaction
            .messages
            .iter()
            .filter(|message| !message.stream.is_empty())
        {
            let Some(first) = firsts.get(&message.id) else {
                continue;
            };
            let key = (first.arrival.queue.as_str(), message.stream.as_str());
            let before = furthest.entry(key).or_insert((first.position, message.id));
            if before.0 > first.position {
                breaches.push(Breach {
                    stream: message.stream.clone(),
                    earlier: before.1,
                    later: message.id,
                });
            } else {
                *before = (first.position, message.id);
            }
            let ended = (transaction.outcome == Outcome::Committed).then_some(transaction.ended);
            streams.entry(key).or_default().push(Placed {
                began: transaction.began,
                ended,
                position: first.position,
                id: message.id,
            });
        }
    }
    for ((_, stream), messages) in &streams {
        breaches.extend(judge_stream(stream, messages));
    }
    breaches
}

fn judge_stream(stream: &str, messages: &[Placed]) -> Vec<Breach> {
    let mut ended: Vec<(Instant, usize, Uuid)> = messages
        .iter()
        .filter_map(|message| Some((message.ended?, message.position, message.id)))
        .collect();
    ended.sort_by_key(|&(ended, ..)| ended);
    let mut furthest = (0, Uuid::nil());
    for entry in &mut ended {
        furthest = furthest.max((entry.1, entry.2));
        (entry.1, entry.2) = furthest;
    }
    let breach = |message: &Placed| {
        let before = ended.partition_point(|&(ended, ..)| ended < message.began);
        let &(_, position, earlier) = ended.get(before.checked_sub(1)?)?;
        (position > message.position).then(|| Breach {
            stream: stream.to_owned(),
            earlier,
            later: message.id,
        })
    };
    messages.iter().filter_map(breach).collect()
}

#[cfg(test)]
mod tests;
