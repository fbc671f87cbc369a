//! Taking in what a fetch has answered: which rows go to their lanes, how far the cursors have come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::lanes::Offered;
use super::message::{Batch, Message, Place, Row};
use super::reading::Admission;
use super::{CALL_PAUSE, Endpoint};
use crate::hooks;
use crate::reason::Reason;
use crate::status::Scope;
use crate::store::Fetch;

/// The answer to a fetch.
pub(super) type Fetched = Result<Batch, Reason>;

/// What was asked for, and why.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) fetch: Fetch,
    pub(super) sweep: bool,
}

/// How far one partition has come within a batch.
#[derive(Debug, Default, Clone, Copy)]
struct Progress {
    last: Option<Place>,
    rows: usize,
    stopped: bool,
}

/// How a row was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// At the cursor.
    Next,
    /// Behind it: late.
    Late,
    /// Behind it: due.
    Due,
}

impl Endpoint {
    /// What the next fetch asks for.
    pub(super) fn plan_fetch(&mut self) -> Asked {
        let (mut partitions, mut places) = self.reading.plan(self.rotation);
        if hooks::broken("split") {
            // Half of the partitions, but one set of remembered transactions: two snapshots share it.
            self.rotation = -self.rotation - 1;
            let half = usize::from(self.rotation >= 0);
            let chosen: Vec<_> = partitions
                .into_iter()
                .zip(places)
                .filter(|(p, _)| usize::from(p % 2 == 0) == half)
                .collect();
            (partitions, places) = chosen.into_iter().unzip();
            self.seen = None;
        }
        let delivery = &self.shared.config.delivery;
        Asked {
            fetch: Fetch {
                endpoint: self.shared.config.name.clone(),
                partitions,
                places,
                running: self.reading.remembered(),
                max_rows: i32::try_from(delivery.batch_size).unwrap_or(i32::MAX),
                max_bytes: i64::try_from(delivery.max_in_flight_bytes / 2).unwrap_or(i64::MAX),
            },
            sweep: false,
        }
    }

    /// Takes account of a fetch. On failure nothing has moved; the remembered transactions stay remembered.
    pub(super) fn on_fetched(&mut self, asked: &Asked, fetched: Fetched) {
        match fetched {
            Err(reason) => {
                self.fetch_after = Instant::now() + CALL_PAUSE;
                self.seen = None;
                self.shared.status.raise(Scope::Database, reason);
            }
            Ok(batch) => {
                self.shared.status.clear(&Scope::Database);
                if self.is_same_incarnation(batch.incarnation) {
                    if asked.sweep {
                        self.on_swept(&asked.fetch, &batch);
                    } else {
                        self.take_in(&asked.fetch, batch);
                    }
                }
            }
        }
        // Whatever was settled before this fetch returned can no longer come back with one.
        for key in std::mem::take(&mut self.leaving) {
            self.lanes.remove(key);
        }
        self.blocked.clear();
    }

    fn take_in(&mut self, fetch: &Fetch, batch: Batch) {
        self.next_due = batch.next_due.map(|due| Instant::now() + due);
        if batch.too_many_late {
            self.reading.read_again_from_ended(&batch.snapshot);
            self.reading.saw(&batch.snapshot);
            self.hungry = true;
            return;
        }
        let usable: BTreeSet<i16> = (0..fetch.partitions.len())
            .filter(|&i| {
                self.reading.accept_removals(
                    fetch.partitions[i],
                    batch.low_marks[i],
                    batch.removals[i],
                )
            })
            .map(|i| fetch.partitions[i])
            .filter(|partition| self.held.contains_key(partition))
            .collect();
        self.reading.saw(&batch.snapshot);
        let cut = Cut::of(fetch, &batch);
        let mut progress: BTreeMap<i16, Progress> = BTreeMap::new();
        for row in batch.rows {
            self.take_row(row, &usable, &mut progress);
        }
        self.advance(fetch, &usable, &progress, cut);
        let lanes = &self.lanes;
        self.reading.resume_skipped(|lane| lanes.has_room(lane));
    }

    fn take_row(
        &mut self,
        row: Row,
        usable: &BTreeSet<i16>,
        progress: &mut BTreeMap<i16, Progress>,
    ) {
        match row {
            Row::Orphan(identity) => self.settling.clear(identity),
            Row::Skipped(key) => {
                let progress = progress.entry(key.partition).or_default();
                if !progress.stopped {
                    progress.last = Some(key.place);
                }
                progress.rows += 1;
            }
            Row::Next(message) => {
                let key = message.identity.key;
                let progress = progress.entry(key.partition).or_default();
                progress.rows += 1;
                if progress.stopped || !usable.contains(&key.partition) {
                    return;
                }
                if self.take_message(message, Read::Next) {
                    progress.last = Some(key.place);
                } else {
                    progress.stopped = true;
                }
            }
            Row::Late(message) if usable.contains(&message.identity.key.partition) => {
                self.take_message(message, Read::Late);
            }
            Row::Due(message) if usable.contains(&message.identity.key.partition) => {
                self.take_message(message, Read::Due);
            }
            // The partition is read again from its low mark, which is below both.
            Row::Late(_) | Row::Due(_) => {}
        }
    }

    /// Offers a message to its lane. False if the partition must not be read past it now.
    fn take_message(&mut self, message: Arc<Message>, read: Read) -> bool {
        let (partition, place) = (message.identity.key.partition, message.identity.key.place);
        if self
            .held
            .get(&partition)
            .is_none_or(|held| held.hand_over || held.releasing)
            || self.is_draining()
        {
            if read == Read::Late {
                self.reading.read_again(partition, place);
            }
            return false;
        }
        if self.lanes.knows(message.identity.key) {
            return true;
        }
        let lane = self.lanes.lane_of(&message);
        if lane
            .as_ref()
            .is_some_and(|lane| self.blocked.contains(lane))
        {
            return true; // parked by now; it comes back when its stream is freed
        }
        if self
            .reading
            .admit(partition, lane.as_ref(), place, read == Read::Next)
            == Admission::Ignore
        {
            return true;
        }
        if self.suspects.is_gated(partition) {
            return self
                .suspects
                .take(message, &mut self.lanes, read != Read::Next);
        }
        match (self.lanes.offer(message, read == Read::Next), lane) {
            (Offered::Full, Some(lane)) => self.reading.skip(partition, &lane, place),
            (Offered::Taken, Some(lane)) => self.reading.taken(partition, &lane, place),
            (Offered::Full | Offered::Taken, None) | (Offered::Known, _) => {}
        }
        true
    }

    fn advance(
        &mut self,
        fetch: &Fetch,
        usable: &BTreeSet<i16>,
        progress: &BTreeMap<i16, Progress>,
        cut: Cut,
    ) {
        self.hungry = false;
        for (index, (&partition, &place)) in fetch.partitions.iter().zip(&fetch.places).enumerate()
        {
            let seen = progress.get(&partition).copied().unwrap_or_default();
            let more = seen.rows >= cut.share || cut.after.is_some_and(|after| index >= after);
            if !usable.contains(&partition) {
                self.hungry = true;
                continue;
            }
            self.reading
                .advance(partition, place, seen.last, more || seen.stopped);
            if !seen.stopped && !more {
                self.suspects.exhausted(partition);
            }
            self.hungry |= more && !seen.stopped;
        }
        if let Some(after) = cut.after
            && !hooks::broken("split")
        {
            self.rotation = fetch.partitions[after];
        }
    }
}

/// Where a batch ended for lack of room.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Rows each partition gives at most.
    share: usize,
    /// Index of the last partition that gave rows, if the batch was cut: it and those after it may have more.
    after: Option<usize>,
}

impl Cut {
    fn of(fetch: &Fetch, batch: &Batch) -> Self {
        let max_rows = usize::try_from(fetch.max_rows).unwrap_or_default();
        let (mut rows, mut bytes, mut last) = (0, 0, None);
        for row in &batch.rows {
            match row {
                Row::Next(message) => {
                    bytes += i64::try_from(message.size()).unwrap_or(i64::MAX);
                    last = Some(message.identity.key.partition);
                    rows += 1;
                }
                Row::Skipped(key) => {
                    last = Some(key.partition);
                    rows += 1;
                }
                Row::Late(_) | Row::Due(_) | Row::Orphan(_) => {}
            }
        }
        let is_cut = rows >= max_rows || bytes >= fetch.max_bytes;
        Self {
            share: (2 * max_rows / fetch.partitions.len().max(1)).max(16),
            after: last
                .filter(|_| is_cut)
                .and_then(|last| fetch.partitions.iter().position(|p| *p == last)),
        }
    }
}
