//! A worker that has nothing to do on a schema in which nothing has ever happened, and the first message.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Figure;
use crate::Sizes;
use crate::bed::{self, Bed, OUTBOX, QUEUE, Servers};
use crate::machine;
use crate::progress::Progress;

/// Until its polls are as far apart as they get.
const SETTLING: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn run(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let bed = Bed::make(servers).await?;
    let receiver = bed.vhost.receive(&[QUEUE]).await?;
    let mut session = bed.connect().await?;
    let worker = bed.ready_worker().await?;
    let postgres = servers.postgres.pid().context("PostgreSQL does not run")?;
    tokio::time::sleep(SETTLING).await;
    progress.say(&format!("idle for {} s", sizes.seconds));
    let time = || anyhow::Ok((machine::time_of(worker.pid())?, machine::time_of(postgres)?));
    let (before, began) = (time()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(sizes.seconds.into())).await;
    let (after, elapsed) = (time()?, began.elapsed());
    // A thousandth of a processor.
    let milli = |now: Duration, before: Duration| {
        now.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64() * 1e3
    };
    let (_, memory) = machine::memory_of(worker.pid())?;

    progress.say("first message");
    let insert = format!(
        "insert into postroom.outbox (endpoint, type, payload) values ('{OUTBOX}', 'made', '{{}}')"
    );
    bed::execute(&mut session, &insert).await?;
    let committed = Instant::now();
    let arrived = receiver.wait_for(1, PATIENCE).await?;
    let first = arrived.first().context("nothing arrived")?.arrived;
    let delay = first.saturating_duration_since(committed);
    Ok(vec![
        Figure::new("worker's processor time", milli(after.0, before.0), "mCPU").at_most(20.0),
        Figure::new(
            "database's processor time",
            milli(after.1, before.1),
            "mCPU",
        ),
        Figure::new("worker's memory", memory, "MiB").at_most(64.0),
        Figure::new(
            "commit to arrival of the first message",
            delay.as_secs_f64() * 1e3,
            "ms",
        )
        .at_most(1_000.0),
    ])
}
