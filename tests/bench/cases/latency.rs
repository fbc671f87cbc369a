//! From commit to arrival at a steady rate, and beside it the part that an outbox cannot take away: from a bare publish to
//! arrival, at the same rate. The load is open: what is late does not make what follows later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use postroom_tests::receiver::Receiver;
use sqlx::PgPool;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{Figure, percentile, sorted};
use crate::Sizes;
use crate::bed::{self, Bed, EXCHANGE, ORDINARY, OUTBOX, QUEUE, Servers};
use crate::progress::Progress;

/// Sessions of the application.
const SESSIONS: u32 = 16;
/// Before anything counts.
const WARM_UP: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);
const INSERT: &str = "insert into postroom.outbox (endpoint, type, stream, message_id, payload) values ($1, 'made', $2, $3, $4)";

/// A message, when it was due, and when its commit was there or its publish began.
type Sent = (Uuid, Instant, Instant);

pub(super) async fn run(
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    let bed = Bed::make(servers).await?;
    let receiver = bed.vhost.receive(&[QUEUE]).await?;
    let worker = bed.ready_worker().await?;
    let pool = bed.database.pool(SESSIONS).await?;
    progress.say(&format!(
        "{} messages a second for {} s",
        sizes.rate, sizes.seconds
    ));
    let began = Instant::now();
    let committed = produce(&pool, sizes).await?;
    let elapsed = began.elapsed();
    let delays = delays(&receiver, &committed, began).await?;
    let lags = committed
        .iter()
        .filter(|(_, due, _)| *due >= began + WARM_UP)
        .map(|(_, due, at)| at.saturating_duration_since(*due).as_secs_f64() * 1e3);
    let lags = sorted(lags.collect());
    worker.kill_9().await?;
    let bare = bare(servers, sizes, progress).await?;
    Ok(vec![
        Figure::new("commit to arrival, p50", percentile(&delays, 0.5), "ms").at_most(5.0),
        Figure::new("commit to arrival, p99", percentile(&delays, 0.99), "ms").at_most(15.0),
        Figure::new("commit to arrival, highest", percentile(&delays, 1.0), "ms"),
        Figure::new("bare publish to arrival, p50", percentile(&bare, 0.5), "ms"),
        Figure::new(
            "bare publish to arrival, p99",
            percentile(&bare, 0.99),
            "ms",
        ),
        Figure::new(
            "duration of the commits themselves, p99",
            percentile(&lags, 0.99),
            "ms",
        ),
        Figure::new("rate", committed.len() as f64 / elapsed.as_secs_f64(), "/s"),
    ])
}

/// How long each message took after the warm-up, in milliseconds, sorted.
async fn delays(receiver: &Receiver, sent: &[Sent], began: Instant) -> Result<Vec<f64>> {
    let arrived: HashMap<Uuid, Instant> = receiver
        .wait_for(sent.len(), PATIENCE)
        .await?
        .iter()
        .filter_map(|message| Some((message.id()?, message.arrived)))
        .collect();
    let mut delays = Vec::new();
    for (id, due, at) in sent {
        let arrived = arrived.get(id).context("a message that never arrived")?;
        if *due >= began + WARM_UP {
            delays.push(arrived.saturating_duration_since(*at).as_secs_f64() * 1e3);
        }
    }
    ensure!(
        !delays.is_empty(),
        "--seconds must be more than the {WARM_UP:?} of warming up"
    );
    Ok(sorted(delays))
}

/// The same bodies at the same rate to the same kind of queue, with confirms, without a database.
async fn bare(servers: &Servers, sizes: &Sizes, progress: &Progress) -> Result<Vec<f64>> {
    let vhost = bed::queues(&servers.rabbit).await?;
    let receiver = vhost.receive(&[QUEUE]).await?;
    let connection = vhost.connect().await?;
    let channel = connection.create_channel().await?;
    let confirms = ConfirmSelectOptions::default();
    channel.confirm_select(confirms).await?;
    progress.say("bare publishes at the same rate");
    let (began, body) = (Instant::now(), [b'x'; 430]);
    let mut sent = Vec::new();
    let mut confirms = Vec::new();
    for number in 0..sizes.rate * sizes.seconds {
        let due = began + Duration::from_secs(1) * number / sizes.rate;
        tokio::time::sleep_until(due.into()).await;
        let (id, options) = (Uuid::now_v7(), BasicPublishOptions::default());
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(id.to_string().into());
        sent.push((id, due, Instant::now()));
        let publish =
            channel.basic_publish(EXCHANGE.into(), ORDINARY.into(), options, &body, properties);
        confirms.push(publish.await?);
    }
    for confirm in confirms {
        confirm.await?;
    }
    let delays = delays(&receiver, &sent, began).await?;
    connection.close(200, "OK".into()).await?;
    Ok(delays)
}

/// One transaction for each message, each begun when its time has come.
async fn produce(pool: &PgPool, sizes: &Sizes) -> Result<Vec<Sent>> {
    let count = sizes.rate * sizes.seconds;
    let body: Arc<str> = "x".repeat(430).into();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    let mut committed = Vec::new();
    for number in 0..count {
        let due = began + Duration::from_secs(1) * number / sizes.rate;
        tokio::time::sleep_until(due.into()).await;
        let (pool, body) = (pool.clone(), Arc::clone(&body));
        tasks.spawn(async move {
            let id = Uuid::now_v7();
            sqlx::query(INSERT)
                .bind(OUTBOX)
                .bind(format!("s{}", number % 997))
                .bind(id)
                .bind(&*body)
                .execute(&pool)
                .await?;
            anyhow::Ok((id, due, Instant::now()))
        });
        while let Some(done) = tasks.try_join_next() {
            committed.push(done??);
        }
    }
    while let Some(done) = tasks.join_next().await {
        committed.push(done??);
    }
    Ok(committed)
}
