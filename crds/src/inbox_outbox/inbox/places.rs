//! Where in a message its identity, its stream and its tenant are.
//!
//! Invariant: a place has the members that belong to its source, and no others.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "the derive for schemas copies each struct into a function body"
    )
)]

use serde::{Deserialize, Serialize};

#[cfg(feature = "kube")]
use crate::limits;

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
