//! Gaining, losing and handing over partitions.

use super::*;

impl Worker {
    pub(super) fn give_back(&mut self) {
        let wanted: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| held.hand_over && !held.releasing)
            .map(|(&partition, held)| (partition, held.epoch))
            .collect();
        for (partition, epoch) in wanted {
            if let Some(held) = self.held.get_mut(&partition).filter(|held| !held.quiet) {
                held.quiet = true;
                self.memory.quieten(partition);
            }
            if self.memory.lanes.is_clear_of(partition)
                && self.fetch.is_none()
                && let Some(mark) = self.memory.mark(partition)
                && let Some(held) = self.held.get_mut(&partition)
            {
                held.releasing = true;
                self.settling.release((partition, epoch, mark));
            }
        }
    }

    /// Renews, moves low marks, takes what is free; or takes over the answer.
    pub(super) fn claim_step(&mut self, database: &mut Database, chance: &mut Chance) {
        let Some((sent, claimed)) = self.claim.take() else {
            self.claim = Some((self.events, self.claim(database, chance)));
            return;
        };
        let gone: Vec<_> = self
            .held
            .keys()
            .filter(|partition| !claimed.contains_key(partition))
            .copied()
            .collect();
        for partition in gone {
            self.lose(partition);
        }
        for (partition, claimed) in claimed {
            self.take_over(partition, claimed, sent);
        }
    }

    pub(super) fn claim(
        &mut self,
        database: &mut Database,
        chance: &mut Chance,
    ) -> BTreeMap<i16, HeldPartition> {
        let mut claimed = BTreeMap::new();
        for partition in 0..self.world.partitions {
            if database.lease(partition).owner == Some(self.number)
                && let Some(mark) = self.marks.remove(&partition)
            {
                database.move_low_mark(partition, mark);
            }
            let lease = database.lease(partition);
            if lease.owner.is_none() && chance.percent(50) {
                lease.owner = Some(self.number);
                lease.epoch += 1;
            }
            if lease.owner == Some(self.number) {
                let held = HeldPartition {
                    epoch: lease.epoch,
                    low_mark: lease.low_mark,
                    removals: lease.removals,
                    hand_over: self.held.get(&partition).is_some_and(|held| held.hand_over),
                    suspect: lease.suspect,
                };
                claimed.insert(partition, held);
            }
        }
        claimed
    }

    pub(super) fn take_over(&mut self, partition: i16, claimed: HeldPartition, sent: u64) {
        let known = self.held.get(&partition).map(|held| held.epoch);
        if known.is_some_and(|epoch| epoch != claimed.epoch) {
            self.lose(partition);
        }
        if self.dropped.get(&partition).is_some_and(|&(epoch, at)| {
            claimed.epoch < epoch || (claimed.epoch == epoch && sent < at)
        }) {
            return;
        }
        if self.held.contains_key(&partition) {
            let reading = &mut self.memory.reading;
            reading.low_mark_is(partition, claimed.low_mark);
            reading.low_mark_stored(partition, claimed.low_mark);
            return;
        }
        let held = Held {
            epoch: claimed.epoch,
            hand_over: claimed.hand_over,
            quiet: false,
            releasing: false,
        };
        self.held.insert(partition, held);
        *self.tenures.entry(partition).or_default() += 1;
        let (low_mark, removals) = (claimed.low_mark, claimed.removals);
        self.memory
            .gain(partition, low_mark, removals, claimed.suspect);
    }
}
