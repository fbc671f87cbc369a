//! An inbox: where its messages come from, what makes one the same as another, and what handles them.
//!
//! All parts are used unchanged in a worker's configuration, save for [`Handler`], which is a choice there.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "the derive for schemas copies each struct into a function body"
    )
)]

mod handler;
mod places;

use serde::{Deserialize, Serialize};

use super::outbox::{Ordering, Retry};
#[cfg(feature = "kube")]
use crate::limits;
pub use handler::{Handler, Pull, SqlFunction};
pub use places::{Identity, IdentitySource, Refusal, Stream, StreamSource, Tenant, TenantSource};

/// A named inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Inbox {
    /// Name of the endpoint; no other inbox or outbox of this resource has it.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::LABEL_BYTES), regex(pattern = limits::LABEL_PATTERN)))]
    pub name: String,

    /// Name of the transport. It may be left out when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::LABEL_BYTES), regex(pattern = limits::LABEL_PATTERN)))]
    pub transport: Option<String>,

    /// Queue to consume.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SHORT_STRING_BYTES)))]
    pub queue: String,

    /// Types of the messages to accept; others are acknowledged and counted, and never reach the database. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "kube", schemars(length(max = limits::TYPES), inner(length(min = 1, max = limits::SHORT_STRING_BYTES))))]
    pub types: Vec<String>,

    /// How messages are taken from the queue.
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self.batchSize <= self.prefetch").message("`batchSize` must be at most `prefetch`")
        )
    )]
    #[serde(default)]
    pub consumer: Consumer,

    /// What makes a message the same as another.
    #[serde(default)]
    pub identity: Identity,

    /// Where the stream of a message is.
    #[serde(default)]
    pub stream: Stream,

    /// Where the tenant of a message is.
    #[serde(default)]
    pub tenant: Tenant,

    /// What handles the messages.
    pub handler: Handler,

    /// Order of the messages.
    #[serde(default)]
    pub ordering: Ordering,

    /// Repeats of a message whose handler failed.
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self.initialDelaySeconds <= self.maxDelaySeconds").message("`initialDelaySeconds` must be at most `maxDelaySeconds`")
        )
    )]
    #[serde(default)]
    pub retry: Retry,

    /// Stops consuming and handling for this endpoint alone.
    #[serde(default)]
    pub paused: bool,
}

/// How messages are taken from the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Consumer {
    /// Most messages that a worker has taken and not acknowledged yet. They lie in its memory.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::PREFETCH.min, max = limits::PREFETCH.max)))]
    pub prefetch: u32,

    /// Most messages stored in one transaction. At most `prefetch`.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::BATCH_SIZE.min, max = limits::BATCH_SIZE.max)))]
    pub batch_size: u32,

    /// How long a batch may wait for more messages.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_BATCH_DELAY_MILLISECONDS.min, max = limits::MAX_BATCH_DELAY_MILLISECONDS.max)))]
    pub max_batch_delay_milliseconds: u32,

    /// A larger body becomes a dead letter.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_MESSAGE_BYTES.min, max = limits::MAX_MESSAGE_BYTES.max)))]
    pub max_message_bytes: u64,
}

impl Default for Consumer {
    fn default() -> Self {
        Self {
            prefetch: 500,
            batch_size: 200,
            max_batch_delay_milliseconds: 5,
            max_message_bytes: 16_777_216,
        }
    }
}
