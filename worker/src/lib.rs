//! The data plane of Postroom: claims work in PostgreSQL, publishes it to RabbitMQ with confirms, or runs its handler, and settles it.
//!
//! ```text
//! heart    claim_work                renews the lease, says what is held
//! poll     poll_outbox               says when something moved
//! engine   fetch -> run -> settle       one task for each endpoint; reading and lanes are pure
//! outbox   runs a message by publishing it
//! inbox    runs a message by calling its handler
//! broker   one connection for each transport
//! ```
//!
//! Reading order: [`run`], [`heart`], [`poll`], [`engine`], [`outbox`], [`inbox`], [`store`], [`database`], [`broker`], [`upkeep`],
//! [`status`], [`http`], [`metrics`]; then [`migrate`] and [`commands`].
//!
//! Invariants: nothing of Kubernetes is known here; a row of an outbox is deleted only after the broker confirmed and
//! did not return it, a row of an inbox only with its effect; every loop, batch, wait and retry has a limit.

pub mod run;

pub mod heart;
pub mod poll;

pub mod engine;
pub mod inbox;
pub mod outbox;

pub mod broker;
pub mod database;
pub mod lease;
pub mod settle;
pub mod store;

pub mod upkeep;

pub mod http;
pub mod metrics;
pub mod status;

pub mod cli;
pub mod commands;
pub mod config;
pub mod migrate;

pub mod backoff;
pub mod clock;
pub mod reason;
pub mod secret;

pub mod hooks;
