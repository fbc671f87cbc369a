//! What a receiver must not do while it cannot work: use up deliveries, need rights it has no use for, or lose what it has
//! received when it ends.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::types::AMQPValue;
use postroom_tests::broker::{RabbitOptions, RabbitServer};
use postroom_tests::intake::{INTO, Intake};
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::vhost::QueueArguments;
use sqlx::Executor as _;

use crate::accepting::{all_in_order, parcels};
use crate::receiving_faults::{small, wait_at_least, wait_consumers};
use crate::receiving_order::unacknowledged;
use crate::traffic::{PATIENCE, wait_condition, wait_well};

/// F20: longer than the lease, so that the consumer is given up.
const AWAY: Duration = Duration::from_secs(25);

/// F20: since RabbitMQ 4.0 a quorum queue drops what was delivered twenty times.
#[tokio::test]
async fn a_database_that_is_away_for_long_uses_up_hardly_any_deliveries() -> Result<()> {
    let rabbit = RabbitServer::shared().await?;
    let postgres = PostgresServer::start(PostgresOptions::default()).await?;
    let queue = QueueArguments::quorum().with("x-delivery-limit", AMQPValue::LongInt(20));
    let intake = Intake::start_on(&postgres, rabbit, "in_away", &queue, small).await?;
    let worker = intake.worker().await?;
    wait_consumers(&worker, 1.0).await?;
    postgres.kill_9().await?;
    intake.send(parcels(5, 100)).await?;
    wait_condition(&worker, "database", "ConnectionRefused").await?;
    let away = Instant::now();
    wait_consumers(&worker, 0.0).await?;
    tokio::time::sleep(AWAY.saturating_sub(away.elapsed())).await;
    postgres.start_again().await?;
    let rows = intake.wait_rows(100, PATIENCE).await?;
    all_in_order(&rows, 100)?;
    let count = |row: &postroom_tests::intake::Row| {
        let headers = row.headers.as_ref()?;
        let count = &headers["x-delivery-count"];
        count
            .as_i64()
            .or_else(|| count.as_object()?.values().next()?.as_i64())
    };
    let most = rows.iter().filter_map(count).max().unwrap_or_default();
    ensure!(most <= 3, "delivered {most} times in vain");
    wait_well(&worker).await?;
    intake.drain(&worker).await
}

/// F27: what the queue is, is not the receiver's business; only reading it is.
#[tokio::test]
async fn a_queue_is_consumed_as_it_is_with_no_right_but_to_read() -> Result<()> {
    let odd = QueueArguments::classic()
        .rejecting_above(10_000)
        .with("x-message-ttl", AMQPValue::LongInt(600_000))
        .with("x-max-priority", AMQPValue::LongInt(3));
    let intake = Intake::start("in_odd", &odd, small).await?;
    intake.send(parcels(5, 100)).await?;
    intake.vhost.permit("^$", "^$", "^nothing$").await?;
    let worker = intake.worker().await?;
    let shown = wait_condition(&worker, "endpoint", "AccessRefused").await?;
    ensure!(
        shown["nextStep"].to_string().contains("read permission"),
        "{shown}"
    );
    intake.vhost.permit("^$", "^$", ".*").await?;
    all_in_order(&intake.wait_rows(100, PATIENCE).await?, 100)?;
    wait_well(&worker).await?;
    intake.drain(&worker).await
}

/// F28, G7: what was received is stored and acknowledged, or given back; nothing in between.
async fn drains_in_good_order(mode: &str) -> Result<()> {
    let intake = Intake::start("in_drain", &QueueArguments::quorum(), |resource| {
        Resource::with(small(resource), "inboxes.0.ordering.mode", mode)
            .with("inboxes.0.consumer.prefetch", 500)
    })
    .await?;
    const ALL: usize = 20_000;
    intake.send(parcels(12, ALL)).await?;
    let worker = intake.worker().await?;
    wait_at_least(&intake, 500).await?;
    worker.sigterm()?;
    let status = worker.wait_exit(Duration::from_secs(10)).await?;
    ensure!(status.success(), "{status}");
    let (stored, left) = (intake.rows().await?.len(), wait_ready(&intake, ALL).await?);
    ensure!(stored < ALL, "it had time for all of them: {stored}");
    ensure!(stored + left == ALL, "{stored} stored, {left} in the queue");
    let worker = intake.worker().await?;
    let rows = intake.wait_rows(ALL, PATIENCE).await?;
    if mode == "PerStream" {
        all_in_order(&rows, ALL)?;
    }
    intake.drain(&worker).await
}

/// What the queue has when nobody has anything of it; the broker takes things back some time after a channel is closed.
async fn wait_ready(intake: &Intake, most: usize) -> Result<usize> {
    let end = Instant::now() + PATIENCE;
    while unacknowledged(intake).await? > 0 {
        ensure!(Instant::now() < end, "something is still out");
    }
    let left = usize::try_from(intake.vhost.depth(INTO).await?)?;
    ensure!(left <= most);
    Ok(left)
}

#[tokio::test]
async fn an_ordered_inbox_that_drains_leaves_nothing_half_done_and_keeps_the_order() -> Result<()> {
    drains_in_good_order("PerStream").await
}

#[tokio::test]
async fn an_unordered_inbox_that_drains_leaves_nothing_half_done() -> Result<()> {
    drains_in_good_order("None").await
}

/// F28: within its time, whatever the database does.
#[tokio::test]
async fn a_worker_that_cannot_store_ends_in_time_and_the_broker_has_everything_again() -> Result<()>
{
    let intake = Intake::start("in_stuck", &QueueArguments::quorum(), |resource| {
        small(resource).with("workers.terminationGracePeriodSeconds", 15)
    })
    .await?;
    let mut blocking = intake.connect().await?;
    blocking
        .execute("begin; lock table postroom.inbox in access exclusive mode")
        .await?;
    let worker = intake.worker().await?;
    intake.send(parcels(5, 300)).await?;
    let end = Instant::now() + PATIENCE;
    while unacknowledged(&intake).await? < 100 {
        ensure!(Instant::now() < end, "it receives nothing");
    }
    let began = Instant::now();
    worker.sigterm()?;
    let status = worker.wait_exit(Duration::from_secs(20)).await?;
    ensure!(status.success(), "{status}");
    ensure!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    ensure!(
        wait_ready(&intake, 300).await? == 300,
        "acknowledged what is not stored"
    );
    blocking.execute("rollback").await.context("unlock")?;
    let worker = intake.worker().await?;
    all_in_order(&intake.wait_rows(300, PATIENCE).await?, 300)?;
    intake.drain(&worker).await
}

/// F14, R12: a broker that is short of memory reads nothing from connections that publish, and what would help it is that
/// its queues are emptied.
#[tokio::test]
async fn a_broker_that_blocks_publishers_is_still_received_from() -> Result<()> {
    let rabbit = RabbitServer::start(RabbitOptions::default()).await?;
    let postgres = PostgresServer::shared().await?;
    let queue = QueueArguments::quorum();
    let intake = Intake::start_on(postgres, &rabbit, "in_alarm", &queue, |resource| {
        small(resource.outbox(Outbox::new("orders", "shop").with("onUnroutable", "Drop")))
    })
    .await?;
    intake
        .vhost
        .declare_exchange("shop", ExchangeKind::Fanout)
        .await?;
    let mut session = intake.connect().await?;
    let mut blocking = intake.connect().await?;
    blocking
        .execute("begin; lock table postroom.inbox in access exclusive mode")
        .await?;
    let worker = intake.worker().await?;
    intake.send(parcels(5, 1_000)).await?;
    rabbit.set_memory_alarm(true).await?;
    session
        .execute(
            "insert into postroom.outbox (endpoint, type, payload) values ('orders', 'a', '{}')",
        )
        .await?;
    wait_condition(&worker, "transport", "Blocked").await?;
    blocking.execute("commit").await?;
    all_in_order(&intake.wait_rows(1_000, PATIENCE).await?, 1_000)?;
    rabbit.set_memory_alarm(false).await?;
    wait_well(&worker).await?;
    intake.drain(&worker).await
}
