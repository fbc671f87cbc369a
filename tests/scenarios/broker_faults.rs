//! A broker that restarts, dies, blocks, goes silent, or refuses one message: nothing is lost, nothing is blamed on a
//! message that is not its fault, and work goes on by itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::broker::{RabbitOptions, RabbitServer};
use postroom_tests::postgres::PostgresServer;
use postroom_tests::proxy::{Flow, TcpProxy};
use postroom_tests::setup::Postroom;
use postroom_tests::worker::Worker;
use uuid::Uuid;

use crate::traffic::{
    PATIENCE, deferrals, row, rows, under_load, unsettled, wait_condition, wait_settled, wait_well,
    write,
};

/// What may be unconfirmed at one instant, so that the number of repeats has a bound.
const IN_FLIGHT: usize = 100;

/// A worker that reaches the broker through a proxy.
async fn behind_proxy(test: &str) -> Result<(Postroom, TcpProxy, Worker)> {
    let postroom = Postroom::start(test, |resource| {
        resource
            .with("outboxes.0.delivery.confirmTimeoutSeconds", 2)
            .with("outboxes.0.delivery.maxInFlight", IN_FLIGHT)
    })
    .await?;
    let proxy = TcpProxy::start(RabbitServer::shared().await?.port()).await?;
    let url = postroom.vhost.amqp_url_at(proxy.port());
    let worker = postroom.launch("run").amqp_url(url).start()?;
    worker.ready(PATIENCE).await?;
    write(&postroom, &rows(1, 1)).await?;
    postroom.receiver.wait_for(1, PATIENCE).await?;
    wait_settled(&postroom).await?;
    Ok((postroom, proxy, worker))
}

/// F11, G1, G4, G5: the broker has the messages, but nobody hears of it.
#[tokio::test]
async fn without_a_confirm_nothing_is_settled_and_a_repeat_is_the_same_message() -> Result<()> {
    let (postroom, proxy, worker) = behind_proxy("deaf").await?;
    proxy.set(Flow::Pass, Flow::Swallow);
    let mut batch = rows(10, 50);
    batch.extend((0..20).map(|number| row("", "", format!("free {number}"))));
    write(&postroom, &batch).await?;
    // The first of each stream, and those without a stream.
    postroom.receiver.wait_for(1 + 10 + 20, PATIENCE).await?;
    wait_condition(&worker, "transport", "ConnectionLost").await?;
    let mut session = postroom.connect().await?;
    ensure!(unsettled(&mut session).await? == 70, "nothing is settled");
    ensure!(
        deferrals(&mut session).await?.0 == 0,
        "no message is blamed for it"
    );
    ensure!(
        postroom.receiver.distinct() == 31,
        "no stream goes on without a confirm"
    );
    proxy.pass();
    proxy.reset_all();
    let verdict = postroom.verdict(PATIENCE).await?;
    verdict.require(30)?;
    ensure!(verdict.repeats == 30, "what was in doubt: {verdict}");
    wait_settled(&postroom).await?;
    wait_well(&worker).await.map(drop)
}

/// F29, R11, G10: packets vanish, for longer than every time-out of the worker.
#[tokio::test]
async fn a_black_hole_before_the_broker_is_survived_without_a_restart() -> Result<()> {
    let (postroom, proxy, worker) = behind_proxy("hole").await?;
    under_load(&postroom, async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        proxy.black_hole();
        wait_condition(&worker, "transport", "Timeout").await?;
        ensure!(worker.get("/livez").await?.status == 200, "alive");
        ensure!(
            worker.get("/readyz").await?.status == 200,
            "the database is held"
        );
        proxy.pass();
        Ok(())
    })
    .await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    verdict.require(IN_FLIGHT)?;
    wait_settled(&postroom).await?;
    wait_well(&worker).await.map(drop)
}

/// G12 the other way round: a condition that is over does not stay because nothing happens.
#[tokio::test]
async fn an_idle_endpoint_is_well_again_once_it_is_connected_without_a_message_to_prove_it()
-> Result<()> {
    let (_postroom, proxy, worker) = behind_proxy("idle").await?;
    proxy.refuse().await?;
    proxy.reset_all();
    wait_condition(&worker, "transport", "ConnectionRefused").await?;
    wait_condition(&worker, "endpoint", "ConnectionLost").await?;
    proxy.accept().await?;
    wait_well(&worker).await.map(drop)
}

/// R8, F02, G1, G3, G5.
#[tokio::test]
async fn a_broker_that_restarts_or_dies_under_load_costs_no_message_and_no_order() -> Result<()> {
    let rabbit = RabbitServer::start(RabbitOptions::default()).await?;
    let postgres = PostgresServer::shared().await?;
    let postroom = Postroom::start_on(postgres, &rabbit, "restarts", |resource| {
        resource.with("outboxes.0.delivery.maxInFlight", IN_FLIGHT)
    })
    .await?;
    let worker = postroom.worker().await?;
    under_load(&postroom, async || {
        postroom.receiver.wait_for(100, PATIENCE).await?;
        rabbit.restart().await?;
        let so_far = postroom.receiver.distinct();
        postroom.receiver.wait_for(so_far + 100, PATIENCE).await?;
        rabbit.kill_9().await?;
        wait_condition(&worker, "transport", "ConnectionRefused").await?;
        rabbit.start_again().await?;
        let so_far = postroom.receiver.distinct();
        postroom
            .receiver
            .wait_for(so_far + 100, PATIENCE)
            .await
            .map(drop)
    })
    .await?;
    postroom.verdict(PATIENCE).await?.require(2 * IN_FLIGHT)?;
    wait_settled(&postroom).await?;
    let mut session = postroom.connect().await?;
    let buried: i64 = sqlx::query_scalar("select count(*) from postroom.dead_letter")
        .fetch_one(&mut session)
        .await?;
    ensure!(buried == 0, "nobody is to blame: {buried}");
    wait_well(&worker).await.map(drop)
}

/// F14, R12: longer than lease and confirm time-out.
#[tokio::test]
async fn a_broker_that_blocks_is_waited_for_with_leases_kept_and_without_a_repeat() -> Result<()> {
    let rabbit = RabbitServer::start(RabbitOptions::default()).await?;
    let postgres = PostgresServer::shared().await?;
    let postroom = Postroom::start_on(postgres, &rabbit, "alarm", |resource| {
        resource
            .lease_seconds(5)
            .with("outboxes.0.delivery.confirmTimeoutSeconds", 2)
    })
    .await?;
    let worker = postroom.worker().await?;
    write(&postroom, &rows(5, 50)).await?;
    postroom.receiver.wait_for(50, PATIENCE).await?;
    let mut session = postroom.connect().await?;
    let epochs =
        "select array_agg(epoch order by partition) from postroom.lease where owner is not null";
    let before: Vec<i64> = sqlx::query_scalar(epochs).fetch_one(&mut session).await?;
    rabbit.set_memory_alarm(true).await?;
    write(&postroom, &rows(5, 50)).await?;
    let shown = wait_condition(&worker, "transport", "Blocked").await?;
    ensure!(shown["name"] == "main", "{shown}");
    let end = tokio::time::Instant::now() + Duration::from_secs(8);
    while tokio::time::Instant::now() < end {
        ensure!(worker.get("/livez").await?.status == 200, "alive");
        let alive = "select count(*) from postroom.lease_holder where alive";
        let alive: i64 = sqlx::query_scalar(alive).fetch_one(&mut session).await?;
        ensure!(alive == 64, "leases are kept: {alive}");
        ensure!(unsettled(&mut session).await? == 50, "nothing is settled");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (_, stats) = worker.stats().await?;
    ensure!(stats["conditions"][0]["code"] == "Blocked", "{stats}");
    let blocked = [("transport", "main")];
    let blocked = worker
        .metric("postroom_transport_blocked", &blocked)
        .await?;
    ensure!(blocked == Some(1.0), "{blocked:?}");
    rabbit.set_memory_alarm(false).await?;
    postroom.verdict(PATIENCE).await?.require(0)?;
    wait_settled(&postroom).await?;
    let after: Vec<i64> = sqlx::query_scalar(epochs).fetch_one(&mut session).await?;
    ensure!(before == after, "nobody else took the leases meanwhile");
    wait_well(&worker).await.map(drop)
}

/// F15: larger than the broker takes, which only the broker knows.
#[tokio::test]
async fn a_message_that_the_broker_closes_the_channel_for_is_found_and_buried_and_the_others_go_on()
-> Result<()> {
    let rabbit = RabbitServer::start(RabbitOptions {
        settings: vec!["max_message_size = 65536".to_owned()],
        tls: None,
    })
    .await?;
    let postgres = PostgresServer::shared().await?;
    let postroom = Postroom::start_on(postgres, &rabbit, "oversize", |resource| {
        resource
            .with("outboxes.0.retry.maxAttempts", 2)
            .with("outboxes.0.retry.initialDelaySeconds", 1)
            .with("outboxes.0.retry.jitter", "None")
    })
    .await?;
    let mut batch = rows(20, 200);
    batch.insert(100, row("stream-5", "", "x".repeat(100_000)));
    let ids = write(&postroom, &batch).await?;
    let worker = postroom.worker().await?;
    wait_settled(&postroom).await?;
    let query = "select message_id, reason, error, attempts from postroom.dead_letter";
    let dead: Vec<(Uuid, String, String, i32)> = sqlx::query_as(query)
        .fetch_all(&mut postroom.connect().await?)
        .await?;
    let [(id, reason, error, attempts)] = dead.as_slice() else {
        anyhow::bail!("one is buried: {dead:?}");
    };
    ensure!(*id == ids[100] && reason == "ChannelClosed", "{dead:?}");
    ensure!(
        error.contains("100000") && error.contains("65536"),
        "both sizes: {error}"
    );
    ensure!(
        *attempts == 2,
        "each failure is counted, the last one too: {attempts}"
    );
    postroom.receiver.wait_for(200, PATIENCE).await?;
    let verdict = postroom.verdict(Duration::from_secs(1)).await?;
    verdict.excuse(&[*id].into()).require(200)?;
    wait_well(&worker).await.map(drop)
}
