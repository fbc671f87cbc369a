//! After a take-over from an owner that vanished: the first messages of the partition are run one by
//! one, each with its attempt recorded before the run, so that a message that kills its process is
//! found and in the end buried.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lanes::{Lane, Lanes};
use super::message::{Key, Message, Place};

/// So many messages of a taken-over partition are run singly. Each further crash brings the next ones to the front.
const SINGLE_RUNS: usize = 4;

/// The gates of taken-over partitions.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// How many messages each gate still takes in.
    gates: BTreeMap<i16, usize>,
    waiting: BTreeMap<Key, Arc<Message>>,
    running: Option<Arc<Message>>,
}

impl Suspects {
    /// A partition was taken over from an owner that vanished.
    pub(super) fn gate(&mut self, partition: i16) {
        self.gates.insert(partition, SINGLE_RUNS);
    }

    /// Whether the messages of a partition are run singly.
    pub(super) fn is_gated(&self, partition: i16) -> bool {
        self.gates.contains_key(&partition)
    }

    /// Whether the gate of a partition takes no more for now.
    pub(super) fn is_full(&self, partition: i16) -> bool {
        self.gates.get(&partition) == Some(&0)
    }

    /// Takes a message of a gated partition. False when the gate has enough.
    pub(super) fn take(&mut self, message: Arc<Message>, lanes: &mut Lanes, always: bool) -> bool {
        let key = message.identity.key;
        let Some(room) = self.gates.get_mut(&key.partition) else {
            return false;
        };
        if *room == 0 && !always {
            return false;
        }
        *room = room.saturating_sub(1);
        lanes.hold(key);
        self.waiting.insert(key, message);
        true
    }

    /// The partition has no further messages: its gate needs no more.
    pub(super) fn exhausted(&mut self, partition: i16) {
        if let Some(room) = self.gates.get_mut(&partition) {
            *room = 0;
        }
        self.open(partition);
    }

    /// The next message to run, if none is running.
    pub(super) fn next(&mut self) -> Option<Arc<Message>> {
        if self.running.is_some() {
            return None;
        }
        let (_, message) = self.waiting.pop_first()?;
        self.running = Some(message.clone());
        Some(message)
    }

    /// Whether this is the very run that [`Self::next`] has begun: not one of the same message from before its partition was
    /// lost and taken over again.
    pub(super) fn is_run(&self, message: &Arc<Message>) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| Arc::ptr_eq(running, message))
    }

    /// Whether this message is the one that runs.
    pub(super) fn runs(&self, key: Key) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.identity.key == key)
    }

    /// A message has left. True if that opened the gate of its partition, so that reading goes on there.
    pub(super) fn done(&mut self, key: Key) -> bool {
        if !self.runs(key) {
            return false;
        }
        self.running = None;
        self.open(key.partition);
        !self.is_gated(key.partition)
    }

    /// Its run ended without an outcome: it is run again.
    pub(super) fn again(&mut self, message: Arc<Message>) {
        self.running = None;
        self.waiting.insert(message.identity.key, message);
    }

    fn runs_in(&self, partition: i16) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.identity.key.partition == partition)
    }

    fn open(&mut self, partition: i16) {
        let busy =
            self.runs_in(partition) || self.waiting.keys().any(|key| key.partition == partition);
        if !busy && self.gates.get(&partition) == Some(&0) {
            self.gates.remove(&partition);
        }
    }

    /// Drops what waits of a partition that is given up.
    pub(super) fn drop_waiting_of(&mut self, partition: i16, lanes: &mut Lanes) {
        let dropped: Vec<_> = self
            .waiting
            .keys()
            .filter(|key| key.partition == partition)
            .copied()
            .collect();
        // Should the partition stay after all, they are taken in again.
        if let Some(room) = self.gates.get_mut(&partition) {
            *room += dropped.len();
        }
        for key in dropped {
            self.waiting.remove(&key);
            lanes.remove(key);
        }
    }

    /// A lane is blocked in the database from `place` on: what waits of it here is parked there.
    pub(super) fn park_behind(&mut self, lane: &Lane, place: Place, lanes: &mut Lanes) {
        let parked: Vec<_> = self
            .waiting
            .values()
            .filter(|message| {
                message.identity.key.place > place && lanes.lane_of(message).as_ref() == Some(lane)
            })
            .map(|message| message.identity.key)
            .collect();
        for key in parked {
            self.waiting.remove(&key);
            lanes.remove(key);
        }
    }

    /// Forgets a partition that was lost.
    pub(super) fn forget(&mut self, partition: i16) {
        self.gates.remove(&partition);
        self.waiting.retain(|key, _| key.partition != partition);
        if self.runs_in(partition) {
            self.running = None;
        }
    }
}
