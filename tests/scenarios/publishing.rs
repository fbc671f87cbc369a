//! What the broker may say to a message, and what becomes of the message then: returned, refused, no exchange.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::setup::{EXCHANGE, OUTBOX, Postroom, QUEUE};
use postroom_tests::vhost::QueueArguments;
use uuid::Uuid;

use crate::traffic::{
    PATIENCE, Row, deferrals, row, rows, unsettled, wait_condition, wait_settled, wait_well, write,
    write_to,
};

/// An exchange that takes only what begins with `known`.
const PICKY: &str = "picky";

/// Failures are tried again every second.
fn impatient(resource: Resource) -> Resource {
    resource
        .with("outboxes.0.retry.initialDelaySeconds", 1)
        .with("outboxes.0.retry.maxDelaySeconds", 1)
        .with("outboxes.0.retry.jitter", "None")
        .with("outboxes.0.retry.maxAttempts", 0)
}

async fn picky(test: &str, policy: &str) -> Result<Postroom> {
    let postroom = Postroom::start(test, |resource| {
        impatient(resource)
            .with("outboxes.0.exchange", PICKY)
            .with("outboxes.0.onUnroutable", policy)
    })
    .await?;
    let vhost = &postroom.vhost;
    vhost.declare_exchange(PICKY, ExchangeKind::Topic).await?;
    vhost.bind(QUEUE, PICKY, "known.#").await?;
    Ok(postroom)
}

async fn dead(postroom: &Postroom) -> Result<Vec<(Uuid, String, String)>> {
    let query = "select message_id, reason, payload from postroom.dead_letter order by id";
    Ok(sqlx::query_as(query)
        .fetch_all(&mut postroom.connect().await?)
        .await?)
}

/// F12, G1, G3, G12.
#[tokio::test]
async fn an_unroutable_message_is_kept_and_shown_and_goes_out_in_order_once_a_queue_is_bound()
-> Result<()> {
    let postroom = picky("unroutable", "Retry").await?;
    let worker = postroom.worker().await?;
    write(
        &postroom,
        &[
            row("a", "known.1", "a1"),
            row("a", "lost.1", "a2"),
            row("a", "known.2", "a3"),
            row("b", "known.3", "b1"),
        ],
    )
    .await?;
    let shown = wait_condition(&worker, "endpoint", "Unroutable").await?;
    ensure!(shown["name"] == OUTBOX, "{shown}");
    postroom.receiver.wait_for(2, PATIENCE).await?;
    worker
        .wait_stats("one is deferred and one parked", PATIENCE, |_, stats| {
            let outbox = &stats["endpoints"][0];
            outbox["deferred"] == 1 && outbox["parked"] == 1 && outbox["pending"] == 0
        })
        .await?;
    let mut session = postroom.connect().await?;
    ensure!(
        unsettled(&mut session).await? == 2,
        "nothing is settled unsent"
    );
    ensure!(
        deferrals(&mut session).await?.1 > 0,
        "the message's own failure counts"
    );
    ensure!(
        postroom.receiver.distinct() == 2,
        "nothing overtakes within the stream"
    );

    postroom.vhost.bind(QUEUE, PICKY, "lost.#").await?;
    postroom.verdict(PATIENCE).await?.require(0)?;
    wait_settled(&postroom).await?;
    wait_well(&worker).await.map(drop)
}

/// F12: the policies that give up.
#[tokio::test]
async fn an_unroutable_message_is_buried_or_dropped_where_the_policy_says_so() -> Result<()> {
    for (policy, graves) in [("DeadLetter", 1), ("Drop", 0)] {
        let postroom = picky("policy", policy).await?;
        let worker = postroom.worker().await?;
        let ids = write(
            &postroom,
            &[
                row("a", "known.1", "a1"),
                row("a", "lost.1", "a2"),
                row("a", "known.2", "a3"),
            ],
        )
        .await?;
        wait_settled(&postroom).await?;
        let received = postroom.receiver.wait_for(2, PATIENCE).await?;
        let bodies: Vec<_> = received.iter().map(|message| message.text()).collect();
        ensure!(bodies == ["a1", "a3"], "{policy}: {bodies:?}");
        let dead = dead(&postroom).await?;
        ensure!(dead.len() == graves, "{policy}: {dead:?}");
        ensure!(
            dead.iter()
                .all(|(id, reason, body)| *id == ids[1] && reason == "Unroutable" && body == "a2"),
            "{policy}: {dead:?}"
        );
        drop(worker);
    }
    Ok(())
}

/// Every seventh of many pipelined messages is unroutable.
async fn mixed(test: &str, queue: QueueArguments) -> Result<()> {
    let postroom = Postroom::start(test, |resource| {
        resource
            .with("outboxes.0.exchange", "mixed")
            .with("outboxes.0.onUnroutable", "DeadLetter")
            .with("outboxes.0.ordering.mode", "None")
    })
    .await?;
    let vhost = &postroom.vhost;
    vhost.declare("mixed", "target", &queue, "known.#").await?;
    let receiver = vhost.receive(&["target"]).await?;
    let rows: Vec<Row> = (0..3_000)
        .map(|number| {
            let key = if number % 7 == 3 { "lost" } else { "known.x" };
            row("", key, number.to_string())
        })
        .collect();
    let ids = write(&postroom, &rows).await?;
    let worker = postroom.worker().await?;
    wait_settled(&postroom).await?;
    let lost: HashSet<Uuid> = (3..3_000).step_by(7).map(|number| ids[number]).collect();
    let buried: HashSet<Uuid> = dead(&postroom)
        .await?
        .into_iter()
        .map(|(id, ..)| id)
        .collect();
    ensure!(
        buried == lost,
        "returned {}, of those rightly {}, should be {}",
        buried.len(),
        buried.intersection(&lost).count(),
        lost.len()
    );
    receiver.wait_for(rows.len() - lost.len(), PATIENCE).await?;
    let received = receiver
        .wait_quiet(Duration::from_millis(300), PATIENCE)
        .await?;
    ensure!(received.len() == rows.len() - lost.len(), "each once");
    ensure!(
        received
            .iter()
            .all(|message| message.id().is_some_and(|id| !lost.contains(&id))),
        "no routable one is blamed"
    );
    drop(worker);
    Ok(())
}

/// F12: returns are matched by message id, also among pipelined confirms.
#[tokio::test]
async fn each_unroutable_message_is_found_among_many_on_a_classic_queue() -> Result<()> {
    mixed("mixed_classic", QueueArguments::classic()).await
}

/// The same where confirms come late and out of order.
#[tokio::test]
async fn each_unroutable_message_is_found_among_many_on_a_quorum_queue() -> Result<()> {
    mixed("mixed_quorum", QueueArguments::quorum()).await
}

/// F12: what an alternate exchange takes is routed.
#[tokio::test]
async fn a_message_that_an_alternate_exchange_takes_is_published_once() -> Result<()> {
    let postroom = Postroom::start("alternate", |resource| {
        impatient(resource).with("outboxes.0.exchange", "first")
    })
    .await?;
    let vhost = &postroom.vhost;
    vhost
        .declare_exchange("second", ExchangeKind::Fanout)
        .await?;
    vhost.bind(QUEUE, "second", "").await?;
    let channel = vhost.connect().await?.create_channel().await?;
    let mut arguments = FieldTable::default();
    let second = AMQPValue::LongString("second".into());
    arguments.insert("alternate-exchange".into(), second);
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare("first".into(), ExchangeKind::Topic, options, arguments)
        .await?;
    let worker = postroom.worker().await?;
    write(&postroom, &rows(5, 50)).await?;
    postroom.verdict(PATIENCE).await?.require(0)?;
    wait_settled(&postroom).await?;
    let returned = [("result", "unroutable")];
    let returned = worker.metric("postroom_messages_total", &returned).await?;
    ensure!(returned == Some(0.0), "{returned:?}");
    Ok(())
}

/// The endpoint waits as a whole, says why, defers nothing, and hurts no other; then `mend` is enough.
async fn pauses_until(
    postroom: &Postroom,
    code: &str,
    exchange: &str,
    mend: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let worker = postroom.worker().await?;
    write(postroom, &rows(4, 40)).await?;
    let shown = wait_condition(&worker, "endpoint", code).await?;
    let text = shown["message"].as_str().unwrap_or_default();
    ensure!(text.contains(&format!("'{exchange}'")), "{shown}");
    // Two further attempts at least, and still nobody is blamed.
    let end = tokio::time::Instant::now() + Duration::from_secs(2);
    let mut session = postroom.connect().await?;
    while tokio::time::Instant::now() < end {
        ensure!(deferrals(&mut session).await?.0 == 0, "nothing is deferred");
        ensure!(unsettled(&mut session).await? == 40, "nothing is settled");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let others: Vec<Row> = (0..10)
        .map(|number| row("other", "", number.to_string()))
        .collect();
    write_to(postroom, "other", &others).await?;
    postroom.receiver.wait_for(10, PATIENCE).await?;
    mend().await?;
    postroom.verdict(PATIENCE).await?.require(0)?;
    wait_settled(postroom).await?;
    ensure!(dead(postroom).await?.is_empty(), "nothing is given up");
    wait_well(&worker).await.map(drop)
}

fn with_other(resource: Resource, exchange: &str) -> Resource {
    resource
        .with("outboxes.0.exchange", exchange)
        .outbox(Outbox::new("other", EXCHANGE))
}

/// F10, G12.
#[tokio::test]
async fn a_missing_exchange_pauses_its_endpoint_alone_until_somebody_creates_it() -> Result<()> {
    let postroom = Postroom::start("missing", |resource| with_other(resource, "later")).await?;
    pauses_until(&postroom, "TopologyMissing", "later", async || {
        let vhost = &postroom.vhost;
        let kind = ExchangeKind::Topic;
        // Bound at once, so that no message finds the exchange without a queue.
        vhost.declare_exchange("later", kind).await?;
        vhost.bind(QUEUE, "later", "#").await
    })
    .await
}

/// F10: the same for a right.
#[tokio::test]
async fn an_exchange_without_the_right_to_write_pauses_its_endpoint_until_it_is_granted()
-> Result<()> {
    let postroom = Postroom::start("guarded", |resource| with_other(resource, "guarded")).await?;
    let vhost = &postroom.vhost;
    vhost
        .declare_exchange("guarded", ExchangeKind::Topic)
        .await?;
    vhost.bind(QUEUE, "guarded", "#").await?;
    vhost.permit(".*", "^(shop|arrivals)$", ".*").await?;
    pauses_until(&postroom, "AccessRefused", "guarded", async || {
        vhost.permit(".*", ".*", ".*").await
    })
    .await
}

/// F13, G1, G3: a nack is nobody's fault.
#[tokio::test]
async fn what_a_full_queue_refuses_arrives_later_in_order_and_uncounted() -> Result<()> {
    let postroom = Postroom::start("full", |resource| {
        resource.with("outboxes.0.exchange", "narrow")
    })
    .await?;
    let queue = QueueArguments::classic().rejecting_above(100);
    postroom
        .vhost
        .declare("narrow", "small", &queue, "#")
        .await?;
    let worker = postroom.worker().await?;
    write(&postroom, &rows(5, 1_000)).await?;
    wait_condition(&worker, "endpoint", "Nacked").await?;
    let channel = postroom.vhost.connect().await?.create_channel().await?;
    let mut session = postroom.connect().await?;
    let mut taken = Vec::new();
    let end = tokio::time::Instant::now() + 2 * PATIENCE;
    while taken.len() < 1_000 {
        let options = lapin::options::BasicGetOptions { no_ack: true };
        match channel.basic_get("small".into(), options).await? {
            Some(message) => taken.push(String::from_utf8(message.delivery.data)?.parse()?),
            None => {
                let (_, counted) = deferrals(&mut session).await?;
                ensure!(counted == 0, "a nack does not count");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        ensure!(
            tokio::time::Instant::now() < end,
            "{} messages came out",
            taken.len()
        );
    }
    for stream in 0..5 {
        let of_stream: Vec<usize> = taken.iter().copied().filter(|n| n % 5 == stream).collect();
        let written: Vec<usize> = (stream..1_000).step_by(5).collect();
        ensure!(
            of_stream == written,
            "each once and in order: {of_stream:?}"
        );
    }
    wait_settled(&postroom).await?;
    ensure!(dead(&postroom).await?.is_empty(), "nothing is given up");
    let nacked = [("result", "nacked")];
    let nacked = worker.metric("postroom_messages_total", &nacked).await?;
    ensure!(nacked > Some(0.0), "{nacked:?}");
    Ok(())
}

/// F15: too large for the endpoint is refused to the application, which can do something about it.
#[tokio::test]
async fn a_body_above_the_limit_of_the_endpoint_is_refused_at_the_insert_with_both_sizes()
-> Result<()> {
    let postroom = Postroom::start("large", |resource| {
        resource.with("outboxes.0.delivery.maxMessageBytes", 2_000)
    })
    .await?;
    let error = write(&postroom, &[row("", "", "x".repeat(2_001))])
        .await
        .expect_err("it is too large");
    let Some(sqlx::Error::Database(error)) = error.downcast_ref() else {
        anyhow::bail!("{error:#}");
    };
    ensure!(error.code().as_deref() == Some("PR005"), "{error}");
    let text = error.message();
    ensure!(text.contains("2001") && text.contains("2000"), "{text}");
    write(&postroom, &[row("", "", "x".repeat(2_000))]).await?;
    Ok(())
}
