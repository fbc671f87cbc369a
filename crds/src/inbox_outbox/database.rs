//! The database of an `InboxOutbox`.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "the derive for schemas copies each struct into a function body"
    )
)]

use serde::{Deserialize, Serialize};

use super::reference::{SecretRef, Tls};
#[cfg(feature = "kube")]
use crate::limits;

/// The PostgreSQL database whose outbox tables the workers serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Database {
    /// Where the connection URL is, such as the `-app` Secret of a CloudNativePG cluster.
    pub secret_ref: SecretRef,

    /// Protection of the connection. Left out, the `sslmode` of the URL counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,

    /// Schema that holds the tables and functions of Postroom. It cannot change later.
    #[serde(default = "default_schema")]
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self == oldSelf").message("must not change: what is stored under the old name would be left behind")
        )
    )]
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self != 'public' && self != 'information_schema' && !self.startsWith('pg_')").message("must not be 'public', 'information_schema' or start with 'pg_'")
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
