//! What the settling functions do.

use super::*;

impl Database {
    pub(super) fn lost(&self, worker: usize, claims: &[Claim]) -> Vec<i16> {
        let mut lost: Vec<i16> = claims
            .iter()
            .filter(|claim| {
                let lease = &self.leases[usize::try_from(claim.identity.key.partition).unwrap()];
                lease.owner != Some(worker) || lease.epoch != claim.epoch
            })
            .map(|claim| claim.identity.key.partition)
            .collect();
        lost.dedup();
        lost
    }

    pub(super) fn remove_deferrals(&mut self, keys: &[Key]) -> Vec<(i16, i64)> {
        let mut freed: BTreeMap<i16, u64> = BTreeMap::new();
        for key in keys {
            if let Some(Deferred { blocking: true, .. }) = self.deferred.remove(key) {
                let low = freed.entry(key.partition).or_insert(key.place.xact);
                *low = key.place.xact.min(*low);
            }
        }
        freed
            .into_iter()
            .map(|(partition, xact)| (partition, self.tell_freed(partition, xact)))
            .collect()
    }

    pub(super) fn tell_freed(&mut self, partition: i16, xact: u64) -> i64 {
        let lease = self.lease(partition);
        lease.low_mark = lease.low_mark.min(xact);
        lease.removals += 1;
        lease.removals
    }

    /// As `complete_outbox_published`, or `bury_messages` where `fenced`.
    pub(in super::super) fn remove(
        &mut self,
        worker: usize,
        claims: &[Claim],
        fenced: bool,
    ) -> Settled {
        let lost = self.lost(worker, claims);
        let keys: Vec<Key> = claims
            .iter()
            .map(|claim| claim.identity.key)
            .filter(|key| !fenced || !lost.contains(&key.partition))
            .collect();
        for key in &keys {
            self.rows.remove(key);
        }
        let freed = self.remove_deferrals(&keys);
        Settled {
            lost,
            freed,
            ..Settled::default()
        }
    }

    /// As `defer_messages`, of one message.
    pub(in super::super) fn defer(
        &mut self,
        worker: usize,
        claim: &Claim,
        delay: Duration,
        blocking: bool,
    ) -> Settled {
        let lost = self.lost(worker, std::slice::from_ref(claim));
        let mut written = 0;
        let key = claim.identity.key;
        if let (true, Some(row)) = (lost.is_empty(), self.rows.get(&key)) {
            let lane = self.lane(row);
            let blocking = blocking && lane.is_some();
            if !blocking {
                self.passed.insert(key);
            }
            let before = self.deferred.get(&key).cloned();
            if before.as_ref().is_some_and(|d| d.blocking && !blocking) {
                self.tell_freed(key.partition, key.place.xact);
            }
            let deferrals = before.map_or(0, |d| d.deferrals) + 1;
            let deferred = Deferred {
                message_id: claim.identity.message_id,
                lane,
                blocking,
                due: self.clock + u64::try_from(delay.as_millis()).unwrap(),
                deferrals,
                with_row: false,
            };
            self.deferred.insert(key, deferred);
            written = 1;
        }
        Settled {
            lost,
            deferred: written,
            ..Settled::default()
        }
    }

    /// The compare-and-set of a low mark, as in `claim_work` and `release_work`.
    pub(in super::super) fn move_low_mark(&mut self, partition: i16, mark: Mark) {
        let lease = self.lease(partition);
        if lease.low_mark == mark.seen && lease.removals == mark.removals {
            lease.low_mark = mark.new;
            self.check_low_mark(partition, mark.new);
        }
    }
}
