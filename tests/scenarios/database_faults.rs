//! A database that restarts, dies, is away, goes silent, or sits behind a pooler: nothing is lost, no failure is
//! counted, and the process stays alive.

use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::broker::RabbitServer;
use postroom_tests::eventually::{eventually, when};
use postroom_tests::pooler::{Pooler, PoolerOptions};
use postroom_tests::postgres::{self, PostgresOptions, PostgresServer, StopMode};
use postroom_tests::proxy::{Flow, TcpProxy};
use postroom_tests::resource::Resource;
use postroom_tests::setup::{Postroom, QUEUE};
use sqlx::{Connection as _, Executor as _};

use crate::traffic::{
    PATIENCE, RECOVERY, deferrals, row, rows, under_load, wait_condition, wait_settled, wait_well,
    write,
};

/// What may be unconfirmed at one instant.
const IN_FLIGHT: usize = 100;

/// Completions commit asynchronously: a crash may forget those of the last 600 ms, far fewer than this under our load.
const FORGOTTEN: usize = 300;

fn bounded(resource: Resource) -> Resource {
    resource
        .lease_seconds(5)
        .with("outboxes.0.delivery.maxInFlight", IN_FLIGHT)
}

/// R5, G1, G3, G5, F30.
#[tokio::test]
async fn a_database_that_restarts_or_dies_under_load_costs_no_message_and_no_order() -> Result<()> {
    let postgres = PostgresServer::start(PostgresOptions::default()).await?;
    let rabbit = RabbitServer::shared().await?;
    let postroom = Postroom::start_on(&postgres, rabbit, "restarts", bounded).await?;
    let workers = [postroom.worker().await?, postroom.worker().await?];
    let more = async || {
        let so_far = postroom.receiver.distinct();
        postroom
            .receiver
            .wait_for(so_far + 100, PATIENCE)
            .await
            .map(drop)
    };
    under_load(&postroom, async || {
        more().await?;
        postgres.restart(StopMode::Fast).await?;
        more().await?;
        postgres.restart(StopMode::Immediate).await?;
        more().await?;
        postgres.kill_9().await?;
        postgres.start_again().await?;
        more().await
    })
    .await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}");
    verdict.require(IN_FLIGHT + 2 * (IN_FLIGHT + FORGOTTEN))?;
    wait_settled(&postroom).await?;
    ensure!(deferrals(&mut postroom.connect().await?).await?.0 == 0);
    for worker in &workers {
        wait_well(worker).await?;
        let found = worker.metric("postroom_sweep_found_total", &[]).await?;
        ensure!(found == Some(0.0), "reading misses nothing: {found:?}");
    }
    Ok(())
}

/// F33.
#[tokio::test]
async fn while_the_database_is_away_the_worker_lives_says_why_and_counts_nothing() -> Result<()> {
    let postgres = PostgresServer::start(PostgresOptions::default()).await?;
    let rabbit = RabbitServer::shared().await?;
    let postroom = Postroom::start_on(&postgres, rabbit, "away", |resource| {
        bounded(resource)
            .with("outboxes.0.ordering.mode", "None")
            .with("outboxes.0.retry.initialDelaySeconds", 3_600)
            .with("outboxes.0.retry.maxDelaySeconds", 3_600)
            .with("outboxes.0.retry.jitter", "None")
            .with("outboxes.0.exchange", "half")
    })
    .await?;
    let kind = lapin::ExchangeKind::Topic;
    postroom.vhost.declare_exchange("half", kind).await?;
    postroom.vhost.bind(QUEUE, "half", "known").await?;
    let worker = postroom.worker().await?;
    write(&postroom, &[row("", "lost", "failed once")]).await?;
    wait_condition(&worker, "endpoint", "Unroutable").await?;
    wait_settled_but_one(&postroom).await?;
    postgres.stop(StopMode::Fast).await?;
    let shown = wait_condition(&worker, "database", "ConnectionRefused").await?;
    ensure!(shown["name"].is_null(), "{shown}");
    let end = tokio::time::Instant::now() + Duration::from_secs(7);
    while tokio::time::Instant::now() < end {
        ensure!(worker.get("/livez").await?.status == 200, "alive");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(worker.get("/readyz").await?.status == 503, "not ready");
    postgres.start_again().await?;
    worker.ready(RECOVERY).await?;
    worker
        .wait_stats("the database is well", RECOVERY, |status, stats| {
            status == 200
                && crate::traffic::condition(stats, "database", "ConnectionRefused").is_none()
        })
        .await?;
    let counted = deferrals(&mut postroom.connect().await?).await?;
    ensure!(counted == (1, 1), "no failure was counted: {counted:?}");
    write(&postroom, &[row("", "known", "after")]).await?;
    postroom.receiver.wait_for(1, RECOVERY).await?;
    ensure!(worker.exited()?.is_none(), "the same process");
    Ok(())
}

async fn wait_settled_but_one(postroom: &Postroom) -> Result<()> {
    let mut session = postroom.connect().await?;
    let end = tokio::time::Instant::now() + PATIENCE;
    while deferrals(&mut session).await? != (1, 1) {
        ensure!(tokio::time::Instant::now() < end, "it is deferred");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// F29, R11, G10: what vanishes, and whether the old connections are ever heard of again.
async fn silence(test: &str, flow: Flow) -> Result<()> {
    let postgres = PostgresServer::shared().await?;
    let postroom = Postroom::start(test, bounded).await?;
    let proxy = TcpProxy::start(postgres.port()).await?;
    let url = postgres.url_at(proxy.port(), postroom.database.name());
    let worker = postroom.launch("run").database_url(url).start()?;
    worker.ready(PATIENCE).await?;
    under_load(&postroom, async || {
        postroom.receiver.wait_for(50, PATIENCE).await?;
        proxy.set(flow, flow);
        wait_condition(&worker, "database", "Timeout").await?;
        // Longer than lease, claim and connect together may take.
        let end = tokio::time::Instant::now() + Duration::from_secs(13);
        while tokio::time::Instant::now() < end {
            ensure!(worker.get("/livez").await?.status == 200, "alive");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        ensure!(worker.get("/readyz").await?.status == 503, "not ready");
        proxy.pass();
        let enough = postroom.receiver.distinct() + 50;
        let mut session = postroom.connect().await?;
        let end = tokio::time::Instant::now() + RECOVERY;
        while postroom.receiver.distinct() < enough {
            ensure!(tokio::time::Instant::now() < end, "work goes on in time");
            let counted = deferrals(&mut session).await?;
            ensure!(counted == (0, 0), "no attempt is counted: {counted:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    })
    .await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}");
    // In doubt is what was in flight, and what was confirmed and could not be settled before the lease was lost. The
    // backlog itself may take longer on a busy machine.
    verdict.require(2 * IN_FLIGHT)?;
    wait_settled(&postroom).await?;
    wait_well(&worker).await.map(drop)
}

#[tokio::test]
async fn a_black_hole_before_the_database_is_survived_without_a_restart() -> Result<()> {
    silence("hole", Flow::Stall).await
}

#[tokio::test]
async fn connections_to_the_database_that_stay_dead_without_a_word_are_replaced() -> Result<()> {
    silence("dead", Flow::Swallow).await
}

/// F31, R19: with session state, statements of one client would meet those of another.
#[tokio::test]
async fn behind_a_transaction_pooler_with_two_sessions_everything_works_beside_other_clients()
-> Result<()> {
    let postgres = PostgresServer::shared().await?;
    let postroom = Postroom::start("pooled", |resource| {
        bounded(resource).behind_transaction_pooler()
    })
    .await?;
    let options = PoolerOptions {
        sessions: 2,
        ..PoolerOptions::default()
    };
    let pooler = Pooler::start(postgres, &options).await?;
    let url = postgres.url_at(pooler.port(), postroom.database.name());
    let launch = postroom.launch("run").database_url(&url);
    let workers = [launch.start()?, launch.start()?];
    for worker in &workers {
        worker.ready(PATIENCE).await?;
    }
    let others: Vec<_> = (0..6)
        .map(|client| tokio::spawn(other_client(url.clone(), client)))
        .collect();
    under_load(&postroom, async || {
        for _ in 0..5 {
            write(&postroom, &rows(20, 200)).await?;
        }
        postroom.receiver.wait_for(1_200, PATIENCE).await?;
        // A vanished worker is replaced through the pooler as well.
        workers[0].kill_9().await
    })
    .await?;
    postroom
        .verdict(PATIENCE)
        .await?
        .require(IN_FLIGHT + FORGOTTEN)?;
    wait_settled(&postroom).await?;
    for other in others {
        other.abort();
        if let Ok(answer) = other.await {
            answer?;
        }
    }
    let log = workers
        .iter()
        .map(|worker| worker.log())
        .collect::<String>();
    ensure!(!log.contains("prepared statement"), "{log}");
    wait_well(&workers[1]).await.map(drop)
}

/// Red control: the same worker, which is not told of the pooler, prepares statements that the next session does not know.
#[tokio::test]
async fn a_worker_that_takes_a_pooler_for_a_server_is_caught() -> Result<()> {
    let postgres = PostgresServer::shared().await?;
    let postroom = Postroom::start("pooled_untold", bounded).await?;
    let options = PoolerOptions {
        sessions: 2,
        ..PoolerOptions::default()
    };
    let pooler = Pooler::start(postgres, &options).await?;
    let url = postgres.url_at(pooler.port(), postroom.database.name());
    let workers = [
        postroom.launch("run").database_url(&url).start()?,
        postroom.launch("run").database_url(&url).start()?,
    ];
    let complains = || async {
        let said = workers
            .iter()
            .any(|worker| worker.log().contains("prepared statement"));
        when(said, || "no worker complains".to_owned())
    };
    under_load(&postroom, async || {
        eventually("a statement is not found", PATIENCE, complains).await
    })
    .await
}

/// Runs statements of its own, each in a transaction, until it is stopped.
async fn other_client(url: String, client: i32) -> Result<()> {
    let mut session = postgres::connect(&url).await?;
    loop {
        for number in 0..5 {
            let mut transaction = session.begin().await?;
            // The server knows a statement by its text: every client and number has another one.
            let text = format!("select $1::int + {number}, 'client {client}', pg_sleep(0.002)");
            let query = sqlx::query_as(sqlx::AssertSqlSafe(text))
                .bind(client)
                .persistent(false);
            let (sum, name, ()): (i32, String, ()) = query.fetch_one(&mut *transaction).await?;
            transaction
                .execute("select set_config('search_path', 'pg_catalog', true)")
                .await?;
            transaction.commit().await?;
            ensure!(sum == client + number && name == format!("client {client}"));
        }
    }
}
