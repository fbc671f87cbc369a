//! The spec of an `InboxOutbox`: one database, the brokers it talks to, and the outboxes and inboxes in it.
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
pub mod inbox;
pub mod migrations;
pub mod outbox;
pub mod pod;
pub mod reference;
pub mod transport;
pub mod workers;

use serde::{Deserialize, Serialize};

#[cfg(feature = "kube")]
use crate::limits;
use database::Database;
use inbox::Inbox;
use migrations::Migrations;
use outbox::Outbox;
use transport::Transport;
use workers::Workers;

/// API group of the resource.
pub const GROUP: &str = "postroom.dev";
/// Version of the resource.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of the resource.
pub const API_VERSION: &str = "postroom.dev/v1alpha1";
/// `kind` of the resource.
pub const KIND: &str = "InboxOutbox";

/// What one fleet of workers does: which database it serves, over which brokers, for which outboxes and inboxes.
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
        status = "crate::status::InboxOutboxStatus",
        scale(
            spec_replicas_path = ".spec.workers.replicas",
            status_replicas_path = ".status.workers.replicas",
            label_selector_path = ".status.workers.selector"
        ),
        printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
        printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
        printcolumn(name = "Workers", type_ = "integer", json_path = ".status.workers.readyReplicas", description = "Workers that are ready"),
        printcolumn(name = "Pending", type_ = "integer", json_path = ".status.summary.pending", description = "Messages that wait, those in flight included"),
        printcolumn(name = "Oldest", type_ = "date", json_path = ".status.summary.oldestPendingTime", description = "Age of the oldest message that waits"),
        printcolumn(name = "Dead", type_ = "integer", json_path = ".status.summary.dead", description = "Messages that were given up"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
        printcolumn(name = "InFlight", type_ = "integer", json_path = ".status.summary.inFlight", priority = 1, description = "Messages that are being published or handled"),
        printcolumn(name = "Schema", type_ = "integer", json_path = ".status.schema.version", priority = 1, description = "Version of the schema in the database"),
        printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
        derive = "PartialEq",
        doc = "Transactional outboxes and inboxes on one PostgreSQL database, served by a fleet of workers.",
        validation = kube::core::Rule::new("size(self.metadata.name) <= 52 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message(kube::core::Message::Expression(r#""`metadata.name` is '" + self.metadata.name + "' but must be a DNS label of at most 52 bytes""#.to_owned()))
    )
)]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("self.outboxes.all(o, has(o.transport) ? self.transports.exists(t, t.name == o.transport) : size(self.transports) == 1)").message("every `transport` of an outbox must be the name of one of the `transports`; it may be left out where there is one"),
        validation = kube::core::Rule::new("self.inboxes.all(i, has(i.transport) ? self.transports.exists(t, t.name == i.transport) : size(self.transports) == 1)").message("every `transport` of an inbox must be the name of one of the `transports`; it may be left out where there is one"),
        validation = kube::core::Rule::new("size(self.outboxes) + size(self.inboxes) > 0").message("`outboxes` and `inboxes` are empty, but there must be at least one outbox or inbox"),
        validation = kube::core::Rule::new("!self.inboxes.exists(i, self.outboxes.exists(o, o.name == i.name))").message("a `name` in `inboxes` must not be in `outboxes` too"),
        validation = kube::core::Rule::new("self.inboxes.all(i, !has(i.handler.sqlFunction) || i.handler.sqlFunction.timeoutSeconds + 5 <= self.workers.terminationGracePeriodSeconds)").message("every `sqlFunction.timeoutSeconds` must be at least 5 less than `workers.terminationGracePeriodSeconds`"),
        validation = kube::core::Rule::new("self.outboxes.all(o, o.delivery.confirmTimeoutSeconds < self.workers.leaseSeconds)").message("every `delivery.confirmTimeoutSeconds` must be less than `workers.leaseSeconds`"),
        validation = kube::core::Rule::new("self.database.pool.poolerMode != 'Transaction' || has(self.database.migrationSecretRef) || self.migrations.policy == 'Disabled'").message("`database.migrationSecretRef` must be given where `database.pool.poolerMode` is 'Transaction' and `migrations.policy` is not 'Disabled'")
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboxOutboxSpec {
    /// Stops fetching, consuming and handling for all endpoints. Workers stay connected and keep their leases.
    #[serde(default)]
    pub paused: bool,

    /// The PostgreSQL database whose outboxes and inboxes the workers serve.
    pub database: Database,

    /// The message brokers, by name.
    #[cfg_attr(feature = "kube", schemars(length(min = limits::TRANSPORTS.min, max = limits::TRANSPORTS.max)))]
    pub transports: Vec<Transport>,

    /// The outboxes, by name. Applications name one of them in every row they write.
    #[cfg_attr(feature = "kube", schemars(length(max = limits::OUTBOXES.max)))]
    #[serde(default)]
    pub outboxes: Vec<Outbox>,

    /// The inboxes, by name. There is at least one outbox or inbox, and no name is in both lists.
    #[cfg_attr(feature = "kube", schemars(length(max = limits::INBOXES.max)))]
    #[serde(default)]
    pub inboxes: Vec<Inbox>,

    /// How long the database remembers what is settled.
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("duration(self.deduplication) >= duration('1h') && duration(self.deduplication) <= duration('87600h')").message(kube::core::Message::Expression(r#""`deduplication` is '" + self.deduplication + "' but must be between '1h' and '87600h'""#.to_owned())),
            validation = kube::core::Rule::new("duration(self.requests) >= duration('1h') && duration(self.requests) <= duration('87600h')").message(kube::core::Message::Expression(r#""`requests` is '" + self.requests + "' but must be between '1h' and '87600h'""#.to_owned())),
            validation = kube::core::Rule::new("duration(self.dead) >= duration('1m') && duration(self.dead) <= duration('87600h')").message(kube::core::Message::Expression(r#""`dead` is '" + self.dead + "' but must be between '1m' and '87600h'""#.to_owned()))
        )
    )]
    #[serde(default)]
    pub retention: Retention,

    /// How the schema of the database gets to the version of the workers.
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("!has(self.approvedVersion) || self.policy == 'Manual'").message(kube::core::Message::Expression(r#""`approvedVersion` must be left out unless `policy` is 'Manual'; it is '" + self.policy + "'""#.to_owned()))
        )
    )]
    #[serde(default)]
    pub migrations: Migrations,

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

    /// Window in which a repeated request gets the outcome that was recorded. At least `1h`.
    #[cfg_attr(feature = "kube", schemars(length(max = limits::DURATION_BYTES), regex(pattern = limits::DURATION_PATTERN)))]
    pub requests: String,

    /// How long a dead letter is kept. At least `1m`.
    #[cfg_attr(feature = "kube", schemars(length(max = limits::DURATION_BYTES), regex(pattern = limits::DURATION_PATTERN)))]
    pub dead: String,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            deduplication: "720h".to_owned(),
            requests: "720h".to_owned(),
            dead: "720h".to_owned(),
        }
    }
}
