//! What arrives at the other end, in the order in which it arrives.
//!
//! Invariant: a delivery is recorded before it is acknowledged, so the end of a connection loses nothing. What the
//! broker then delivers again is recorded as well, and marked, because it is the broker's repeat and not the worker's.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{FutureExt as _, StreamExt as _};
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::sync::watch;

use crate::background::{Background, Stop};
use crate::broker;
use crate::received::Received;

const PREFETCH: u16 = 1_000;

/// Acknowledge at the latest after so many deliveries, or as soon as none is waiting.
const ACKNOWLEDGE_AFTER: u32 = 200;

#[derive(Debug, Default)]
struct Seen {
    deliveries: Vec<Received>,
    ids: HashSet<String>,
}

#[derive(Debug)]
struct Shared {
    seen: Mutex<Seen>,
    /// Distinct message ids so far; wakes who waits.
    distinct: watch::Sender<usize>,
    connected: watch::Sender<bool>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen
            .lock()
            .expect("no panic while a delivery is recorded")
    }

    fn record(&self, received: Received) {
        let mut seen = self.lock();
        // A message without an id is counted for itself.
        let key = if received.message_id.is_empty() {
            format!("without id {}", seen.deliveries.len())
        } else {
            received.message_id.clone()
        };
        seen.ids.insert(key);
        seen.deliveries.push(received);
        let distinct = seen.ids.len();
        drop(seen);
        self.distinct.send_replace(distinct);
    }
}

/// Consumes queues until it is dropped, over as many connections as it takes.
#[derive(Debug)]
pub struct Receiver {
    shared: Arc<Shared>,
    _background: Background,
}

impl Receiver {
    /// Starts to consume `queues`; returns once it does.
    ///
    /// # Errors
    /// When it does not within `deadline`.
    pub async fn start(url: &str, queues: &[&str], deadline: Duration) -> Result<Self> {
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            distinct: watch::channel(0).0,
            connected: watch::channel(false).0,
        });
        let (url, queues): (String, Vec<String>) = (
            url.to_owned(),
            queues.iter().map(|&queue| queue.to_owned()).collect(),
        );
        let ours = Arc::clone(&shared);
        let background = Background::start("receiver", move |stop| {
            consume_for_ever(url, queues, ours, stop)
        })?;
        let receiver = Self {
            shared,
            _background: background,
        };
        receiver.wait_connected(deadline).await?;
        Ok(receiver)
    }

    /// Waits until all queues are consumed: after a restart of the broker, for example.
    ///
    /// # Errors
    /// When that takes longer than `deadline`.
    pub async fn wait_connected(&self, deadline: Duration) -> Result<()> {
        let mut connected = self.shared.connected.subscribe();
        let waited = tokio::time::timeout(deadline, connected.wait_for(|yes| *yes)).await;
        waited
            .with_context(|| format!("the receiver does not consume within {deadline:?}"))?
            .context("the receiver has ended")
            .map(drop)
    }

    /// All deliveries so far, in order of arrival.
    pub fn received(&self) -> Vec<Received> {
        self.shared.lock().deliveries.clone()
    }

    /// How many different messages have arrived.
    pub fn distinct(&self) -> usize {
        *self.shared.distinct.borrow()
    }

    /// Waits until `count` different messages have arrived and returns all deliveries so far.
    ///
    /// # Errors
    /// When they have not by `deadline`; the message says how many have.
    pub async fn wait_for(&self, count: usize, deadline: Duration) -> Result<Vec<Received>> {
        let mut distinct = self.shared.distinct.subscribe();
        let waited = tokio::time::timeout(deadline, distinct.wait_for(|&seen| seen >= count)).await;
        let waited = waited.map(|answer| answer.map(drop));
        waited
            .with_context(|| {
                format!(
                    "{} of {count} messages arrived within {deadline:?}",
                    self.distinct()
                )
            })?
            .context("the receiver has ended")?;
        Ok(self.received())
    }

    /// Waits until nothing has arrived for `pause` and returns all deliveries so far: for what must *not* arrive.
    ///
    /// # Errors
    /// When something still arrives at `deadline`.
    pub async fn wait_quiet(&self, pause: Duration, deadline: Duration) -> Result<Vec<Received>> {
        let end = Instant::now() + deadline;
        loop {
            let before = self.shared.lock().deliveries.len();
            tokio::time::sleep(pause).await;
            if self.shared.lock().deliveries.len() == before {
                return Ok(self.received());
            }
            anyhow::ensure!(
                Instant::now() < end,
                "messages still arrive after {deadline:?}: {before} so far"
            );
        }
    }
}

async fn consume_for_ever(url: String, queues: Vec<String>, shared: Arc<Shared>, stop: Stop) {
    while !stop.is_requested() {
        if let Err(error) = consume(&url, &queues, &shared).await {
            eprintln!("receiver: {error:#}; connecting again");
        }
        shared.connected.send_replace(false);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns when the connection ends.
async fn consume(url: &str, queues: &[String], shared: &Shared) -> Result<()> {
    let connection = broker::connect(url).await?;
    let mut tasks = Vec::new();
    for queue in queues {
        // A channel per queue: acknowledging a batch on a shared one could include what is not recorded yet.
        let channel = connection.create_channel().await?;
        channel
            .basic_qos(PREFETCH, BasicQosOptions::default())
            .await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel
            .basic_consume(
                queue.as_str().into(),
                "receiver".into(),
                options,
                FieldTable::default(),
            )
            .await?;
        tasks.push(record(queue, channel, consumer, shared));
    }
    shared.connected.send_replace(true);
    futures::future::try_join_all(tasks).await.map(drop)
}

async fn record(
    queue: &str,
    channel: Channel,
    mut consumer: Consumer,
    shared: &Shared,
) -> Result<()> {
    let all_until_here = BasicAckOptions { multiple: true };
    let mut waiting = 0;
    loop {
        let next = match consumer.next().now_or_never() {
            Some(next) => next,
            None => {
                if let Some(tag) = take_tag(&mut waiting) {
                    channel.basic_ack(tag, all_until_here).await?;
                }
                consumer.next().await
            }
        };
        let delivery = next.context("the broker ended the consumer")??;
        let tag = delivery.delivery_tag;
        shared.record(Received::new(queue, delivery));
        waiting = tag;
        if tag % u64::from(ACKNOWLEDGE_AFTER) == 0
            && let Some(tag) = take_tag(&mut waiting)
        {
            channel.basic_ack(tag, all_until_here).await?;
        }
    }
}

/// The last delivery that is not acknowledged, as its number; they begin at 1.
fn take_tag(waiting: &mut u64) -> Option<u64> {
    let tag = std::mem::take(waiting);
    (tag > 0).then_some(tag)
}
