//! The flow of one endpoint, outbox or inbox: read, run, settle.
//!
//! ```text
//! fetch_..._batch -> Reading, Lanes -> runners -> outcomes -> decisions -> settles
//!  (one at a time)      (pure)                               (outcome)    (one at a time)
//! ```
//!
//! A runner publishes messages on a channel (`outbox/publish.rs`) or runs a handler (`inbox/handle.rs`).
//! One task owns all state of an endpoint; what it waits for are a fetch, a settle, the reports of its
//! runners, new claims, the poll's signal and timers. Invariants: nothing is handed out that is not held;
//! at most one fetch and one settle are under way; a row goes only after its confirm, or with its effect.

pub mod lanes;
pub mod message;
pub mod outcome;
pub mod reading;
pub mod runners;
pub mod settling;

mod holding;
mod intake;
mod memory;
mod record;
mod suspects;
mod sweep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use postroom_crds::inbox_outbox::outbox::{OnUnroutable, Ordering, Retry};
use tokio::sync::{Mutex, Notify, mpsc, watch};
use uuid::Uuid;

use crate::broker::Transport;
use crate::database::Session;
use crate::heart::Claims;
use crate::hooks;
use crate::lease::Trust;
use crate::metrics::EndpointMetrics;
use crate::poll::Waiters;
use crate::reason::Reason;
use crate::settle::Settled;
use crate::status::{Scope, Status};
use crate::store::{self, Direction, LowMarks, Signal};

use intake::{Asked, Fetched};
use lanes::Limits;
use memory::{Memory, Seen};
use outcome::Policy;
use runners::{Report, Runners};
use settling::{Act, Settling};
use sweep::Sweep;

/// Deadline of a fetch or a settle.
const CALL: Duration = Duration::from_secs(30);
/// Pause after a failed call.
const CALL_PAUSE: Duration = Duration::from_millis(250);
/// After a settle, confirmed messages wait so long for more to be recorded with them: one call costs as much as the deletion
/// of a hundred rows. What was confirmed meanwhile is sent again if the process dies.
const GATHER: Duration = Duration::from_millis(20);
/// How often low marks are reported.
const LOW_MARKS: Duration = Duration::from_secs(30);

/// What the engine needs to know of an outbox or inbox.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the endpoint.
    pub name: String,
    /// Outbox or inbox.
    pub direction: Direction,
    /// Whether this endpoint alone is paused.
    pub paused: bool,
    /// Most rows of a fetch.
    pub batch_size: usize,
    /// Most messages and bytes in flight.
    pub limits: Limits,
    /// A larger body is given up.
    pub max_message_bytes: u64,
    /// Whether runners need the bodies.
    pub bodies: bool,
    /// Order.
    pub ordering: Ordering,
    /// Repeats.
    pub retry: Retry,
    /// Returned messages.
    pub on_unroutable: OnUnroutable,
    /// What messages go to, for people.
    pub target: String,
}

/// What an endpoint shares with the rest of the process.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Settings.
    pub config: Arc<Settings>,
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
    /// Broker that the runners need.
    pub transport: Option<watch::Receiver<Transport>>,
    /// Set when the process drains.
    pub draining: watch::Receiver<bool>,
    /// Status.
    pub status: Status,
    /// Metrics.
    pub metrics: EndpointMetrics,
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

impl Held {
    /// Whether its messages may be taken in and handed out.
    fn is_open(&self) -> bool {
        !self.hand_over && !self.releasing
    }
}

struct Endpoint {
    shared: Shared,
    policy: Policy,
    incarnation: Option<Uuid>,
    held: BTreeMap<i16, Held>,
    /// Last epoch of partitions that were held once, and when it was given up: an older answer must not bring them back.
    dropped: BTreeMap<i16, (i64, Instant)>,
    memory: Memory,
    runners: Runners,
    reports: mpsc::Receiver<Report>,
    settling: Settling,
    settle: Option<BoxFuture<'static, (Act, Result<Settled, Reason>)>>,
    settle_after: Instant,
    gather_until: Instant,
    fetch: Option<BoxFuture<'static, (Asked, Fetched)>>,
    fetch_after: Instant,
    sweep: Sweep,
    low_marks_at: Instant,
    /// The condition of the endpoint that is raised, and when it was seen last.
    unwell: Option<(&'static str, Instant)>,
    /// Whether the poll knows that this endpoint waits for it.
    waits: bool,
}

/// Serves the endpoint until the process has drained. `reports` is what the runners send.
pub async fn serve(shared: Shared, runners: Runners, reports: mpsc::Receiver<Report>) {
    Endpoint::new(shared, runners, reports).work().await;
}

impl Endpoint {
    fn new(shared: Shared, runners: Runners, reports: mpsc::Receiver<Report>) -> Self {
        let config = shared.config.clone();
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
            memory: Memory::new(config.ordering.mode, config.limits),
            runners,
            reports,
            settling: Settling::default(),
            settle: None,
            settle_after: now,
            gather_until: now,
            fetch: None,
            fetch_after: now,
            sweep: Sweep::new(),
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
            // Before the next fetch is started: under load one is always under way, and nothing would ever go back.
            self.give_partitions_back();
            self.hand_out().await;
            self.start_settle();
            self.start_fetch();
            self.report_low_marks();
            self.report_counts();
            self.forget_refusals();
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
                () = changed(&mut self.shared.transport) => {}
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
            && self.memory.lanes.in_flight() == 0
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
        self.memory.quieten(partition);
    }

    fn report_counts(&self) {
        self.shared
            .status
            .count(&self.shared.config.name, |counts| {
                counts.in_flight = self.memory.lanes.in_flight();
                counts.leases = self.held.len();
            });
    }

    /// Starts the next settle, if one waits and none is under way.
    fn start_settle(&mut self) {
        if self.settle.is_some() || Instant::now() < self.settle_after || self.gathers() {
            return;
        }
        let Some(mut act) = self.settling.next_act() else {
            return;
        };
        act.renew_epochs(|partition| self.held.get(&partition).map(|held| held.epoch));
        self.memory.settle_begins();
        hooks::abort_at(act.abort_point());
        let (settler, worker, config) = (
            self.shared.settler.clone(),
            self.shared.worker,
            self.shared.config.clone(),
        );
        self.settle = Some(Box::pin(async move {
            let mut session = settler.lock().await;
            let answer = session
                .call(CALL, async |link| {
                    act.run(link, worker, config.direction, &config.name).await
                })
                .await;
            hooks::abort_at("settled");
            (act, answer)
        }));
    }

    /// Whether what is to be recorded can wait for more. Nothing waits while partitions are to be given back.
    fn gathers(&self) -> bool {
        Instant::now() < self.gather_until
            && self.settling.can_wait()
            && !self.is_draining()
            && self.held.values().all(Held::is_open)
    }

    /// Whether something is to be read, and there is room and a way to publish.
    fn should_fetch(&mut self) -> bool {
        if self.fetch.is_some()
            || self.memory.reading.is_empty()
            || self.is_draining()
            || self.is_paused()
        {
            return false;
        }
        if Instant::now() < self.fetch_after
            || !self.memory.lanes.wants_more()
            || !self.runners.take_messages()
        {
            return false;
        }
        let held = &self.held;
        let is_open = |partition| held.get(&partition).is_some_and(Held::is_open);
        self.memory
            .wants_fetch(&self.shared.signal.borrow(), Instant::now(), is_open)
    }

    fn is_paused(&self) -> bool {
        self.shared.paused || self.shared.config.paused
    }

    /// Starts the next fetch or sweep; asks for a poll where there is nothing to read.
    fn start_fetch(&mut self) {
        self.note_incarnation_of_signal();
        if self.should_fetch() {
            self.memory.seen = Some(Seen::of(&self.shared.signal.borrow()));
            let asked = self.plan_fetch();
            self.fetch = Some(self.read(asked));
        } else if self.fetch.is_none()
            && self.shared.sweep
            && !self.is_draining()
            && !self.is_paused()
            && let Some(asked) = self
                .sweep
                .plan(&self.memory.reading, &self.shared.config.name)
        {
            self.fetch = Some(self.read(asked));
        }
        self.memory.reads = self.fetch.is_some();
        self.wait_for_poll(self.fetch.is_none() && self.memory.lanes.wants_more());
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
        let (direction, bodies) = (self.shared.config.direction, self.shared.config.bodies);
        Box::pin(async move {
            let mut session = reader.lock().await;
            let fetch = asked.fetch.clone();
            let answer = session
                .call(CALL, async |link| {
                    store::fetch_batch(link, direction, &fetch, bodies).await
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
        // A due time that has passed is acted on when there is room; it needs no timer.
        if let Some(due) = self.memory.next_due.filter(|due| *due > now) {
            at(due);
        }
        if self.settle_after > now {
            at(self.settle_after);
        }
        if self.fetch_after > now {
            at(self.fetch_after);
        }
        if !self.settling.is_empty() && self.gather_until > now {
            at(self.gather_until);
        }
        if let Some(paused) = self.runners.paused_until() {
            at(paused);
        }
        timer
    }

    fn scope(&self) -> Scope {
        Scope::Endpoint(self.shared.config.name.clone())
    }
}

/// Waits for a change of the broker's state; for ever where none is needed.
async fn changed(transport: &mut Option<watch::Receiver<Transport>>) {
    if let Some(transport) = transport
        && transport.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Waits for a future that may not be there; callers check that it is.
async fn ready<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
