//! What should arrive, kept outside the database; [`crate::verdict`] compares it with what did.
//!
//! Invariant: a transaction begins before its BEGIN is sent and ends after its COMMIT has returned, so that when the
//! ledger says "A ended before B began" it was so in the database as well.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use uuid::Uuid;

/// How a transaction ended, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server said so.
    Committed,
    /// By the client's wish, or because the server refused the commit.
    RolledBack,
    /// The connection broke before the answer.
    Unknown,
}

/// A message in the ledger.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    /// Empty: no stream, no order.
    pub(crate) stream: String,
    pub(crate) id: Uuid,
    pub(crate) body: u64,
}

/// A transaction in the ledger, its messages in the order of the inserts.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) outcome: Outcome,
    pub(crate) messages: Vec<Written>,
    /// Behind a savepoint that was rolled back.
    undone: Vec<Uuid>,
}

/// All transactions of a test; producers on many tasks add to it.
#[derive(Debug, Default)]
pub struct Ledger {
    transactions: Mutex<Vec<Transaction>>,
}

impl Ledger {
    /// Call before BEGIN.
    pub fn begin(&self) -> Draft<'_> {
        Draft {
            ledger: self,
            began: Instant::now(),
            messages: Vec::new(),
            undone: Vec::new(),
        }
    }

    pub(crate) fn entries(&self) -> MutexGuard<'_, Vec<Transaction>> {
        self.transactions
            .lock()
            .expect("no panic while the ledger is written")
    }

    /// How many messages were committed for sure.
    pub fn committed(&self) -> usize {
        self.count(Outcome::Committed)
    }

    /// How many messages were rolled back, with those behind a savepoint.
    pub fn rolled_back(&self) -> usize {
        let transactions = self.entries();
        let undone: usize = transactions
            .iter()
            .map(|transaction| transaction.undone.len())
            .sum();
        drop(transactions);
        undone + self.count(Outcome::RolledBack)
    }

    /// How many messages may have been committed or not.
    pub fn unknown(&self) -> usize {
        self.count(Outcome::Unknown)
    }

    fn count(&self, outcome: Outcome) -> usize {
        let transactions = self.entries();
        transactions
            .iter()
            .filter(|transaction| transaction.outcome == outcome)
            .map(|transaction| transaction.messages.len())
            .sum()
    }

    /// The ids of all messages that were committed for sure.
    pub fn committed_ids(&self) -> HashSet<Uuid> {
        let transactions = self.entries();
        let committed = transactions
            .iter()
            .filter(|transaction| transaction.outcome == Outcome::Committed);
        committed
            .flat_map(|transaction| transaction.messages.iter().map(|message| message.id))
            .collect()
    }

    /// Decides transactions without an answer: those with a message in `committed` happened, the others did not. Ask
    /// the database for that once it is back, in a table that the same transactions wrote.
    pub fn settle_unknown(&self, committed: &HashSet<Uuid>) {
        for transaction in self.entries().iter_mut() {
            if transaction.outcome == Outcome::Unknown {
                let happened = transaction
                    .messages
                    .iter()
                    .any(|message| committed.contains(&message.id));
                // It was committed by now at the latest; before that nobody knows, so order may not rest on it.
                transaction.ended = Instant::now();
                transaction.outcome = if happened {
                    Outcome::Committed
                } else {
                    Outcome::RolledBack
                };
            }
        }
    }
}

/// A transaction that is being written. Dropped without an end, it counts as [`Outcome::Unknown`].
#[derive(Debug)]
pub struct Draft<'a> {
    ledger: &'a Ledger,
    began: Instant,
    messages: Vec<Written>,
    undone: Vec<Uuid>,
}

impl Draft<'_> {
    /// Notes a message, in the order of the inserts. Messages without a stream have none of their order checked.
    pub fn wrote(&mut self, stream: Option<&str>, id: Uuid, body: &[u8]) {
        let stream = stream.unwrap_or_default().to_owned();
        self.messages.push(Written {
            stream,
            id,
            body: digest(body),
        });
    }

    /// The place to go back to; call when the savepoint is set.
    pub fn savepoint(&self) -> usize {
        self.messages.len()
    }

    /// Notes that everything since `savepoint` was rolled back.
    pub fn rolled_back_to(&mut self, savepoint: usize) {
        self.undone
            .extend(self.messages.drain(savepoint..).map(|message| message.id));
    }

    /// Call after the commit has returned.
    pub fn end(mut self, outcome: Outcome) {
        self.push(outcome);
    }

    fn push(&mut self, outcome: Outcome) {
        let transaction = Transaction {
            began: self.began,
            ended: Instant::now(),
            outcome,
            messages: std::mem::take(&mut self.messages),
            undone: std::mem::take(&mut self.undone),
        };
        self.ledger.entries().push(transaction);
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.messages.is_empty() || !self.undone.is_empty() {
            self.push(Outcome::Unknown);
        }
    }
}

/// A hash to compare bodies by.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
