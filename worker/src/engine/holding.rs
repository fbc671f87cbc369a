//! What is held: taking over what a claim answered, losing partitions, giving them back.
//!
//! Invariants: a partition is read only under an epoch that was not given up before; a partition goes back
//! only when nothing of it is in memory; its low mark never passes a row that is not settled or deferred.

use std::time::Instant;

use uuid::Uuid;

use super::{Endpoint, Held, LOW_MARKS};
use crate::store::HeldPartition;

impl Endpoint {
    /// Past the trusted time everything is lost, whatever the database says later.
    pub(super) fn check_trust(&mut self) {
        if !self.held.is_empty() && !self.shared.trust.holds() {
            let lost: Vec<_> = self.held.keys().copied().collect();
            for partition in lost {
                self.lose(partition);
            }
        }
    }

    pub(super) fn lose(&mut self, partition: i16) {
        if let Some(held) = self.held.remove(&partition) {
            self.shared.metrics.lease_lost.inc();
            self.note_dropped(partition, held.epoch);
            self.forget_partition(partition);
        }
    }

    /// Remembers that a claim was given up.
    pub(super) fn note_dropped(&mut self, partition: i16, epoch: i64) {
        self.dropped.insert(partition, (epoch, Instant::now()));
    }

    pub(super) fn forget_partition(&mut self, partition: i16) {
        self.memory.forget_partition(partition);
        self.sweep.forget(partition);
    }

    /// The server crashed or was promoted: numbers and positions may be given out again.
    pub(super) fn forget_everything(&mut self) {
        for partition in std::mem::take(&mut self.held).into_keys() {
            self.forget_partition(partition);
        }
        self.dropped.clear();
        self.memory.forget_numbers();
        self.incarnation = None;
        self.shared.claim_now.notify_one();
    }

    /// Whether an answer comes from the server we know; if not, everything is forgotten.
    pub(super) fn is_same_incarnation(&mut self, incarnation: Option<Uuid>) -> bool {
        if incarnation.is_some() && incarnation == self.incarnation {
            return true;
        }
        if self.incarnation.is_some() {
            tracing::warn!(endpoint = %self.shared.config.name, "The database server was restarted after a crash, or promoted; reading again from the low marks");
            self.forget_everything();
        }
        false
    }

    /// Takes over what `claim_work` answered.
    pub(super) fn on_claims(&mut self) {
        let claims = self.shared.claims.borrow_and_update().clone();
        let holding = claims
            .holdings
            .get(&self.shared.config.name)
            .cloned()
            .unwrap_or_default();
        if claims.incarnation != self.incarnation {
            if self.incarnation.is_some() {
                self.forget_everything();
            }
            self.incarnation = claims.incarnation;
        }
        let gone: Vec<_> = self
            .held
            .keys()
            .filter(|p| !holding.partitions.contains_key(p))
            .copied()
            .collect();
        for partition in gone {
            self.lose(partition);
        }
        for (&partition, claimed) in &holding.partitions {
            let known = self.held.get(&partition).map(|held| held.epoch);
            if known.is_some_and(|epoch| epoch != claimed.epoch) {
                self.lose(partition);
            }
            // What was only given up here, because the trusted time had ended, may still be ours: then a later claim says so.
            if self.dropped.get(&partition).is_some_and(|&(epoch, at)| {
                claimed.epoch < epoch || (claimed.epoch == epoch && claims.sent < at)
            }) {
                continue;
            }
            if let Some(held) = self.held.get_mut(&partition) {
                if held.quiet && !claimed.hand_over {
                    held.quiet = false;
                    self.memory.hungry = true;
                }
                held.hand_over = claimed.hand_over;
                self.memory.reading.low_mark_is(partition, claimed.low_mark);
                self.memory
                    .reading
                    .low_mark_stored(partition, claimed.low_mark);
                continue;
            }
            self.held.insert(
                partition,
                Held {
                    epoch: claimed.epoch,
                    hand_over: claimed.hand_over,
                    quiet: false,
                    releasing: false,
                },
            );
            let HeldPartition {
                low_mark, removals, ..
            } = *claimed;
            self.memory
                .gain(partition, low_mark, removals, claimed.suspect);
        }
    }

    /// Partitions that others should have, or all of them when draining, go back once nothing of theirs is in memory.
    pub(super) fn give_partitions_back(&mut self) {
        let draining = self.is_draining();
        let wanted: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| (held.hand_over || draining) && !held.releasing)
            .map(|(p, held)| (*p, held.epoch))
            .collect();
        for (partition, epoch) in wanted {
            self.quieten(partition);
            if self.memory.lanes.is_clear_of(partition)
                && self.fetch.is_none()
                && let Some(mark) = self.memory.mark(partition)
            {
                if let Some(held) = self.held.get_mut(&partition) {
                    held.releasing = true;
                }
                self.settling.release((partition, epoch, mark));
            }
        }
    }

    pub(super) fn report_low_marks(&mut self) {
        if self.low_marks_at.elapsed() < LOW_MARKS {
            return;
        }
        self.low_marks_at = Instant::now();
        let moved: Vec<_> = self
            .held
            .keys()
            .filter_map(|&p| Some((p, self.memory.mark(p)?)))
            .filter(|(_, mark)| mark.new > mark.seen)
            .collect();
        let mut marks = self
            .shared
            .low_marks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        marks.insert(self.shared.config.name.clone(), moved);
    }
}
