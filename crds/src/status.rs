//! What is true of an `InboxOutbox`: its status.
//!
//! Invariants: unknown numbers are absent, never zero; times are points in time, so that nothing here changes by
//! waiting; the operator is the only writer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is true of an `InboxOutbox`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InboxOutboxStatus {
    /// Generation of the spec that all this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready` sums up; `SchemaUpToDate`, `DatabaseReachable`, `TransportsReachable` and `WorkersAvailable` say
    /// more. `Reconciling` and `Stalled` are there only while they are true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The schema of the database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<SchemaStatus>,

    /// The worker processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,

    /// All endpoints together. Absent while unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,

    /// The endpoints in the order of the spec, outboxes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointStatus>,

    /// When the numbers were measured. They are written when they change, at most every 30 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_time: Option<Time>,
}

/// The schema of the database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SchemaStatus {
    /// Version that the last successful migration left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,

    /// Version that the workers need.
    pub target_version: u32,

    /// Job that did the last successful migration. It may be gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_job_name: Option<String>,

    /// When that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_migrated_time: Option<Time>,
}

/// The worker processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkersStatus {
    /// Workers that exist.
    pub replicas: i32,

    /// Workers that are ready.
    pub ready_replicas: i32,

    /// Workers with the present configuration and image.
    pub updated_replicas: i32,

    /// Selector of the workers' pods.
    pub selector: String,
}

/// All endpoints together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// Messages that wait, those in flight included.
    pub pending: i64,

    /// Messages that are being published or handled.
    pub in_flight: i64,

    /// Messages that were given up.
    pub dead: i64,

    /// When the oldest message that waits was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending_time: Option<Time>,
}

/// One endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointStatus {
    /// Its name.
    pub name: String,

    /// Its direction.
    pub direction: Direction,

    /// What it does.
    pub state: EndpointState,

    /// Why it fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Messages that wait, those in flight included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<i64>,

    /// Messages that are being published or handled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<i64>,

    /// Messages that wait for their due time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred: Option<i64>,

    /// Messages that were given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead: Option<i64>,

    /// When the oldest message that waits was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_pending_time: Option<Time>,

    /// When a message was last confirmed by the broker or handled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_delivery_time: Option<Time>,
}

/// Which way messages go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Direction {
    /// From the database to the broker.
    #[default]
    Outbox,
    /// From the broker to the database.
    Inbox,
}

/// What an endpoint does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum EndpointState {
    /// No worker says.
    #[default]
    Unknown,
    /// It delivers or receives.
    Active,
    /// The resource says so.
    Paused,
    /// Something stands in the way.
    Failing,
}
