//! A worker of the model: what the endpoint's loop does around the memory, one step at a time.

mod claims;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::super::Held;
use super::super::super::lanes::Limits;
use super::super::super::message::{Batch, Key, Mark, Message};
use super::super::super::settling::{Act, Settling};
use super::super::{Memory, Seen};
use super::database::Database;
use super::{Chance, World};
use crate::settle::{Burial, Claim, Deferral, Settled};
use crate::store::{Fetch, HeldPartition, Signal};

/// What is known of the last time a message was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    Out,
    /// It failed, so it may go out again.
    Failed,
}

pub(super) struct Worker {
    number: usize,
    world: World,
    began: Instant,
    memory: Memory,
    held: BTreeMap<i16, Held>,
    /// Number of the take-over of what is held, for a partition may be lost and taken over again under one epoch.
    tenures: BTreeMap<i16, u64>,
    /// Epoch, and when.
    dropped: BTreeMap<i16, (i64, u64)>,
    settling: Settling,
    signal: Signal,
    fetch: Option<(Fetch, Option<Batch>)>,
    settle: Option<(Act, Option<Settled>)>,
    /// When it was sent, and its answer.
    claim: Option<(u64, BTreeMap<i16, HeldPartition>)>,
    /// For the next claim; old by then.
    marks: BTreeMap<i16, Mark>,
    /// With the take-over each was handed out under.
    in_flight: Vec<(Arc<Message>, u64)>,
    gone: HashMap<Key, (u64, Gone)>,
    /// Everything that happened to this worker is counted, so that before and after can be told.
    events: u64,
}

impl Worker {
    pub(super) fn new(number: usize, world: World) -> Self {
        let limits = Limits {
            messages: 12,
            bytes: 200,
        };
        Self {
            number,
            world,
            began: Instant::now(),
            memory: Memory::new(world.mode, limits),
            held: BTreeMap::new(),
            tenures: BTreeMap::new(),
            dropped: BTreeMap::new(),
            settling: Settling::default(),
            signal: Signal::default(),
            fetch: None,
            settle: None,
            claim: None,
            marks: BTreeMap::new(),
            in_flight: Vec::new(),
            gone: HashMap::new(),
            events: 0,
        }
    }

    fn now(&self, database: &Database) -> Instant {
        self.began + Duration::from_millis(database.clock)
    }

    pub(super) fn show(&self) -> impl std::fmt::Debug {
        (&self.memory, &self.held, &self.settling)
    }

    /// One of the things that can happen next.
    pub(super) fn step(&mut self, database: &mut Database, chance: &mut Chance) {
        self.events += 1;
        match chance.below(12) {
            0 => self.signal = database.poll(),
            1..=3 => self.fetch_step(database, chance),
            4..=5 => self.settle_step(database, chance),
            6 => self.claim_step(database, chance),
            7..=8 => self.hand_out(database),
            9..=10 => self.outcome(database, chance),
            _ => {
                self.give_back();
                let marks = self
                    .held
                    .keys()
                    .filter_map(|&p| Some((p, self.memory.mark(p)?)));
                self.marks.extend(marks);
            }
        }
    }

    /// Something goes wrong with the worker.
    pub(super) fn suffer(&mut self, database: &mut Database, chance: &mut Chance) {
        self.events += 1;
        match chance.below(3) {
            // Its trusted time ends, and sometimes the lease as well.
            0 => {
                for partition in self.held.keys().copied().collect::<Vec<_>>() {
                    self.lose(partition);
                }
                self.expire(database, chance.percent(70));
            }
            // It is killed, and another process takes its place.
            1 => {
                self.expire(database, true);
                *self = Self::new(self.number + 2, self.world);
            }
            // It is told to hand something over, or to keep it after all.
            _ => {
                for held in self.held.values_mut().filter(|held| !held.releasing) {
                    let told = chance.percent(50);
                    if held.quiet && !told {
                        held.quiet = false;
                        self.memory.hungry = true;
                    }
                    held.hand_over = told;
                }
            }
        }
    }

    fn expire(&mut self, database: &mut Database, expires: bool) {
        for lease in &mut database.leases {
            if expires && lease.owner == Some(self.number) {
                lease.owner = None;
                lease.suspect = true;
            }
        }
        if expires {
            self.claim = None;
        }
    }

    fn lose(&mut self, partition: i16) {
        if let Some(held) = self.held.remove(&partition) {
            self.dropped.insert(partition, (held.epoch, self.events));
            self.memory.forget_partition(partition);
        }
    }

    fn fetch_step(&mut self, database: &mut Database, chance: &mut Chance) {
        match self.fetch.take() {
            None => {
                let (held, now) = (&self.held, self.now(database));
                let is_open = |partition| held.get(&partition).is_some_and(Held::is_open);
                if !self.memory.reading.is_empty()
                    && self.memory.lanes.wants_more()
                    && self.memory.wants_fetch(&self.signal, now, is_open)
                {
                    self.memory.seen = Some(Seen::of(&self.signal));
                    let (rows, bytes) = (self.world.max_rows, self.world.max_bytes);
                    self.fetch = Some((self.memory.plan("orders", rows, bytes), None));
                    self.memory.reads = true;
                }
            }
            Some((fetch, None)) => {
                let batch = database.fetch(&fetch);
                self.fetch = Some((fetch, Some(batch)));
            }
            Some(_) if !database.calm && chance.percent(3) => {
                self.memory.seen = None;
                self.memory.read();
            }
            Some((fetch, Some(batch))) => {
                let (held, now) = (&self.held, self.now(database));
                let is_open = |partition| held.get(&partition).is_some_and(Held::is_open);
                for orphan in self.memory.take_in(&fetch, batch, now, is_open) {
                    self.settling.clear(orphan);
                }
                self.memory.read();
            }
        }
    }

    fn claim_of(&self, message: &Message) -> Claim {
        let identity = message.identity;
        let held = self.held.get(&identity.key.partition);
        Claim {
            identity,
            epoch: held.map_or(0, |held| held.epoch),
        }
    }

    fn deferral(&self, message: &Message, delay: u64, blocking: bool) -> Deferral {
        Deferral {
            claim: self.claim_of(message),
            delay: Duration::from_millis(delay),
            counted: true,
            blocking,
            reason: String::new(),
            error: String::new(),
        }
    }

    fn hand_out(&mut self, database: &Database) {
        if let Some(suspect) = self.memory.suspects.next() {
            self.memory.lanes.hand_out_held(&suspect);
            self.settling
                .attempt(self.deferral(&suspect, 0, true), suspect);
        }
        loop {
            let (held, suspects) = (&self.held, &self.memory.suspects);
            let may_go = |partition: i16| {
                held.get(&partition).is_some_and(Held::is_open) && !suspects.is_gated(partition)
            };
            let Some(message) = self.memory.lanes.next(may_go) else {
                return;
            };
            self.publish(database, message);
        }
    }

    fn publish(&mut self, database: &Database, message: Arc<Message>) {
        let key = message.identity.key;
        let tenure = self.tenures[&key.partition];
        assert!(self.held.contains_key(&key.partition));
        if let Some(lane) = self.memory.lanes.lane_of(&message) {
            let joins = |(other, under): &&(Arc<Message>, u64)| {
                let of = other.identity.key;
                *under == self.tenures[&of.partition]
                    && self.memory.lanes.lane_of(other).as_ref() == Some(&lane)
                    && database.has_to_go(of)
            };
            let other = self.in_flight.iter().find(joins);
            assert!(other.is_none(), "{key:?} joins {other:?} in flight");
        }
        database.check_order(&message);
        let before = self.gone.insert(key, (tenure, Gone::Out));
        assert!(
            before != Some((tenure, Gone::Out)),
            "{key:?} goes out twice under take-over {tenure}"
        );
        self.in_flight.push((message, tenure));
    }

    fn failed(&mut self, message: &Message) {
        if let Some((_, gone)) = self.gone.get_mut(&message.identity.key) {
            *gone = Gone::Failed;
        }
    }

    /// The broker says what became of one message.
    fn outcome(&mut self, database: &mut Database, chance: &mut Chance) {
        if self.in_flight.is_empty() {
            return;
        }
        let (message, _) = self
            .in_flight
            .swap_remove(chance.below(self.in_flight.len()));
        let key = message.identity.key;
        if database.calm || !chance.percent(self.world.failures) {
            database.confirmed.insert(key);
            self.memory.lanes.settling(&message, message.deferrals == 0);
            self.settling.complete(self.claim_of(&message), message);
            return;
        }
        self.failed(&message);
        match chance.below(3) {
            0 => {
                let held = self.held.get(&key.partition);
                self.memory
                    .send_again(message, held.is_some_and(|held| held.quiet));
            }
            1 => {
                self.memory.lanes.settling(&message, false);
                let delay = chance.below(60) as u64;
                let deferral = self.deferral(&message, delay, !self.world.skips);
                self.settling.defer(deferral, message);
            }
            _ => {
                self.memory.lanes.settling(&message, false);
                let burial = Burial {
                    claim: self.claim_of(&message),
                    counted: true,
                    reason: String::new(),
                    error: String::new(),
                };
                self.settling.bury(burial, message);
            }
        }
    }

    fn settle_step(&mut self, database: &mut Database, chance: &mut Chance) {
        match self.settle.take() {
            None => {
                if let Some(mut act) = self.settling.next_act() {
                    act.renew_epochs(|partition| self.held.get(&partition).map(|h| h.epoch));
                    self.memory.settle_begins();
                    self.settle = Some((act, None));
                }
            }
            Some((act, None)) => {
                let settled = self.run(database, &act);
                self.settle = Some((act, Some(settled)));
            }
            // The answer is lost.
            Some((act, Some(_))) if !database.calm && chance.percent(5) => self.settling.again(act),
            Some((act, Some(settled))) => {
                self.on_settled(database, act, &settled);
                self.memory.settle_ends();
            }
        }
    }

    fn run(&self, database: &mut Database, act: &Act) -> Settled {
        match act {
            Act::Complete(messages) => {
                let claims: Vec<_> = messages.iter().map(|(claim, _)| *claim).collect();
                database.remove(self.number, &claims, false)
            }
            Act::Bury(messages) => {
                let claims: Vec<_> = messages.iter().map(|(b, _)| b.claim).collect();
                database.remove(self.number, &claims, true)
            }
            Act::Clear(identities) => {
                let claims: Vec<_> = identities
                    .iter()
                    .map(|&identity| Claim { identity, epoch: 0 })
                    .collect();
                database.remove(self.number, &claims, false)
            }
            Act::Defer(messages) => {
                let mut all = Settled::default();
                for (d, _) in messages {
                    let settled = database.defer(self.number, &d.claim, d.delay, d.blocking);
                    all.lost.extend(settled.lost);
                    all.deferred += settled.deferred;
                }
                all
            }
            Act::Attempt(d, _) => database.defer(self.number, &d.claim, d.delay, d.blocking),
            Act::Release(releases) => {
                for &(partition, epoch, mark) in releases {
                    let lease = database.lease(partition);
                    if lease.owner == Some(self.number) && lease.epoch == epoch {
                        lease.owner = None;
                        lease.suspect = false;
                        database.move_low_mark(partition, mark);
                    }
                }
                Settled::default()
            }
        }
    }

    /// As the endpoint's.
    fn on_settled(&mut self, database: &Database, act: Act, settled: &Settled) {
        if let Act::Release(releases) = act {
            for (partition, epoch, ..) in releases {
                self.held.remove(&partition);
                self.dropped.insert(partition, (epoch, self.events));
                self.memory.forget_partition(partition);
            }
            return;
        }
        for &partition in &settled.lost {
            let held = self.held.get(&partition).map(|held| held.epoch);
            if held.is_some() && held == act.epoch_of(partition) {
                self.lose(partition);
            }
        }
        let is_lost = |message: &Message| settled.lost.contains(&message.identity.key.partition);
        match act {
            Act::Complete(messages) => {
                let messages = messages.iter().map(|(_, message)| message);
                self.memory.settled(messages, &settled.freed);
            }
            Act::Bury(mut messages) => {
                messages.retain(|(_, message)| !is_lost(message));
                let messages = messages.iter().map(|(_, message)| message);
                self.memory.settled(messages, &settled.freed);
            }
            Act::Defer(mut messages) => {
                messages.retain(|(_, message)| !is_lost(message));
                let all = settled.deferred == messages.len();
                for (deferral, message) in messages {
                    // After a loss it may have gone out again before this was recorded.
                    self.failed(&message);
                    let due = self.now(database) + deferral.delay;
                    self.memory.deferred(&message, deferral.blocking, due, all);
                }
            }
            Act::Attempt(_, message) => {
                if self.memory.suspects.is_run(&message) && settled.deferred > 0 {
                    let mut recorded = Message::clone(&message);
                    recorded.deferrals += 1;
                    self.publish(database, Arc::new(recorded));
                } else {
                    self.memory.lanes.settling(&message, false);
                    if settled.deferred == 0 && !is_lost(&message) {
                        self.memory.settled(std::iter::once(&message), &[]);
                    }
                }
            }
            Act::Clear(_) => self.memory.hungry = true,
            Act::Release(_) => {}
        }
    }
}
