//! The control plane of Postroom: makes of one `InboxOutbox` a migrated schema and a fleet of workers, and says what is true.
//!
//! Reading order:
//! 1. [`cli`], [`run`]: the commands; waiting for one's turn and working;
//! 2. [`reconcile`]: one pass over one resource: observe, plan, apply, report;
//! 3. [`observe`] with [`caches`] and [`stats`]: what is there, and what workers say;
//! 4. [`plan`]: what should be. Pure, and the only place that decides;
//! 5. [`apply`], [`report`]: the only places that write;
//! 6. [`leader`], [`http`], [`metrics`], [`logging`];
//! 7. [`definitions`], [`validation`]: what needs no cluster.
//!
//! Invariant: it opens no connection to a database or a broker, and reads no Secret.

pub mod cli;
pub mod run;

pub mod reconcile;

pub mod caches;
pub mod observe;
pub mod stats;

pub mod plan;

pub mod apply;
pub mod report;

pub mod http;
pub mod leader;
pub mod logging;
pub mod metrics;

pub mod definitions;
pub mod validation;
