//! The database of an `InboxOutbox`.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "the derive for schemas copies each struct into a function body"
    )
)]

use serde::{Deserialize, Serialize};

use super::reference::{LoginSecretRef, SecretRef, Tls};
#[cfg(feature = "kube")]
use crate::limits;

/// The PostgreSQL database whose outboxes and inboxes the workers serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("has(self.secretRef) != has(self.connection)").message("exactly one of `secretRef` and `connection` must be given")
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Database {
    /// Where the connection URL is, such as the `-app` Secret of a CloudNativePG cluster. Without a key:
    /// `uri`, or else a URL made of `host`, `port`, `username` or `user`, `password`, `dbname` or `database`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,

    /// The server by its address, for Secrets that hold only a login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,

    /// Where the connection URL of migrations is: a login that may create schemas, straight to the server.
    /// Left out, migrations connect as the workers do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_secret_ref: Option<SecretRef>,

    /// Protection of the connection. Left out, the `sslmode` of the URL counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,

    /// Schema that holds the tables and functions of Postroom. It cannot change later.
    #[serde(default = "default_schema")]
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self == oldSelf").message(kube::core::Message::Expression(r#""is '" + self + "' but must not change from '" + oldSelf + "': what is stored under the old name would be left behind""#.to_owned()))
        )
    )]
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self != 'public' && self != 'information_schema' && !self.startsWith('pg_')").message(kube::core::Message::Expression(r#""is '" + self + "' but must not be 'public', 'information_schema' or start with 'pg_'""#.to_owned()))
        )
    )]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SCHEMA_BYTES), regex(pattern = limits::SCHEMA_PATTERN)))]
    pub schema: String,

    /// How connections are made.
    #[serde(default)]
    pub pool: Pool,
}

fn default_schema() -> String {
    "postroom".to_owned()
}

/// A PostgreSQL server by its address, with the login in a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Connection {
    /// Host name or address of the server.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::HOST_BYTES), regex(pattern = limits::HOST_PATTERN)))]
    pub host: String,

    /// Port of the server.
    #[serde(default = "default_port")]
    #[cfg_attr(feature = "kube", schemars(range(min = limits::PORT.min, max = limits::PORT.max)))]
    pub port: u32,

    /// Name of the database.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::DATABASE_BYTES)))]
    pub database: String,

    /// A Secret with the keys `username` (or `user`) and `password`.
    pub credentials_secret_ref: LoginSecretRef,
}

fn default_port() -> u32 {
    5432
}

/// How connections to the database are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pool {
    /// `Session`: a connection of our own, or a pooler in session mode. `Transaction`: a pooler in
    /// transaction mode, where nothing may outlive a transaction.
    pub pooler_mode: PoolerMode,
}

/// What stands between the worker and the database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum PoolerMode {
    /// A server connection stays with its client.
    #[default]
    Session,
    /// A server connection changes with every transaction.
    Transaction,
}
