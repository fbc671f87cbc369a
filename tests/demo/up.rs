//! `up`: the steps from empty folders to the table, and what is said at the end.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postroom_tests::received::Received;
use postroom_tests::receiver::Receiver;
use postroom_tests::worker::Worker;
use tokio::signal::unix::{SignalKind, signal};

use crate::guide::Guide;
use crate::report::{Report, grouped};
use crate::servers::{Ground, Kept, Servers};
use crate::shop::{self, Books, SESSIONS};
use crate::steps::Steps;
use crate::{Up, place};

const OWN_STEPS: usize = 5;
/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// After the shop has closed: a killed worker's share waits for its lease, then everything must come.
const ARRIVAL: Duration = Duration::from_secs(60);
/// Longer than a lease, so that what a take-over repeats is seen.
const QUIET: Duration = Duration::from_secs(6);

/// Runs the demo; whatever it started is left running only if it came to its end.
pub(crate) fn up(flags: &Up) -> Result<ExitCode> {
    ensure!(
        Path::new("tests/demo/shop.yaml").is_file(),
        "tests/demo/shop.yaml is not here: run this in the repository"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut steps = Steps::new(flags.steps_before, OWN_STEPS);
    let ended = runtime.block_on(async {
        let interrupted = interrupted()?;
        tokio::select! {
            ended = demo(&mut steps, flags) => Ok(Some(ended)),
            () = interrupted => Ok::<_, anyhow::Error>(None),
        }
    })?;
    runtime.shutdown_background();
    match ended {
        Some(Ok(true)) => Ok(ExitCode::SUCCESS),
        Some(Ok(false)) => Ok(ExitCode::FAILURE),
        Some(Err(error)) => failed(&steps, &error),
        None => {
            steps.note("Interrupted: ending servers and workers")?;
            place::remove()?;
            steps.say("Removed: nothing of the demo is left running.")?;
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

/// Ready when somebody wants the demo to end.
fn interrupted() -> Result<impl Future<Output = ()>> {
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = quit.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

fn failed(steps: &Steps, error: &anyhow::Error) -> Result<ExitCode> {
    let logs = match place::end_and_keep_logs() {
        Ok(logs) => format!("{} (servers and workers were ended)", logs.display()),
        Err(error) => format!("not kept: {error:#}"),
    };
    let text = steps.failure(&format!("{error:#}"), &logs);
    writeln!(std::io::stderr(), "\n{text}")?;
    Ok(ExitCode::FAILURE)
}

/// All steps. False: it came to its end, and something is not as it must be.
async fn demo(steps: &mut Steps, flags: &Up) -> Result<bool> {
    steps.begin(
        "Start PostgreSQL and RabbitMQ",
        "look into the logs, see that memory and disk suffice, then run 'make demo' again",
    )?;
    if place::remove()? {
        steps.note("removed what an earlier demo had left")?;
    }
    place::create()?;
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
    steps.done("schema postroom, exchange shop, queue arrivals")?;

    steps.begin(
        "Start two workers: 'postroom-worker run --resource tests/demo/shop.yaml'",
        "look into the workers' logs, then run 'make demo' again",
    )?;
    let (first, second) = tokio::try_join!(ground.worker(), ground.worker())?;
    steps.done(&format!("processes {} and {}", first.pid(), second.pid()))?;

    steps.begin(
        "Open the shop; kill a worker with -9 in the middle, start another",
        "look into the logs; if it is a fault of Postroom, report it with them",
    )?;
    let receiver = ground.receiver().await?;
    let books = Arc::new(Books::default());
    let (third, kill) = business(steps, flags, &ground, &books, &receiver, &first).await?;
    let (committed, rolled_back) = (books.ledger.committed(), books.ledger.rolled_back());
    steps.done(&format!(
        "{} messages committed, {} rolled back",
        grouped(committed),
        grouped(rolled_back)
    ))?;

    steps.begin(
        "Wait for what has not arrived, and for what should not arrive",
        "look into the logs",
    )?;
    let received = arrivals(steps, &receiver, committed).await?;
    let report = Report::new(&books, &received, ground.counts().await?, kill);
    steps.done("")?;

    let guide = Guide {
        servers: &servers,
        ground: &ground,
        workers: [&second, &third],
    };
    guide.show(steps, &report)
}

/// The shop is open; in the middle a worker is killed. Answers its successor, and when the kill was.
async fn business(
    steps: &mut Steps,
    flags: &Up,
    ground: &Ground,
    books: &Arc<Books>,
    receiver: &Receiver,
    victim: &Worker,
) -> Result<(Kept<Worker>, Instant)> {
    let began = Instant::now();
    let middle = began + Duration::from_secs(flags.seconds) / 2;
    let closing = began + Duration::from_secs(flags.seconds);
    let pool = ground.pool(SESSIONS).await?;
    let shop = shop::open(pool, Arc::clone(books), closing);
    let mut shop = std::pin::pin!(shop);
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    let mut kill = None;
    let mut successor = None;
    loop {
        tokio::select! {
            ended = &mut shop => {
                ended?;
                break;
            }
            _ = ticks.tick() => steps.progress(&format!(
                "{:>3} s: committed {}, rolled back {}, arrived {}",
                began.elapsed().as_secs(),
                grouped(books.ledger.committed()),
                grouped(books.ledger.rolled_back()),
                grouped(receiver.distinct())
            ))?,
        }
        if kill.is_none() && Instant::now() >= middle {
            let now = Instant::now();
            victim.kill_9().await?;
            steps.note(&format!("killed worker {} with -9", victim.pid()))?;
            kill = Some(now);
            // It gets ready while the shop goes on: the till is on tasks of its own.
            let worker = ground.worker().await?;
            steps.note(&format!("started worker {}", worker.pid()))?;
            successor = Some(worker);
        }
    }
    successor
        .zip(kill)
        .context("the shop closed before a worker was killed")
}

/// Everything that arrives. What does not come in time is missing in the report.
async fn arrivals(steps: &Steps, receiver: &Receiver, committed: usize) -> Result<Vec<Received>> {
    if let Err(error) = receiver.wait_for(committed, ARRIVAL).await {
        steps.note(&format!("{error:#}"))?;
    }
    receiver.wait_quiet(QUIET, ARRIVAL).await
}
