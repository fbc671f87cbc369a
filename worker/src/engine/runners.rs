//! The runners of one endpoint: which takes messages, which is under suspicion, when all of them pause.
//!
//! A runner is a task that publishes on one channel of the broker, or runs a handler in one session with the database.
//! The partition of a message decides which runner it takes, so that one stream keeps to one of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use uuid::Uuid;

use super::message::Message;
use super::outcome::Outcome;
use super::{Endpoint, Held};
use crate::backoff::Backoff;
use crate::broker::Transport;
use crate::hooks;
use crate::reason::Reason;
use crate::settle::Burial;
use crate::store::Direction;

/// Messages for one runner.
#[derive(Debug, Default)]
pub struct Order {
    /// In the order in which they are to be run.
    pub messages: Vec<Arc<Message>>,
    /// Epoch of each partition that is held now.
    pub epochs: Arc<BTreeMap<i16, i64>>,
}

/// What a runner tells the endpoint. Every message of an order comes back exactly once.
#[derive(Debug)]
pub enum Report {
    /// It takes messages.
    Ready(usize),
    /// Outcomes of messages.
    Outcomes {
        /// Of these.
        outcomes: Vec<(Arc<Message>, Outcome)>,
        /// Partitions in which a blocking deferral was removed, with the counter after that.
        freed: Vec<(i16, i64)>,
        /// Incarnation of the server, where it was asked.
        incarnation: Option<Uuid>,
    },
    /// It takes no messages until it is ready again; everything it had has come back as unknown.
    Closed {
        /// Which runner.
        runner: usize,
        /// Why.
        reason: Reason,
        /// Whether for something that was run.
        by_message: bool,
        /// Messages it had.
        suspects: Vec<Arc<Message>>,
    },
}

impl Report {
    /// Outcomes alone.
    pub fn outcomes(outcomes: Vec<(Arc<Message>, Outcome)>) -> Self {
        Self::Outcomes {
            outcomes,
            freed: Vec::new(),
            incarnation: None,
        }
    }
}

/// Closes by a message without a confirm in between, after which the suspects are sent one by one.
const CLOSES_BEFORE_SINGLES: u32 = 2;

/// One runner.
#[derive(Debug)]
struct Runner {
    orders: mpsc::Sender<Order>,
    ready: bool,
    in_flight: usize,
    closes: u32,
    /// So many messages are still to be sent one by one.
    singles: usize,
}

/// All runners of an endpoint.
#[derive(Debug)]
pub struct Runners {
    runners: Vec<Runner>,
    paused_until: Option<Instant>,
    backoff: Backoff,
}

impl Runners {
    /// Runners that take orders from these; none takes any before it says that it is ready.
    pub fn new(orders: impl IntoIterator<Item = mpsc::Sender<Order>>) -> Self {
        let runner = |orders| Runner {
            orders,
            ready: false,
            in_flight: 0,
            closes: 0,
            singles: 0,
        };
        Self {
            runners: orders.into_iter().map(runner).collect(),
            paused_until: None,
            backoff: Backoff::default(),
        }
    }

    fn of(&self, partition: i16) -> usize {
        usize::try_from(partition).unwrap_or_default() % self.runners.len()
    }

    fn takes(&self, partition: i16) -> bool {
        let runner = &self.runners[self.of(partition)];
        runner.ready && (runner.singles == 0 || runner.in_flight == 0)
    }

    /// Whether any runner takes messages now.
    pub(super) fn take_messages(&self) -> bool {
        !self.is_paused() && self.runners.iter().any(|runner| runner.ready)
    }

    fn is_paused(&self) -> bool {
        self.paused_until
            .is_some_and(|until| Instant::now() < until)
    }

    /// End of the pause of all runners.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.paused_until.filter(|until| Instant::now() < *until)
    }

    /// A message has come back.
    pub(super) fn returned(&mut self, partition: i16, confirmed: bool) {
        let runner = self.of(partition);
        let runner = &mut self.runners[runner];
        runner.in_flight = runner.in_flight.saturating_sub(1);
        if confirmed {
            runner.closes = 0;
            runner.singles = runner.singles.saturating_sub(1);
            self.paused_until = None;
            self.backoff = Backoff::default();
        }
    }

    /// A runner takes messages.
    pub(super) fn opened(&mut self, runner: usize) {
        self.runners[runner].ready = true;
    }

    /// A runner was closed; `by_message` says whether for something that was run.
    pub(super) fn closed(&mut self, runner: usize, by_message: bool, suspects: usize) {
        let runner = &mut self.runners[runner];
        runner.ready = false;
        if by_message {
            runner.closes += 1;
            if runner.closes >= CLOSES_BEFORE_SINGLES && runner.singles == 0 {
                runner.singles = suspects;
            }
        }
    }

    /// Nothing of the endpoint can be run at all: everything waits, then one message is tried.
    pub(super) fn pause(&mut self, runner: usize) -> Duration {
        let pause = self.backoff.next_pause();
        self.paused_until = Some(Instant::now() + pause);
        self.runners[runner].singles = 1;
        self.runners[runner].closes = 0;
        pause
    }
}

impl Endpoint {
    /// Hands out what may go now.
    pub(super) async fn hand_out(&mut self) {
        let blocked =
            self.shared
                .transport
                .as_ref()
                .is_some_and(|transport| match &*transport.borrow() {
                    Transport::Up(up) => up.blocked.is_some(),
                    Transport::Down { .. } => true,
                });
        if blocked
            || self.is_draining()
            || self.is_paused()
            || self.runners.is_paused()
            || !self.shared.trust.holds()
        {
            return;
        }
        self.start_suspect();
        let mut orders: Vec<Vec<Arc<Message>>> = vec![Vec::new(); self.runners.runners.len()];
        loop {
            let (held, runners, suspects) = (&self.held, &self.runners, &self.memory.suspects);
            let may_go = |partition: i16| {
                held.get(&partition).is_some_and(Held::is_open)
                    && runners.takes(partition)
                    && !suspects.is_gated(partition)
            };
            let Some(message) = self.memory.lanes.next(may_go) else {
                break;
            };
            let runner = self.runners.of(message.identity.key.partition);
            if self.refuse_unsent(&message) {
                continue;
            }
            self.runners.runners[runner].in_flight += 1;
            if hooks::broken("early-settle") {
                self.settling
                    .complete(self.claim_of(&message), message.clone());
            }
            orders[runner].push(message);
        }
        for (runner, order) in orders.into_iter().enumerate() {
            self.send(runner, order).await;
        }
    }

    /// Sends an order to a runner. There is always room: its queue holds as many orders as messages may be in flight.
    async fn send(&mut self, runner: usize, messages: Vec<Arc<Message>>) {
        if messages.is_empty() {
            return;
        }
        hooks::abort_at("publishing");
        let order = Order {
            messages,
            epochs: self.epochs(),
        };
        if let Err(mpsc::error::SendError(order)) =
            self.runners.runners[runner].orders.send(order).await
        {
            // The runner's task has ended, as at the end of the process.
            for message in order.messages {
                self.memory.lanes.back(message);
            }
        }
    }

    /// The epochs of what is held.
    fn epochs(&self) -> Arc<BTreeMap<i16, i64>> {
        if self.shared.config.direction == Direction::Outbox {
            return Arc::default(); // a channel has no use for them
        }
        let held = self.held.iter();
        Arc::new(
            held.map(|(&partition, held)| (partition, held.epoch))
                .collect(),
        )
    }

    /// Runs the next suspect whose attempt is recorded, or records the attempt of the next one.
    fn start_suspect(&mut self) {
        let Some(message) = self.memory.suspects.next() else {
            return;
        };
        let identity = message.identity;
        self.memory.lanes.hand_out_held(&message);
        self.runners.expect(identity.key.partition);
        if self.policy.gives_up_after(message.attempts) {
            let burial = Burial {
                claim: self.claim_of(&message),
                counted: false,
                reason: "WorkerVanished".to_owned(),
                error: format!(
                    "{} workers vanished while they ran this message alone",
                    message.attempts
                ),
            };
            self.runners.returned(identity.key.partition, false);
            self.memory.lanes.settling(&message, false);
            self.settling.bury(burial, message);
            return;
        }
        self.record_attempt(message);
    }

    /// The attempt of a suspect is recorded: it goes out alone. The copy says that it has a deferral of its own now.
    pub(super) async fn run_suspect(&mut self, message: &Arc<Message>) {
        let partition = message.identity.key.partition;
        if self.refuse_unsent(message) {
            self.runners.returned(partition, false);
            return;
        }
        let mut recorded = Message::clone(message);
        recorded.deferrals += 1;
        let runner = self.runners.of(partition);
        self.send(runner, vec![Arc::new(recorded)]).await;
    }

    /// Buries what must not be sent: expired messages. True if it did.
    fn refuse_unsent(&mut self, message: &Arc<Message>) -> bool {
        let limit = self.shared.config.max_message_bytes;
        let problem = if message.expired {
            Some((
                "Expired",
                "its time of expiry had passed before its turn came".to_owned(),
            ))
        } else if message.size() > limit {
            Some((
                "Oversize",
                format!(
                    "the body has {} bytes, the endpoint allows {limit}",
                    message.size()
                ),
            ))
        } else {
            None
        };
        let Some((reason, error)) = problem else {
            return false;
        };
        self.memory.lanes.settling(message, false);
        let burial = Burial {
            claim: self.claim_of(message),
            counted: false,
            reason: reason.to_owned(),
            error,
        };
        self.settling.bury(burial, message.clone());
        true
    }

    /// A runner was closed for a reason that concerns the endpoint as a whole.
    pub(super) fn on_endpoint_failure(&mut self, runner: usize, reason: Reason) {
        let pause = self.runners.pause(runner);
        let message = format!(
            "{}: {}; the endpoint pauses for {pause:?}",
            self.shared.config.target, reason.message
        );
        self.raise(Reason { message, ..reason });
    }
}

impl Runners {
    /// A message will be sent on the partition's runner outside the lanes.
    fn expect(&mut self, partition: i16) {
        let runner = self.of(partition);
        self.runners[runner].in_flight += 1;
    }
}
