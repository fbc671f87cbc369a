//! The database of the model: rows with the transactions that wrote them, deferrals, leases; and the truth about all of them.

mod answers;
mod settles;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::super::super::intake::share;
use super::super::super::lanes::Lane;
use super::super::super::message::samples::message;
use super::super::super::message::{Batch, Identity, Key, Mark, Message, Place, Row, Snapshot};
use super::{Chance, World};
use crate::settle::{Claim, Settled};
use crate::store::{Fetch, Signal};

const STREAMS: usize = 3;
const FIRST_XACT: u64 = 100;

#[derive(Debug)]
struct Transaction {
    began: u64,
    /// Whether it was committed, and when it ended.
    ended: Option<(bool, u64)>,
}

#[derive(Debug, Clone)]
struct Deferred {
    message_id: Uuid,
    lane: Option<Lane>,
    blocking: bool,
    due: u64,
    deferrals: u32,
    /// Written with the row, so visible with it.
    with_row: bool,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Lease {
    pub(super) owner: Option<usize>,
    pub(super) epoch: i64,
    pub(super) low_mark: u64,
    pub(super) removals: i64,
    pub(super) suspect: bool,
}

#[derive(Debug)]
pub(super) struct Database {
    world: World,
    /// Milliseconds.
    pub(super) clock: u64,
    /// No further failures.
    pub(super) calm: bool,
    events: u64,
    next_xact: u64,
    position: i64,
    transactions: BTreeMap<u64, Transaction>,
    /// Transactions without a number yet: when they began.
    unnumbered: Vec<u64>,
    rows: BTreeMap<Key, Arc<Message>>,
    deferred: BTreeMap<Key, Deferred>,
    pub(super) leases: Vec<Lease>,
    /// The broker has them, though the rows may still be there.
    pub(super) confirmed: BTreeSet<Key>,
    /// Once put off without blocking their stream.
    passed: BTreeSet<Key>,
}

impl Database {
    pub(super) fn new(world: World) -> Self {
        Self {
            world,
            clock: 0,
            calm: false,
            events: 0,
            next_xact: FIRST_XACT,
            position: 0,
            transactions: BTreeMap::new(),
            unnumbered: Vec::new(),
            rows: BTreeMap::new(),
            deferred: BTreeMap::new(),
            leases: vec![Lease::default(); usize::try_from(world.partitions).unwrap()],
            confirmed: BTreeSet::new(),
            passed: BTreeSet::new(),
        }
    }

    pub(super) fn lease(&mut self, partition: i16) -> &mut Lease {
        &mut self.leases[usize::try_from(partition).unwrap()]
    }

    fn lane(&self, message: &Message) -> Option<Lane> {
        Lane::of(self.world.mode, message)
    }

    // What applications and people do.

    pub(super) fn act(&mut self, chance: &mut Chance) {
        self.events += 1;
        let running: Vec<u64> = self.running();
        match chance.below(20) {
            0..=2 => self.unnumbered.push(self.events),
            3..=4 => {
                self.begin();
            }
            5..=7 if !self.unnumbered.is_empty() => {
                let began = self
                    .unnumbered
                    .swap_remove(chance.below(self.unnumbered.len()));
                let xact = self.number(began);
                self.write(xact, chance);
            }
            8..=12 if !running.is_empty() => {
                let xact = running[chance.below(running.len())];
                self.write(xact, chance);
            }
            13..=16 if !running.is_empty() => {
                let xact = running[chance.below(running.len())];
                self.end(xact, chance.percent(80));
            }
            17 => {
                // One transaction with many rows.
                let xact = self.begin();
                for _ in 0..chance.below(12) {
                    self.write(xact, chance);
                }
                if chance.percent(70) {
                    self.end(xact, true);
                }
            }
            18 => self.redrive(chance),
            19 if chance.percent(20) => self.orphan(chance),
            _ => {}
        }
    }

    pub(super) fn end_all(&mut self, chance: &mut Chance) {
        for xact in self.running() {
            self.events += 1;
            self.end(xact, chance.percent(80));
        }
    }

    fn begin(&mut self) -> u64 {
        self.number(self.events)
    }

    fn number(&mut self, began: u64) -> u64 {
        let xact = self.next_xact;
        self.next_xact += 1;
        let ended = None;
        self.transactions.insert(xact, Transaction { began, ended });
        xact
    }

    fn write(&mut self, xact: u64, chance: &mut Chance) {
        self.position += 1;
        // The first stream is hot.
        let stream = [Some(0), Some(0), Some(0), Some(1), Some(2), None][chance.below(6)];
        let partitions = usize::try_from(self.world.partitions).unwrap();
        let slice = stream.map_or_else(|| chance.below(partitions), |s| s % partitions);
        debug_assert!(stream.is_none_or(|s| s < STREAMS));
        let partition = i16::try_from(slice).unwrap();
        let place = Place {
            xact,
            id: self.position,
        };
        let key = Key { partition, place };
        let message = Message {
            identity: Identity {
                key,
                message_id: Uuid::from_u128(self.position.unsigned_abs().into()),
            },
            ..message(partition, xact, stream.map(|s| s.to_string()).as_deref())
        };
        if chance.percent(8) {
            let lane = self.lane(&message);
            let deferred = Deferred {
                message_id: message.identity.message_id,
                blocking: lane.is_some() && !self.world.skips,
                lane,
                due: self.clock + u64::try_from(chance.below(80)).unwrap(),
                deferrals: 0,
                with_row: true,
            };
            if !deferred.blocking {
                self.passed.insert(key);
            }
            self.deferred.insert(key, deferred);
        }
        self.rows.insert(key, Arc::new(message));
    }

    fn end(&mut self, xact: u64, commit: bool) {
        let now = self.events;
        if let Some(transaction) = self.transactions.get_mut(&xact) {
            transaction.ended = Some((commit, now));
        }
        if !commit {
            self.rows.retain(|key, _| key.place.xact != xact);
            self.deferred
                .retain(|key, deferred| key.place.xact != xact || !deferred.with_row);
        }
    }

    /// Somebody ends the wait of a message.
    fn redrive(&mut self, chance: &mut Chance) {
        let candidates: Vec<Key> = self
            .deferred
            .keys()
            .filter(|key| self.is_committed(key.place.xact))
            .copied()
            .collect();
        if candidates.is_empty() {
            return;
        }
        let key = candidates[chance.below(candidates.len())];
        self.position += 1;
        match self.deferred.get_mut(&key) {
            Some(deferred) if !deferred.blocking => deferred.due = self.clock,
            Some(_) | None => {
                self.remove_deferrals(&[key]);
            }
        }
    }

    /// A row goes away, and its deferral stays.
    fn orphan(&mut self, chance: &mut Chance) {
        let candidates: Vec<Key> = self
            .deferred
            .keys()
            .filter(|key| self.is_committed(key.place.xact))
            .copied()
            .collect();
        if !candidates.is_empty() {
            let key = candidates[chance.below(candidates.len())];
            self.rows.remove(&key);
            if let Some(deferred) = self.deferred.get_mut(&key) {
                deferred.due = self.clock;
            }
            self.position += 1;
        }
    }

    // What is true.

    fn running(&self) -> Vec<u64> {
        self.transactions
            .iter()
            .filter(|(_, transaction)| transaction.ended.is_none())
            .map(|(&xact, _)| xact)
            .collect()
    }

    fn is_committed(&self, xact: u64) -> bool {
        matches!(self.transactions[&xact].ended, Some((true, _)))
    }

    fn snapshot(&self) -> Snapshot {
        // As PostgreSQL: it ends with the youngest that has ended, and does not list those above.
        let ended = |(_, transaction): &(&u64, &Transaction)| transaction.ended.is_some();
        let youngest = self.transactions.iter().rfind(ended);
        let xmax = youngest.map_or(FIRST_XACT, |(xact, _)| xact + 1);
        let running: Vec<u64> = self.running().into_iter().filter(|x| *x < xmax).collect();
        Snapshot {
            xmin: running.first().copied().unwrap_or(xmax),
            xmax,
            running,
        }
    }

    fn is_visible_deferral(&self, key: &Key) -> bool {
        self.deferred
            .get(key)
            .is_some_and(|d| !d.with_row || self.is_committed(key.place.xact))
    }

    fn is_parked(&self, key: Key, lane: Option<&Lane>) -> bool {
        lane.is_some()
            && self
                .deferred
                .range(
                    Key {
                        partition: key.partition,
                        place: Place::before(0),
                    }..key,
                )
                .any(|(of, d)| {
                    d.blocking && d.lane.as_ref() == lane && self.is_visible_deferral(of)
                })
    }

    /// Whether a message is still to be taken by the broker.
    pub(super) fn has_to_go(&self, key: Key) -> bool {
        self.rows.contains_key(&key)
            && !self.confirmed.contains(&key)
            && !self.passed.contains(&key)
    }

    /// A message is handed out: none that was committed before it began may still have to go before it.
    pub(super) fn check_order(&self, message: &Message) {
        let key = message.identity.key;
        let Some(lane) = self.lane(message) else {
            return;
        };
        let began = self.transactions[&key.place.xact].began;
        for (earlier, row) in &self.rows {
            let Some((true, at)) = self.transactions[&earlier.place.xact].ended else {
                continue;
            };
            let counts = at < began
                && self.lane(row).as_ref() == Some(&lane)
                && !self.confirmed.contains(earlier)
                && !self.passed.contains(earlier);
            assert!(
                !counts,
                "{key:?} overtakes {earlier:?}, deferred: {:?}",
                self.deferred.get(earlier)
            );
        }
    }

    /// A low mark was stored.
    fn check_low_mark(&self, partition: i16, low_mark: u64) {
        for (key, row) in &self.rows {
            let passed = key.partition == partition
                && key.place.xact < low_mark
                && !self.deferred.contains_key(key)
                && !self.is_parked(*key, self.lane(row).as_ref());
            assert!(
                !passed,
                "low mark {low_mark} of {partition} is above {key:?}, which has not been settled"
            );
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn stuck(&self) -> String {
        let rows: Vec<_> = self.rows.iter().map(|(k, m)| (k, &m.stream)).collect();
        format!(
            "never delivered, at {}: {rows:?}; deferred {:?}; {:?}; {:?}",
            self.clock, self.deferred, self.leases, self.world
        )
    }

    // What the functions answer.
}
