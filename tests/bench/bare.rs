//! What this machine, broker and client library can do at best: bodies from memory, published with confirms.
//!
//! The futures of up to 1000 publishes are polled in order and never awaited one by one, which costs the client least.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation};

use crate::bed::{self, EXCHANGE, ORDINARY, Servers};
use crate::fill;
use crate::machine;
use crate::progress::Progress;

/// Most publishes whose confirm has not come yet.
const WINDOW: usize = 1_000;
/// No confirm takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the loop has reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bare {
    /// Messages a second.
    pub(crate) rate: f64,
    /// Microseconds of processor time for a message: client, broker.
    pub(crate) client: f64,
    pub(crate) broker: f64,
}

/// Publishes `count` bodies to a fresh queue.
pub(crate) async fn publish(servers: &Servers, count: u32, progress: &Progress) -> Result<Bare> {
    let vhost = bed::queues(&servers.rabbit).await?;
    let connection = vhost.connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let bodies: Vec<_> = fill::bodies(count).collect();
    progress.say("bare loop");
    let broker = servers.rabbit.pid().context("RabbitMQ does not run")?;
    let used = (own_time()?, machine::time_of(broker)?);
    let began = Instant::now();
    publish_all(&channel, &bodies).await?;
    let elapsed = began.elapsed();
    let per_message = |now: Duration, before: Duration| {
        now.saturating_sub(before).as_secs_f64() * 1e6 / f64::from(count)
    };
    let bare = Bare {
        rate: f64::from(count) / elapsed.as_secs_f64(),
        client: per_message(own_time()?, used.0),
        broker: per_message(machine::time_of(broker)?, used.1),
    };
    connection.close(200, "OK".into()).await?;
    Ok(bare)
}

async fn publish_all(channel: &Channel, bodies: &[Vec<u8>]) -> Result<()> {
    let mut waiting = FuturesUnordered::new();
    let mut bodies = bodies.iter();
    loop {
        while waiting.len() < WINDOW
            && let Some(body) = bodies.next()
        {
            waiting.push(confirmed(channel, body));
        }
        let next = tokio::time::timeout(PATIENCE, waiting.next());
        let Some(first) = next.await.context("RabbitMQ does not confirm")? else {
            return Ok(());
        };
        first?;
        while let Some(Some(confirm)) = waiting.next().now_or_never() {
            confirm?;
        }
    }
}

async fn confirmed(channel: &Channel, body: &[u8]) -> Result<()> {
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let properties = BasicProperties::default().with_delivery_mode(2);
    let confirm = channel
        .basic_publish(EXCHANGE.into(), ORDINARY.into(), options, body, properties)
        .await?
        .await?;
    ensure!(
        matches!(confirm, Confirmation::Ack(None)),
        "RabbitMQ answers {confirm:?}"
    );
    Ok(())
}

/// Of this process alone; servers and workers are its children.
fn own_time() -> Result<Duration> {
    machine::own_time_of(std::process::id())
}
