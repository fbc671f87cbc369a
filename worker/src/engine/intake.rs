//! Taking in what a fetch has answered: which rows go to their lanes, how far the cursors have come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::lanes::Offered;
use super::memory::Memory;
use super::message::{Batch, Identity, Message, Place, Row};
use super::reading::{Admission, Scan};
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

impl Endpoint {
    /// What the next fetch asks for.
    pub(super) fn plan_fetch(&mut self) -> Asked {
        let config = &self.shared.config;
        let mut fetch = self.memory.plan(
            &config.name,
            i32::try_from(config.batch_size).unwrap_or(i32::MAX),
            i64::try_from(config.limits.bytes / 2).unwrap_or(i64::MAX),
        );
        if hooks::broken("split") {
            // Half of the partitions, but one set of remembered transactions: two snapshots share it.
            self.memory.rotation = -self.memory.rotation - 1;
            let half = usize::from(self.memory.rotation >= 0);
            (fetch.partitions, fetch.places) = fetch
                .partitions
                .into_iter()
                .zip(fetch.places)
                .filter(|(p, _)| usize::from(p % 2 == 0) == half)
                .unzip();
            self.memory.seen = None;
        }
        Asked {
            fetch,
            sweep: false,
        }
    }

    /// Takes account of a fetch. On failure nothing has moved; the remembered transactions stay remembered.
    pub(super) fn on_fetched(&mut self, asked: &Asked, fetched: Fetched) {
        match fetched {
            Err(reason) => {
                self.fetch_after = Instant::now() + CALL_PAUSE;
                self.memory.seen = None;
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
        self.memory.read();
    }

    fn take_in(&mut self, fetch: &Fetch, batch: Batch) {
        let (held, draining) = (&self.held, self.is_draining());
        let is_open =
            |partition| !draining && held.get(&partition).is_some_and(super::Held::is_open);
        for orphan in self.memory.take_in(fetch, batch, Instant::now(), is_open) {
            self.settling.clear(orphan);
        }
    }
}

/// How far one partition has come within a batch.
#[derive(Debug)]
struct Part {
    /// Its rows can be used; if not, it is read again from its low mark.
    usable: bool,
    /// What its rows after the cursor are good for.
    scan: Scan,
    /// A part behind the cursor was read again.
    again: bool,
    last: Option<Place>,
    rows: usize,
    due: usize,
    /// Some of them are deferred or parked.
    waits: bool,
    stopped: bool,
}

/// How a message was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// At the cursor.
    Next,
    /// Behind it: late.
    Late,
    /// Behind it: due.
    Due,
}

/// One batch while it is taken in.
struct Intake<O> {
    parts: BTreeMap<i16, Part>,
    is_open: O,
    orphans: Vec<Identity>,
    /// Due messages that were taken.
    due_taken: bool,
}

impl Memory {
    /// Takes in a batch. Of a partition that is not open nothing is taken. Answers the deferrals whose message is gone.
    pub(super) fn take_in(
        &mut self,
        fetch: &Fetch,
        batch: Batch,
        now: Instant,
        is_open: impl Fn(i16) -> bool,
    ) -> Vec<Identity> {
        let due = batch.next_due.map(|due| now + due);
        self.next_due = due.into_iter().chain(self.due_meanwhile).min();
        if batch.too_many_late {
            self.reading.read_again_from_ended(&batch.snapshot);
            self.reading.saw(&batch.snapshot);
            self.hungry = true;
            return Vec::new();
        }
        let mut intake = Intake {
            parts: self.parts(fetch, &batch),
            is_open,
            orphans: Vec::new(),
            due_taken: false,
        };
        let ended = self.reading.ended(&batch.snapshot);
        self.reading.saw(&batch.snapshot);
        let cut = Cut::of(fetch, &batch);
        for row in batch.rows {
            self.take_row(row, &mut intake);
        }
        self.advance(fetch, &intake, cut);
        for (&partition, &asked) in fetch.partitions.iter().zip(&fetch.places) {
            if intake.parts[&partition].scan != Scan::Whole {
                self.reading
                    .read_again_ended_after(partition, asked, &ended);
            }
        }
        let lanes = &mut self.lanes;
        self.reading.resume_skipped(|lane| lanes.has_room(lane));
        intake.orphans
    }

    fn parts(&mut self, fetch: &Fetch, batch: &Batch) -> BTreeMap<i16, Part> {
        let mut parts = BTreeMap::new();
        for (i, &partition) in fetch.partitions.iter().enumerate() {
            let usable =
                self.reading
                    .accept_removals(partition, batch.low_marks[i], batch.removals[i]);
            let scan = if usable {
                self.reading.scan(partition, fetch.places[i])
            } else {
                Scan::Outdated
            };
            let part = Part {
                usable,
                scan,
                again: self.reading.has_again(|of| of == partition),
                last: None,
                rows: 0,
                due: 0,
                waits: false,
                stopped: false,
            };
            parts.insert(partition, part);
        }
        parts
    }

    fn take_row<O: Fn(i16) -> bool>(&mut self, row: Row, intake: &mut Intake<O>) {
        let (message, read) = match row {
            Row::Orphan(identity) => {
                if let Some(part) = intake.parts.get_mut(&identity.key.partition) {
                    part.due += 1;
                }
                intake.orphans.push(identity);
                return;
            }
            Row::Skipped(key) => {
                if let Some(part) = intake.parts.get_mut(&key.partition) {
                    part.rows += 1;
                    part.waits = true;
                    if !part.stopped {
                        part.last = Some(key.place);
                    }
                }
                return;
            }
            Row::Next(message) => (message, Read::Next),
            Row::Late(message) => (message, Read::Late),
            Row::Due(message) => (message, Read::Due),
        };
        let key = message.identity.key;
        let Some(part) = intake.parts.get_mut(&key.partition) else {
            return;
        };
        part.rows += usize::from(read == Read::Next);
        part.due += usize::from(read == Read::Due);
        // A partition that cannot be used is read again from its low mark, which is below whatever is late.
        if !part.usable || (read == Read::Next && (part.stopped || part.scan == Scan::Outdated)) {
            return;
        }
        if !(intake.is_open)(key.partition) {
            part.stopped = true;
            if read == Read::Late {
                self.reading.read_again(key.partition, key.place);
            }
            return;
        }
        let taken = self.take_message(message, read, &part.scan);
        intake.due_taken |= read == Read::Due && taken == Taken::In;
        if read == Read::Next {
            match taken {
                Taken::In | Taken::Passed => part.last = Some(key.place),
                Taken::Not => part.stopped = true,
            }
        }
    }

    /// Offers a message to its lane.
    fn take_message(&mut self, message: Arc<Message>, read: Read, scan: &Scan) -> Taken {
        let (partition, place) = (message.identity.key.partition, message.identity.key.place);
        let lane = self.lanes.lane_of(&message);
        if self.lanes.knows(message.identity.key) || self.is_parked(lane.as_ref(), place) {
            return Taken::Passed; // a parked one comes back when its stream is freed
        }
        let next = read == Read::Next;
        let admission = if next {
            self.reading
                .admit_next(partition, scan, lane.as_ref(), place)
        } else {
            self.reading.admit_behind(partition, lane.as_ref(), place)
        };
        if admission == Admission::Ignore {
            return Taken::Passed;
        }
        if self.suspects.is_gated(partition) {
            return if self.suspects.take(message, &mut self.lanes, !next) {
                Taken::In
            } else {
                Taken::Not
            };
        }
        match (self.lanes.offer(message, next), lane) {
            (Offered::Full, Some(lane)) => {
                if self.reading.skip(partition, &lane, place) {
                    return Taken::Not;
                }
                Taken::Passed
            }
            (Offered::Taken, lane) => {
                if let Some(lane) = lane
                    && next
                {
                    self.reading.taken(partition, &lane, place);
                }
                Taken::In
            }
            (Offered::Full, None) | (Offered::Known, _) => Taken::Passed,
        }
    }

    fn advance<O>(&mut self, fetch: &Fetch, intake: &Intake<O>, cut: Cut) {
        let max_rows = usize::try_from(fetch.max_rows).unwrap_or_default();
        self.hungry = false;
        let (mut due, mut due_full) = (0, false);
        for (index, (&partition, &asked)) in fetch.partitions.iter().zip(&fetch.places).enumerate()
        {
            let part = &intake.parts[&partition];
            due += part.due;
            due_full |= part.due >= cut.share;
            if !part.usable || part.scan == Scan::Outdated {
                self.hungry |= self.reading.holds(partition);
                continue;
            }
            let more = part.rows >= cut.share || cut.after.is_some_and(|after| index >= after);
            self.reading
                .advance(partition, asked, part.last, more || part.stopped);
            if !part.stopped && !more {
                self.suspects.exhausted(partition);
            }
            // What is due, and deferrals without a message, are answered once the cursor is past them and back in its place.
            let is_back = part.again && !self.reading.has_again(|of| of == partition);
            self.hungry |= is_back || ((more || part.waits) && !part.stopped);
        }
        self.due_left = due_full || due >= max_rows;
        self.hungry |= self.due_left && intake.due_taken;
        if let Some(after) = cut.after
            && !hooks::broken("split")
        {
            self.rotation = fetch.partitions[after];
        }
    }
}

/// What became of a message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// It waits for its turn.
    In,
    /// It is accounted for otherwise.
    Passed,
    /// The partition must not be read past it now.
    Not,
}

/// The share that a partition has at least; small in unit tests, so that a small world comes to its limits.
const LEAST_SHARE: usize = if cfg!(test) { 2 } else { 16 };

/// Rows that each of so many partitions gives at most; as in `fetch_outbox_batch`.
pub(super) fn share(max_rows: usize, partitions: usize) -> usize {
    (2 * max_rows / partitions.max(1)).max(LEAST_SHARE)
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
            share: share(max_rows, fetch.partitions.len()),
            after: last
                .filter(|_| is_cut)
                .and_then(|last| fetch.partitions.iter().position(|p| *p == last)),
        }
    }
}
