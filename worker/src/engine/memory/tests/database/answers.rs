//! What poll and fetch answer.

use super::*;

impl Database {
    pub(in super::super) fn poll(&self) -> Signal {
        Signal {
            position: self.position,
            snapshot: self.snapshot(),
            incarnation: None,
        }
    }

    /// As `fetch_outbox_batch`.
    pub(in super::super) fn fetch(&self, fetch: &Fetch) -> Batch {
        let snapshot = self.snapshot();
        let mut batch = Batch {
            next_due: self.next_due(fetch),
            ..Batch::default()
        };
        for &partition in &fetch.partitions {
            let lease = &self.leases[usize::try_from(partition).unwrap()];
            batch.low_marks.push(lease.low_mark);
            batch.removals.push(lease.removals);
        }
        let late = self.late(fetch, &snapshot);
        batch.snapshot = snapshot;
        batch.too_many_late = late.len() > usize::try_from(fetch.max_rows).unwrap();
        batch.rows.extend(late.into_iter().map(Row::Late));
        if !batch.too_many_late {
            self.next(fetch, &mut batch.rows);
            self.due(fetch, &mut batch.rows);
        }
        batch
    }

    pub(super) fn next_due(&self, fetch: &Fetch) -> Option<Duration> {
        self.deferred
            .iter()
            .filter(|(key, d)| {
                fetch.partitions.contains(&key.partition)
                    && d.due > self.clock
                    && self.is_visible_deferral(key)
            })
            .map(|(_, d)| Duration::from_millis(d.due - self.clock))
            .min()
    }

    pub(super) fn after(
        &self,
        partition: i16,
        place: Place,
    ) -> impl Iterator<Item = (Key, &Arc<Message>)> + '_ {
        self.rows
            .iter()
            .filter(move |(key, _)| {
                key.partition == partition && key.place > place && self.is_committed(key.place.xact)
            })
            .map(|(key, row)| (*key, row))
    }

    pub(super) fn late(&self, fetch: &Fetch, snapshot: &Snapshot) -> Vec<Arc<Message>> {
        let mut late: Vec<Arc<Message>> = Vec::new();
        for (&partition, &place) in fetch.partitions.iter().zip(&fetch.places) {
            for &xact in &fetch.running {
                if snapshot.has_ended(xact) && xact < place.xact {
                    late.extend(
                        self.after(partition, Place::before(0))
                            .filter(|(key, row)| {
                                key.place.xact == xact
                                    && !self.is_visible_deferral(key)
                                    && !self.is_parked(*key, self.lane(row).as_ref())
                            })
                            .map(|(_, row)| row.clone()),
                    );
                }
            }
        }
        late.sort_by_key(|row| row.identity.key.place);
        late.truncate(usize::try_from(fetch.max_rows).unwrap() + 1);
        late
    }

    pub(super) fn share(fetch: &Fetch) -> usize {
        share(
            usize::try_from(fetch.max_rows).unwrap(),
            fetch.partitions.len(),
        )
    }

    pub(super) fn next(&self, fetch: &Fetch, rows: &mut Vec<Row>) {
        let places = fetch.partitions.iter().zip(&fetch.places);
        let found = places.flat_map(|(&p, &place)| self.after(p, place).take(Self::share(fetch)));
        let mut bytes = 0;
        for (key, row) in found.take(usize::try_from(fetch.max_rows).unwrap()) {
            if bytes >= fetch.max_bytes {
                return;
            }
            let waits = self.is_visible_deferral(&key) && self.deferred[&key].due > self.clock;
            if waits || self.is_parked(key, self.lane(row).as_ref()) {
                rows.push(Row::Skipped(key));
            } else {
                bytes += i64::try_from(row.size()).unwrap();
                rows.push(Row::Next(self.as_read(key, row)));
            }
        }
    }

    pub(super) fn as_read(&self, key: Key, row: &Arc<Message>) -> Arc<Message> {
        let mut message = Message::clone(row);
        if let Some(deferred) = self.deferred.get(&key) {
            // A scheduled one has not failed yet, but has a deferral all the same.
            message.deferrals = deferred.deferrals.max(1);
        }
        Arc::new(message)
    }

    pub(super) fn due(&self, fetch: &Fetch, rows: &mut Vec<Row>) {
        let mut due = Vec::new();
        for (&partition, &place) in fetch.partitions.iter().zip(&fetch.places) {
            let mut of: Vec<_> = self
                .deferred
                .iter()
                .filter(|(key, d)| {
                    key.partition == partition
                        && d.due <= self.clock
                        && key.place <= place
                        && self.is_visible_deferral(key)
                        && !self.is_parked(**key, d.lane.as_ref())
                })
                .collect();
            of.sort_by_key(|(_, d)| d.due);
            due.extend(of.into_iter().take(Self::share(fetch)));
        }
        due.sort_by_key(|(key, _)| key.place);
        due.truncate(usize::try_from(fetch.max_rows).unwrap());
        rows.extend(due.into_iter().map(|(&key, d)| match self.rows.get(&key) {
            Some(row) => Row::Due(self.as_read(key, row)),
            None => Row::Orphan(Identity {
                key,
                message_id: d.message_id,
            }),
        }));
    }
}
