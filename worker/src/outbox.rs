//! The outbox flow of one endpoint: read, publish, settle.
//!
//! ```text
//! fetch_outbox_batch -> Reading, Lanes -> channels -> outcomes -> decisions -> settles
//!     (one at a time)      (pure)        (publish)              (outcome)    (one at a time)
//! ```
//!
//! One task owns all state of an endpoint; what it waits for are a fetch, a settle, the reports of its
//! channels, new claims, the poll's signal and timers. Invariants: nothing is handed out that is not held;
//! at most one fetch and one settle are under way; a row goes only after its confirm.

pub mod lanes;
pub mod message;
pub mod outcome;
pub mod publish;
pub mod reading;
pub mod settling;
pub mod wire;

mod channels;
mod intake;
mod record;
mod suspects;
mod sweep;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use postroom_crds::worker_config::OutboxConfig;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use uuid::Uuid;

use crate::broker::Transport;
use crate::database::Session;
use crate::heart::Claims;
use crate::hooks;
use crate::lease::Trust;
use crate::metrics::OutboxMetrics;
use crate::poll::Waiters;
use crate::reason::Reason;
use crate::status::{Scope, Status};
use crate::store::{self, LowMarks, Settled, Signal};

use channels::Channels;
use intake::{Asked, Fetched};
use lanes::{Lane, Lanes, Limits};
use message::Key;
use outcome::Policy;
use publish::Report;
use reading::Reading;
use settling::{Act, Settling};
use suspects::Suspects;
use sweep::Sweep;

/// Deadline of a fetch or a settle.
const CALL: Duration = Duration::from_secs(30);
/// Pause after a failed call.
const CALL_PAUSE: Duration = Duration::from_millis(250);
/// How often low marks are reported.
const LOW_MARKS: Duration = Duration::from_secs(30);

/// What an endpoint shares with the rest of the process.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Settings.
    pub config: Arc<OutboxConfig>,
    /// Whether the resource pauses everything.
    pub paused: bool,
    /// This process.
    pub worker: Uuid,
    /// Trusted time of the lease.
    pub trust: Trust,
    /// Session for reading.
    pub reader: Arc<Mutex<Session>>,
    /// Session for settling.
    pub settler: Arc<Mutex<Session>>,
    /// What is held.
    pub claims: watch::Receiver<Arc<Claims>>,
    /// What the poll has seen.
    pub signal: watch::Receiver<Signal>,
    /// Tells the poll that this endpoint waits for it.
    pub waiters: Waiters,
    /// Asks for a claim before its time.
    pub claim_now: Arc<Notify>,
    /// Low marks for the next renewal.
    pub low_marks: Arc<std::sync::Mutex<LowMarks>>,
    /// Broker.
    pub transport: watch::Receiver<Transport>,
    /// Set when the process drains.
    pub draining: watch::Receiver<bool>,
    /// Status.
    pub status: Status,
    /// Metrics.
    pub metrics: OutboxMetrics,
    /// Whether the sweep runs.
    pub sweep: bool,
}

/// A partition that is held.
#[derive(Debug, Clone, Copy)]
struct Held {
    epoch: i64,
    hand_over: bool,
    /// What waited of it was dropped, because it is to be given back.
    quiet: bool,
    releasing: bool,
}

struct Endpoint {
    shared: Shared,
    policy: Policy,
    incarnation: Option<Uuid>,
    held: BTreeMap<i16, Held>,
    /// Last epoch of partitions that were held once: an older answer must not bring them back.
    dropped: BTreeMap<i16, i64>,
    reading: Reading,
    lanes: Lanes,
    suspects: Suspects,
    channels: Channels,
    reports: mpsc::Receiver<Report>,
    settling: Settling,
    settle: Option<BoxFuture<'static, (Act, Result<Settled, Reason>)>>,
    settle_after: Instant,
    fetch: Option<BoxFuture<'static, (Asked, Fetched)>>,
    fetch_after: Instant,
    /// Messages whose settle was acknowledged while a fetch was under way.
    leaving: Vec<Key>,
    /// Lanes that were blocked while a fetch was under way.
    blocked: HashSet<Lane>,
    sweep: Sweep,
    /// Position of the signal that the last fetch has taken account of; none makes the next look a fetch.
    seen: Option<i64>,
    /// The last fetch left something behind, or something is to be read again.
    hungry: bool,
    next_due: Option<Instant>,
    rotation: i16,
    low_marks_at: Instant,
    /// The condition of the endpoint that is raised, and when it was seen last.
    unwell: Option<(&'static str, Instant)>,
    /// Whether the poll knows that this endpoint waits for it.
    waits: bool,
}

/// Serves the endpoint until the process has drained.
pub async fn serve(shared: Shared) {
    let (reports_to, reports) = mpsc::channel(shared.config.delivery.max_in_flight as usize + 64);
    let mut tasks = tokio::task::JoinSet::new();
    let channels = Channels::start(&shared, &reports_to, &mut tasks);
    drop(reports_to);
    let mut endpoint = Endpoint::new(shared, channels, reports);
    endpoint.work().await;
    tasks.shutdown().await;
}

impl Endpoint {
    fn new(shared: Shared, channels: Channels, reports: mpsc::Receiver<Report>) -> Self {
        let config = shared.config.clone();
        let limits = Limits {
            messages: config.delivery.max_in_flight as usize,
            bytes: config.delivery.max_in_flight_bytes,
        };
        let now = Instant::now();
        Self {
            policy: Policy {
                ordering: config.ordering,
                retry: config.retry,
                on_unroutable: config.on_unroutable,
            },
            incarnation: None,
            held: BTreeMap::new(),
            dropped: BTreeMap::new(),
            reading: Reading::default(),
            lanes: Lanes::new(config.ordering.mode, limits),
            suspects: Suspects::default(),
            channels,
            reports,
            settling: Settling::default(),
            settle: None,
            settle_after: now,
            fetch: None,
            fetch_after: now,
            leaving: Vec::new(),
            blocked: HashSet::new(),
            sweep: Sweep::new(),
            seen: None,
            hungry: false,
            next_due: None,
            rotation: -1,
            low_marks_at: now,
            unwell: None,
            waits: false,
            shared,
        }
    }

    /// The loop: start what can be started, wait for whatever comes first, take account of it.
    async fn work(&mut self) {
        loop {
            self.check_trust();
            self.hand_out().await;
            self.start_settle();
            self.start_fetch();
            self.give_partitions_back();
            self.report_low_marks();
            self.report_counts();
            if self.is_drained() {
                return;
            }
            let timer = self.next_timer();
            tokio::select! {
                biased;
                Some(report) = self.reports.recv() => self.on_report(report),
                (act, answer) = ready(&mut self.settle), if self.settle.is_some() => {
                    self.settle = None;
                    self.on_settled(act, answer).await;
                }
                (asked, fetched) = ready(&mut self.fetch), if self.fetch.is_some() => {
                    self.fetch = None;
                    self.on_fetched(&asked, fetched);
                }
                Ok(()) = self.shared.claims.changed() => self.on_claims(),
                Ok(()) = self.shared.signal.changed() => {}
                Ok(()) = self.shared.transport.changed() => {}
                Ok(()) = self.shared.draining.changed() => self.on_drain(),
                () = tokio::time::sleep_until(timer.into()) => {}
            }
            while let Ok(report) = self.reports.try_recv() {
                self.on_report(report);
            }
        }
    }

    fn is_draining(&self) -> bool {
        *self.shared.draining.borrow()
    }

    fn is_drained(&self) -> bool {
        self.is_draining()
            && self.held.is_empty()
            && self.settle.is_none()
            && self.settling.is_empty()
            && self.lanes.in_flight() == 0
    }

    /// Stop: nothing new is read or handed out; what is in flight is waited for.
    fn on_drain(&mut self) {
        self.give_partitions_back();
    }

    /// Drops what waits of a partition that is to be given back. It was read, so the low mark must not pass it.
    fn quieten(&mut self, partition: i16) {
        let Some(held) = self.held.get_mut(&partition).filter(|held| !held.quiet) else {
            return;
        };
        held.quiet = true;
        if let Some(lowest) = self.lanes.lowest(partition) {
            self.reading.read_again(
                partition,
                message::Place {
                    xact: lowest,
                    id: 0,
                },
            );
        }
        self.lanes.drop_waiting_of(partition);
        self.suspects.drop_waiting_of(partition, &mut self.lanes);
    }

    /// Past the trusted time everything is lost, whatever the database says later.
    fn check_trust(&mut self) {
        if !self.held.is_empty() && !self.shared.trust.holds() && !hooks::broken("trust") {
            let lost: Vec<_> = self.held.keys().copied().collect();
            for partition in lost {
                self.lose(partition);
            }
        }
    }

    fn lose(&mut self, partition: i16) {
        if let Some(held) = self.held.remove(&partition) {
            self.shared.metrics.lease_lost.inc();
            self.dropped.insert(partition, held.epoch);
            self.forget_partition(partition);
        }
    }

    fn forget_partition(&mut self, partition: i16) {
        self.reading.lose(partition);
        self.suspects.forget(partition);
        self.lanes.forget(partition);
        self.sweep.forget(partition);
    }

    /// The server crashed or was promoted: numbers and positions may be given out again.
    fn forget_everything(&mut self) {
        for partition in std::mem::take(&mut self.held).into_keys() {
            self.forget_partition(partition);
        }
        self.dropped.clear();
        self.reading.forget();
        self.leaving.clear();
        self.incarnation = None;
        self.shared.claim_now.notify_one();
    }

    /// Whether an answer comes from the server we know; if not, everything is forgotten.
    fn is_same_incarnation(&mut self, incarnation: Option<Uuid>) -> bool {
        if incarnation.is_some() && incarnation == self.incarnation {
            return true;
        }
        if self.incarnation.is_some() {
            tracing::warn!(endpoint = %self.shared.config.name, "The database server was restarted after a crash, or promoted; reading again from the low marks");
            self.forget_everything();
        }
        false
    }

    /// Takes over what `claim_work` answered.
    fn on_claims(&mut self) {
        let claims = self.shared.claims.borrow_and_update().clone();
        let holding = claims
            .holdings
            .get(&self.shared.config.name)
            .cloned()
            .unwrap_or_default();
        if claims.incarnation != self.incarnation {
            if self.incarnation.is_some() {
                self.forget_everything();
            }
            self.incarnation = claims.incarnation;
        }
        let gone: Vec<_> = self
            .held
            .keys()
            .filter(|p| !holding.partitions.contains_key(p))
            .copied()
            .collect();
        for partition in gone {
            self.lose(partition);
        }
        for (&partition, claimed) in &holding.partitions {
            let known = self.held.get(&partition).map(|held| held.epoch);
            if known.is_some_and(|epoch| epoch != claimed.epoch) {
                self.lose(partition);
            }
            if self
                .dropped
                .get(&partition)
                .is_some_and(|&epoch| claimed.epoch <= epoch)
            {
                continue;
            }
            if let Some(held) = self.held.get_mut(&partition) {
                if held.quiet && !claimed.hand_over {
                    held.quiet = false;
                    self.hungry = true;
                }
                held.hand_over = claimed.hand_over;
                self.reading.low_mark_is(partition, claimed.low_mark);
                self.reading.low_mark_stored(partition, claimed.low_mark);
                continue;
            }
            self.held.insert(
                partition,
                Held {
                    epoch: claimed.epoch,
                    hand_over: claimed.hand_over,
                    quiet: false,
                    releasing: false,
                },
            );
            self.reading
                .gain(partition, claimed.low_mark, claimed.removals);
            if claimed.suspect {
                self.suspects.gate(partition);
            }
            self.seen = None;
        }
    }

    /// Partitions that others should have, or all of them when draining, go back once nothing of theirs is in memory.
    fn give_partitions_back(&mut self) {
        let draining = self.is_draining();
        let wanted: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| (held.hand_over || draining) && !held.releasing)
            .map(|(p, held)| (*p, held.epoch))
            .collect();
        for (partition, epoch) in wanted {
            self.quieten(partition);
            let low_mark = self
                .reading
                .low_mark(partition, self.lanes.lowest(partition));
            let stored = self.reading.stored_low_mark(partition);
            if self.lanes.is_clear_of(partition)
                && self.fetch.is_none()
                && let (Some(low_mark), Some(stored)) = (low_mark, stored)
            {
                if let Some(held) = self.held.get_mut(&partition) {
                    held.releasing = true;
                }
                self.settling
                    .release((partition, epoch, stored, low_mark.max(stored)));
            }
        }
    }

    fn report_low_marks(&mut self) {
        if self.low_marks_at.elapsed() < LOW_MARKS {
            return;
        }
        self.low_marks_at = Instant::now();
        let moved: Vec<_> = self
            .held
            .keys()
            .filter_map(|&p| {
                let (stored, new) = (
                    self.reading.stored_low_mark(p)?,
                    self.reading.low_mark(p, self.lanes.lowest(p))?,
                );
                (new > stored).then_some((p, stored, new))
            })
            .collect();
        let mut marks = self
            .shared
            .low_marks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        marks.insert(self.shared.config.name.clone(), moved);
    }

    fn report_counts(&self) {
        self.shared
            .status
            .count(&self.shared.config.name, |counts| {
                counts.in_flight = self.lanes.in_flight();
                counts.leases = self.held.len();
            });
    }

    /// Starts the next settle, if one waits and none is under way.
    fn start_settle(&mut self) {
        if self.settle.is_some() || Instant::now() < self.settle_after {
            return;
        }
        let Some(act) = self.settling.next_act() else {
            return;
        };
        hooks::abort_at("confirmed");
        let (settler, worker, endpoint) = (
            self.shared.settler.clone(),
            self.shared.worker,
            self.shared.config.name.clone(),
        );
        self.settle = Some(Box::pin(async move {
            let mut session = settler.lock().await;
            let answer = session
                .call(CALL, async |link| act.run(link, worker, &endpoint).await)
                .await;
            hooks::abort_at("settled");
            (act, answer)
        }));
    }

    /// Whether something is to be read, and there is room and a way to publish.
    fn should_fetch(&self) -> bool {
        if self.fetch.is_some() || self.reading.is_empty() || self.is_draining() || self.is_paused()
        {
            return false;
        }
        if Instant::now() < self.fetch_after
            || !self.lanes.wants_more()
            || !self.channels.take_messages()
        {
            return false;
        }
        let signal = self.shared.signal.borrow();
        self.hungry
            || self.seen != Some(signal.position)
            || self.reading.has_again()
            || self.reading.something_ended(&signal.snapshot)
            || self.next_due.is_some_and(|due| due <= Instant::now())
    }

    fn is_paused(&self) -> bool {
        self.shared.paused || self.shared.config.paused
    }

    /// Starts the next fetch or sweep; asks for a poll where there is nothing to read.
    fn start_fetch(&mut self) {
        self.note_incarnation_of_signal();
        if self.should_fetch() {
            self.seen = Some(self.shared.signal.borrow().position);
            let asked = self.plan_fetch();
            self.fetch = Some(self.read(asked));
        } else if self.fetch.is_none()
            && self.shared.sweep
            && !self.is_draining()
            && !self.is_paused()
            && let Some(asked) = self.sweep.plan(&self.reading, &self.shared.config)
        {
            self.fetch = Some(self.read(asked));
        }
        self.wait_for_poll(self.fetch.is_none() && self.lanes.wants_more());
    }

    fn wait_for_poll(&mut self, waits: bool) {
        if self.waits != waits {
            self.waits = waits;
            self.shared.waiters.change(waits);
        }
    }

    fn note_incarnation_of_signal(&mut self) {
        let incarnation = self.shared.signal.borrow().incarnation;
        if self.incarnation.is_some() && incarnation.is_some() && incarnation != self.incarnation {
            // A claim tells which of the two is the newer one.
            self.shared.claim_now.notify_one();
        }
    }

    fn read(&self, asked: Asked) -> BoxFuture<'static, (Asked, Fetched)> {
        let reader = self.shared.reader.clone();
        Box::pin(async move {
            let mut session = reader.lock().await;
            let fetch = asked.fetch.clone();
            let answer = session
                .call(CALL, async |link| {
                    store::fetch_outbox_batch(link, &fetch).await
                })
                .await;
            (asked, answer)
        })
    }

    fn next_timer(&self) -> Instant {
        let now = Instant::now();
        let mut timer = now + Duration::from_secs(1);
        let mut at = |when: Instant| timer = timer.min(when.max(now + Duration::from_millis(1)));
        if !self.held.is_empty() {
            at(self.shared.trust.until());
        }
        if let Some(due) = self.next_due {
            at(due);
        }
        if self.settle_after > now {
            at(self.settle_after);
        }
        if self.fetch_after > now {
            at(self.fetch_after);
        }
        if let Some(paused) = self.channels.paused_until() {
            at(paused);
        }
        timer
    }

    fn scope(&self) -> Scope {
        Scope::Endpoint(self.shared.config.name.clone())
    }
}

/// Waits for a future that may not be there; callers check that it is.
async fn ready<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
