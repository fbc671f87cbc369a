//! `postroom-worker run`: starts the parts, waits for the stop signal, drains.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postroom_crds::worker_config::{
    HandlerConfig, InboxConfig, OutboxConfig, TransportConfig, WorkerConfig,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::broker::{self, Transport};
use crate::database::{Database, Session};
use crate::engine::{Settings, Shared};
use crate::heart::{Claims, Heart, Receivers};
use crate::http::{self, Served};
use crate::inbox::ingress::{self, Ingress};
use crate::lease::Trust;
use crate::metrics::METRICS;
use crate::poll::{self, Waiters};
use crate::reason::Reason;
use crate::status::{Scope, Status};
use crate::store::{self, Claimant, Direction, LowMarks, Signal};
use crate::{inbox, migrate, outbox, upkeep};

/// The drain ends so long before the grace period does.
const BEFORE_THE_KILL: Duration = Duration::from_secs(5);
/// Deadline of the calls before the first claim.
const PREPARE: Duration = Duration::from_secs(30);

/// Works until SIGTERM or SIGINT, then drains.
pub async fn run(config: WorkerConfig, address: SocketAddr, sweep: bool) -> Result<(), Reason> {
    let mut stop = Stop::listen()?;
    let listener = http::open(address).await?;
    let status = Status::default();
    let database = Database::new(&config.database, &config.schema);
    let mut parts = JoinSet::new();
    parts.spawn(http::serve(listener, served(&config, &status)));

    let transports = connect_transports(&config, &status, &mut parts);
    tokio::select! {
        prepared = prepare(&database, &config, &status) => prepared?,
        () = stop.signalled() => return Ok(()),
    }
    let (drain, draining) = watch::channel(false);
    let claimant = Claimant {
        id: Uuid::new_v4(),
        host: host_name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    tracing::info!(worker = %claimant.id, "Working as {} for {}/{}", claimant.id, config.namespace, config.name);
    let endpoints = start(
        &config,
        &database,
        &transports,
        &claimant,
        &status,
        draining,
        sweep,
        &mut parts,
    );

    stop.signalled().await;
    tracing::info!("Draining: nothing new is claimed, what is in flight is finished");
    status.drains();
    drain.send_replace(true);
    finish(
        endpoints,
        Duration::from_secs(u64::from(config.worker.grace_seconds)).saturating_sub(BEFORE_THE_KILL),
    )
    .await;
    deregister(&database, claimant.id).await;
    parts.shutdown().await;
    tracing::info!("Drained");
    Ok(())
}

/// The signals that stop a worker.
struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    fn listen() -> Result<Self, Reason> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Reason::new(
                    "NoSignals",
                    format!("signals cannot be received: {error}"),
                    "",
                )
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn signalled(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn served(config: &WorkerConfig, status: &Status) -> Served {
    Served {
        namespace: config.namespace.clone(),
        name: config.name.clone(),
        endpoints: names(config),
        status: status.clone(),
    }
}

/// All endpoints, in the order of the resource.
fn names(config: &WorkerConfig) -> Vec<(String, Direction)> {
    let outboxes = config.outboxes.iter();
    let outboxes = outboxes.map(|outbox| (outbox.name.clone(), Direction::Outbox));
    let inboxes = config.inboxes.iter();
    outboxes
        .chain(inboxes.map(|inbox| (inbox.name.clone(), Direction::Inbox)))
        .collect()
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

type Transports = Vec<(String, watch::Receiver<Transport>)>;

/// One connection for each transport, and one task that shows its state.
fn connect_transports(
    config: &WorkerConfig,
    status: &Status,
    parts: &mut JoinSet<()>,
) -> Transports {
    config
        .transports
        .iter()
        .map(|transport| {
            let (sender, receiver) = watch::channel(Transport::Down {
                since: Instant::now(),
                reason: None,
            });
            parts.spawn(broker::keep_connected(
                transport.clone(),
                transport.name.clone(),
                sender,
            ));
            parts.spawn(show_transport(
                transport.name.clone(),
                receiver.clone(),
                status.clone(),
            ));
            (transport.name.clone(), receiver)
        })
        .collect()
}

/// A connection, and whether nobody else tells of its state.
type Receiving = (watch::Receiver<Transport>, bool);

/// The connection to receive over, and whether nobody else tells of its state. It is one of its own where something is
/// published over the same transport: a broker that is short of memory reads nothing from a connection that publishes, not
/// even the acknowledgements that would help it.
fn connect_to_receive(
    config: &WorkerConfig,
    shown: &Transports,
    parts: &mut JoinSet<()>,
) -> BTreeMap<String, Receiving> {
    let connection = |transport: &TransportConfig| {
        let name = &transport.name;
        let shared = transport_of(name, shown)?;
        let publishes = config.outboxes.iter().any(|o| o.transport == *name);
        let receives = config.inboxes.iter().any(|i| i.transport == *name);
        if !(publishes && receives) {
            return Some((name.clone(), (shared, false)));
        }
        let (sender, receiver) = watch::channel(Transport::Down {
            since: Instant::now(),
            reason: None,
        });
        let called = format!("{name} to receive");
        parts.spawn(broker::keep_connected(transport.clone(), called, sender));
        Some((name.clone(), (receiver, true)))
    };
    config.transports.iter().filter_map(connection).collect()
}

async fn show_transport(name: String, mut state: watch::Receiver<Transport>, status: Status) {
    let scope = Scope::Transport(name.clone());
    loop {
        let seen = state.borrow_and_update().clone();
        match seen {
            Transport::Down { reason, .. } => {
                METRICS.transport(&name, false, false);
                status.transport_is(&name, false);
                if let Some(reason) = reason {
                    status.raise(scope.clone(), reason);
                }
            }
            Transport::Up(up) => {
                METRICS.transport(&name, true, up.blocked.is_some());
                status.transport_is(&name, true);
                match up.blocked {
                    None => status.clear(&scope),
                    Some(why) => status.raise(
                        scope.clone(),
                        Reason::new(
                            "Blocked",
                            format!("the broker blocks publishing: {why}"),
                            "Free memory or disk on the broker; publishing goes on by itself.",
                        ),
                    ),
                }
            }
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// Waits for a database with a schema of this version, and registers the endpoints. Gives up only on a newer schema.
async fn prepare(
    database: &Database,
    config: &WorkerConfig,
    status: &Status,
) -> Result<(), Reason> {
    let mut session = database.session("start");
    let mut backoff = Backoff::default();
    loop {
        let mut verdict = Ok(());
        let call = session.call(PREPARE, async |link| {
            verdict = migrate::check_version(link).await;
            if verdict.is_ok() {
                migrate::register(link, config).await
            } else {
                Ok(())
            }
        });
        match call.await.and(verdict) {
            Ok(()) => {
                status.clear(&Scope::Database);
                session.close().await;
                return Ok(());
            }
            Err(reason) if reason.code == "SchemaAhead" => return Err(reason),
            Err(reason) => status.raise(Scope::Database, reason),
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// What the tasks of this process share.
struct Process<'a> {
    config: &'a WorkerConfig,
    database: &'a Database,
    transports: &'a Transports,
    to_receive: BTreeMap<String, Receiving>,
    worker: Uuid,
    status: &'a Status,
    draining: watch::Receiver<bool>,
    sweep: bool,
    trust: Trust,
    claim_now: Arc<Notify>,
    low_marks: Arc<std::sync::Mutex<LowMarks>>,
    receivers: Receivers,
    reader: Arc<Mutex<Session>>,
    settler: Arc<Mutex<Session>>,
    waiters: Waiters,
    signal: watch::Receiver<Signal>,
    claims: watch::Receiver<Arc<Claims>>,
}

/// An endpoint that is served, with the state of the transport without which it cannot be.
type Needs = (String, Option<watch::Receiver<Transport>>);

impl Process<'_> {
    fn shared(&self, settings: Settings) -> Shared {
        Shared {
            metrics: METRICS.endpoint(
                &self.config.namespace,
                &self.config.name,
                &settings.name,
                settings.direction,
            ),
            config: Arc::new(settings),
            paused: self.config.paused,
            worker: self.worker,
            trust: self.trust.clone(),
            reader: self.reader.clone(),
            settler: self.settler.clone(),
            claims: self.claims.clone(),
            signal: self.signal.clone(),
            waiters: self.waiters.clone(),
            claim_now: self.claim_now.clone(),
            low_marks: Arc::clone(&self.low_marks),
            transport: None,
            draining: self.draining.clone(),
            status: self.status.clone(),
            sweep: self.sweep,
        }
    }

    fn serve_outbox(&self, outbox: &OutboxConfig, endpoints: &mut JoinSet<()>) -> Option<Needs> {
        let transport = transport_of(&outbox.transport, self.transports)?;
        let shared = Shared {
            transport: Some(transport.clone()),
            ..self.shared(outbox::settings(outbox))
        };
        let config = Arc::new(outbox.clone());
        endpoints.spawn(outbox::serve(shared, config, transport.clone()));
        Some((outbox.name.clone(), Some(transport)))
    }

    /// Receives for an inbox, and runs its handler if that is ours to do. It is handled whether or not the broker is there.
    fn serve_inbox(&self, inbox: &InboxConfig, endpoints: &mut JoinSet<()>) -> Option<Needs> {
        if let Some(receiving) = self.to_receive.get(&inbox.transport) {
            endpoints.spawn(ingress::serve(self.ingress(inbox, receiving.clone())));
        }
        if let HandlerConfig::SqlFunction(function) = &inbox.handler {
            let shared = self.shared(inbox::settings(inbox, function));
            let database = self.database.clone();
            endpoints.spawn(inbox::serve(shared, function.clone(), database));
        }
        Some((inbox.name.clone(), None))
    }

    fn ingress(&self, inbox: &InboxConfig, (transport, apart): Receiving) -> Ingress {
        Ingress {
            config: Arc::new(inbox.clone()),
            paused: self.config.paused,
            worker: self.worker,
            session: Arc::new(Mutex::new(self.database.session("accept"))),
            trust: self.trust.clone(),
            claims: self.claims.clone(),
            receivers: self.receivers.clone(),
            claim_now: self.claim_now.clone(),
            transport,
            apart,
            draining: self.draining.clone(),
            status: self.status.clone(),
            metrics: METRICS.ingress(&self.config.namespace, &self.config.name, &inbox.name),
        }
    }
}

/// Starts heart, poll, upkeep, and the tasks of each endpoint; answers the latter.
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of the process, each used once"
)]
fn start(
    config: &WorkerConfig,
    database: &Database,
    transports: &Transports,
    claimant: &Claimant,
    status: &Status,
    draining: watch::Receiver<bool>,
    sweep: bool,
    parts: &mut JoinSet<()>,
) -> JoinSet<()> {
    let (signal, signalled) = watch::channel(Signal::default());
    let (claims, claimed) = watch::channel(Arc::new(Claims::default()));
    let process = Process {
        config,
        database,
        transports,
        to_receive: connect_to_receive(config, transports, parts),
        worker: claimant.id,
        status,
        draining: draining.clone(),
        sweep,
        trust: Trust::default(),
        claim_now: Arc::default(),
        low_marks: Arc::default(),
        receivers: Receivers::default(),
        reader: Arc::new(Mutex::new(database.session("read"))),
        settler: Arc::new(Mutex::new(database.session("settle"))),
        waiters: Waiters::default(),
        signal: signalled,
        claims: claimed,
    };
    let mut endpoints = JoinSet::new();
    let mut served = Vec::new();
    for outbox in &config.outboxes {
        served.extend(process.serve_outbox(outbox, &mut endpoints));
    }
    for inbox in &config.inboxes {
        served.extend(process.serve_inbox(inbox, &mut endpoints));
    }
    let heart = Heart {
        claimant: claimant.clone(),
        lease: Duration::from_secs(u64::from(config.worker.lease_seconds)),
        endpoints: served,
        receivers: process.receivers,
        session: database.session("claim"),
        trust: process.trust,
        claims,
        claim_now: process.claim_now,
        low_marks: process.low_marks,
        draining,
        status: status.clone(),
    };
    parts.spawn(heart.beat());
    let (reader, waiters) = (process.reader, process.waiters);
    let ceiling = idle_ceiling(config);
    parts.spawn(poll::poll(reader, waiters, ceiling, signal, status.clone()));
    parts.spawn(upkeep::keep_up(database.session("upkeep"), status.clone()));
    endpoints
}

fn transport_of(name: &str, transports: &Transports) -> Option<watch::Receiver<Transport>> {
    let mut named = transports.iter().filter(|(known, _)| known == name);
    named.next().map(|(_, state)| state.clone())
}

/// Longest pause of the poll: the shortest that an endpoint asks for.
fn idle_ceiling(config: &WorkerConfig) -> Duration {
    let ceilings = config
        .outboxes
        .iter()
        .map(|outbox| outbox.delivery.max_idle_poll_milliseconds);
    Duration::from_millis(u64::from(ceilings.min().unwrap_or(100)))
}

/// Waits for the endpoints to drain, for as long as there is time.
async fn finish(mut endpoints: JoinSet<()>, time: Duration) {
    let all = async { while endpoints.join_next().await.is_some() {} };
    if tokio::time::timeout(time, all).await.is_err() {
        tracing::warn!(
            "Not everything in flight was settled within {time:?}; others will publish it again with the same ids"
        );
    }
    endpoints.shutdown().await;
}

/// Takes the process off the list, so that whatever it still holds is free at once.
async fn deregister(database: &Database, worker: Uuid) {
    let mut session = database.session("stop");
    let call = session.call(Duration::from_secs(2), async |link| {
        store::deregister_worker(link, worker).await
    });
    if let Err(reason) = call.await {
        tracing::warn!(
            code = reason.code,
            "Could not deregister; the lease runs out by itself: {reason}"
        );
    }
    session.close().await;
}
