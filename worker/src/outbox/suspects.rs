//! After a take-over from an owner that vanished: the first messages of the partition are run one by
//! one, each with its attempt recorded before the run, so that a message that kills its process is
//! found and in the end buried.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lanes::Lanes;
use super::message::{Key, Message};

/// So many messages of a taken-over partition are run singly. Each further crash brings the next ones to the front.
const SINGLE_RUNS: usize = 8;

/// The gates of taken-over partitions.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// How many messages each gate still takes in.
    gates: BTreeMap<i16, usize>,
    waiting: BTreeMap<Key, Arc<Message>>,
    running: Option<Key>,
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
        let (key, message) = self.waiting.pop_first()?;
        self.running = Some(key);
        Some(message)
    }

    /// Whether this message is the one that runs.
    pub(super) fn runs(&self, key: Key) -> bool {
        self.running == Some(key)
    }

    /// A message has left. True if that opened the gate of its partition, so that reading goes on there.
    pub(super) fn done(&mut self, key: Key) -> bool {
        if self.running != Some(key) {
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

    fn open(&mut self, partition: i16) {
        let busy = self.running.is_some_and(|key| key.partition == partition)
            || self.waiting.keys().any(|key| key.partition == partition);
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
        for key in dropped {
            self.waiting.remove(&key);
            lanes.remove(key);
        }
    }

    /// Forgets a partition that was lost.
    pub(super) fn forget(&mut self, partition: i16) {
        self.gates.remove(&partition);
        self.waiting.retain(|key, _| key.partition != partition);
        if self.running.is_some_and(|key| key.partition == partition) {
            self.running = None;
        }
    }
}
