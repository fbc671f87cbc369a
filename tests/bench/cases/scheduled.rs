//! Very many messages that wait for their time: they cost no memory, and hold up nobody.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::Figure;
use crate::Sizes;
use crate::bed::{self, Bed, OUTBOX, QUEUE, Servers};
use crate::machine;
use crate::progress::Progress;

/// Rows of one transaction.
const BATCH: u32 = 10_000;
/// So many of them are due soon after the worker began.
const DUE: u32 = 1_000;
/// How soon.
const SOON: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) async fn run(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let bed = Bed::make(servers).await?;
    let mut session = bed.connect().await?;
    let due = DUE.min(sizes.scheduled);
    let mut done = 0;
    while done < sizes.scheduled - due {
        let count = BATCH.min(sizes.scheduled - due - done);
        schedule(&mut session, count, "1 day").await?;
        done += count;
        progress.update(&format!("{done} of {} messages scheduled", sizes.scheduled));
    }
    schedule(&mut session, due, &format!("{} s", SOON.as_secs())).await?;
    bed::execute(&mut session, "checkpoint").await?;
    let due_at = Instant::now() + SOON;

    progress.say("one message beside them");
    let receiver = bed.vhost.receive(&[QUEUE]).await?;
    let worker = bed.ready_worker().await?;
    let insert = format!(
        "insert into postroom.outbox (endpoint, type, payload) values ('{OUTBOX}', 'made', 'now')"
    );
    bed::execute(&mut session, &insert).await?;
    let committed = Instant::now();
    receiver.wait_for(1, PATIENCE).await?;
    progress.say(&format!("{due} of them become due"));
    let count = usize::try_from(due)? + 1;
    let arrived = receiver.wait_for(count, PATIENCE).await?;
    let of = |body: &'static str| {
        arrived
            .iter()
            .filter(move |message| message.body == body.as_bytes())
    };
    let now = of("now").next().context("the message beside them")?.arrived;
    let last = of("later").map(|message| message.arrived).max();
    let last = last.context("none of them arrived")?;
    let (memory, _) = machine::memory_of(worker.pid())?;
    let milliseconds =
        |since: Instant, at: Instant| at.saturating_duration_since(since).as_secs_f64() * 1e3;
    Ok(vec![
        Figure::new("worker's highest memory", memory, "MiB").at_most(64.0),
        Figure::new(
            "commit to arrival of one beside them",
            milliseconds(committed, now),
            "ms",
        ),
        Figure::new(
            "due to arrival of the last of those due",
            milliseconds(due_at, last),
            "ms",
        ),
    ])
}

async fn schedule(session: &mut sqlx::PgConnection, count: u32, delay: &str) -> Result<()> {
    let insert = format!(
        "insert into postroom.outbox (endpoint, type, payload, available_at) \
         select '{OUTBOX}', 'made', 'later', clock_timestamp() + interval '{delay}' from generate_series(1, {count})"
    );
    bed::execute(session, &insert).await.map(drop)
}
