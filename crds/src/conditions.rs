//! The words of conditions. They are part of the API: scripts wait for them.

/// Sums up the others.
pub const READY: &str = "Ready";
/// The schema of the database is the one the workers need.
pub const SCHEMA_UP_TO_DATE: &str = "SchemaUpToDate";
/// Every worker has its sessions with the database.
pub const DATABASE_REACHABLE: &str = "DatabaseReachable";
/// Every worker has its connections to the brokers.
pub const TRANSPORTS_REACHABLE: &str = "TransportsReachable";
/// As many workers as wanted are ready, with the present configuration.
pub const WORKERS_AVAILABLE: &str = "WorkersAvailable";
/// Something is being changed. Present only while true.
pub const RECONCILING: &str = "Reconciling";
/// Nothing goes on before a person changes something. Present only while true.
pub const STALLED: &str = "Stalled";
