//! One receiver at a time for an inbox whose messages keep an order: who it is, and what happens when it changes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lapin::options::BasicConsumeOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, Consumer};
use postroom_tests::broker::RabbitServer;
use postroom_tests::eventually::{eventually, when};
use postroom_tests::intake::{INTO, Intake};
use postroom_tests::resource::Resource;
use postroom_tests::sender::Parcel;
use postroom_tests::vhost::QueueArguments;
use postroom_tests::worker::Worker;
use sqlx::Executor as _;

use crate::accepting::{all_in_order, parcels};
use crate::receiving_faults::{small, wait_at_least, wait_consumers};
use crate::traffic::{PATIENCE, wait_condition, wait_well};

/// A consumer of somebody else's, for as long as the answer is kept.
async fn somebody_else(intake: &Intake) -> Result<(Connection, Consumer)> {
    let connection = intake.vhost.connect().await?;
    let channel = connection.create_channel().await?;
    let consumer = channel
        .basic_consume(
            INTO.into(),
            "somebody else".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    Ok((connection, consumer))
}

/// Only the first consumer keeps the order; an inbox without order does not mind.
#[tokio::test]
async fn a_queue_that_somebody_else_consumes_is_waited_for_where_messages_keep_an_order()
-> Result<()> {
    for queue in [QueueArguments::classic(), QueueArguments::quorum()] {
        let intake = Intake::start("in_use", &queue, small).await?;
        let (connection, _consumer) = somebody_else(&intake).await?;
        let worker = intake.worker().await?;
        let shown = wait_condition(&worker, "endpoint", "QueueInUse").await?;
        ensure!(shown["message"].to_string().contains(INTO), "{shown}");
        connection.close(200, "done".into()).await?;
        wait_consumers(&worker, 1.0).await?;
        wait_well(&worker).await?;
        intake.send(parcels(1, 10)).await?;
        intake.wait_rows(10, PATIENCE).await?;
    }
    let unordered = |resource| Resource::with(small(resource), "inboxes.0.ordering.mode", "None");
    let intake = Intake::start("in_use", &QueueArguments::classic(), unordered).await?;
    let _somebody = somebody_else(&intake).await?;
    wait_consumers(&intake.worker().await?, 1.0).await
}

/// A queue that sees to it itself that one consumer is active takes no exclusive one.
#[tokio::test]
async fn a_queue_with_a_single_active_consumer_is_consumed_too() -> Result<()> {
    for queue in [QueueArguments::classic(), QueueArguments::quorum()] {
        let queue = queue.with("x-single-active-consumer", AMQPValue::Boolean(true));
        let intake = Intake::start("in_single", &queue, small).await?;
        let worker = intake.worker().await?;
        intake.send(parcels(3, 100)).await?;
        all_in_order(&intake.wait_rows(100, PATIENCE).await?, 100)?;
        intake.drain(&worker).await?;
    }
    Ok(())
}

/// A classic queue lets nobody beside an exclusive consumer in.
#[tokio::test]
async fn nobody_gets_beside_the_consumer_of_a_classic_queue_that_keeps_an_order() -> Result<()> {
    let intake = Intake::start("in_alone", &QueueArguments::classic(), small).await?;
    let worker = intake.worker().await?;
    wait_consumers(&worker, 1.0).await?;
    let refused = somebody_else(&intake).await.err().context("it got in")?;
    ensure!(
        format!("{refused:#}").contains("ACCESS_REFUSED"),
        "{refused:#}"
    );
    Ok(())
}

/// F28: whoever waits for it asks three times in the length of a lease.
#[tokio::test]
async fn the_right_to_receive_is_given_back_by_an_owner_that_ends_and_does_not_run_out()
-> Result<()> {
    let intake = Intake::start("in_hands", &QueueArguments::quorum(), |resource| {
        small(resource).lease_seconds(30)
    })
    .await?;
    let all = parcels(12, 2_000);
    let mut worker = intake.worker().await?;
    wait_consumers(&worker, 1.0).await?;
    for part in all.chunks(1_000) {
        let next = intake.worker().await?;
        ensure!(
            next.metric("postroom_consumers_active", &[]).await? == Some(0.0),
            "two receive"
        );
        intake.send(part.to_vec()).await?;
        worker.sigterm()?;
        let status = worker.wait_exit(Duration::from_secs(10)).await?;
        ensure!(status.success(), "{status}");
        let began = std::time::Instant::now();
        wait_consumers(&next, 1.0).await?;
        ensure!(
            began.elapsed() < Duration::from_secs(25),
            "as slow as a lease"
        );
        worker = next;
    }
    all_in_order(&intake.wait_rows(2_000, PATIENCE).await?, 2_000)?;
    intake.drain(&worker).await
}

/// How many deliveries of the queue are not acknowledged, as the broker has it.
pub(crate) async fn unacknowledged(intake: &Intake) -> Result<usize> {
    let vhost = intake.vhost.name();
    let arguments = [
        "list_queues",
        "-q",
        "-p",
        vhost,
        "name",
        "messages_unacknowledged",
    ];
    let text = RabbitServer::shared().await?.control(&arguments).await?;
    let line = text.lines().find_map(|line| line.strip_prefix(INTO));
    Ok(line.context("no such queue")?.trim().parse()?)
}

async fn wait_unacknowledged(intake: &Intake, count: usize) -> Result<()> {
    eventually("deliveries are out", PATIENCE, || async {
        let seen = unacknowledged(intake).await;
        let seen = seen.map_err(|error| format!("{error:#}"))?;
        when(seen == count, || format!("{seen} of {count}"))
    })
    .await
}

/// G3, G9: 500 deliveries are with an owner that is frozen; another takes over; then the first goes on, in the middle of it.
async fn the_owner_freezes(queue: QueueArguments, test: &str) -> Result<()> {
    let intake = Intake::start(test, &queue, |resource| {
        resource
            .with("inboxes.0.consumer.prefetch", 500)
            .with("inboxes.0.consumer.batchSize", 50)
            .with("transports.0.rabbitmq.heartbeatSeconds", 5)
            .lease_seconds(5)
    })
    .await?;
    let mut blocking = intake.connect().await?;
    blocking
        .execute("begin; lock table postroom.inbox in access exclusive mode")
        .await?;
    let first = intake.worker().await?;
    intake.send(parcels(12, 3_000)).await?;
    wait_unacknowledged(&intake, 500).await?;
    first.sigstop()?;
    blocking.execute("commit").await?;
    let second = intake.worker().await?;
    wait_at_least(&intake, 300).await?;
    first.sigcont()?;
    let rows = intake.wait_rows(3_000, PATIENCE).await?;
    all_in_order(&rows, 3_000)?;
    wait_well(&first).await?;
    ensure!(consumers(&first).await? == Some(0.0) && consumers(&second).await? == Some(1.0));
    first.sigterm()?;
    first.wait_exit(PATIENCE).await?;
    intake.drain(&second).await
}

async fn consumers(worker: &Worker) -> Result<Option<f64>> {
    worker.metric("postroom_consumers_active", &[]).await
}

#[tokio::test]
async fn a_frozen_owner_that_comes_back_does_not_disturb_the_order_of_a_classic_queue() -> Result<()>
{
    the_owner_freezes(QueueArguments::classic(), "in_frozen").await
}

#[tokio::test]
async fn a_frozen_owner_that_comes_back_does_not_disturb_the_order_of_a_quorum_queue() -> Result<()>
{
    the_owner_freezes(QueueArguments::quorum(), "in_frozen").await
}

/// F25: everybody may receive; the database alone decides which of two copies is the first.
#[tokio::test]
async fn two_receivers_of_an_unordered_inbox_accept_each_of_a_thousand_pairs_once() -> Result<()> {
    let intake = Intake::start("in_pairs", &QueueArguments::quorum(), |resource| {
        small(resource).with("inboxes.0.ordering.mode", "None")
    })
    .await?;
    let pairs = parcels(12, 1_000);
    let both: Vec<Parcel> = pairs
        .iter()
        .flat_map(|one| [one.clone(), one.clone()])
        .collect();
    let (one, other) = (intake.worker().await?, intake.worker().await?);
    wait_consumers(&one, 1.0).await?;
    wait_consumers(&other, 1.0).await?;
    intake.send(both).await?;
    intake.wait_rows(1_000, PATIENCE).await?;
    let mut accepted = 0.0;
    for worker in [&one, &other] {
        let labels = [("result", "accepted")];
        let mine = worker.metric("postroom_messages_total", &labels).await?;
        ensure!(mine > Some(0.0), "one of them got nothing");
        accepted += mine.unwrap_or_default();
    }
    ensure!(accepted == 1_000.0, "{accepted}");
    other.sigterm()?;
    other.wait_exit(PATIENCE).await?;
    intake.drain(&one).await?;
    intake.wait_rows(1_000, PATIENCE).await.map(drop)
}
