//! The channels of one endpoint: which takes messages, which is under suspicion, when all of them pause.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postroom_crds::routing_key::{Part, Template};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::message::Message;
use super::publish::{self, Publisher, Report};
use super::{Endpoint, Held, Shared};
use crate::backoff::Backoff;
use crate::broker::Transport;
use crate::hooks;
use crate::reason::Reason;
use crate::settle::Burial;

/// Closes by a message without a confirm in between, after which the suspects are sent one by one.
const CLOSES_BEFORE_SINGLES: u32 = 2;

/// One channel.
#[derive(Debug)]
struct Channel {
    orders: mpsc::Sender<Vec<Arc<Message>>>,
    ready: bool,
    in_flight: usize,
    closes: u32,
    /// So many messages are still to be sent one by one.
    singles: usize,
}

/// All channels of an endpoint; the partition of a message decides which one it takes.
#[derive(Debug)]
pub(super) struct Channels {
    channels: Vec<Channel>,
    paused_until: Option<Instant>,
    backoff: Backoff,
}

impl Channels {
    /// Starts one task for each channel.
    pub(super) fn start(
        shared: &Shared,
        reports: &mpsc::Sender<Report>,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let config = &shared.config;
        // Checked with the resource; a template that cannot be read is taken as it stands.
        let template = Template::parse(&config.routing_key).unwrap_or_else(|_| Template {
            parts: vec![Part::Text(config.routing_key.clone())],
        });
        let template = Arc::new(template);
        let channels = (0..config.delivery.channels as usize)
            .map(|channel| {
                let (orders, inbox) = mpsc::channel(config.delivery.max_in_flight as usize + 64);
                let publisher = Publisher {
                    channel,
                    config: config.clone(),
                    template: template.clone(),
                    trust: shared.trust.clone(),
                    duration: shared.metrics.publish.clone(),
                };
                tasks.spawn(publish::run(
                    publisher,
                    shared.transport.clone(),
                    inbox,
                    reports.clone(),
                ));
                Channel {
                    orders,
                    ready: false,
                    in_flight: 0,
                    closes: 0,
                    singles: 0,
                }
            })
            .collect();
        Self {
            channels,
            paused_until: None,
            backoff: Backoff::default(),
        }
    }

    fn of(&self, partition: i16) -> usize {
        usize::try_from(partition).unwrap_or_default() % self.channels.len()
    }

    fn takes(&self, partition: i16) -> bool {
        let channel = &self.channels[self.of(partition)];
        channel.ready && (channel.singles == 0 || channel.in_flight == 0)
    }

    /// Whether any channel takes messages now.
    pub(super) fn take_messages(&self) -> bool {
        !self.is_paused() && self.channels.iter().any(|channel| channel.ready)
    }

    fn is_paused(&self) -> bool {
        self.paused_until
            .is_some_and(|until| Instant::now() < until)
    }

    /// End of the pause of all channels.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.paused_until.filter(|until| Instant::now() < *until)
    }

    /// A message has come back.
    pub(super) fn returned(&mut self, partition: i16, confirmed: bool) {
        let channel = self.of(partition);
        let channel = &mut self.channels[channel];
        channel.in_flight = channel.in_flight.saturating_sub(1);
        if confirmed {
            channel.closes = 0;
            channel.singles = channel.singles.saturating_sub(1);
            self.paused_until = None;
            self.backoff = Backoff::default();
        }
    }

    /// A channel was opened.
    pub(super) fn opened(&mut self, channel: usize) {
        self.channels[channel].ready = true;
    }

    /// A channel was closed; `by_message` says whether for something that was published.
    pub(super) fn closed(&mut self, channel: usize, by_message: bool, suspects: usize) {
        let channel = &mut self.channels[channel];
        channel.ready = false;
        if by_message {
            channel.closes += 1;
            if channel.closes >= CLOSES_BEFORE_SINGLES && channel.singles == 0 {
                channel.singles = suspects;
            }
        }
    }

    /// The endpoint cannot be published to at all: everything waits, then one message is tried.
    pub(super) fn pause(&mut self, channel: usize) -> Duration {
        let pause = self.backoff.next_pause();
        self.paused_until = Some(Instant::now() + pause);
        self.channels[channel].singles = 1;
        self.channels[channel].closes = 0;
        pause
    }
}

impl Endpoint {
    /// Hands out what may go now.
    pub(super) async fn hand_out(&mut self) {
        let blocked = match &*self.shared.transport.borrow() {
            Transport::Up(up) => up.blocked.is_some(),
            Transport::Down { .. } => true,
        };
        if blocked
            || self.is_draining()
            || self.is_paused()
            || self.channels.is_paused()
            || !self.shared.trust.holds()
        {
            return;
        }
        self.start_suspect();
        let mut orders: Vec<Vec<Arc<Message>>> = vec![Vec::new(); self.channels.channels.len()];
        loop {
            let (held, channels, suspects) = (&self.held, &self.channels, &self.memory.suspects);
            let may_go = |partition: i16| {
                held.get(&partition).is_some_and(Held::is_open)
                    && channels.takes(partition)
                    && !suspects.is_gated(partition)
            };
            let Some(message) = self.memory.lanes.next(may_go) else {
                break;
            };
            let channel = self.channels.of(message.identity.key.partition);
            if self.refuse_unsent(&message) {
                continue;
            }
            self.channels.channels[channel].in_flight += 1;
            if hooks::broken("early-settle") {
                self.settling
                    .complete(self.claim_of(&message), message.clone());
            }
            orders[channel].push(message);
        }
        for (channel, order) in orders.into_iter().enumerate() {
            self.send(channel, order).await;
        }
    }

    /// Sends an order to a channel. There is always room: its queue holds as many orders as messages may be in flight.
    async fn send(&mut self, channel: usize, order: Vec<Arc<Message>>) {
        if order.is_empty() {
            return;
        }
        hooks::abort_at("publishing");
        if let Err(mpsc::error::SendError(order)) =
            self.channels.channels[channel].orders.send(order).await
        {
            // The channel's task has ended, as at the end of the process.
            for message in order {
                self.memory.lanes.back(message);
            }
        }
    }

    /// Publishes the next suspect whose attempt is recorded, or records the attempt of the next one.
    fn start_suspect(&mut self) {
        let Some(message) = self.memory.suspects.next() else {
            return;
        };
        let identity = message.identity;
        self.memory.lanes.hand_out_held(&message);
        self.channels.expect(identity.key.partition);
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
            self.channels.returned(identity.key.partition, false);
            self.memory.lanes.settling(&message, false);
            self.settling.bury(burial, message);
            return;
        }
        self.record_attempt(message);
    }

    /// The attempt of a suspect is recorded: it goes out alone. The copy says that it has a deferral of its own now.
    pub(super) async fn publish_suspect(&mut self, message: &Arc<Message>) {
        let partition = message.identity.key.partition;
        if self.refuse_unsent(message) {
            self.channels.returned(partition, false);
            return;
        }
        let mut recorded = Message::clone(message);
        recorded.deferrals += 1;
        let channel = self.channels.of(partition);
        self.send(channel, vec![Arc::new(recorded)]).await;
    }

    /// Buries what must not be sent: expired messages. True if it did.
    fn refuse_unsent(&mut self, message: &Arc<Message>) -> bool {
        let limit = self.shared.config.delivery.max_message_bytes;
        let problem = if message.expired {
            Some((
                "Expired",
                "its time of expiry had passed before it could be published".to_owned(),
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

    /// A channel was closed for a reason that concerns the endpoint as a whole.
    pub(super) fn on_endpoint_failure(&mut self, channel: usize, reason: Reason) {
        let pause = self.channels.pause(channel);
        let message = format!(
            "exchange '{}': {}; publishing pauses for {pause:?}",
            self.shared.config.exchange, reason.message
        );
        self.raise(Reason { message, ..reason });
    }
}

impl Channels {
    /// A message will be sent on the partition's channel outside the lanes.
    fn expect(&mut self, partition: i16) {
        let channel = self.of(partition);
        self.channels[channel].in_flight += 1;
    }
}
