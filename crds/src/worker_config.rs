//! The document a worker runs from: the effective settings of one `InboxOutbox`.
//!
//! Invariants: every default is filled in and every name resolved, so a worker decides nothing a
//! reader of the document could not see; a secret appears only as the place where it is found.
//! [`WorkerConfig::from_resource`] is the one way from a resource to this document, in a cluster
//! and without one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::inbox_outbox::database::PoolerMode;
use crate::inbox_outbox::inbox::{Consumer, Identity, Pull, SqlFunction, Stream, Tenant};
use crate::inbox_outbox::outbox::{Delivery, OnUnroutable, Ordering, Retry};

/// The version of the document that this code reads and writes.
pub const VERSION: u32 = 1;

/// Folder in which an operator mounts the document: beside the Secrets, as one mount cannot lie inside another.
pub const CONFIG_FOLDER: &str = "/etc/postroom/config";

/// Where a worker's pod has the document.
pub const CONFIG_FILE: &str = "/etc/postroom/config/config.json";

/// Where an operator mounts Secrets: one folder for each, one file for each key.
pub const SECRETS_FOLDER: &str = "/etc/postroom/secrets";

/// The effective settings of one `InboxOutbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkerConfig {
    /// Always [`VERSION`]; a worker refuses any other rather than guess.
    pub version: u32,
    /// Name of the resource.
    pub name: String,
    /// Namespace of the resource; `default` where the manifest has none.
    pub namespace: String,
    /// Generation of the resource: an older one never overwrites what a newer one registered. 0 outside a cluster.
    pub generation: i64,
    /// Schema with the tables and functions.
    pub schema: String,
    /// Whether all endpoints stop fetching.
    pub paused: bool,
    /// How to reach the database.
    pub database: DatabaseConfig,
    /// How to reach the brokers.
    pub transports: Vec<TransportConfig>,
    /// The outboxes.
    pub outboxes: Vec<OutboxConfig>,
    /// The inboxes.
    pub inboxes: Vec<InboxConfig>,
    /// How long settled things are remembered.
    pub retention: RetentionConfig,
    /// Time-outs of a migration.
    pub migration: MigrationConfig,
    /// Limits of the process.
    pub worker: LimitsConfig,
}

/// How to reach the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatabaseConfig {
    /// Where the connection URL is.
    pub url: Source,
    /// Where the connection URL of migrations is; [`Self::url`] where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_url: Option<Source>,
    /// Protection of the connection.
    pub tls: TlsConfig,
    /// What stands between the worker and the database.
    pub pooler_mode: PoolerMode,
}

/// How to reach one RabbitMQ broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TransportConfig {
    /// Name that endpoints use.
    pub name: String,
    /// Where the connection URL is.
    pub url: Source,
    /// Virtual host; the URL's where this is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost: Option<String>,
    /// Protection of the connection.
    pub tls: TlsConfig,
    /// Seconds between signs of life.
    pub heartbeat_seconds: u32,
}

/// Where the value of a secret is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Source {
    /// A mounted file that holds the value. It may change while the worker runs.
    File(String),
    /// Environment variables; the first that is set holds the value.
    Environment(Vec<String>),
    /// The folder of a mounted Secret: its key `uri`, or else a URL made of its other keys.
    Secret(String),
    /// The folder of a mounted Secret with a login, and the server it is for.
    Login(Login),
}

/// A login and the database server it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Login {
    /// Folder of the mounted Secret with the keys `username` (or `user`) and `password`.
    pub secret: String,
    /// Host of the server.
    pub host: String,
    /// Port of the server.
    pub port: u32,
    /// Name of the database.
    pub database: String,
}

/// Where a file with certificates or a key is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum FileSource {
    /// The path itself.
    File(String),
    /// Environment variables; the first that is set holds the path.
    Environment(Vec<String>),
}

/// Protection of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsConfig {
    /// The level, or that the URL says it.
    pub mode: TlsLevel,
    /// Authorities to trust besides the built-in ones, in PEM form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<FileSource>,
    /// What the worker shows to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<ClientCertificate>,
}

/// The level of protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsLevel {
    /// The resource has no `tls` block: `sslmode` of a database URL, or the scheme of a broker's, counts.
    FromUrl,
    /// No TLS.
    Disable,
    /// Encrypted; any certificate is taken.
    Require,
    /// The certificate comes from a trusted authority.
    #[serde(rename = "VerifyCA")]
    VerifyCa,
    /// The certificate comes from a trusted authority and names the host.
    VerifyFull,
}

/// A certificate with its key, both in PEM form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientCertificate {
    /// The certificate, then those between it and its authority.
    pub certificate: FileSource,
    /// Its private key.
    pub key: FileSource,
}

/// The effective settings of one outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutboxConfig {
    /// Name of the endpoint.
    pub name: String,
    /// Name of the transport; one of [`WorkerConfig::transports`].
    pub transport: String,
    /// Exchange to publish to; empty is the default exchange.
    pub exchange: String,
    /// Template of the routing key, see [`crate::routing_key::Template`].
    pub routing_key: String,
    /// Headers that every message gets.
    pub headers: BTreeMap<String, String>,
    /// What happens to a message that no queue takes.
    pub on_unroutable: OnUnroutable,
    /// Batches, windows and limits.
    pub delivery: Delivery,
    /// Order of the messages.
    pub ordering: Ordering,
    /// Repeats of a failed message.
    pub retry: Retry,
    /// Whether this endpoint stops fetching.
    pub paused: bool,
}

/// The effective settings of one inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InboxConfig {
    /// Name of the endpoint.
    pub name: String,
    /// Name of the transport; one of [`WorkerConfig::transports`].
    pub transport: String,
    /// Queue to consume.
    pub queue: String,
    /// Types of the messages to accept; empty for all.
    pub types: Vec<String>,
    /// How messages are taken from the queue.
    pub consumer: Consumer,
    /// What makes a message the same as another.
    pub identity: Identity,
    /// Where the stream of a message is.
    pub stream: Stream,
    /// Where the tenant of a message is.
    pub tenant: Tenant,
    /// What handles the messages.
    pub handler: HandlerConfig,
    /// Order of the messages.
    pub ordering: Ordering,
    /// Repeats of a message whose handler failed.
    pub retry: Retry,
    /// Whether this endpoint stops consuming and handling.
    pub paused: bool,
}

/// What handles the messages of an inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum HandlerConfig {
    /// A function in the database.
    SqlFunction(SqlFunction),
    /// The application, in its own transactions; no worker claims the messages.
    Pull(Pull),
}

/// How long settled things are remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetentionConfig {
    /// Window in which a repeat is recognised.
    pub deduplication_seconds: u64,
    /// Window in which a repeated request gets the recorded outcome.
    pub requests_seconds: u64,
    /// Age at which a dead letter goes.
    pub dead_seconds: u64,
}

/// Time-outs of a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigrationConfig {
    /// Longest wait for one lock.
    pub lock_timeout_seconds: u32,
    /// Longest time of one statement.
    pub statement_timeout_seconds: u32,
}

/// Limits of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitsConfig {
    /// Length of the lease the database grants.
    pub lease_seconds: u32,
    /// Time from the stop signal to the kill.
    pub grace_seconds: u32,
}
