//! How the schema of the database gets to the version of the workers.

use serde::{Deserialize, Serialize};

#[cfg(feature = "kube")]
use crate::limits;

/// How the schema of the database gets to the version of the workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Migrations {
    /// `Automatic`: a Job migrates before workers of a new version start. `Manual`: the Job waits for
    /// `approvedVersion`. `Disabled`: somebody else runs `postroom-worker migrate`.
    pub policy: MigrationPolicy,

    /// Version of the schema that may be migrated to. Only with `Manual`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(range(min = limits::APPROVED_VERSION.min, max = limits::APPROVED_VERSION.max)))]
    pub approved_version: Option<u32>,

    /// Longest wait for one lock in the database. Applications wait behind it; the step is tried again later.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::LOCK_TIMEOUT_SECONDS.min, max = limits::LOCK_TIMEOUT_SECONDS.max)))]
    pub lock_timeout_seconds: u32,

    /// Longest time of one statement.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::STATEMENT_TIMEOUT_SECONDS.min, max = limits::STATEMENT_TIMEOUT_SECONDS.max)))]
    pub statement_timeout_seconds: u32,

    /// Longest time of a Job, all its attempts together. A new Job follows after a pause.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::ACTIVE_DEADLINE_SECONDS.min, max = limits::ACTIVE_DEADLINE_SECONDS.max)))]
    pub active_deadline_seconds: u32,

    /// Attempts of a Job after the first. A new Job follows after a pause.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::BACKOFF_LIMIT.min, max = limits::BACKOFF_LIMIT.max)))]
    pub backoff_limit: u32,

    /// How long a finished Job, and with it its log, is kept.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::TTL_SECONDS.min, max = limits::TTL_SECONDS.max)))]
    pub ttl_seconds_after_finished: u32,
}

impl Default for Migrations {
    fn default() -> Self {
        Self {
            policy: MigrationPolicy::Automatic,
            approved_version: None,
            lock_timeout_seconds: 5,
            statement_timeout_seconds: 300,
            active_deadline_seconds: 900,
            backoff_limit: 3,
            ttl_seconds_after_finished: 86_400,
        }
    }
}

/// Who decides that the schema is migrated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum MigrationPolicy {
    /// The operator.
    #[default]
    Automatic,
    /// A person, by `approvedVersion`.
    Manual,
    /// Somebody outside.
    Disabled,
}
