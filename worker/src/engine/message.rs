//! A message as the relay sees it.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

/// Where a row stands in the reading order of its partition: transaction number, then position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Number of the transaction that wrote the row.
    pub xact: u64,
    /// Position of the row; -1 stands before the first row of the transaction.
    pub id: i64,
}

impl Place {
    /// Before every row of transaction `xact`.
    pub const fn before(xact: u64) -> Self {
        Self { xact, id: -1 }
    }

    /// Just before this place.
    pub const fn step_back(self) -> Self {
        Self {
            xact: self.xact,
            id: self.id - 1,
        }
    }
}

/// The whole key of a row of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// One of the 64 slices.
    pub partition: i16,
    /// Place in the slice.
    pub place: Place,
}

/// A key with the id of its message: what every settle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The row.
    pub key: Key,
    /// The message; after a crash the same key may belong to another one.
    pub message_id: Uuid,
}

/// A low mark to move, by compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// As the database had it.
    pub seen: u64,
    /// Where it may go.
    pub new: u64,
    /// The counter of removals that `new` has taken account of. The mark alone would not tell: one that was lower
    /// already does not move when a stream is freed above it.
    pub removals: i64,
}

/// A stream of a tenant. Cheap to copy: it names a message's lane wherever that is looked up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// Tenant, line feed, stream, as in the key of a deferral.
    key: Arc<str>,
    name: usize,
}

impl Stream {
    /// The stream `name` of `tenant`, which is empty for none.
    pub fn new(tenant: &str, name: &str) -> Self {
        Self {
            key: format!("{tenant}\n{name}").into(),
            name: tenant.len() + 1,
        }
    }

    /// Without the tenant.
    pub fn name(&self) -> &str {
        &self.key[self.name..]
    }
}

/// A message that waits to be published.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Row and message id.
    pub identity: Identity,
    /// Tenant; empty for none.
    pub tenant: String,
    /// Stream, if the message belongs to one.
    pub stream: Option<Stream>,
    /// Type, such as `order.created`.
    pub kind: String,
    /// Routing key of the row; it wins over the endpoint's template.
    pub routing_key: Option<String>,
    /// Content type of the body.
    pub content_type: String,
    /// Headers of the row, JSON text.
    pub headers: Option<String>,
    /// The body as it goes out.
    pub body: Vec<u8>,
    /// Correlation id.
    pub correlation_id: Option<String>,
    /// Id of what caused this message.
    pub causation_id: Option<String>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// Idempotency key the writer gave.
    pub idempotency_key: Option<String>,
    /// When the row was written, as seconds since 1970.
    pub created_at: u64,
    /// Whether its time of expiry had passed when it was read.
    pub expired: bool,
    /// Failures that count against the limit.
    pub attempts: u32,
    /// All deferrals so far; above zero means that a deferral of its own exists.
    pub deferrals: u32,
}

impl Message {
    /// Bytes that count against the limit of what is in flight.
    pub fn size(&self) -> u64 {
        self.body.len() as u64
    }
}

/// What one fetch answers.
#[derive(Debug, Default)]
pub struct Batch {
    /// Rows in the order in which the database gave them.
    pub rows: Vec<Row>,
    /// The snapshot all of them were read in.
    pub snapshot: Snapshot,
    /// Until the next deferred message is due.
    pub next_due: Option<Duration>,
    /// Incarnation of the server; none after a crash, until the next claim.
    pub incarnation: Option<Uuid>,
    /// Low mark of each partition asked for, in that order.
    pub low_marks: Vec<u64>,
    /// Counter of removed blocking deferrals of each partition asked for.
    pub removals: Vec<i64>,
    /// More late rows than fit into one batch.
    pub too_many_late: bool,
}

/// One row of a fetch.
#[derive(Debug)]
pub enum Row {
    /// Written by a transaction that was running when the cursor passed it.
    Late(Arc<Message>),
    /// After the cursor.
    Next(Arc<Message>),
    /// Deferred, behind the cursor, and due.
    Due(Arc<Message>),
    /// After the cursor, but deferred or parked.
    Skipped(Key),
    /// A deferral whose message is gone.
    Orphan(Identity),
}

/// A snapshot of PostgreSQL: which transactions were running.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Every lower transaction had ended.
    pub xmin: u64,
    /// Every transaction from here on had not begun.
    pub xmax: u64,
    /// The running ones in between.
    pub running: Vec<u64>,
}

impl Snapshot {
    /// Reads the text form `xmin:xmax:x,y,z`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let xmin = parts.next()?.parse().ok()?;
        let xmax = parts.next()?.parse().ok()?;
        let running = parts
            .next()?
            .split(',')
            .filter(|x| !x.is_empty())
            .map(|x| x.parse().ok())
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            xmin,
            xmax,
            running,
        })
    }

    /// Whether transaction `xact` had ended, so that its rows are visible or never will be.
    pub fn has_ended(&self, xact: u64) -> bool {
        xact < self.xmax && !self.running.contains(&xact)
    }
}

#[cfg(test)]
pub(crate) mod samples;

#[cfg(test)]
mod tests {
    use super::Snapshot;

    #[test]
    fn a_snapshot_knows_which_transactions_have_ended() {
        let snapshot = Snapshot::parse("10:20:10,14").unwrap();
        assert!(snapshot.has_ended(9) && snapshot.has_ended(11) && snapshot.has_ended(19));
        assert!(!snapshot.has_ended(10) && !snapshot.has_ended(14) && !snapshot.has_ended(20));
        assert!(Snapshot::parse("7:7:").unwrap().running.is_empty());
        assert_eq!(Snapshot::parse("7:x:"), None);
    }
}
