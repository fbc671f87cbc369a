//! The inbox of an endpoint: what receives for it, and the engine with sessions of the database as its runners.
//!
//! ```text
//! queue -> consumer -> delivery -> batch -> accept: inbox rows, in one commit -> one acknowledgement   (ingress)
//!                      (pure)     (pure)
//! inbox rows -> engine -> one task for each session (handle) -> effect, and the row is deleted, in one commit
//! ```
//!
//! Invariant: a delivery is acknowledged only when it and all before it are stored, or settled by rule.

pub mod accept;
pub mod batch;
pub mod consumer;
pub mod delivery;
pub mod fields;
pub mod handle;
pub mod identity;
pub mod ingress;

use std::sync::Arc;

use postroom_crds::inbox_outbox::inbox::SqlFunction;
use postroom_crds::inbox_outbox::outbox::OnUnroutable;
use postroom_crds::worker_config::InboxConfig;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::database::Database;
use crate::engine::lanes::Limits;
use crate::engine::runners::Runners;
use crate::engine::{self, Settings, Shared};
use crate::store::Direction;
use handle::Handler;

/// Runs the SQL handler of an inbox until the process has drained.
pub async fn serve(shared: Shared, function: SqlFunction, database: Database) {
    let sessions = function.concurrency as usize;
    let room = shared.config.limits.messages + 64;
    let (reports_to, reports) = mpsc::channel(room);
    let function = Arc::new(function);
    let mut tasks = JoinSet::new();
    let handlers = (0..sessions).map(|runner| {
        let (orders, taken) = mpsc::channel(room);
        let handler = Handler {
            runner,
            endpoint: shared.config.name.clone(),
            function: function.clone(),
            worker: shared.worker,
            trust: shared.trust.clone(),
            session: database.session("handle"),
            draining: shared.draining.clone(),
            duration: shared.metrics.duration.clone(),
        };
        tasks.spawn(handler.run(taken, reports_to.clone()));
        orders
    });
    let runners = Runners::new(handlers);
    drop(reports_to);
    engine::serve(shared, runners, reports).await;
    tasks.shutdown().await;
}

/// What the engine needs to know of an inbox with a SQL handler. Bodies stay in the database.
pub fn settings(config: &InboxConfig, function: &SqlFunction) -> Settings {
    let batch = function.batch_size as usize;
    Settings {
        name: config.name.clone(),
        direction: Direction::Inbox,
        paused: config.paused,
        // Two transactions for each session: one runs, one waits for it to end.
        batch_size: (2 * batch * function.concurrency as usize).min(5_000),
        limits: Limits {
            messages: 2 * batch * function.concurrency as usize,
            bytes: u64::MAX,
        },
        max_message_bytes: u64::MAX,
        bodies: false,
        ordering: config.ordering,
        retry: config.retry,
        on_unroutable: OnUnroutable::Retry,
        target: format!("handler {}", function.name),
    }
}
