//! The harness itself: what the scenarios take for granted about servers, faults and the receiver.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lapin::BasicProperties;
use postroom_tests::broker::{RabbitOptions, RabbitServer};
use postroom_tests::certs::Authority;
use postroom_tests::database::Database;
use postroom_tests::ledger::Outcome;
use postroom_tests::pooler::{Pooler, PoolerOptions};
use postroom_tests::postgres::{self, PostgresOptions, PostgresServer, StopMode};
use postroom_tests::proxy::{Flow, TcpProxy};
use postroom_tests::run;
use postroom_tests::setup::{OUTBOX, Postroom};
use postroom_tests::vhost::{QueueArguments, Vhost};
use sqlx::{Connection as _, Executor as _};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn postgres_keeps_what_was_committed_through_a_kill_and_forgets_what_was_not() -> Result<()> {
    let server = PostgresServer::start(PostgresOptions::default()).await?;
    let mut session = server.connect("postgres").await?;
    session
        .execute("create table kept (number int); insert into kept values (1)")
        .await?;
    let mut open = session.begin().await?;
    open.execute("insert into kept values (2)").await?;
    let before = server.pid();
    server.kill_9().await?;
    ensure!(server.pid().is_none(), "it is gone");
    ensure!(server.connect("postgres").await.is_err(), "nobody answers");
    server.start_again().await?;
    ensure!(server.pid() != before);
    let mut session = server.connect("postgres").await?;
    let numbers: Vec<i32> = sqlx::query_scalar("select number from kept")
        .fetch_all(&mut session)
        .await?;
    ensure!(numbers == [1], "{numbers:?}");
    Ok(())
}

#[tokio::test]
async fn postgres_comes_back_on_the_same_port_after_both_kinds_of_restart() -> Result<()> {
    let server =
        PostgresServer::start(PostgresOptions::default().setting("work_mem", "5MB")).await?;
    for mode in [StopMode::Fast, StopMode::Immediate] {
        server.restart(mode).await?;
        let mut session = server.connect("postgres").await?;
        let work_mem: String = sqlx::query_scalar("show work_mem")
            .fetch_one(&mut session)
            .await?;
        ensure!(work_mem == "5MB", "{work_mem}");
    }
    let recovered = server
        .log()
        .contains("database system was not properly shut down");
    ensure!(recovered, "an immediate stop is a crash");
    Ok(())
}

#[tokio::test]
async fn a_database_of_a_test_is_gone_after_it() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let database = Database::create(server, "short_lived").await?;
    let name = database.name().to_owned();
    database
        .connect()
        .await?
        .execute("create table t ()")
        .await?;
    drop(database);
    let error = server
        .connect(&name)
        .await
        .expect_err("the database is gone");
    ensure!(format!("{error:#}").contains("does not exist"), "{error:#}");
    Ok(())
}

#[tokio::test]
async fn tls_with_a_private_authority_is_right_for_one_host_only() -> Result<()> {
    let authority = Authority::create()?;
    for (certificate, right) in [
        (authority.right_host()?, true),
        (authority.wrong_host()?, false),
    ] {
        let server = PostgresServer::start(PostgresOptions::default().tls(&certificate)).await?;
        let checked = server
            .url("postgres")
            .replace("sslmode=require", "sslmode=verify-full");
        let checked = format!(
            "{checked}&sslrootcert={}",
            authority.certificate().display()
        );
        ensure!(
            postgres::connect(&checked).await.is_ok() == right,
            "certificate for the right host: {right}"
        );
        let plain = server
            .url("postgres")
            .replace("sslmode=require", "sslmode=disable");
        ensure!(
            postgres::connect(&plain).await.is_err(),
            "a connection without TLS is refused"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_broker_speaks_tls_on_a_port_of_its_own() -> Result<()> {
    let authority = Authority::create()?;
    let options = RabbitOptions {
        tls: Some(authority.right_host()?),
        ..RabbitOptions::default()
    };
    let server = RabbitServer::start(options).await?;
    let vhost = Vhost::create(&server, "tls").await?;
    let trusted = lapin::tcp::OwnedTLSConfig {
        identity: None,
        cert_chain: Some(std::fs::read_to_string(authority.certificate())?),
    };
    for (config, right) in [
        (trusted, true),
        (lapin::tcp::OwnedTLSConfig::default(), false),
    ] {
        let runtime = lapin::runtime::default_runtime()?;
        let connection = lapin::Connection::connect_with_config(
            &vhost.amqps_url(),
            lapin::ConnectionProperties::default(),
            config,
            runtime,
        )
        .await;
        ensure!(
            connection.is_ok() == right,
            "authority known: {right}; {:?}",
            connection.err()
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_black_hole_keeps_connections_open_and_nothing_is_lost_when_it_heals() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let proxy = TcpProxy::start(server.port()).await?;
    let mut session = postgres::connect(&server.url_at(proxy.port(), "postgres")).await?;
    proxy.black_hole();
    {
        let mut answer = std::pin::pin!(session.execute("select 1"));
        let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
        ensure!(
            early.is_err(),
            "no answer and no error comes out of a black hole"
        );
        proxy.pass();
        tokio::time::timeout(PATIENCE, answer).await??;
    }
    proxy.set(Flow::Pass, Flow::Swallow);
    let lost = tokio::time::timeout(
        Duration::from_millis(300),
        session.execute("create table reached ()"),
    )
    .await;
    ensure!(lost.is_err(), "the answer is swallowed");
    let reached: bool = sqlx::query_scalar("select to_regclass('reached') is not null")
        .fetch_one(&mut server.connect("postgres").await?)
        .await?;
    ensure!(reached, "only the answer is swallowed");
    server
        .connect("postgres")
        .await?
        .execute("drop table reached")
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_proxy_resets_refuses_and_delays() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let proxy = TcpProxy::start(server.port()).await?;
    let url = server.url_at(proxy.port(), "postgres");
    let mut session = postgres::connect(&url).await?;
    proxy.delay(Duration::from_millis(100));
    let began = Instant::now();
    session.execute("select 1").await?;
    ensure!(
        began.elapsed() >= Duration::from_millis(200),
        "both ways are slow: {:?}",
        began.elapsed()
    );
    proxy.pass();
    proxy.reset_all();
    let error = session
        .execute("select 1")
        .await
        .expect_err("a reset ends the connection");
    ensure!(
        format!("{error:?}").contains("ConnectionReset"),
        "{error:?}"
    );
    proxy.refuse().await?;
    ensure!(
        tokio::net::TcpStream::connect(("127.0.0.1", proxy.port()))
            .await
            .is_err(),
        "refused"
    );
    proxy.accept().await?;
    postgres::connect(&url).await?.execute("select 1").await?;
    ensure!(proxy.accepted() == 2, "{}", proxy.accepted());
    Ok(())
}

#[tokio::test]
async fn the_receiver_survives_restart_and_kill_of_the_broker_and_loses_nothing() -> Result<()> {
    let server = RabbitServer::start(RabbitOptions::default()).await?;
    let vhost = Vhost::create(&server, "receiver").await?;
    vhost.declare_queue("q", &QueueArguments::quorum()).await?;
    let receiver = vhost.receive(&["q"]).await?;
    let publish = async |number: u8| {
        let properties =
            BasicProperties::default().with_message_id(format!("message {number}").into());
        vhost.publish("q", &[number], properties).await
    };
    publish(0).await?;
    receiver.wait_for(1, PATIENCE).await?;
    server.restart().await?;
    receiver.wait_connected(PATIENCE).await?;
    publish(1).await?;
    receiver.wait_for(2, PATIENCE).await?;
    server.kill_9().await?;
    server.start_again().await?;
    publish(2).await?;
    let received = receiver.wait_for(3, PATIENCE).await?;
    let mut bodies: Vec<u8> = received
        .iter()
        .filter(|received| !received.redelivered)
        .map(|received| received.body[0])
        .collect();
    bodies.dedup();
    ensure!(bodies == [0, 1, 2], "{bodies:?}");
    Ok(())
}

#[tokio::test]
async fn a_memory_alarm_blocks_publishers_until_it_is_cleared() -> Result<()> {
    let server = RabbitServer::start(RabbitOptions::default()).await?;
    let vhost = Vhost::create(&server, "alarm").await?;
    vhost.declare_queue("q", &QueueArguments::classic()).await?;
    server.set_memory_alarm(true).await?;
    {
        let mut publish = std::pin::pin!(vhost.publish("q", b"late", BasicProperties::default()));
        let early = tokio::time::timeout(Duration::from_secs(1), &mut publish).await;
        ensure!(early.is_err(), "nothing is confirmed during an alarm");
        server.set_memory_alarm(false).await?;
        tokio::time::timeout(PATIENCE, publish).await??;
    }
    ensure!(vhost.depth("q").await? == 1);
    Ok(())
}

#[tokio::test]
async fn connections_closed_by_the_broker_end_at_the_client() -> Result<()> {
    let server = RabbitServer::shared().await?;
    let (closed, other) = (
        Vhost::create(server, "closed").await?,
        Vhost::create(server, "other").await?,
    );
    let (gone, stays) = (closed.connect().await?, other.connect().await?);
    server.close_all_connections(closed.name()).await?;
    let deadline = Instant::now() + PATIENCE;
    while gone.status().connected() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ensure!(!gone.status().connected(), "closed");
    ensure!(
        stays.status().connected(),
        "another virtual host is left alone"
    );
    Ok(())
}

#[tokio::test]
async fn a_full_queue_refuses_and_rights_are_kept_apart() -> Result<()> {
    let vhost = Vhost::create(RabbitServer::shared().await?, "rights").await?;
    vhost
        .declare("e", "q", &QueueArguments::classic().rejecting_above(1), "#")
        .await?;
    let connection = vhost.connect().await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(lapin::options::ConfirmSelectOptions::default())
        .await?;
    let mut nacked = 0;
    for _ in 0..5 {
        let options = lapin::options::BasicPublishOptions::default();
        let confirm = channel
            .basic_publish(
                "".into(),
                "q".into(),
                options,
                b"x",
                BasicProperties::default(),
            )
            .await?
            .await?;
        nacked += u32::from(confirm.is_nack());
    }
    ensure!(nacked >= 3, "a full queue refuses: {nacked}");
    vhost.permit("", "", "").await?;
    ensure!(
        vhost
            .declare_exchange("forbidden", lapin::ExchangeKind::Topic)
            .await
            .is_err(),
        "without rights nothing is declared"
    );
    Ok(())
}

/// Two clients with different statements and one session between them: with session state the wrong statement would run.
#[tokio::test]
async fn the_pooler_gives_a_session_only_for_a_transaction() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let pooler = Pooler::start(
        server,
        &PoolerOptions {
            sessions: 1,
            ..PoolerOptions::default()
        },
    )
    .await?;
    let url = server.url_at(pooler.port(), "postgres");
    let (mut first, mut second) = (
        postgres::connect(&url).await?,
        postgres::connect(&url).await?,
    );
    let process = "select pg_backend_pid()";
    let ask = async |session: &mut sqlx::PgConnection| -> Result<i32> {
        let mut transaction = session.begin().await?;
        let pid: i32 = sqlx::query_scalar(process)
            .persistent(false)
            .fetch_one(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(pid)
    };
    let (one, two) = (ask(&mut first).await?, ask(&mut second).await?);
    ensure!(one == two, "both clients share the session: {one} {two}");
    Ok(())
}

/// Starts this test binary again as a process that starts a server, and waits until it says which.
fn start_victim(folder: Option<&Path>) -> Result<(Child, PathBuf, PathBuf)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "--exact",
        "harness::a_process_of_its_own_for_other_tests",
        "--nocapture",
    ]);
    command.env(VICTIM, folder.unwrap_or(Path::new("")));
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let said = BufReader::new(child.stderr.take().context("it is piped")?).lines();
    let started = said
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("victim ").map(str::to_owned));
    let started = started.context("the victim says what it has started")?;
    let (pid, folder) = started
        .split_once(' ')
        .context("a process number and a folder")?;
    pid.parse::<u32>()?;
    Ok((
        child,
        PathBuf::from(format!("/proc/{pid}")),
        PathBuf::from(folder),
    ))
}

fn wait_until_gone(paths: [&Path; 2]) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for path in paths {
        while path.exists() {
            ensure!(
                Instant::now() < deadline,
                "{} is still there",
                path.display()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

#[test]
fn the_servers_of_a_killed_test_process_are_stopped_and_its_folder_is_removed() -> Result<()> {
    let (mut victim, server, folder) = start_victim(None)?;
    ensure!(server.exists() && folder.exists());
    victim.kill()?;
    victim.wait()?;
    wait_until_gone([&server, &folder])
}

#[test]
fn what_is_meant_to_stay_stays_until_it_is_ended() -> Result<()> {
    let kept = std::env::temp_dir().join(run::unique_name("postroom_kept"));
    let (mut victim, server, folder) = start_victim(Some(&kept))?;
    victim.wait()?;
    ensure!(
        folder == kept && server.exists(),
        "the server outlives who started it"
    );
    run::end(&kept)?;
    wait_until_gone([&server, &folder])
}

const VICTIM: &str = "POSTROOM_TEST_VICTIM";

/// Does its work only when the tests above start it; else there is nothing to wait for.
#[tokio::test]
async fn a_process_of_its_own_for_other_tests() -> Result<()> {
    let Some(keep) = std::env::var_os(VICTIM) else {
        return Ok(());
    };
    if !keep.is_empty() {
        run::keep_in(Path::new(&keep))?;
    }
    let server = PostgresServer::start(PostgresOptions::default()).await?;
    eprintln!(
        "victim {} {}",
        server.pid().context("it runs")?,
        run::folder().display()
    );
    if keep.is_empty() {
        std::future::pending::<()>().await;
    }
    std::mem::forget(server);
    Ok(())
}

#[tokio::test]
async fn a_scenario_gets_a_migrated_database_a_queue_and_a_worker_that_publishes() -> Result<()> {
    let postroom = Postroom::start("whole", |resource| resource).await?;
    let worker = postroom.worker().await?;
    let mut session = postroom.connect().await?;
    for (outcome, body) in [
        (Outcome::Committed, "first"),
        (Outcome::RolledBack, "never"),
        (Outcome::Committed, "second"),
    ] {
        let mut draft = postroom.ledger.begin();
        let mut transaction = session.begin().await?;
        let id: uuid::Uuid = sqlx::query_scalar(
            "insert into postroom.outbox (endpoint, type, stream, payload) values ($1, 'placed', 's', $2) returning message_id",
        )
        .bind(OUTBOX)
        .bind(body)
        .fetch_one(&mut *transaction)
        .await?;
        draft.wrote(Some("s"), id, body.as_bytes());
        match outcome {
            Outcome::Committed => transaction.commit().await?,
            Outcome::RolledBack | Outcome::Unknown => transaction.rollback().await?,
        }
        draft.end(outcome);
    }
    let verdict = postroom.verdict(PATIENCE).await?;
    verdict.require(0)?;
    ensure!(verdict.received == 2, "{verdict}");
    worker
        .wait_stats("nothing is left", PATIENCE, |status, stats| {
            status == 200 && stats["endpoints"][0]["pending"] == 0
        })
        .await?;
    ensure!(worker.metric("postroom_build_info", &[]).await?.is_some());
    worker.sigterm()?;
    ensure!(worker.wait_exit(PATIENCE).await?.success());
    Ok(())
}
