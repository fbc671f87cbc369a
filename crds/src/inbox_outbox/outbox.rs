//! An outbox: where its messages go, how fast, in which order, and what happens when they cannot.
//!
//! [`Delivery`], [`Ordering`] and [`Retry`] are used unchanged in a worker's configuration, so a
//! setting has one name and one set of bounds from the manifest to the relay.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "the derive for schemas copies each struct into a function body"
    )
)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(feature = "kube")]
use crate::limits;

/// A named outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outbox {
    /// Name of the endpoint, unique in this resource. Rows name it in their column `endpoint`.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::LABEL_BYTES), regex(pattern = limits::LABEL_PATTERN)))]
    pub name: String,

    /// Name of the transport. It may be left out when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::LABEL_BYTES), regex(pattern = limits::LABEL_PATTERN)))]
    pub transport: Option<String>,

    /// Exchange to publish to. Empty text means the default exchange, whose routing keys name queues.
    #[cfg_attr(feature = "kube", schemars(length(max = limits::SHORT_STRING_BYTES)))]
    pub exchange: String,

    /// Routing key of messages whose row has none. It may hold `{type}`, `{stream}`, `{tenant}` and `{header.NAME}`.
    #[serde(default = "default_routing_key")]
    #[cfg_attr(feature = "kube", schemars(length(max = limits::SHORT_STRING_BYTES), regex(pattern = limits::ROUTING_KEY_PATTERN)))]
    pub routing_key: String,

    /// Headers that every message gets. A row's own header of the same name wins.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self.all(name, size(name) >= 1 && size(name) <= 255 && !name.lowerAscii().startsWith('x-postroom-'))").message("names must have 1 to 255 bytes and must not start with 'x-postroom-'")
        )
    )]
    #[cfg_attr(feature = "kube", schemars(extend("maxProperties" = limits::HEADERS), transform = bound_header_values))]
    pub headers: BTreeMap<String, String>,

    /// What happens to a message that no queue takes. `Retry`: tried again as `retry` says. `DeadLetter`:
    /// given up at once. `Drop`: published without asking for its return, so it may vanish.
    #[serde(default)]
    pub on_unroutable: OnUnroutable,

    /// Batches, windows and limits of publishing.
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self.maxMessageBytes <= self.maxInFlightBytes").message("`maxMessageBytes` must be at most `maxInFlightBytes`")
        )
    )]
    #[serde(default)]
    pub delivery: Delivery,

    /// Order of the messages.
    #[serde(default)]
    pub ordering: Ordering,

    /// Repeats of a message that failed by its own fault.
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self.initialDelaySeconds <= self.maxDelaySeconds").message("`initialDelaySeconds` must be at most `maxDelaySeconds`")
        )
    )]
    #[serde(default)]
    pub retry: Retry,

    /// Stops fetching for this endpoint alone. Rows may still be written.
    #[serde(default)]
    pub paused: bool,
}

fn default_routing_key() -> String {
    "{type}".to_owned()
}

/// The schema of a map has no attribute for the length of its values.
#[cfg(feature = "kube")]
fn bound_header_values(schema: &mut schemars::Schema) {
    if let Some(values) = schema.pointer_mut("/additionalProperties") {
        values["maxLength"] = limits::HEADER_VALUE_BYTES.into();
    }
}

/// What happens to a message that no queue takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum OnUnroutable {
    /// Tried again, with back-off, up to the limit of attempts.
    #[default]
    Retry,
    /// Given up at once and kept with its evidence.
    DeadLetter,
    /// Published without asking for its return.
    Drop,
}

/// Batches, windows and limits of publishing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Delivery {
    /// Most rows read at once.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::BATCH_SIZE.min, max = limits::BATCH_SIZE.max)))]
    pub batch_size: u32,

    /// Most messages published and not settled yet, per worker.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_IN_FLIGHT.min, max = limits::MAX_IN_FLIGHT.max)))]
    pub max_in_flight: u32,

    /// Most bytes of bodies published and not settled yet, per worker.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_IN_FLIGHT_BYTES.min, max = limits::MAX_IN_FLIGHT_BYTES.max)))]
    pub max_in_flight_bytes: u64,

    /// Channels to the broker, per worker. One costs worker and broker the least; with more, a message that makes the broker
    /// close its channel holds up fewer others.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::CHANNELS.min, max = limits::CHANNELS.max)))]
    pub channels: u32,

    /// Longest pause between two looks at an idle outbox.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_IDLE_POLL_MILLISECONDS.min, max = limits::MAX_IDLE_POLL_MILLISECONDS.max)))]
    pub max_idle_poll_milliseconds: u32,

    /// How long a confirm may take before the message is sent again. Less than `workers.leaseSeconds`.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::CONFIRM_TIMEOUT_SECONDS.min, max = limits::CONFIRM_TIMEOUT_SECONDS.max)))]
    pub confirm_timeout_seconds: u32,

    /// A larger body becomes a dead letter. At most `maxInFlightBytes`.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_MESSAGE_BYTES.min, max = limits::MAX_MESSAGE_BYTES.max)))]
    pub max_message_bytes: u64,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            batch_size: 500,
            max_in_flight: 1_000,
            max_in_flight_bytes: 33_554_432,
            channels: 1,
            max_idle_poll_milliseconds: 100,
            confirm_timeout_seconds: 10,
            max_message_bytes: 16_777_216,
        }
    }
}

/// Order of the messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Ordering {
    /// `None`: no order. `PerStream`: messages with the same tenant and stream keep their order. `Total`:
    /// all messages of the endpoint do, and one worker at a time serves it.
    pub mode: OrderingMode,

    /// `BlockStream`: what follows a failed message in its stream waits for it. `Skip`: it goes on.
    pub on_failure: OnFailure,

    /// `Hold`: what follows a message with a later due time in its stream waits for it. `Pass`: it goes on.
    pub on_scheduled: OnScheduled,
}

/// Which messages keep their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum OrderingMode {
    /// No order is kept.
    None,
    /// Messages with the same tenant and stream.
    #[default]
    PerStream,
    /// All messages of the endpoint.
    Total,
}

/// What a failed message means for those behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum OnFailure {
    /// They wait for it.
    #[default]
    BlockStream,
    /// They go on.
    Skip,
}

/// What a scheduled message means for those behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum OnScheduled {
    /// They wait for it.
    #[default]
    Hold,
    /// They go on.
    Pass,
}

/// Repeats of a message that failed by its own fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retry {
    /// Attempts before the message becomes a dead letter. 0 means without end.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_ATTEMPTS.min, max = limits::MAX_ATTEMPTS.max)))]
    pub max_attempts: u32,

    /// Delay after the first failure. It doubles with each further one.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::INITIAL_DELAY_SECONDS.min, max = limits::INITIAL_DELAY_SECONDS.max)))]
    pub initial_delay_seconds: u32,

    /// Longest delay.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_DELAY_SECONDS.min, max = limits::MAX_DELAY_SECONDS.max)))]
    pub max_delay_seconds: u32,

    /// `Full`: a random part of the delay, so that failed messages do not return together. `None`: all of it.
    pub jitter: Jitter,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 12,
            initial_delay_seconds: 1,
            max_delay_seconds: 300,
            jitter: Jitter::Full,
        }
    }
}

/// Whether delays are spread by chance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum Jitter {
    /// A random part of the delay.
    #[default]
    Full,
    /// The whole delay.
    None,
}
