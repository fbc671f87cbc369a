//! One channel of the broker: publishes what it is given, in that order, and reports each outcome.
//!
//! Invariants: only this task publishes on the channel; nothing is published after the lease's trusted
//! time; every message handed in comes back exactly once; a message counts as confirmed only when every
//! return that may be its own has been looked at.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use postroom_crds::inbox_outbox::outbox::OnUnroutable;
use postroom_crds::routing_key::Template;
use postroom_crds::worker_config::OutboxConfig;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use uuid::Uuid;

use super::wire;
use crate::backoff::Backoff;
use crate::broker::{Transport, Up};
use crate::engine::message::Message;
use crate::engine::outcome::Outcome;
use crate::engine::runners::{Order, Report};
use crate::hooks;
use crate::lease::Trust;
use crate::reason::{self, Reason};

/// Deadline for opening or closing a channel.
const CHANNEL: Duration = Duration::from_secs(5);
/// How often the age of the oldest unconfirmed message is looked at.
const TICK: Duration = Duration::from_millis(200);

/// What a channel needs to know.
#[derive(Debug, Clone)]
pub struct Publisher {
    /// Number of the channel within its endpoint.
    pub channel: usize,
    /// The endpoint's settings.
    pub config: Arc<OutboxConfig>,
    /// Template of routing keys.
    pub template: Arc<Template>,
    /// How long this process may act on its lease.
    pub trust: Trust,
    /// Takes the time from hand-out to the broker's answer.
    pub duration: prometheus::Histogram,
}

/// Runs the channel until the endpoint hangs up.
pub async fn run(
    publisher: Publisher,
    mut transport: watch::Receiver<Transport>,
    mut orders: mpsc::Receiver<Order>,
    reports: mpsc::Sender<Report>,
) {
    let mut backoff = Backoff::default();
    loop {
        let up = tokio::select! {
            up = wait_until_up(&mut transport) => up,
            order = orders.recv() => match order {
                None => return,
                Some(order) => {
                    give_back(order.messages, &reports).await;
                    continue;
                }
            },
        };
        let Some(up) = up else { return };
        let end = match open(&up).await {
            Err(reason) => End {
                reason,
                by_message: false,
                suspects: Vec::new(),
            },
            Ok(channel) => {
                if reports
                    .send(Report::Ready(publisher.channel))
                    .await
                    .is_err()
                {
                    return;
                }
                let frame_max = up.connection.configuration().frame_max();
                let mut flight = Flight::new(&publisher, channel, frame_max);
                let Some(end) = flight
                    .until_closed(&up, &mut transport, &mut orders, &reports)
                    .await
                else {
                    return;
                };
                if flight.confirmed_something {
                    backoff = Backoff::default();
                }
                end
            }
        };
        let report = Report::Closed {
            runner: publisher.channel,
            reason: end.reason,
            by_message: end.by_message,
            suspects: end.suspects,
        };
        if reports.send(report).await.is_err() {
            return;
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

async fn wait_until_up(transport: &mut watch::Receiver<Transport>) -> Option<Up> {
    let state = transport
        .wait_for(|state| matches!(state, Transport::Up(_)))
        .await
        .ok()?;
    match &*state {
        Transport::Up(up) => Some(up.clone()),
        Transport::Down { .. } => None,
    }
}

async fn give_back(order: Vec<Arc<Message>>, reports: &mpsc::Sender<Report>) {
    let outcomes = order
        .into_iter()
        .map(|message| (message, Outcome::Unknown))
        .collect();
    // Nobody listens any more only when the endpoint has ended.
    drop(reports.send(Report::outcomes(outcomes)).await);
}

async fn open(up: &Up) -> Result<Channel, Reason> {
    let open = async {
        let channel = up.connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok::<_, lapin::Error>(channel)
    };
    match timeout(CHANNEL, open).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(reason::of_broker(&error)),
        Err(_) => {
            if up.blocked.is_none() {
                up.broken.notify_one();
            }
            Err(Reason::timeout("the broker", CHANNEL))
        }
    }
}

struct End {
    reason: Reason,
    by_message: bool,
    suspects: Vec<Arc<Message>>,
}

type Confirmed = (u64, Result<Confirmation, lapin::Error>);

/// The messages published on one channel and not decided yet.
struct Flight<'a> {
    publisher: &'a Publisher,
    channel: Channel,
    /// What the broker takes as one frame.
    frame_max: u32,
    exchange: ShortString,
    confirms: FuturesUnordered<futures::future::BoxFuture<'static, Confirmed>>,
    /// By order of publishing.
    unconfirmed: BTreeMap<u64, (Arc<Message>, Instant)>,
    next: u64,
    /// Confirms that carried the return of another message: their own may still be on its way to us.
    held: Vec<(Arc<Message>, Outcome)>,
    returned: HashMap<Uuid, String>,
    confirmed_something: bool,
    /// No confirm is late before this.
    patient_until: Instant,
    blocked: bool,
}

impl<'a> Flight<'a> {
    fn new(publisher: &'a Publisher, channel: Channel, frame_max: u32) -> Self {
        Self {
            publisher,
            channel,
            frame_max,
            exchange: publisher.config.exchange.clone().into(),
            confirms: FuturesUnordered::new(),
            unconfirmed: BTreeMap::new(),
            next: 0,
            held: Vec::new(),
            returned: HashMap::new(),
            confirmed_something: false,
            patient_until: Instant::now(),
            blocked: false,
        }
    }

    /// Publishes and reports until the channel ends; none when the endpoint hangs up.
    async fn until_closed(
        &mut self,
        up: &Up,
        transport: &mut watch::Receiver<Transport>,
        orders: &mut mpsc::Receiver<Order>,
        reports: &mpsc::Sender<Report>,
    ) -> Option<End> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let failed = tokio::select! {
                biased;
                order = orders.recv() => {
                    self.publish(order?.messages, reports).await;
                    None
                }
                Some(first) = self.confirms.next(), if !self.confirms.is_empty() => self.collect(first, reports).await,
                changed = transport.changed() => {
                    changed.ok()?;
                    self.transport_is(&transport.borrow_and_update().clone())
                }
                _ = tick.tick() => self.look_for_late(up),
            };
            if let Some((reason, by_message)) = failed {
                return Some(self.end(reason, by_message, reports).await);
            }
        }
    }

    async fn publish(&mut self, order: Vec<Arc<Message>>, reports: &mpsc::Sender<Report>) {
        let mut refused = Vec::new();
        for message in order {
            if !self.publisher.trust.holds() {
                refused.push((message, Outcome::Unknown));
                continue;
            }
            let config = &self.publisher.config;
            match wire::pack(
                &message,
                &config.name,
                &self.publisher.template,
                &config.headers,
                self.frame_max,
            ) {
                Err(problem) => refused.push((message, Outcome::Unpublishable(problem))),
                Ok(parcel) => self.send(message, parcel),
            }
        }
        if !refused.is_empty() {
            drop(reports.send(Report::outcomes(refused)).await);
        }
        hooks::abort_at("published");
    }

    fn send(&mut self, message: Arc<Message>, parcel: wire::Parcel) {
        hooks::abort_at_type(&message.kind);
        let (number, channel, exchange) = (self.next, self.channel.clone(), self.exchange.clone());
        let options = BasicPublishOptions {
            mandatory: self.publisher.config.on_unroutable != OnUnroutable::Drop,
            ..BasicPublishOptions::default()
        };
        self.next += 1;
        self.unconfirmed
            .insert(number, (message.clone(), Instant::now()));
        self.confirms.push(Box::pin(async move {
            let publish = channel.basic_publish(
                exchange,
                parcel.routing_key,
                options,
                &message.body,
                parcel.properties,
            );
            let confirm = match publish.await {
                Ok(confirm) => confirm.await,
                Err(error) => Err(error),
            };
            (number, confirm)
        }));
    }

    /// Takes every confirm that is there, then decides.
    async fn collect(
        &mut self,
        first: Confirmed,
        reports: &mpsc::Sender<Report>,
    ) -> Option<(Reason, bool)> {
        let mut arrived = vec![first];
        poll_fn(|context| {
            while let Poll::Ready(Some(confirm)) = self.confirms.poll_next_unpin(context) {
                arrived.push(confirm);
            }
            Poll::Ready(())
        })
        .await;
        let mut failed = None;
        let mut decided = Vec::new();
        let held_before = std::mem::take(&mut self.held);
        let mut queue_was_empty = false;
        for (number, confirm) in arrived {
            match confirm {
                Err(error) => failed = Some(worse(failed, &error)),
                Ok(confirm) => {
                    let Some((message, sent)) = self.unconfirmed.remove(&number) else {
                        continue;
                    };
                    let took = sent.elapsed().as_secs_f64();
                    self.publisher.duration.observe(took);
                    queue_was_empty |= self.note(message, confirm, &mut decided);
                }
            }
        }
        if queue_was_empty || self.unconfirmed.is_empty() {
            decided.extend(held_before);
        } else {
            self.held.extend(held_before);
        }
        if self.unconfirmed.is_empty() {
            decided.append(&mut self.held);
        }
        self.confirmed_something |= !decided.is_empty();
        for (message, outcome) in &mut decided {
            if let Some(text) = self.returned.remove(&message.identity.message_id)
                && !hooks::broken("ignore-returns")
            {
                *outcome = Outcome::Returned(text);
            }
        }
        if !decided.is_empty() {
            drop(reports.send(Report::outcomes(decided)).await);
        }
        failed
    }

    /// Notes one confirm; true if it shows that no return was waiting when it was resolved.
    fn note(
        &mut self,
        message: Arc<Message>,
        confirm: Confirmation,
        decided: &mut Vec<(Arc<Message>, Outcome)>,
    ) -> bool {
        let (outcome, carried) = match confirm {
            Confirmation::Ack(carried) => (Outcome::Confirmed, carried),
            Confirmation::Nack(carried) => (Outcome::Nacked, carried),
            // Confirms are off: nothing is known of this message.
            Confirmation::NotRequested => (Outcome::Unknown, None),
        };
        let Some(carried) = carried else {
            decided.push((message, outcome));
            return true;
        };
        let text = format!("{} {}", carried.reply_code, carried.reply_text);
        let id = carried
            .delivery
            .properties
            .message_id()
            .as_ref()
            .and_then(|id| Uuid::try_parse(id.as_str()).ok());
        if let Some(id) = id {
            self.returned.insert(id, text);
        }
        if id == Some(message.identity.message_id) {
            decided.push((message, outcome));
        } else {
            self.held.push((message, outcome));
        }
        false
    }

    fn transport_is(&mut self, state: &Transport) -> Option<(Reason, bool)> {
        match state {
            Transport::Up(up) => {
                if self.blocked && up.blocked.is_none() {
                    self.patient_until = Instant::now() + self.confirm_timeout();
                }
                self.blocked = up.blocked.is_some();
                None
            }
            Transport::Down { reason, .. } => Some((
                reason.clone().unwrap_or_else(|| {
                    Reason::new(
                        "ConnectionLost",
                        "the connection to the broker was lost",
                        "The worker connects again by itself.",
                    )
                }),
                false,
            )),
        }
    }

    fn confirm_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(
            self.publisher.config.delivery.confirm_timeout_seconds,
        ))
    }

    fn look_for_late(&self, up: &Up) -> Option<(Reason, bool)> {
        let (_, since) = self.unconfirmed.values().next()?;
        let now = Instant::now();
        let late = !self.blocked
            && now > self.patient_until
            && now.duration_since(*since) > self.confirm_timeout();
        if late {
            // No confirm for so long: the connection may be a black hole. Making a new one is cheap.
            up.broken.notify_one();
        }
        late.then(|| {
            let message = format!("the broker did not confirm a message within {:?}", self.confirm_timeout());
            (Reason::new("ConfirmTimeout", message, "Look at the broker's load and alarms; the messages are sent again with the same ids."), false)
        })
    }

    /// Everything unconfirmed comes back as unknown; the channel is closed so that late confirms cannot mix in.
    async fn end(
        &mut self,
        reason: Reason,
        by_message: bool,
        reports: &mpsc::Sender<Report>,
    ) -> End {
        let suspects: Vec<_> = std::mem::take(&mut self.unconfirmed)
            .into_values()
            .map(|(message, _)| message)
            .chain(
                std::mem::take(&mut self.held)
                    .into_iter()
                    .map(|(message, _)| message),
            )
            .collect();
        self.confirms.clear();
        let channel = self.channel.clone();
        if channel.status().connected() {
            drop(timeout(CHANNEL, channel.close(200, "done".into())).await);
        }
        // One by one suspects are judged by the endpoint; all others are sent again.
        if !(by_message && suspects.len() == 1) {
            give_back(suspects.clone(), reports).await;
        }
        End {
            reason,
            by_message,
            suspects,
        }
    }
}

/// The more telling of two errors: what the broker said beats "the channel is closed".
fn worse(known: Option<(Reason, bool)>, error: &lapin::Error) -> (Reason, bool) {
    match known {
        Some(known) if known.1 => known,
        _ => (reason::of_broker(error), error.is_amqp_soft_error()),
    }
}
