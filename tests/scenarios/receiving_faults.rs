//! Receivers, brokers and databases that die or go away while an inbox receives: nothing acknowledged is missing, nothing
//! is there twice, and each stream keeps its order.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::broker::{RabbitOptions, RabbitServer};
use postroom_tests::eventually::{eventually, when};
use postroom_tests::intake::{INBOX, INTO, Intake};
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::resource::Resource;
use postroom_tests::vhost::QueueArguments;
use postroom_tests::worker::Worker;
use sqlx::Executor as _;

use crate::accepting::{all_in_order, parcels};
use crate::receiving_order::unacknowledged;
use crate::traffic::{PATIENCE, wait_condition, wait_well};

/// The signal of an abort.
const SIGABRT: i32 = 6;

/// Small batches, so that there are many, and the shortest lease.
pub(crate) fn small(resource: Resource) -> Resource {
    resource
        .with("inboxes.0.consumer.prefetch", 100)
        .with("inboxes.0.consumer.batchSize", 20)
        .lease_seconds(5)
}

/// G7, R1: three workers die at the point, the fourth finishes the work.
async fn receivers_die_at(point: &str, queue: QueueArguments) -> Result<()> {
    let test = format!("in_{point}");
    let intake = Intake::start(&test, &queue, small).await?;
    intake.send(parcels(12, 1_000)).await?;
    for passes in [1, 2, 5] {
        let worker = intake
            .launch("run")
            .env("POSTROOM_TEST_ABORT", format!("{point}:{passes}"))
            .start()?
            .quiet();
        let status = worker.wait_exit(PATIENCE).await?;
        ensure!(
            status.signal() == Some(SIGABRT),
            "the worker did not die at '{point}' but ended with {status}"
        );
    }
    let worker = intake.worker().await?;
    let rows = intake.wait_rows(1_000, PATIENCE).await?;
    all_in_order(&rows, 1_000)?;
    intake.drain(&worker).await
}

#[tokio::test]
async fn death_after_a_delivery_and_before_it_is_stored_loses_and_repeats_nothing() -> Result<()> {
    receivers_die_at("delivered", QueueArguments::quorum()).await
}

#[tokio::test]
async fn death_after_the_commit_and_before_the_acknowledgement_loses_and_repeats_nothing()
-> Result<()> {
    receivers_die_at("accepted", QueueArguments::quorum()).await
}

#[tokio::test]
async fn death_after_the_acknowledgement_is_written_loses_and_repeats_nothing() -> Result<()> {
    receivers_die_at("acknowledged", QueueArguments::quorum()).await
}

#[tokio::test]
async fn death_after_the_commit_loses_and_repeats_nothing_from_a_classic_queue() -> Result<()> {
    receivers_die_at("accepted", QueueArguments::classic()).await
}

/// R8: restarted and killed, each time while messages are on their way.
#[tokio::test]
async fn a_broker_that_restarts_or_dies_costs_no_message_and_no_order() -> Result<()> {
    let rabbit = RabbitServer::start(RabbitOptions::default()).await?;
    let postgres = PostgresServer::shared().await?;
    let intake = Intake::start_on(
        postgres,
        &rabbit,
        "in_restarts",
        &QueueArguments::quorum(),
        small,
    )
    .await?;
    let worker = intake.worker().await?;
    intake.send(parcels(12, 3_000)).await?;
    wait_at_least(&intake, 100).await?;
    rabbit.restart().await?;
    wait_consumers(&worker, 1.0).await?;
    let all = parcels(12, 6_000);
    intake.send(all[3_000..4_500].to_vec()).await?;
    rabbit.kill_9().await?;
    wait_condition(&worker, "transport", "ConnectionRefused").await?;
    rabbit.start_again().await?;
    intake.send(all[4_500..].to_vec()).await?;
    let rows = intake.wait_rows(6_000, PATIENCE).await?;
    all_in_order(&rows, 6_000)?;
    wait_well(&worker).await?;
    intake.drain(&worker).await
}

/// R5, R7: the answer to a commit may be lost, and a store may have failed half-way.
#[tokio::test]
async fn a_database_that_dies_while_batches_are_stored_costs_no_message_and_no_order() -> Result<()>
{
    let rabbit = RabbitServer::shared().await?;
    let postgres = PostgresServer::start(PostgresOptions::default()).await?;
    let queue = QueueArguments::quorum();
    let intake = Intake::start_on(&postgres, rabbit, "in_database", &queue, small).await?;
    let worker = intake.worker().await?;
    let all = parcels(12, 6_000);
    intake.send(all[..3_000].to_vec()).await?;
    wait_at_least(&intake, 100).await?;
    postgres.kill_9().await?;
    intake.send(all[3_000..].to_vec()).await?;
    postgres.start_again().await?;
    let rows = intake.wait_rows(6_000, PATIENCE).await?;
    all_in_order(&rows, 6_000)?;
    wait_well(&worker).await?;
    intake.drain(&worker).await
}

/// R7: one session after the other is ended under the worker.
#[tokio::test]
async fn sessions_that_the_database_ends_cost_no_message_and_no_order() -> Result<()> {
    let intake = Intake::start("in_sessions", &QueueArguments::quorum(), small).await?;
    let worker = intake.worker().await?;
    let ends = async {
        let mut session = intake.connect().await?;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            sqlx::query(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where datname = current_database() and application_name = 'postroom-worker accept'",
            )
            .execute(&mut session)
            .await?;
        }
        anyhow::Ok(())
    };
    let (sent, ended) = tokio::join!(intake.send(parcels(12, 6_000)), ends);
    sent.and(ended)?;
    let rows = intake.wait_rows(6_000, PATIENCE).await?;
    all_in_order(&rows, 6_000)?;
    intake.drain(&worker).await
}

/// Every message is delivered again after it was stored: no row comes of it.
#[tokio::test]
async fn a_broker_that_delivers_everything_again_adds_no_row() -> Result<()> {
    let intake = Intake::start("in_again", &QueueArguments::quorum(), small).await?;
    let worker = intake.worker().await?;
    for _ in 0..3 {
        intake.send(parcels(12, 2_000)).await?;
    }
    intake
        .wait_count(&worker, "duplicate", 4_000.0, PATIENCE)
        .await?;
    all_in_order(&intake.wait_rows(2_000, PATIENCE).await?, 2_000)?;
    intake.drain(&worker).await
}

/// Waits until the inbox holds so many messages or more.
pub(crate) async fn wait_at_least(intake: &Intake, count: usize) -> Result<()> {
    eventually("messages in the inbox", PATIENCE, || async {
        let rows = intake.rows().await.map_err(|error| format!("{error:#}"))?;
        when(rows.len() >= count, || format!("{} of {count}", rows.len()))
    })
    .await
}

/// Waits until the worker says that it has so many consumers.
pub(crate) async fn wait_consumers(worker: &Worker, count: f64) -> Result<()> {
    let what = format!("{count} consumers");
    eventually(&what, PATIENCE, || async {
        let labels = [("endpoint", INBOX)];
        let seen = worker.metric("postroom_consumers_active", &labels).await;
        let seen = seen.map_err(|error| format!("{error:#}"))?;
        when(seen == Some(count), || format!("{seen:?}"))
    })
    .await
}

/// How often the worker began to consume.
async fn starts(worker: &Worker) -> Result<f64> {
    let labels = [("endpoint", INBOX)];
    let starts = worker.metric("postroom_consumer_starts_total", &labels);
    Ok(starts.await?.unwrap_or_default())
}

/// Waits until the worker has begun to consume once more than `before`, and does it now.
async fn wait_started_again(worker: &Worker, before: f64) -> Result<()> {
    eventually("a new consumer", Duration::from_secs(15), || async {
        let seen = starts(worker).await.map_err(|error| format!("{error:#}"))?;
        when(seen > before, || format!("{seen} starts, {before} before"))
    })
    .await?;
    wait_consumers(worker, 1.0).await
}

/// F19, R10: after each of these consumers elsewhere fall silent.
#[tokio::test]
async fn a_consumer_that_the_broker_ends_in_any_way_is_replaced() -> Result<()> {
    let intake = Intake::start("in_ended", &QueueArguments::quorum(), small).await?;
    let rabbit = RabbitServer::shared().await?;
    let worker = intake.worker().await?;
    intake.send(parcels(1, 1)).await?;
    intake.wait_rows(1, PATIENCE).await?;

    // The consumer is cancelled by the broker, and the queue is missing for a while.
    let before = starts(&worker).await?;
    intake.vhost.delete_queue(INTO).await?;
    let shown = wait_condition(&worker, "endpoint", "TopologyMissing").await?;
    ensure!(shown["message"].to_string().contains(INTO), "{shown}");
    wait_consumers(&worker, 0.0).await?;
    intake
        .vhost
        .declare_queue(INTO, &QueueArguments::quorum())
        .await?;
    wait_started_again(&worker, before).await?;
    intake.send(parcels(1, 2)).await?;
    intake.wait_rows(2, PATIENCE).await?;

    // The channel is closed, with an error that is this consumer's alone.
    let before = starts(&worker).await?;
    close_channels(rabbit, &intake).await?;
    wait_started_again(&worker, before).await?;
    intake.send(parcels(1, 3)).await?;
    intake.wait_rows(3, PATIENCE).await?;

    let before = starts(&worker).await?;
    rabbit.close_all_connections(intake.vhost.name()).await?;
    wait_started_again(&worker, before).await?;
    intake.send(parcels(1, 4)).await?;
    intake.wait_rows(4, PATIENCE).await?;
    wait_well(&worker).await?;
    intake.drain(&worker).await
}

/// Makes the broker close all channels of a virtual host: each one seems to have acknowledged what it never got.
async fn close_channels(rabbit: &RabbitServer, intake: &Intake) -> Result<()> {
    let vhost = intake.vhost.name();
    let close = format!(
        "[rabbit_channel:do(proplists:get_value(pid, C), {{'basic.ack', 999999, false}}) \
         || C <- rabbit_channel:info_all([pid, vhost]), proplists:get_value(vhost, C) == <<\"{vhost}\">>]."
    );
    rabbit.control(&["eval", &close]).await.map(drop)
}

/// L-T14: stored, but the broker does not know; it delivers again, and that is counted and recognised.
#[tokio::test]
async fn an_acknowledgement_that_fails_after_the_store_is_counted_and_adds_no_row() -> Result<()> {
    let intake = Intake::start("in_ack", &QueueArguments::quorum(), small).await?;
    let rabbit = RabbitServer::shared().await?;
    let mut blocking = intake.connect().await?;
    blocking
        .execute("begin; lock table postroom.inbox in access exclusive mode")
        .await?;
    let worker = intake.worker().await?;
    intake.send(parcels(5, 20)).await?;
    while unacknowledged(&intake).await? < 20 {}
    close_channels(rabbit, &intake).await?;
    wait_consumers(&worker, 0.0).await?;
    blocking.execute("commit").await?;
    intake
        .wait_count(&worker, "accepted", 20.0, PATIENCE)
        .await?;
    intake
        .wait_count(&worker, "duplicate", 20.0, PATIENCE)
        .await?;
    let failed = worker
        .metric("postroom_ack_failed_after_accept_total", &[])
        .await?;
    ensure!(failed == Some(1.0), "{failed:?}");
    all_in_order(&intake.wait_rows(20, PATIENCE).await?, 20)?;
    intake.drain(&worker).await
}
