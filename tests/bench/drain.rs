//! How long one worker takes for what waits.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use postroom_tests::worker::Worker;

use crate::bed::{Bed, QUEUE, Servers};
use crate::machine;
use crate::progress::Progress;

/// How often the queue is asked.
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(900);

/// A measured drain.
#[derive(Debug)]
pub(crate) struct Drain {
    /// Messages a second, from the first arrivals that were seen to the last one.
    pub(crate) rate: f64,
    /// Microseconds of processor time for a message.
    pub(crate) worker: f64,
    pub(crate) database: f64,
    pub(crate) broker: f64,
    /// Highest memory of the worker, in MiB.
    pub(crate) memory: f64,
    /// Runs on until this is dropped, so that the last rows are settled.
    _process: Worker,
}

/// Starts a worker and waits until `count` messages are in the ordinary queue.
pub(crate) async fn drain(
    servers: &Servers,
    bed: &Bed,
    count: u32,
    progress: &Progress,
) -> Result<Drain> {
    progress.say("draining");
    let depth = Depth::open(bed).await?;
    let postgres = servers.postgres.pid().context("PostgreSQL does not run")?;
    let rabbit = servers.rabbit.pid().context("RabbitMQ does not run")?;
    let before = (machine::time_of(postgres)?, machine::time_of(rabbit)?);
    let process = bed.start_worker()?;
    let began = Instant::now();
    let mut first = None;
    loop {
        let arrived = depth.now().await?;
        let now = Instant::now();
        if arrived >= count {
            let (since, seen) = first.unwrap_or((began, 0));
            let per_message = |now: Duration, before: Duration| {
                now.saturating_sub(before).as_secs_f64() * 1e6 / f64::from(count)
            };
            let (memory, _) = machine::memory_of(process.pid())?;
            return Ok(Drain {
                rate: f64::from(arrived - seen) / now.duration_since(since).as_secs_f64(),
                worker: per_message(machine::time_of(process.pid())?, Duration::ZERO),
                database: per_message(machine::time_of(postgres)?, before.0),
                broker: per_message(machine::time_of(rabbit)?, before.1),
                memory,
                _process: process,
            });
        }
        if arrived > 0 {
            first.get_or_insert((now, arrived));
            progress.update(&format!("{arrived} of {count} messages arrived"));
        }
        if let Some(status) = process.exited()? {
            bail!("the worker ended with {status}:\n{}", process.log());
        }
        if began.elapsed() > PATIENCE {
            bail!("{arrived} of {count} messages arrived within {PATIENCE:?}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Looks into the ordinary queue.
struct Depth {
    channel: Channel,
    _connection: Connection,
}

impl Depth {
    async fn open(bed: &Bed) -> Result<Self> {
        let connection = bed.vhost.connect().await?;
        Ok(Self {
            channel: connection.create_channel().await?,
            _connection: connection,
        })
    }

    async fn now(&self) -> Result<u32> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = self
            .channel
            .queue_declare(QUEUE.into(), options, FieldTable::default());
        Ok(queue.await?.message_count())
    }
}
