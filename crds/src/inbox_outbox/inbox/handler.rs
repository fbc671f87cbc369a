//! What handles the messages of an inbox.

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
