//! Time: the database's clock decides who may work what and when; a worker trusts its lease for less than that.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::broker::RabbitServer;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::PostgresServer;
use postroom_tests::proxy::{Flow, TcpProxy};
use postroom_tests::setup::Postroom;
use postroom_tests::verdict::Verdict;
use sqlx::Executor as _;

use crate::ground::{PATIENCE, bind_lost, narrow, small, wait_nothing_left};
use crate::leases::{keep_history, one_holds_everything, require_exclusion};
use crate::workers::Fleet;
use crate::workload::{Chance, Load, commit, of};

/// A launch whose process sees a wall clock that is off.
fn with_clock(launch: Launch, offset: &str) -> Result<Launch> {
    let library = std::fs::read_dir("/usr/lib")?
        .filter_map(|folder| Some(folder.ok()?.path().join("faketime/libfaketime.so.1")))
        .find(|library| library.exists())
        .context("there is no libfaketime; 'make setup' installs it")?;
    Ok(launch
        .env("LD_PRELOAD", library.display().to_string())
        .env("FAKETIME", offset)
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1"))
}

/// Notes every attempt that came before its time, by the database's clock.
const EARLY: &str = "
    create table public.early (due_at timestamptz, at timestamptz);
    create function public.note_early() returns trigger language plpgsql security definer as $$ begin
        insert into public.early values (old.due_at, clock_timestamp());
        return null;
    end $$;
    create trigger note_early after update on postroom.deferral for each row
        when (old.due_at > clock_timestamp() and new.attempts > old.attempts) execute function public.note_early();
";

/// F09: neither lease nor due time is judged by the clock of a worker.
#[tokio::test]
async fn workers_whose_clocks_are_ten_minutes_off_take_nothing_from_each_other_and_retry_nothing_early()
-> Result<()> {
    let postroom = narrow("clocks", |resource| {
        resource.with("outboxes.0.retry.jitter", "None")
    })
    .await?;
    keep_history(&postroom).await?;
    postroom.connect().await?.execute(EARLY).await?;
    let mut fleet = Fleet::new(&postroom, &[]);
    for offset in ["+10m", "-10m"] {
        let launch = with_clock(postroom.launch("run"), offset)?;
        fleet.workers.push(launch.start()?);
    }
    fleet.wait_fair_shares().await?;
    let load = Load {
        lost: true,
        ..Load::plain()
    };
    load.write(2_000, &postroom, &Chance::new()).await?;
    bind_lost(&postroom).await?;
    postroom.verdict(PATIENCE).await?.require(0)?;
    wait_nothing_left(&postroom).await?;
    for worker in &fleet.workers {
        let lost = worker.metric("postroom_lease_lost_total", &[]).await?;
        ensure!(lost == Some(0.0), "a lease was lost: {lost:?}");
        ensure!(!worker.log().contains("FAKETIME"), "{}", worker.log());
    }
    let (early, deferred): (i64, bool) = sqlx::query_as(
        "select count(*), (select count(*) > 0 from pg_stat_user_tables where schemaname = 'postroom' and relname = 'deferral' and n_tup_ins > 0) from public.early",
    )
    .fetch_one(&mut postroom.connect().await?)
    .await?;
    ensure!(early == 0, "{early} attempts came early");
    ensure!(deferred, "nothing was ever put off");
    require_exclusion(&postroom).await?;
    Ok(())
}

/// The clocks of the scenario above are wrong indeed: a metric of a worker tells its time.
#[tokio::test]
async fn the_fake_clock_is_a_wrong_one() -> Result<()> {
    let postroom = Postroom::start("fake", small).await?;
    let now = async || -> Result<f64> {
        let query = "select extract(epoch from clock_timestamp())::float8";
        Ok(sqlx::query_scalar(query)
            .fetch_one(&mut postroom.connect().await?)
            .await?)
    };
    let worker = with_clock(postroom.launch("run"), "+10m")?.start()?;
    worker.ready(PATIENCE).await?;
    let measured = async || {
        worker
            .metric("postroom_backlog_measured_timestamp_seconds", &[])
            .await
    };
    let end = tokio::time::Instant::now() + PATIENCE;
    let seen = loop {
        if let Some(seen) = measured().await? {
            break seen;
        }
        ensure!(tokio::time::Instant::now() < end, "never measured");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let ahead = seen - now().await?;
    ensure!((500.0..700.0).contains(&ahead), "{ahead} seconds ahead");
    Ok(())
}

/// The first of ten messages of a stream waits for its confirm while the lease runs out and another worker does all the
/// work; then the confirm arrives, and nine messages wait for their turn.
async fn confirm_after_the_lease(variant: &str) -> Result<Verdict> {
    let (postgres, rabbit) = (
        PostgresServer::shared().await?,
        RabbitServer::shared().await?,
    );
    let postroom = Postroom::start("late_confirm", small).await?;
    let (database, broker) = (
        TcpProxy::start(postgres.port()).await?,
        TcpProxy::start(rabbit.port()).await?,
    );
    let late = postroom
        .launch("run")
        .database_url(postgres.url_at(database.port(), postroom.database.name()))
        .env("AMQP_URL", postroom.vhost.amqp_url_at(broker.port()))
        .env("POSTROOM_TEST_BREAK", variant)
        .start()?;
    late.ready(PATIENCE).await?;
    let mut session = postroom.connect().await?;
    commit(&postroom, &mut session, &[of("before")]).await?;
    postroom.drained(PATIENCE).await?;
    broker.set(Flow::Pass, Flow::Stall);
    commit(&postroom, &mut session, &[of("s"); 10]).await?;
    postroom.receiver.wait_for(2, PATIENCE).await?;
    database.black_hole();
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    one_holds_everything(&postroom).await?;
    postroom.receiver.wait_for(11, PATIENCE).await?;
    broker.pass();
    // The confirm is there when the channel is of use again, or the wait for it is over: 3 seconds at most.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}");
    drop(late);
    Ok(verdict)
}

/// G3, G9, F01: what is in flight at the end of the lease may arrive twice; nothing is sent after it.
#[tokio::test]
async fn nothing_is_published_after_the_trusted_time_of_the_lease() -> Result<()> {
    confirm_after_the_lease("nothing").await?.require(1)
}

/// A worker that goes on as if its lease had no end.
#[tokio::test]
async fn a_worker_that_publishes_after_its_lease_is_caught() -> Result<()> {
    let verdict = confirm_after_the_lease("trust").await?;
    let error = verdict.require(1).err();
    error
        .map(drop)
        .context("a worker published after its lease, and nobody has noticed")
}
