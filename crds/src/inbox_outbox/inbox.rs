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

use serde::{Deserialize, Serialize};

use super::outbox::{Ordering, Retry};
#[cfg(feature = "kube")]
use crate::limits;

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

/// What makes a message the same as another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("(self.source == 'Header') == has(self.header)").message(kube::core::Message::Expression("\"`header` must be given where `source` is 'Header', and only there; it is '\" + self.source + \"'\"".to_owned())),
        validation = kube::core::Rule::new("self.source == oldSelf.source && (has(self.header) ? self.header : '') == (has(oldSelf.header) ? oldSelf.header : '')").message(kube::core::Message::Expression("\"`source` must stay '\" + oldSelf.source + \"', and `header` as it is, because what was accepted would not be recognised; give the inbox another name\"".to_owned()))
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// Where the id is: `MessageId`, the broker's property; `Header`; `CloudEventId`; `PayloadSha256`, the digest of
    /// the body, where equal bytes mean equal intent. It cannot change.
    #[serde(default)]
    pub source: IdentitySource,

    /// Name of the header. Only with `Header`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SHORT_STRING_BYTES)))]
    pub header: Option<String>,

    /// What happens to a message without an id, or without the tenant it needs.
    #[serde(default)]
    pub on_missing: Refusal,

    /// What happens to a message whose id was accepted with another meaning.
    #[serde(default)]
    pub on_conflict: Refusal,

    /// Whether the header `x-postroom-idempotency-key` is the key of a message; else it is made of queue and id.
    #[serde(default)]
    pub trust_headers: bool,
}

/// Where the id of a message is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum IdentitySource {
    /// The property of that name.
    #[default]
    MessageId,
    /// A header.
    Header,
    /// The id of the `CloudEvent`.
    CloudEventId,
    /// The digest of the body.
    PayloadSha256,
}

/// What happens to a message that is not accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum Refusal {
    /// It is kept as a dead letter, once.
    #[default]
    DeadLetter,
    /// It is acknowledged and counted.
    Discard,
}

/// Where the stream of a message is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("(self.source == 'Header') == has(self.header)").message(kube::core::Message::Expression("\"`header` must be given where `source` is 'Header', and only there; it is '\" + self.source + \"'\"".to_owned()))
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stream {
    /// Where it is.
    #[serde(default)]
    pub source: StreamSource,

    /// Name of the header. Only with `Header`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SHORT_STRING_BYTES)))]
    pub header: Option<String>,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            source: StreamSource::Header,
            header: Some("x-postroom-stream".to_owned()),
        }
    }
}

/// Where the stream of a message is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum StreamSource {
    /// Nowhere: no message has one.
    None,
    /// A header.
    #[default]
    Header,
    /// The whole routing key.
    RoutingKey,
}

/// Where the tenant of a message is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("(self.source == 'Header') == has(self.header)").message(kube::core::Message::Expression("\"`header` must be given where `source` is 'Header', and only there; it is '\" + self.source + \"'\"".to_owned())),
        validation = kube::core::Rule::new("(self.source == 'RoutingKeySegment') == has(self.segment)").message(kube::core::Message::Expression("\"`segment` must be given where `source` is 'RoutingKeySegment', and only there; it is '\" + self.source + \"'\"".to_owned())),
        validation = kube::core::Rule::new("(self.source == 'Static') == has(self.value)").message(kube::core::Message::Expression("\"`value` must be given where `source` is 'Static', and only there; it is '\" + self.source + \"'\"".to_owned())),
        validation = kube::core::Rule::new("!self.required || self.source in ['Header', 'RoutingKeySegment']").message(kube::core::Message::Expression("\"`required` must be false unless `source` is 'Header' or 'RoutingKeySegment'; it is '\" + self.source + \"'\"".to_owned()))
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tenant {
    /// Where it is.
    #[serde(default)]
    pub source: TenantSource,

    /// Name of the header. Only with `Header`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SHORT_STRING_BYTES)))]
    pub header: Option<String>,

    /// Which word of the routing key, counted from 0; dots part words. Only with `RoutingKeySegment`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(range(min = limits::SEGMENT.min, max = limits::SEGMENT.max)))]
    pub segment: Option<u32>,

    /// The tenant of all messages; spaces alone are none. Only with `Static`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SHORT_STRING_BYTES), regex(pattern = limits::NOT_BLANK_PATTERN)))]
    pub value: Option<String>,

    /// Whether a message without one is refused as `identity.onMissing` says.
    #[serde(default)]
    pub required: bool,
}

impl Default for Tenant {
    fn default() -> Self {
        Self {
            source: TenantSource::Header,
            header: Some("x-postroom-tenant".to_owned()),
            segment: None,
            value: None,
            required: false,
        }
    }
}

/// Where the tenant of a message is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum TenantSource {
    /// Nowhere: no message has one.
    None,
    /// A header.
    #[default]
    Header,
    /// A word of the routing key.
    RoutingKeySegment,
    /// The resource.
    Static,
}

/// What handles the messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("has(self.sqlFunction) != has(self.pull)").message("exactly one of `sqlFunction` and `pull` must be given")
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Handler {
    /// A function in the database. Its effect and the end of the message commit together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql_function: Option<SqlFunction>,

    /// The application takes the messages itself, in its own transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<Pull>,
}

/// A function in the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SqlFunction {
    /// Schema and name with a dot between them, each in lower case and without quotes.
    #[cfg_attr(feature = "kube", schemars(length(min = 3, max = limits::FUNCTION_BYTES), regex(pattern = limits::FUNCTION_PATTERN)))]
    pub name: String,

    /// Longest time of one call. `workers.terminationGracePeriodSeconds` is at least 5 seconds longer.
    #[serde(default = "default_timeout")]
    #[cfg_attr(feature = "kube", schemars(range(min = limits::HANDLER_TIMEOUT_SECONDS.min, max = limits::HANDLER_TIMEOUT_SECONDS.max)))]
    pub timeout_seconds: u32,

    /// Most transactions with calls at once, per worker.
    #[serde(default = "default_concurrency")]
    #[cfg_attr(feature = "kube", schemars(range(min = limits::HANDLER_CONCURRENCY.min, max = limits::HANDLER_CONCURRENCY.max)))]
    pub concurrency: u32,

    /// Most messages handled in one transaction.
    #[serde(default = "default_batch_size")]
    #[cfg_attr(feature = "kube", schemars(range(min = limits::HANDLER_BATCH_SIZE.min, max = limits::HANDLER_BATCH_SIZE.max)))]
    pub batch_size: u32,
}

fn default_timeout() -> u32 {
    10
}

fn default_concurrency() -> u32 {
    4
}

fn default_batch_size() -> u32 {
    50
}

/// The application takes the messages itself. There is nothing to set yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(extend("maxProperties" = 0)))]
#[serde(deny_unknown_fields)]
pub struct Pull {}
