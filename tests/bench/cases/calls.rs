//! Single calls while nothing happens: as the server counts them, and as a client sees them.

use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::{Figure, percentile, sorted};
use crate::bed::{self, Bed, OUTBOX, Servers};
use crate::progress::Progress;

const CALLS: usize = 500;
const POLL: &str = "select * from postroom.poll_outbox()";

pub(super) async fn run(servers: &Servers, progress: &Progress) -> Result<Vec<Figure>> {
    let bed = Bed::make(servers).await?;
    let mut session = bed.connect().await?;
    let claim = format!(
        "select * from postroom.claim_work('{}', 'bench', 'bench', '15 s', '{{{OUTBOX}}}')",
        Uuid::new_v4()
    );
    // The first one takes all partitions.
    bed::execute(&mut session, &claim).await?;
    progress.say("calling");
    let claim_inside = inside(&mut session, &claim).await?;
    let claim_flushed = outside(&mut session, &claim).await?;
    let poll_inside = inside(&mut session, POLL).await?;
    let poll_outside = outside(&mut session, POLL).await?;
    bed::execute(&mut session, "set synchronous_commit = off").await?;
    let claim_unflushed = outside(&mut session, &claim).await?;
    let median = |values: &[f64]| percentile(values, 0.5);
    Ok(vec![
        Figure::new("claim_work in the server", median(&claim_inside), "ms").at_most(1.0),
        Figure::new("the same, p95", percentile(&claim_inside, 0.95), "ms"),
        Figure::new("claim_work for a client", median(&claim_flushed), "ms"),
        Figure::new(
            "the same without the WAL flush",
            median(&claim_unflushed),
            "ms",
        ),
        Figure::new("poll in the server", median(&poll_inside), "ms").at_most(0.2),
        Figure::new("the same, p95", percentile(&poll_inside, 0.95), "ms"),
        Figure::new("poll for a client", median(&poll_outside), "ms"),
    ])
}

/// Milliseconds as the server counts them: planned and executed, without the flush of the commit and the way back.
async fn inside(session: &mut PgConnection, call: &str) -> Result<Vec<f64>> {
    let explain = format!("explain (analyze, timing off, format json) {call}");
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let plan: Value = sqlx::query_scalar(AssertSqlSafe(explain.clone()))
            .fetch_one(&mut *session)
            .await?;
        let time = |name: &str| plan[0][name].as_f64();
        let sum = time("Planning Time").zip(time("Execution Time"));
        let (planning, execution) = sum.context("the server says no times")?;
        times.push(planning + execution);
    }
    Ok(sorted(times))
}

/// Milliseconds from sending a call to having its answer.
async fn outside(session: &mut PgConnection, call: &str) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let began = Instant::now();
        sqlx::query(AssertSqlSafe(call.to_owned()))
            .fetch_all(&mut *session)
            .await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(sorted(times))
}
