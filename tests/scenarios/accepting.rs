//! Accepting: what a queue delivers is in the inbox once, before it is acknowledged, whatever comes how often.

use std::time::Duration;

use anyhow::{Result, ensure};
use lapin::types::AMQPValue;
use postroom_tests::intake::{INTO, Intake, Row};
use postroom_tests::sender::Parcel;
use postroom_tests::vhost::QueueArguments;
use uuid::Uuid;

use crate::receiving_faults::wait_consumers;
use crate::traffic::{PATIENCE, wait_condition, wait_well};

/// `count` messages, dealt out to as many streams in turn; body and id say which.
pub(crate) fn parcels(streams: usize, count: usize) -> Vec<Parcel> {
    (0..count)
        .map(|number| {
            Parcel::new(
                &format!("order-{number}"),
                format!("{{\"number\": {number}}}"),
            )
            .stream(&format!("stream-{}", number % streams))
        })
        .collect()
}

/// Every message of [`parcels`] is there once, and each stream in its order.
pub(crate) fn all_in_order(rows: &[Row], count: usize) -> Result<()> {
    let mut numbers: Vec<usize> = Vec::new();
    let mut streams: std::collections::BTreeMap<&str, Vec<usize>> = Default::default();
    for row in rows {
        let id = row.foreign_id.as_deref().unwrap_or_default();
        let number = id.strip_prefix("order-").unwrap_or_default().parse()?;
        numbers.push(number);
        let stream = row.stream.as_deref().unwrap_or_default();
        streams.entry(stream).or_default().push(number);
    }
    let disorder: Vec<_> = streams
        .iter()
        .filter(|(_, numbers)| !numbers.is_sorted())
        .collect();
    ensure!(disorder.is_empty(), "out of order: {disorder:?}");
    numbers.sort_unstable();
    ensure!(
        numbers.iter().copied().eq(0..count),
        "not each of {count} once: {} rows",
        numbers.len()
    );
    Ok(())
}

async fn accepts_all_and_leaves_nothing(queue: QueueArguments, test: &str) -> Result<()> {
    let intake = Intake::start(test, &queue, |resource| resource).await?;
    let worker = intake.worker().await?;
    intake.send(parcels(20, 2_000)).await?;
    let rows = intake.wait_rows(2_000, PATIENCE).await?;
    all_in_order(&rows, 2_000)?;
    intake
        .wait_count(&worker, "accepted", 2_000.0, PATIENCE)
        .await?;
    intake.drain(&worker).await
}

/// G7, W-20.
#[tokio::test]
async fn a_classic_queue_is_emptied_into_the_inbox_in_its_order() -> Result<()> {
    accepts_all_and_leaves_nothing(QueueArguments::classic(), "classic").await
}

/// G7, W-20.
#[tokio::test]
async fn a_quorum_queue_is_emptied_into_the_inbox_in_its_order() -> Result<()> {
    accepts_all_and_leaves_nothing(QueueArguments::quorum(), "quorum").await
}

/// L-T6, L-T14, W-T1: within a batch and long after.
#[tokio::test]
async fn what_was_accepted_is_not_stored_again_however_often_it_comes() -> Result<()> {
    let intake = Intake::start("repeats", &QueueArguments::quorum(), |resource| resource).await?;
    let worker = intake.worker().await?;
    let id = Uuid::new_v4().to_string();
    let first = Parcel::new(&id, "{}").stream("s");
    let again = std::iter::repeat_n(first, 50);
    intake.send(again.clone()).await?;
    intake
        .wait_count(&worker, "duplicate", 49.0, PATIENCE)
        .await?;
    let rows = intake.wait_rows(1, PATIENCE).await?;
    ensure!(rows[0].message_id.to_string() == id && rows[0].foreign_id.is_none());
    sqlx::query("delete from postroom.inbox")
        .execute(&mut intake.connect().await?)
        .await?;
    intake.send(again).await?;
    intake
        .wait_count(&worker, "duplicate", 99.0, PATIENCE)
        .await?;
    intake.wait_rows(0, PATIENCE).await?;
    intake.drain(&worker).await
}

/// An empty batch delay: everything is stored as it comes.
#[tokio::test]
async fn a_lone_message_does_not_wait_for_others_longer_than_it_may() -> Result<()> {
    let intake = Intake::start("lone", &QueueArguments::quorum(), |resource| {
        resource.with("inboxes.0.consumer.maxBatchDelayMilliseconds", 200)
    })
    .await?;
    let _worker = intake.worker().await?;
    intake.send([Parcel::new("warm-up", "{}")]).await?;
    intake.wait_rows(1, PATIENCE).await?;
    let began = std::time::Instant::now();
    intake.send([Parcel::new("lone", "{}")]).await?;
    intake.wait_rows(2, PATIENCE).await?;
    let took = began.elapsed();
    ensure!(
        (Duration::from_millis(150)..Duration::from_secs(3)).contains(&took),
        "{took:?}"
    );
    Ok(())
}

/// L-T8, L-T9: a stream forgets nothing that is acknowledged, so that it would bring everything again or leave out what came
/// while nobody looked. A header that a sender writes makes no stream of a queue.
#[tokio::test]
async fn a_stream_is_refused_with_what_to_do_and_nothing_of_it_is_stored() -> Result<()> {
    let stream = AMQPValue::LongString("stream".into());
    let stream = QueueArguments::classic().with("x-queue-type", stream);
    let intake = Intake::start("stream", &stream, |resource| resource).await?;
    let worker = intake.worker().await?;
    wait_consumers(&worker, 1.0).await?;
    intake.send(parcels(3, 20)).await?;
    let shown = wait_condition(&worker, "endpoint", "QueueIsStream").await?;
    ensure!(shown["message"].to_string().contains(INTO), "{shown}");
    ensure!(intake.rows().await?.is_empty());
    intake.vhost.delete_queue(INTO).await?;
    intake
        .vhost
        .declare_queue(INTO, &QueueArguments::quorum())
        .await?;
    let forged = parcels(3, 20)
        .into_iter()
        .map(|parcel| parcel.header("x-stream-offset", AMQPValue::LongLongInt(7)));
    intake.send(forged).await?;
    all_in_order(&intake.wait_rows(20, PATIENCE).await?, 20)?;
    wait_well(&worker).await?;
    intake.drain(&worker).await
}
