//! The spec of an `InboxOutbox`: one database, the brokers it talks to, and the outboxes in it.
//!
//! Invariant: every field here changes what a worker does; a field without effect does not exist
//! yet. Comments on fields are the descriptions that `kubectl explain` shows.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "the derive for schemas copies each struct into a function body"
    )
)]

pub mod database;
pub mod outbox;
pub mod reference;
pub mod transport;

use serde::{Deserialize, Serialize};

#[cfg(feature = "kube")]
use crate::limits;
use database::Database;
use outbox::Outbox;
use transport::Transport;

/// API group of the resource.
pub const GROUP: &str = "postroom.dev";
/// Version of the resource.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of the resource.
pub const API_VERSION: &str = "postroom.dev/v1alpha1";
/// `kind` of the resource.
pub const KIND: &str = "InboxOutbox";

/// What one fleet of workers does: which database it serves, over which brokers, for which outboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::CustomResource, kube::KubeSchema))]
#[cfg_attr(
    feature = "kube",
    kube(
        group = "postroom.dev",
        version = "v1alpha1",
        kind = "InboxOutbox",
        plural = "inboxoutboxes",
        shortname = "iob",
        category = "postroom",
        namespaced,
        derive = "PartialEq",
        doc = "A transactional outbox on one PostgreSQL database, served by a fleet of workers.",
        validation = kube::core::Rule::new("size(self.metadata.name) <= 52 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("`metadata.name` must be a DNS label of at most 52 bytes")
    )
)]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("self.outboxes.all(o, has(o.transport) ? self.transports.exists(t, t.name == o.transport) : size(self.transports) == 1)").message("every `transport` of an outbox must be the name of one of the `transports`; it may be left out where there is one"),
        validation = kube::core::Rule::new("self.outboxes.all(o, o.delivery.confirmTimeoutSeconds < self.workers.leaseSeconds)").message("every `delivery.confirmTimeoutSeconds` must be less than `workers.leaseSeconds`")
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboxOutboxSpec {
    /// Stops fetching for all endpoints. Workers stay connected and keep their leases.
    #[serde(default)]
    pub paused: bool,

    /// The PostgreSQL database whose outbox tables the workers serve.
    pub database: Database,

    /// The message brokers, by name.
    #[cfg_attr(feature = "kube", schemars(length(min = limits::TRANSPORTS.min, max = limits::TRANSPORTS.max)))]
    pub transports: Vec<Transport>,

    /// The outboxes, by name. Applications name one of them in every row they write.
    #[cfg_attr(feature = "kube", schemars(length(min = limits::OUTBOXES.min, max = limits::OUTBOXES.max)))]
    pub outboxes: Vec<Outbox>,

    /// How long the database remembers what is settled.
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("duration(self.deduplication) >= duration('1h') && duration(self.deduplication) <= duration('87600h')").message("`deduplication` must be between '1h' and '87600h'"),
            validation = kube::core::Rule::new("duration(self.dead) >= duration('1m') && duration(self.dead) <= duration('87600h')").message("`dead` must be between '1m' and '87600h'")
        )
    )]
    #[serde(default)]
    pub retention: Retention,

    /// Settings of the worker processes.
    #[serde(default)]
    pub workers: Workers,
}

/// How long the database remembers what is settled. Durations are whole numbers with `h`, `m` or `s`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retention {
    /// Window in which a repeated message id or idempotency key is recognised. At least `1h`.
    #[cfg_attr(feature = "kube", schemars(length(max = limits::DURATION_BYTES), regex(pattern = limits::DURATION_PATTERN)))]
    pub deduplication: String,

    /// How long a dead letter is kept. At least `1m`.
    #[cfg_attr(feature = "kube", schemars(length(max = limits::DURATION_BYTES), regex(pattern = limits::DURATION_PATTERN)))]
    pub dead: String,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            deduplication: "720h".to_owned(),
            dead: "720h".to_owned(),
        }
    }
}

/// Settings of the worker processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Workers {
    /// How long a worker that fell silent keeps its work before others take over.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::LEASE_SECONDS.min, max = limits::LEASE_SECONDS.max)))]
    pub lease_seconds: u32,

    /// Time a worker has after a stop signal. It hands back what it could not finish five seconds before the end.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::GRACE_SECONDS.min, max = limits::GRACE_SECONDS.max)))]
    pub termination_grace_period_seconds: u32,
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            lease_seconds: 15,
            termination_grace_period_seconds: 60,
        }
    }
}
