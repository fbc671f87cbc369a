//! The slow chores: measuring the backlog, and the upkeep of the schema.

use std::time::{Duration, Instant};

use crate::backoff::chance;
use crate::database::Session;
use crate::hooks;
use crate::metrics::METRICS;
use crate::status::Status;
use crate::store;

/// Shortest time between two measurements.
const MEASURE: Duration = Duration::from_secs(5);
/// A measurement may take this part of the time at most; a large backlog is measured less often.
const SHARE: u32 = 20;
/// Longest time between two measurements.
const MEASURE_AT_LEAST: Duration = Duration::from_secs(45);
/// Deadline of a measurement.
const MEASURE_CALL: Duration = Duration::from_secs(20);
/// Time between two passes of upkeep.
const MAINTAIN: Duration = Duration::from_secs(60);
/// Deadline of a pass.
const MAINTAIN_CALL: Duration = Duration::from_secs(30);

/// Runs until the task is ended. A failure shows in the age of the measurement; the heart tells why.
pub async fn keep_up(mut session: Session, status: Status) {
    let mut maintain_at = Instant::now() + MAINTAIN.mul_f64(chance());
    loop {
        let began = Instant::now();
        match session
            .call(MEASURE_CALL, async |link| store::backlog(link).await)
            .await
        {
            Ok(backlog) => status.measured(backlog),
            Err(reason) => tracing::debug!(
                code = reason.code,
                "The backlog could not be measured: {reason}"
            ),
        }
        let took = began.elapsed();
        if Instant::now() >= maintain_at {
            maintain_at = Instant::now() + MAINTAIN;
            maintain(&mut session).await;
        }
        tokio::time::sleep((took * SHARE).clamp(MEASURE, MEASURE_AT_LEAST)).await;
    }
}

async fn maintain(session: &mut Session) {
    hooks::abort_at("upkeep");
    match session
        .call(MAINTAIN_CALL, async |link| {
            let tasks = store::perform_maintenance(link).await?;
            Ok((tasks, store::memories(link).await?))
        })
        .await
    {
        Ok((tasks, [identities, requests])) => {
            for (task, rows) in tasks {
                METRICS.maintained(&task, rows);
            }
            METRICS.deduplication.set(&identities);
            METRICS.requests.set(&requests);
        }
        Err(reason) => tracing::warn!(code = reason.code, "Upkeep did not run: {reason}"),
    }
}
