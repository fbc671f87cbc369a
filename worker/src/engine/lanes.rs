//! Which message may go next: order within a stream, limits in flight, what is known.
//!
//! Pure. Invariants: of one lane at most one message is in flight, always the one with the lowest
//! place; a known message is never taken a second time; a message stays known until its settle is
//! acknowledged and every fetch sent before that has returned.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use postroom_crds::inbox_outbox::outbox::OrderingMode;

use super::message::{Key, Message, Place, Stream};
use crate::hooks;

/// At most so many waiting messages of one lane are held; the rest is read again later. Small in unit tests, so that a
/// small world comes to its limits.
pub const LANE_ROOM: usize = if cfg!(test) { 4 } else { 32 };
/// A lane that was full takes more once it has fallen to this.
const LANE_LOW: usize = LANE_ROOM / 4;

/// Messages that keep their order among each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// One stream of one tenant.
    Stream(Stream),
    /// The whole endpoint.
    Endpoint,
}

impl Lane {
    /// The lane of a message, if it has to keep an order.
    pub fn of(mode: OrderingMode, message: &Message) -> Option<Self> {
        match (mode, &message.stream) {
            (OrderingMode::Total, _) => Some(Self::Endpoint),
            (OrderingMode::PerStream, Some(stream)) => Some(Self::Stream(stream.clone())),
            (OrderingMode::PerStream, None) | (OrderingMode::None, _) => None,
        }
    }
}

/// Where the whole endpoint is one lane, nothing else could use the room; reading pauses instead.
fn room(lane: &Lane) -> usize {
    match lane {
        Lane::Stream(..) => LANE_ROOM,
        Lane::Endpoint => usize::MAX,
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// By place in the reading order, then partition.
    waiting: BTreeMap<(Place, i16), Arc<Message>>,
    /// The message in flight.
    busy: Option<Key>,
    listed: bool,
    /// Somebody waits for room.
    full: bool,
}

impl Queue {
    /// Whether there is room now that was missed before.
    fn has_got_room(&mut self) -> bool {
        let got = self.full && self.waiting.len() <= LANE_LOW;
        self.full &= !got;
        got
    }
}

#[derive(Debug)]
enum Ready {
    Single(Arc<Message>),
    Lane(Lane),
}

/// Limits of what is in flight.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most messages published and not settled.
    pub messages: usize,
    /// Most bytes of their bodies.
    pub bytes: u64,
}

/// What is known of a message in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Waiting,
    InFlight,
    /// Its outcome is being recorded.
    Settling,
}

/// The messages of one endpoint that are in memory.
#[derive(Debug)]
pub struct Lanes {
    mode: OrderingMode,
    limits: Limits,
    known: HashMap<Key, Known>,
    /// The known places of each partition, for the low marks.
    places: BTreeMap<i16, BTreeSet<Place>>,
    queues: HashMap<Lane, Queue>,
    ready: VecDeque<Ready>,
    waiting: usize,
    waiting_bytes: u64,
    in_flight: usize,
    in_flight_bytes: u64,
    /// A lane that was full has room again.
    room: bool,
}

/// What became of an offered message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// It waits for its turn.
    Taken,
    /// It is here already.
    Known,
    /// Its lane is full.
    Full,
}

impl Lanes {
    /// Nothing in memory yet.
    pub fn new(mode: OrderingMode, limits: Limits) -> Self {
        Self {
            mode,
            limits,
            known: HashMap::new(),
            places: BTreeMap::new(),
            queues: HashMap::new(),
            ready: VecDeque::new(),
            waiting: 0,
            waiting_bytes: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            room: false,
        }
    }

    /// The lane of a message.
    pub fn lane_of(&self, message: &Message) -> Option<Lane> {
        Lane::of(self.mode, message)
    }

    /// Whether a message is in memory, in whatever state.
    pub fn knows(&self, key: Key) -> bool {
        self.known.contains_key(&key)
    }

    /// Whether so little waits that more should be read.
    pub fn wants_more(&self) -> bool {
        self.waiting < self.limits.messages && self.waiting_bytes < self.limits.bytes
    }

    /// Messages that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Messages published and not confirmed.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether nothing is in memory.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether nothing of a partition is in memory.
    pub fn is_clear_of(&self, partition: i16) -> bool {
        self.places.get(&partition).is_none_or(BTreeSet::is_empty)
    }

    /// Lowest transaction of a known message of a partition.
    pub fn lowest(&self, partition: i16) -> Option<u64> {
        self.places
            .get(&partition)
            .and_then(BTreeSet::first)
            .map(|place| place.xact)
    }

    /// Whether a lane takes so many messages that its rest should be read again. If not, [`Self::take_room`] tells when.
    pub fn has_room(&mut self, lane: &Lane) -> bool {
        let Some(queue) = self.queues.get_mut(lane) else {
            return true;
        };
        queue.full = queue.waiting.len() > LANE_LOW;
        !queue.full
    }

    /// Whether a lane that was full has got room since this was asked last.
    pub fn take_room(&mut self) -> bool {
        std::mem::take(&mut self.room)
    }

    /// Takes a message that was read. `bounded` is false for late and due ones, which come before what waits.
    pub fn offer(&mut self, message: Arc<Message>, bounded: bool) -> Offered {
        let (key, size) = (message.identity.key, message.size());
        if self.knows(key) {
            return Offered::Known;
        }
        match self.lane_of(&message) {
            None => self.ready.push_back(Ready::Single(message)),
            Some(lane) => {
                let queue = self.queues.entry(lane.clone()).or_default();
                if bounded && queue.waiting.len() >= room(&lane) {
                    queue.full = true;
                    return Offered::Full;
                }
                queue.waiting.insert((key.place, key.partition), message);
                Self::list(&mut self.ready, lane, queue);
            }
        }
        self.note(key, Known::Waiting);
        self.waiting += 1;
        self.waiting_bytes += size;
        Offered::Taken
    }

    fn list(ready: &mut VecDeque<Ready>, lane: Lane, queue: &mut Queue) {
        if queue.busy.is_none() && !queue.listed && !queue.waiting.is_empty() {
            queue.listed = true;
            ready.push_back(Ready::Lane(lane));
        }
    }

    fn note(&mut self, key: Key, state: Known) {
        if self.known.insert(key, state).is_none() {
            self.places
                .entry(key.partition)
                .or_default()
                .insert(key.place);
        }
    }

    /// The next message that may be published, if the limits allow one. `held` says whether a partition may hand out now;
    /// messages of others stay where they are.
    pub fn next(&mut self, held: impl Fn(i16) -> bool) -> Option<Arc<Message>> {
        if self.in_flight >= self.limits.messages
            || (self.in_flight > 0 && self.in_flight_bytes >= self.limits.bytes)
        {
            return None;
        }
        for _ in 0..self.ready.len() {
            match self.ready.pop_front()? {
                Ready::Single(message) if !held(message.identity.key.partition) => {
                    self.ready.push_back(Ready::Single(message));
                }
                Ready::Single(message) => return Some(self.hand_out(message)),
                Ready::Lane(lane) => {
                    let Some(queue) = self.queues.get_mut(&lane) else {
                        continue;
                    };
                    if queue.busy.is_some() {
                        queue.listed = false;
                        continue;
                    }
                    let allowed = queue
                        .waiting
                        .first_key_value()
                        .map(|((_, partition), _)| held(*partition));
                    match allowed {
                        None => {
                            self.queues.remove(&lane);
                        }
                        Some(false) => self.ready.push_back(Ready::Lane(lane)),
                        Some(true) => {
                            queue.listed = false;
                            let (_, message) = queue.waiting.pop_first()?;
                            self.room |= queue.has_got_room();
                            if hooks::broken("pipelined") {
                                Self::list(&mut self.ready, lane, queue);
                            } else {
                                queue.busy = Some(message.identity.key);
                            }
                            return Some(self.hand_out(message));
                        }
                    }
                }
            }
        }
        None
    }

    fn hand_out(&mut self, message: Arc<Message>) -> Arc<Message> {
        self.note(message.identity.key, Known::InFlight);
        self.stop_waiting(&message);
        self.in_flight += 1;
        self.in_flight_bytes += message.size();
        message
    }

    /// A message that was handed out has an outcome, which is now being recorded. `free` lets the next of its stream go.
    pub fn settling(&mut self, message: &Message, free: bool) {
        self.leave_flight(message);
        let key = message.identity.key;
        if self.known.get(&key) == Some(&Known::InFlight) {
            self.note(key, Known::Settling);
            if free {
                self.free(message);
            }
        }
    }

    /// A message that was handed out was not taken by the broker, by no fault of its own: it is first in its stream again.
    pub fn back(&mut self, message: Arc<Message>) {
        self.leave_flight(&message);
        let key = message.identity.key;
        if self.known.get(&key) != Some(&Known::InFlight) {
            return; // its partition was lost meanwhile
        }
        self.note(key, Known::Waiting);
        self.waiting += 1;
        self.waiting_bytes += message.size();
        match self.lane_of(&message) {
            None => self.ready.push_front(Ready::Single(message)),
            Some(lane) => {
                let queue = self.queues.entry(lane.clone()).or_default();
                queue.waiting.insert((key.place, key.partition), message);
                if queue.busy == Some(key) {
                    queue.busy = None;
                }
                if queue.busy.is_none() && !queue.listed {
                    queue.listed = true;
                    self.ready.push_front(Ready::Lane(lane));
                }
            }
        }
    }

    fn stop_waiting(&mut self, message: &Message) {
        self.waiting -= 1;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(message.size());
    }

    fn leave_flight(&mut self, message: &Message) {
        self.in_flight -= 1;
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(message.size());
    }

    /// The next of the stream may go, if this message is the one that is waited for.
    pub fn free(&mut self, message: &Message) {
        let Some(lane) = self.lane_of(message) else {
            return;
        };
        if let Some(queue) = self.queues.get_mut(&lane)
            && queue.busy == Some(message.identity.key)
        {
            queue.busy = None;
            Self::list(&mut self.ready, lane.clone(), queue);
            if queue.waiting.is_empty() && !queue.listed {
                self.queues.remove(&lane);
            }
        }
    }

    /// The stream of a message is blocked in the database now: what waits behind it here is parked there. What was written
    /// before it but became visible later is not.
    pub fn park_behind(&mut self, message: &Message) {
        let Some(lane) = self.lane_of(message) else {
            return;
        };
        let key = message.identity.key;
        let Some(queue) = self.queues.get_mut(&lane) else {
            return;
        };
        let parked = queue.waiting.split_off(&(key.place, key.partition));
        self.room |= queue.has_got_room();
        for parked in parked.into_values() {
            self.stop_waiting(&parked);
            self.remove(parked.identity.key);
        }
        self.free(message);
    }

    /// A message leaves the memory.
    pub fn remove(&mut self, key: Key) {
        if self.known.remove(&key).is_some()
            && let Some(places) = self.places.get_mut(&key.partition)
        {
            places.remove(&key.place);
        }
    }

    /// Drops what waits in a partition that is given up; what is in flight stays known until its outcome is there.
    pub fn drop_waiting_of(&mut self, partition: i16) {
        let mut dropped = Vec::new();
        self.ready.retain(|ready| match ready {
            Ready::Single(message) if message.identity.key.partition == partition => {
                dropped.push(message.clone());
                false
            }
            Ready::Single(_) | Ready::Lane(_) => true,
        });
        for queue in self.queues.values_mut() {
            queue.waiting.retain(|(_, of), message| {
                let keep = *of != partition;
                if !keep {
                    dropped.push(message.clone());
                }
                keep
            });
            self.room |= queue.has_got_room();
        }
        for message in dropped {
            self.stop_waiting(&message);
            self.remove(message.identity.key);
        }
        self.queues
            .retain(|_, queue| queue.busy.is_some() || queue.listed || !queue.waiting.is_empty());
    }

    /// Forgets a partition that was lost. What is in flight still counts against the limits until its outcome is there.
    pub fn forget(&mut self, partition: i16) {
        self.drop_waiting_of(partition);
        for place in self.places.remove(&partition).unwrap_or_default() {
            self.known.remove(&Key { partition, place });
        }
        for (lane, queue) in &mut self.queues {
            if queue.busy.is_some_and(|key| key.partition == partition) {
                queue.busy = None;
                Self::list(&mut self.ready, lane.clone(), queue);
            }
        }
    }

    /// Keeps a message known that is run on its own, outside the lanes.
    pub fn hold(&mut self, key: Key) {
        self.note(key, Known::Waiting);
    }

    /// Hands out a message that was held.
    pub fn hand_out_held(&mut self, message: &Message) {
        self.note(message.identity.key, Known::InFlight);
        self.in_flight += 1;
        self.in_flight_bytes += message.size();
    }
}

#[cfg(test)]
mod tests;
