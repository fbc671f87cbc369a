//! `up`: the steps from empty folders to the table, on this machine alone.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use crate::day::Day;
use crate::guide::Guide;
use crate::report::Report;
use crate::servers::{Ground, Servers};
use crate::shop::{Books, SESSIONS};
use crate::steps::Steps;
use crate::{Up, place, session};

const OWN_STEPS: usize = 6;

/// Runs the demo; whatever it started is left running only if it came to its end.
pub(crate) fn up(flags: &Up) -> Result<ExitCode> {
    let mut steps = Steps::new(flags.steps_before, OWN_STEPS);
    let after_failure = || match place::end_and_keep_logs() {
        Ok(logs) => format!("{} (servers and workers were ended)", logs.display()),
        Err(error) => format!("not kept: {error:#}"),
    };
    let length = Duration::from_secs(flags.seconds);
    session::run(
        &mut steps,
        async |steps| demo(steps, length).await,
        after_failure,
    )
}

/// The folder of this run.
fn fresh_place(steps: &Steps) -> Result<()> {
    if place::remove()? {
        steps.note("removed what an earlier demo had left")?;
    }
    place::create()
}

/// All steps. False: it came to its end, and something is not as it must be.
async fn demo(steps: &mut Steps, length: Duration) -> Result<bool> {
    steps.begin(
        "Start PostgreSQL and RabbitMQ",
        "look into the logs, see that memory and disk suffice, then run 'make quickstart' again",
    )?;
    fresh_place(steps)?;
    let servers = Servers::start().await?;
    steps.done(&format!(
        "PostgreSQL on 127.0.0.1:{}, RabbitMQ on 127.0.0.1:{}",
        servers.postgres.port(),
        servers.rabbit.port()
    ))?;

    steps.begin(
        "Make a database and a virtual host; run 'postroom-worker migrate'",
        "read what the migration says; if it is a fault of Postroom, report it with these logs",
    )?;
    let ground = Ground::prepare(&servers).await?;
    steps.done(
        "schema postroom, exchange shop, queues arrivals and billing, handler billing.book",
    )?;

    steps.begin(
        "Start two workers: 'postroom-worker run --resource tests/demo/shop.yaml'",
        "look into the workers' logs, then run 'make quickstart' again",
    )?;
    let (first, second) = tokio::try_join!(ground.worker(), ground.worker())?;
    steps.done(&format!("processes {} and {}", first.pid(), second.pid()))?;

    steps.begin(
        "Open the shop; kill a worker with -9 in the middle, start another",
        "look into the logs; if it is a fault of Postroom, report it with them",
    )?;
    let receiver = ground.receiver().await?;
    let books = Arc::new(Books::default());
    let day = Day {
        books: &books,
        pool: ground.pool(SESSIONS).await?,
        receiver: &receiver,
        length,
    };
    let (third, kill) = day
        .business(steps, async |steps| {
            first.kill_9().await?;
            steps.note(&format!("killed worker {} with -9", first.pid()))?;
            let worker = ground.worker().await?;
            steps.note(&format!("started worker {}", worker.pid()))?;
            Ok(worker)
        })
        .await?;
    steps.done(&day.summary())?;

    steps.begin(
        "Wait for what has not arrived, and for what should not arrive",
        "look into the logs",
    )?;
    let received = day.arrivals(steps).await?;
    steps.done("")?;

    steps.begin(
        "Deliver some of it again to the inbox of the other service; count its invoices",
        "look into the workers' logs; if it is a fault of Postroom, report it with them",
    )?;
    let invoices = ground.invoices(steps, &received).await?;
    let report = Report::new(&books, &received, ground.counts().await?, invoices, kill);
    steps.done("")?;

    let guide = Guide {
        servers: &servers,
        ground: &ground,
        workers: [&second, &third],
    };
    guide.show(steps, &report)
}
