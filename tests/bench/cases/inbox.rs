//! The inbox: what accepting costs beside a consumer that only acknowledges, what a handler costs on top, what a repeat costs,
//! and whether a memory of very many identities is as quick as a small one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use lapin::BasicProperties;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::resource::{Inbox, Resource};
use postroom_tests::vhost::{QueueArguments, Vhost};
use postroom_tests::worker::Worker;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::{Figure, percentile, sorted};
use crate::bed::{Servers, execute};
use crate::progress::Progress;
use crate::{Sizes, fill, machine};

const INBOX: &str = "billing";
const QUEUE: &str = "billing";
/// As the inbox has them by default.
const PREFETCH: u16 = 500;
const BATCH: usize = 200;
const PATIENCE: Duration = Duration::from_secs(900);
const PAUSE: Duration = Duration::from_millis(20);

/// One effect for each message, nothing else.
const HANDLER: &str = "create schema app; create table app.effect (message_id uuid, payload text); \
    create function app.handle(m postroom.inbox_message) returns void language plpgsql set search_path = app, pg_temp as \
    $$ begin insert into effect values (m.message_id, m.payload); end $$";

/// A database with an inbox, and a queue with messages that nobody has taken yet.
struct Bed {
    database: Database,
    vhost: Vhost,
    resource: std::path::PathBuf,
}

impl Bed {
    async fn make(servers: &Servers, inbox: Inbox) -> Result<Self> {
        let (database, vhost) = tokio::try_join!(
            Database::create(&servers.postgres, "inbox"),
            Vhost::create(&servers.rabbit, "inbox")
        )?;
        vhost
            .declare_queue(QUEUE, &QueueArguments::quorum())
            .await?;
        let bed = Self {
            database,
            vhost,
            resource: Resource::new("bench").inbox(inbox).write()?,
        };
        bed.launch("migrate").succeed().await?;
        let mut session = bed.database.connect().await?;
        sqlx::raw_sql(HANDLER)
            .execute(&mut session)
            .await
            .context("create the handler")?;
        Ok(bed)
    }

    fn launch(&self, command: &str) -> Launch {
        Launch::new(&[command, "--resource", &self.resource.to_string_lossy()])
            .database_url(self.database.url())
            .amqp_url(self.vhost.amqp_url())
    }

    /// Puts messages into the queue, with the ids that `number` gives them, each in one of a thousand streams.
    async fn publish(&self, ids: &[Uuid], progress: &Progress) -> Result<()> {
        let connection = self.vhost.connect().await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let bodies = fill::bodies(u32::try_from(ids.len())?);
        let mut waiting = futures::stream::FuturesUnordered::new();
        for (number, (id, body)) in ids.iter().zip(bodies).enumerate() {
            let mut headers = FieldTable::default();
            headers.insert(
                "x-postroom-stream".into(),
                AMQPValue::LongString(format!("s{}", number % 1_000).into()),
            );
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(id.to_string().into())
                .with_type("made".into())
                .with_content_type("application/json".into())
                .with_headers(headers);
            let channel = channel.clone();
            waiting.push(async move {
                let publish = channel.basic_publish(
                    "".into(),
                    QUEUE.into(),
                    BasicPublishOptions::default(),
                    &body,
                    properties,
                );
                publish.await?.await
            });
            if waiting.len() >= 1_000 {
                waiting.next().await.context("a confirm")??;
            }
            if number % 10_000 == 0 {
                progress.update(&format!("{number} of {} messages published", ids.len()));
            }
        }
        while let Some(confirm) = waiting.next().await {
            confirm?;
        }
        connection.close(200, "OK".into()).await?;
        Ok(())
    }

    /// How long the queue and a table take to get where they should be, with a worker that starts now.
    async fn run_until(
        &self,
        servers: &Servers,
        count: usize,
        done: &str,
        progress: &Progress,
    ) -> Result<Taken> {
        let postgres = servers.postgres.pid().context("PostgreSQL does not run")?;
        let rabbit = servers.rabbit.pid().context("RabbitMQ does not run")?;
        let before = (machine::time_of(postgres)?, machine::time_of(rabbit)?);
        let mut session = self.database.connect().await?;
        let worker = self.launch("run").start()?.quiet();
        let began = Instant::now();
        let mut first: Option<(Instant, i64)> = None;
        loop {
            let seen: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(done.to_owned()))
                .fetch_one(&mut session)
                .await?;
            let now = Instant::now();
            if seen > 0 {
                first.get_or_insert((now, seen));
            }
            progress.update(&format!("{seen} of {count}"));
            if usize::try_from(seen).unwrap_or_default() >= count {
                let (since, had) = first.unwrap_or((began, 0));
                #[expect(clippy::cast_precision_loss, reason = "counts of messages")]
                let (all, rest) = (count as f64, (seen - had) as f64);
                let per_message = |now: Duration, before: Duration| {
                    now.saturating_sub(before).as_secs_f64() * 1e6 / all
                };
                return Ok(Taken {
                    rate: rest / now.duration_since(since).as_secs_f64().max(0.001),
                    worker: per_message(machine::time_of(worker.pid())?, Duration::ZERO),
                    database: per_message(machine::time_of(postgres)?, before.0),
                    broker: per_message(machine::time_of(rabbit)?, before.1),
                    memory: machine::memory_of(worker.pid())?.0,
                    worker_process: worker,
                });
            }
            if let Some(status) = worker.exited()? {
                bail!("the worker ended with {status}:\n{}", worker.log());
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "{seen} of {count} within {PATIENCE:?}"
            );
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until the queue is empty, with everything acknowledged.
    async fn until_empty(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.vhost.depth(QUEUE).await? > 0 {
            ensure!(
                Instant::now() < end,
                "the queue is not empty within {PATIENCE:?}"
            );
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// What a worker took.
struct Taken {
    rate: f64,
    worker: f64,
    database: f64,
    broker: f64,
    memory: f64,
    worker_process: Worker,
}

fn ids(count: u32) -> Vec<Uuid> {
    (0..count).map(|_| Uuid::now_v7()).collect()
}

/// A consumer that only acknowledges, in batches as large as the inbox's.
async fn bare(bed: &Bed, count: u32, progress: &Progress) -> Result<f64> {
    bed.publish(&ids(count), progress).await?;
    progress.say("bare consumer");
    let connection = bed.vhost.connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .basic_qos(PREFETCH, BasicQosOptions::default())
        .await?;
    let consume = channel.basic_consume(
        QUEUE.into(),
        "bare".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let mut deliveries = consume.await?;
    let (mut taken, mut tag) = (0, 0);
    let began = Instant::now();
    while taken < count {
        let delivery = tokio::time::timeout(Duration::from_secs(60), deliveries.next()).await;
        let delivery = delivery
            .context("nothing comes")?
            .context("the consumer ended")??;
        taken += 1;
        tag = delivery.delivery_tag;
        if (taken as usize).is_multiple_of(BATCH) {
            channel
                .basic_ack(tag, BasicAckOptions { multiple: true })
                .await?;
        }
    }
    channel
        .basic_ack(tag, BasicAckOptions { multiple: true })
        .await?;
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    connection.close(200, "OK".into()).await?;
    Ok(rate)
}

/// Accepting alone, against the bare consumer; then the same messages again.
pub(super) async fn accept(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let count = sizes.messages / 2;
    let bed = Bed::make(servers, Inbox::pulled(INBOX, QUEUE)).await?;
    let bare = bare(&bed, count, progress).await?;
    let ids = ids(count);
    bed.publish(&ids, progress).await?;
    progress.say("accepting");
    let taken = bed
        .run_until(
            servers,
            ids.len(),
            "select count(*) from postroom.inbox",
            progress,
        )
        .await?;
    bed.until_empty().await?;
    let mut session = bed.database.connect().await?;
    let rows = "select (select count(*) from postroom.inbox) + (select count(*) from postroom.message_deduplication) + (select count(*) from postroom.dead_letter)";
    progress.say("the same messages again");
    let before: i64 = sqlx::query_scalar(rows).fetch_one(&mut session).await?;
    let again = &ids[..ids.len().min(50_000)];
    let began = Instant::now();
    bed.publish(again, progress).await?;
    bed.until_empty().await?;
    let repeated = began.elapsed();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after: i64 = sqlx::query_scalar(rows).fetch_one(&mut session).await?;
    drop(taken.worker_process);
    #[expect(clippy::cast_precision_loss, reason = "counts of messages")]
    Ok(vec![
        Figure::new("rate, to that of the bare consumer", taken.rate / bare, "").at_least(0.5),
        Figure::new("rate", taken.rate, "/s"),
        Figure::new("rate of the bare consumer", bare, "/s"),
        Figure::new("worker's highest memory", taken.memory, "MiB").at_most(64.0),
        Figure::new("worker's time a message", taken.worker, "µs"),
        Figure::new("database's time a message", taken.database, "µs"),
        Figure::new("broker's time a message", taken.broker, "µs"),
        Figure::new(
            "rows written for known messages",
            (after - before) as f64,
            "",
        )
        .at_most(0.0),
        Figure::new(
            "known messages, with their publishing",
            again.len() as f64 / repeated.as_secs_f64(),
            "/s",
        ),
    ])
}

/// Accepting and handling together, from the queue to the effect.
pub(super) async fn handle(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let count = sizes.messages / 4;
    let bed = Bed::make(servers, Inbox::handled(INBOX, QUEUE, "app.handle")).await?;
    let ids = ids(count);
    bed.publish(&ids, progress).await?;
    progress.say("accepting and handling");
    let taken = bed
        .run_until(
            servers,
            ids.len(),
            "select count(*) from app.effect",
            progress,
        )
        .await?;
    let mut session = bed.database.connect().await?;
    let twice: i64 =
        sqlx::query_scalar("select count(*) - count(distinct message_id) from app.effect")
            .fetch_one(&mut session)
            .await?;
    ensure!(twice == 0, "{twice} effects came twice");
    Ok(vec![
        Figure::new("rate from queue to effect", taken.rate, "/s").at_least(3_000.0),
        Figure::new("worker's highest memory", taken.memory, "MiB").at_most(64.0),
        Figure::new("worker's time a message", taken.worker, "µs"),
        Figure::new("database's time a message", taken.database, "µs"),
        Figure::new("broker's time a message", taken.broker, "µs"),
    ])
}

/// A memory of very many identities, against one that is a twentieth of it; then what the drop of a bucket costs others.
pub(super) async fn memory(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let bed = Bed::make(servers, Inbox::pulled(INBOX, QUEUE)).await?;
    let mut session = bed.database.connect().await?;
    let small = sizes.remembered / 20;
    remember(&mut session, 0, small, progress).await?;
    let few = stores(&mut session, progress).await?;
    remember(&mut session, small, sizes.remembered, progress).await?;
    let many = stores(&mut session, progress).await?;
    let longest = drop_bucket(&bed, &mut session, progress).await?;
    let median = |times: &[f64]| percentile(times, 0.5);
    Ok(vec![
        Figure::new(
            "store with the large memory, to that with the small one",
            median(&many) / median(&few),
            "",
        )
        .at_most(1.5),
        Figure::new("store of 200 messages, small memory", median(&few), "ms"),
        Figure::new("store of 200 messages, large memory", median(&many), "ms"),
        Figure::new("longest store while a bucket is dropped", longest, "ms"),
        Figure::new("longest store without that", percentile(&many, 1.0), "ms"),
    ])
}

/// Identities in all buckets but the current one, as a long life leaves them.
async fn remember(
    session: &mut PgConnection,
    from: u32,
    to: u32,
    progress: &Progress,
) -> Result<()> {
    let mut done = from;
    while done < to {
        let last = to.min(done + 250_000);
        let insert = format!(
            "insert into postroom.message_deduplication (bucket, endpoint, tenant, message_id, digest, position, first_seen_at) \
             select 1 + n % 3, '{INBOX}', '', gen_random_uuid(), sha256(int4send(n)), n, clock_timestamp() from generate_series({done} + 1, {last}) n"
        );
        execute(session, &insert).await?;
        done = last;
        progress.update(&format!("{done} of {to} identities remembered"));
    }
    execute(session, "update postroom.deduplication_bucket set opened_at = clock_timestamp() - interval '200 days' where number <> 0").await?;
    execute(session, "analyze postroom.message_deduplication").await?;
    execute(session, "checkpoint").await.map(drop)
}

const STORES: usize = 100;

/// Times of stores of 200 new messages each, in milliseconds, sorted.
async fn stores(session: &mut PgConnection, progress: &Progress) -> Result<Vec<f64>> {
    progress.say("storing");
    let mut times = Vec::new();
    for _ in 0..STORES {
        times.push(store(session).await?);
    }
    Ok(sorted(times))
}

/// One store of 200 new messages.
async fn store(session: &mut PgConnection) -> Result<f64> {
    let ids: Vec<Uuid> = (0..200).map(|_| Uuid::now_v7()).collect();
    let text = "select outcomes from postroom.store_inbox_messages(gen_random_uuid(), $1, 0, true, $2, \
        array_fill(null::text, '{200}'), array_fill(null::text, '{200}'), array_fill(null::text, '{200}'), array_fill(null::text, '{200}'), array_fill('made'::text, '{200}'), \
        array_fill(null::text, '{200}'), array_fill('text/plain'::text, '{200}'), array_fill(null::text, '{200}'), array_fill(repeat('x', 430), '{200}'), array_fill(null::bytea, '{200}'), \
        array_fill(null::text, '{200}'), array_fill(null::text, '{200}'), array_fill(null::text, '{200}'), array_fill(null::text, '{200}'), array_fill(null::text, '{200}'))";
    let began = Instant::now();
    let outcomes: Vec<String> = sqlx::query_scalar(text)
        .bind(INBOX)
        .bind(ids)
        .fetch_one(session)
        .await?;
    let took = began.elapsed().as_secs_f64() * 1_000.0;
    let counts = outcomes.iter().fold(
        HashMap::new(),
        |mut counts: HashMap<&str, usize>, outcome| {
            *counts.entry(outcome).or_default() += 1;
            counts
        },
    );
    ensure!(counts.get("Accepted") == Some(&200), "{counts:?}");
    Ok(took)
}

/// The longest store while upkeep turns the ring, in milliseconds.
async fn drop_bucket(bed: &Bed, session: &mut PgConnection, progress: &Progress) -> Result<f64> {
    progress.say("dropping a bucket");
    let mut upkeep = bed.database.connect().await?;
    execute(&mut upkeep, "update postroom.deduplication_bucket set opened_at = clock_timestamp() - interval '100 days' where number = 0").await?;
    let turn = tokio::spawn(async move {
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let turned: i64 = sqlx::query_scalar("select rows from postroom.perform_maintenance() where task = 'deduplication_buckets'")
                .fetch_one(&mut upkeep)
                .await?;
            if turned > 0 {
                return Ok(());
            }
        }
        bail!("the ring did not turn")
    });
    let mut longest: f64 = 0.0;
    while !turn.is_finished() {
        longest = longest.max(store(session).await?);
    }
    turn.await??;
    Ok(longest)
}
