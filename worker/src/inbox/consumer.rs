//! A consumer of a queue: looked at first, on a channel that may be lost; then opened on one of its own.
//!
//! Invariant: where messages keep an order, nobody else consumes the queue when this one begins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, Consumer, ErrorKind};
use postroom_crds::inbox_outbox::outbox::OrderingMode;
use postroom_crds::worker_config::InboxConfig;
use tokio::time::timeout;
use uuid::Uuid;

use crate::broker::Up;
use crate::reason::{self, Reason};

/// Deadline for opening, cancelling or closing.
pub const CHANNEL: Duration = Duration::from_secs(5);

/// The consumer before this one is waited for so long before anybody is told.
const OTHERS: Duration = Duration::from_secs(3);
/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Somebody else consumes the queue.
const IN_USE: &str = "QueueInUse";

/// A consumer with its channel.
#[derive(Debug)]
pub struct Opened {
    /// The connection it is on.
    pub connection: Arc<Connection>,
    /// The channel, which nobody else uses.
    pub channel: Channel,
    /// The deliveries.
    pub consumer: Consumer,
}

/// Begins to consume the queue of an inbox.
pub async fn open(up: &Up, config: &InboxConfig) -> Result<Opened, Reason> {
    let ordered = config.ordering.mode != OrderingMode::None;
    let began = Instant::now();
    loop {
        let others = within(up, look(up, &config.queue), &config.queue).await?;
        if others == 0 || !ordered {
            break;
        }
        if began.elapsed() > OTHERS {
            let how = format!("it has {others} consumers");
            return Err(in_use(&config.queue, &how));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    match within(up, consume(up, config, ordered), &config.queue).await {
        // A queue with a single active consumer refuses exclusive ones, and needs none.
        Err(reason) if ordered && reason.code == IN_USE => {
            let others = within(up, look(up, &config.queue), &config.queue).await?;
            if others > 0 {
                return Err(reason);
            }
            within(up, consume(up, config, false), &config.queue).await
        }
        answer => answer,
    }
}

/// Asks for the queue as it is, with any arguments: how many consume it.
async fn look(up: &Up, queue: &str) -> lapin::Result<u32> {
    let channel = up.connection.create_channel().await?;
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let found = channel
        .queue_declare(queue.into(), options, FieldTable::default())
        .await?;
    // Nothing hangs on it; it is gone with the connection at the latest.
    drop(channel.close(200, "done".into()).await);
    Ok(found.consumer_count())
}

/// A quorum queue takes an exclusive consumer as any other, and lets others in beside it (RabbitMQ 3.10 and 4.0).
async fn consume(up: &Up, config: &InboxConfig, exclusive: bool) -> lapin::Result<Opened> {
    let channel = up.connection.create_channel().await?;
    let prefetch = u16::try_from(config.consumer.prefetch).unwrap_or(u16::MAX);
    channel
        .basic_qos(prefetch, BasicQosOptions::default())
        .await?;
    let options = BasicConsumeOptions {
        exclusive,
        ..BasicConsumeOptions::default()
    };
    let tag = format!("postroom {} {}", config.name, Uuid::new_v4());
    let consumer = channel
        .basic_consume(
            config.queue.as_str().into(),
            tag.into(),
            options,
            FieldTable::default(),
        )
        .await?;
    Ok(Opened {
        connection: up.connection.clone(),
        channel,
        consumer,
    })
}

/// The header that a broker puts on what comes from a stream. A sender can put it on anything.
const OFFSET: &str = "x-stream-offset";

/// Whether a delivery may come from a stream.
pub fn seems_stream(delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    headers.is_some_and(|headers| headers.inner().contains_key(OFFSET))
}

/// Why a stream is not consumed; nothing where the queue is none. Only a stream can be consumed from an offset: other
/// queues refuse the argument, and a channel is lost over it (RabbitMQ 3.10 and 4.0).
pub async fn refuse_stream(connection: &Connection, queue: &str) -> Option<Reason> {
    let from_now = AMQPValue::LongString("next".into());
    let mut arguments = FieldTable::default();
    arguments.insert(OFFSET.into(), from_now);
    let consume = async {
        let channel = connection.create_channel().await?;
        channel.basic_qos(1, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let begun = channel.basic_consume(queue.into(), "".into(), options, arguments);
        begun.await?;
        channel.close(200, "done".into()).await
    };
    let is_stream = matches!(timeout(CHANNEL, consume).await, Ok(Ok(())));
    is_stream.then(|| {
        Reason::new(
            "QueueIsStream",
            format!("queue '{queue}' is a stream: an acknowledgement removes nothing from it, and what comes while nobody consumes is missed"),
            "Bind a quorum queue to the same exchange, and name it in the inbox; receiving goes on by itself when the queue is no stream.",
        )
    })
}

async fn within<T>(
    up: &Up,
    work: impl Future<Output = lapin::Result<T>>,
    queue: &str,
) -> Result<T, Reason> {
    match timeout(CHANNEL, work).await {
        Ok(answer) => answer.map_err(|error| why(&error, queue)),
        Err(_) => {
            up.broken.notify_one();
            Err(Reason::timeout("the broker", CHANNEL))
        }
    }
}

/// Why a queue is not consumed.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "errors of the driver are an open set"
)]
pub fn why(error: &lapin::Error, queue: &str) -> Reason {
    let ErrorKind::ProtocolError(answer) = error.kind() else {
        return reason::of_broker(error);
    };
    let message = answer.get_message();
    let said = format!("the broker answered {message}");
    match answer.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Reason::new(
            "TopologyMissing",
            said,
            "Create the queue, or correct its name; receiving goes on by itself when it is there.",
        ),
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
            if message.as_str().contains("exclusive") =>
        {
            in_use(queue, message.as_str())
        }
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => Reason::new(
            "AccessRefused",
            said,
            "Give the user read permission on the queue; receiving goes on by itself then.",
        ),
        AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED) => in_use(queue, message.as_str()),
        _ => reason::of_broker(error),
    }
}

fn in_use(queue: &str, how: &str) -> Reason {
    Reason::new(
        IN_USE,
        format!(
            "somebody else consumes queue '{queue}', and messages keep their order only if one does: {how}"
        ),
        "End the other consumer, or set ordering.mode None. One of a worker that has just ended goes by itself.",
    )
}
