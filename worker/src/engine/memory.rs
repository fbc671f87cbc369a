//! What an endpoint knows: what was read and what is to be read again, what waits, what is in flight.
//!
//! Pure: fetches, outcomes and settles go in, and what may be published comes out, so every order of
//! events can be tried without a server (`memory/tests.rs`). Invariant: every committed message of a
//! held partition is handed out, in the order of its lane, and not twice, whatever comes in between.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::lanes::{Lane, Lanes, Limits};
use super::message::{Key, Mark, Message, Place};
use super::reading::Reading;
use super::suspects::Suspects;
use crate::store::{Fetch, Signal};
use postroom_crds::inbox_outbox::outbox::OrderingMode;

/// The part of a signal that moves whenever a message may have become visible.
///
/// Both numbers count: a transaction can show its position to the poll before it commits, and a snapshot lists the
/// youngest running transaction nowhere, so that only the end of its numbers tells of the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    position: i64,
    xmax: u64,
}

impl Seen {
    /// What a fetch that starts now takes account of.
    pub(super) fn of(signal: &Signal) -> Self {
        Self {
            position: signal.position,
            xmax: signal.snapshot.xmax,
        }
    }
}

/// The memory of one endpoint.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) reading: Reading,
    pub(super) lanes: Lanes,
    pub(super) suspects: Suspects,
    /// A fetch or a look of the sweep is under way.
    pub(super) reads: bool,
    /// What of the signal the last fetch has taken account of; none makes the next look a fetch.
    pub(super) seen: Option<Seen>,
    /// The last fetch left something behind, or something is to be read again.
    pub(super) hungry: bool,
    /// When the next deferred message is due.
    pub(super) next_due: Option<Instant>,
    /// The earliest due time that was recorded while a fetch was under way, whose answer may not know it.
    pub(super) due_meanwhile: Option<Instant>,
    /// The database had more due messages than it answered.
    pub(super) due_left: bool,
    /// Messages whose settle was acknowledged while a fetch was under way.
    leaving: Vec<Key>,
    /// Lanes that were blocked while a fetch was under way, and by the message at which place.
    blocked: HashMap<Lane, Place>,
    /// Places that the fetch under way may pass over, though there is something to be handed out.
    unsure: Vec<(i16, Place)>,
    /// The counters of removals when the settle that is under way was first sent.
    counters: Option<BTreeMap<i16, i64>>,
    /// The partition after which the next fetch begins.
    pub(super) rotation: i16,
}

impl Memory {
    pub(super) fn new(mode: OrderingMode, limits: Limits) -> Self {
        Self {
            reading: Reading::default(),
            lanes: Lanes::new(mode, limits),
            suspects: Suspects::default(),
            reads: false,
            seen: None,
            hungry: false,
            next_due: None,
            due_meanwhile: None,
            due_left: false,
            leaving: Vec::new(),
            blocked: HashMap::new(),
            unsure: Vec::new(),
            counters: None,
            rotation: -1,
        }
    }

    /// Starts to read a partition that was gained.
    pub(super) fn gain(&mut self, partition: i16, low_mark: u64, removals: i64, suspect: bool) {
        self.reading.gain(partition, low_mark, removals);
        if suspect {
            self.suspects.gate(partition);
        }
        self.seen = None;
    }

    /// Forgets a partition that was lost or given back.
    pub(super) fn forget_partition(&mut self, partition: i16) {
        self.reading.lose(partition);
        self.suspects.forget(partition);
        self.lanes.forget(partition);
    }

    /// Forgets what only counts within one life of the server: numbers may be given out again.
    pub(super) fn forget_numbers(&mut self) {
        self.reading.forget();
        self.leaving.clear();
    }

    /// Drops what waits of a partition that is to be given back. It was read, so the low mark must not pass it.
    pub(super) fn quieten(&mut self, partition: i16) {
        if let Some(lowest) = self.lanes.lowest(partition) {
            let place = Place {
                xact: lowest,
                id: 0,
            };
            self.reading.read_again(partition, place);
        }
        self.lanes.drop_waiting_of(partition);
        self.suspects.drop_waiting_of(partition, &mut self.lanes);
    }

    /// The low mark of a partition now: below it everything is settled, deferred or parked.
    pub(super) fn mark(&self, partition: i16) -> Option<Mark> {
        self.reading.mark(partition, self.lanes.lowest(partition))
    }

    /// Whether there is something to read in a partition that is `open`, by what the poll has seen.
    pub(super) fn wants_fetch(
        &mut self,
        signal: &Signal,
        now: Instant,
        open: impl Fn(i16) -> bool,
    ) -> bool {
        if self.lanes.take_room() {
            let lanes = &mut self.lanes;
            self.reading.resume_skipped(|lane| lanes.has_room(lane));
        }
        let suspects = &self.suspects;
        self.hungry
            || self.seen != Some(Seen::of(signal))
            || self
                .reading
                .has_again(|partition| open(partition) && !suspects.is_full(partition))
            || self.reading.something_ended(&signal.snapshot)
            || self.next_due.is_some_and(|due| due <= now)
    }

    /// What the next fetch asks for.
    pub(super) fn plan(&self, endpoint: &str, max_rows: i32, max_bytes: i64) -> Fetch {
        let (partitions, places) = self.reading.plan(self.rotation);
        Fetch {
            endpoint: endpoint.to_owned(),
            partitions,
            places,
            running: self.reading.remembered(),
            max_rows,
            max_bytes,
        }
    }

    /// A fetch or a look of the sweep has returned: what was settled before can no longer come back with one.
    pub(super) fn read(&mut self) {
        self.reads = false;
        self.due_meanwhile = None;
        self.blocked.clear();
        for key in std::mem::take(&mut self.leaving) {
            self.lanes.remove(key);
        }
        for (partition, place) in std::mem::take(&mut self.unsure) {
            self.reading.read_again(partition, place);
        }
    }

    /// Whether a message that a fetch has brought is parked by now: its stream was blocked before it while that was under way.
    pub(super) fn is_parked(&self, lane: Option<&Lane>, place: Place) -> bool {
        lane.and_then(|lane| self.blocked.get(lane))
            .is_some_and(|&by| place > by)
    }

    /// A message was not taken by the broker, by no fault of its own. `quiet` says that its partition is to be given back, so
    /// that nothing of it may wait here.
    pub(super) fn send_again(&mut self, message: Arc<Message>, quiet: bool) {
        let key = message.identity.key;
        if self.suspects.runs(key) {
            // The copy that ran has its attempt recorded; it runs again, and is recorded again.
            self.lanes.settling(&message, false);
            self.lanes.hold(key);
            self.suspects.again(message);
        } else {
            self.lanes.back(message);
        }
        if quiet {
            self.quieten(key.partition);
        }
    }

    /// A settle is sent, or sent again.
    pub(super) fn settle_begins(&mut self) {
        if self.counters.is_none() {
            self.counters = Some(self.reading.counters());
        }
    }

    /// A settle has been answered.
    pub(super) fn settle_ends(&mut self) {
        self.counters = None;
    }

    /// A message was put off until `due`. `blocking` parks what follows in its stream. `sure` says that the deferral was
    /// written: where the row was gone, nothing is parked behind it.
    pub(super) fn deferred(&mut self, message: &Message, blocking: bool, due: Instant, sure: bool) {
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
        if self.reads {
            self.due_meanwhile = Some(self.due_meanwhile.map_or(due, |next| next.min(due)));
        }
        let Key { partition, place } = message.identity.key;
        let before = self.counters.as_ref().and_then(|all| all.get(&partition));
        if !sure || before.is_none_or(|&before| !self.reading.has_removals(partition, before)) {
            // Or its wait may have been ended again by somebody, and read as such while it was still known here.
            self.reading.read_again(partition, place);
            if self.reads {
                self.unsure.push((partition, place));
            }
        }
        if blocking && let Some(lane) = self.lanes.lane_of(message) {
            self.lanes.park_behind(message);
            self.suspects.park_behind(&lane, place, &mut self.lanes);
            if self.reads {
                self.blocked
                    .entry(lane)
                    .and_modify(|by| *by = place.min(*by))
                    .or_insert(place);
            }
        } else {
            // It may have blocked its stream until now; the next fetch finds that out by the counter.
            self.hungry |= message.deferrals > 0;
            self.lanes.free(message);
        }
        self.leave(message.identity.key);
    }

    /// The rows of messages are gone. Where one had a blocking deferral, what that had parked is read again; `freed` are the
    /// partitions in which there was one, with their counters after that.
    pub(super) fn settled<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Arc<Message>>,
        freed: &[(i16, i64)],
    ) {
        let mut first: HashMap<i16, Place> = HashMap::new();
        for message in messages {
            let key = message.identity.key;
            if message.deferrals > 0 {
                first
                    .entry(key.partition)
                    .and_modify(|place| *place = key.place.min(*place))
                    .or_insert(key.place);
            }
            self.lanes.free(message);
            self.leave(key);
        }
        // What is not known to the place, as when a settle was made twice, the next fetch finds out by the counter.
        self.hungry |= self.due_left || !first.is_empty() || !freed.is_empty();
        for &(partition, removals) in freed {
            if let Some(&place) = first.get(&partition) {
                self.reading.freed(partition, place, removals);
            }
        }
    }

    /// A settled message leaves the memory, but not before every fetch that may still bring it has returned.
    fn leave(&mut self, key: Key) {
        self.hungry |= self.suspects.done(key);
        if self.reads {
            self.leaving.push(key);
        } else {
            self.lanes.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
