//! Transactions that commit after others that began later: nothing may be skipped, nothing may come before its time.
//!
//! The sweep is off, so nothing but the reading itself can find what is late.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postroom_tests::broker::RabbitServer;
use postroom_tests::ledger::Outcome;
use postroom_tests::pooler::{Pooler, PoolerOptions};
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::resource::Resource;
use postroom_tests::setup::Postroom;
use postroom_tests::verdict::Verdict;
use sqlx::Executor as _;
use uuid::Uuid;

use crate::ground::{PATIENCE, WINDOW, settle_unknown, show_missing, small, wait_nothing_left};
use crate::workers::Fleet;
use crate::workload::{self, Chance, Load, of};

/// What every worker here is started with.
pub(crate) const NO_SWEEP: (&str, &str) = ("POSTROOM_SWEEP", "off");

/// Fetches of 15 rows at most: rows that are late rarely fit in.
pub(crate) fn narrow_fetches(resource: Resource) -> Resource {
    small(resource).with("outboxes.0.delivery.batchSize", 15)
}

/// So many workers are killed at least.
const LEAST_KILLS: usize = 3;

/// G1 to G5, F01: several workers with small fetches, that come, go and die, while transactions of all shapes stay
/// open for random times.
#[tokio::test]
async fn late_commits_are_neither_lost_nor_out_of_order_while_workers_come_go_and_die() -> Result<()>
{
    let postroom = Postroom::start("late_commits", narrow_fetches).await?;
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[NO_SWEEP]);
    fleet.grow_to(3).await?;
    let faults = come_and_go(&mut fleet, &chance, Duration::from_secs(22));
    Load::rough().beside(&postroom, &chance, faults).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict} after {} kills", fleet.kills);
    show_missing(&postroom, &verdict.missing).await?;
    verdict.require(fleet.kills * 2 * WINDOW)?;
    ensure!(
        postroom.ledger.rolled_back() > 100,
        "too little was rolled back"
    );
    wait_nothing_left(&postroom).await
}

/// Workers join, leave in good order and are killed, about one a second; between two and four of them are there.
async fn come_and_go(fleet: &mut Fleet<'_>, chance: &Chance, time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    let mut changes = 0;
    while Instant::now() < end || fleet.kills < LEAST_KILLS {
        tokio::time::sleep(Duration::from_millis(400) + chance.pause(Duration::from_millis(800)))
            .await;
        changes += 1;
        match fleet.workers.len() {
            0..=2 => fleet.start()?,
            _ if changes % 4 == 0 => fleet.kill(chance).await?,
            4.. => fleet.retire(chance).await?,
            _ if chance.one_in(2) => fleet.retire(chance).await?,
            _ => fleet.start()?,
        }
    }
    fleet.grow_to(2).await
}

/// F01: A writes first and stays open; B commits and arrives; A commits, and must arrive within a poll interval (100 ms)
/// of that, beyond what B took on the same, perhaps busy, machine.
#[tokio::test]
async fn a_transaction_that_commits_late_arrives_within_a_poll_interval_of_its_commit() -> Result<()>
{
    let postroom = Postroom::start("overtaken", narrow_fetches).await?;
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[NO_SWEEP]);
    fleet.grow_to(1).await?;
    let lanes = (0..6).map(|lane| overtaken(&postroom, &chance, lane, 10));
    let delays = futures::future::try_join_all(lanes).await?;
    let (mut early, mut late): (Vec<_>, Vec<_>) = delays.into_iter().flatten().unzip();
    early.sort();
    late.sort();
    ensure!(late.len() == 60);
    let (usual, median) = (early[30], late[30]);
    eprintln!("from commit to arrival: in time {usual:?}, late {median:?}");
    ensure!(
        median < 2 * usual + Duration::from_millis(150),
        "late commits take {median:?}, others {usual:?}"
    );
    postroom.verdict(PATIENCE).await?.require(0)?;
    wait_nothing_left(&postroom).await
}

/// One pair of transactions after the other; the times from the commits of B and A to their arrivals.
async fn overtaken(
    postroom: &Postroom,
    chance: &Chance,
    lane: usize,
    times: usize,
) -> Result<Vec<(Duration, Duration)>> {
    let (mut a, mut b) = (postroom.connect().await?, postroom.connect().await?);
    let mut delays = Vec::new();
    for time in 0..times {
        let (of_a, of_b) = (
            format!("cart-{lane}-{time}-a"),
            format!("cart-{lane}-{time}-b"),
        );
        let mut draft = postroom.ledger.begin();
        a.execute("begin").await?;
        let late = workload::write(&mut a, &mut draft, Some(&of_a), of(&of_a)).await?;
        let early = workload::commit(postroom, &mut b, &[of(&of_b)]).await?[0];
        let committed = Instant::now();
        let usual = arrival(postroom, early)
            .await?
            .saturating_duration_since(committed);
        tokio::time::sleep(chance.pause(Duration::from_secs(1))).await;
        ensure!(
            !has_arrived(postroom, late),
            "an open transaction's message has arrived"
        );
        a.execute("commit").await?;
        let committed = Instant::now();
        draft.end(Outcome::Committed);
        let arrived = arrival(postroom, late).await?;
        delays.push((usual, arrived.saturating_duration_since(committed)));
    }
    Ok(delays)
}

fn has_arrived(postroom: &Postroom, id: Uuid) -> bool {
    let received = postroom.receiver.received();
    received.iter().any(|received| received.id() == Some(id))
}

/// When a message arrives.
async fn arrival(postroom: &Postroom, id: Uuid) -> Result<Instant> {
    let end = Instant::now() + PATIENCE;
    loop {
        let received = postroom.receiver.received();
        if let Some(received) = received.iter().find(|received| received.id() == Some(id)) {
            return Ok(received.arrived);
        }
        ensure!(Instant::now() < end, "{id} has not arrived");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A row is passed while its transaction is open; its worker goes home; it commits; a new worker starts. `variant`
/// breaks the worker.
pub(crate) async fn passed_before_a_hand_over(variant: &str) -> Result<Verdict> {
    let postroom = Postroom::start("passed", narrow_fetches).await?;
    let mut fleet = Fleet::new(&postroom, &[NO_SWEEP, ("POSTROOM_TEST_BREAK", variant)]);
    fleet.grow_to(1).await?;
    let (mut open, mut other) = (postroom.connect().await?, postroom.connect().await?);
    let mut draft = postroom.ledger.begin();
    open.execute("begin").await?;
    let late = workload::write(&mut open, &mut draft, Some("s"), of("s")).await?;
    for _ in 0..3 {
        let early = workload::commit(&postroom, &mut other, &[of("s")]).await?;
        arrival(&postroom, early[0]).await?;
    }
    fleet.retire(&Chance::new()).await?;
    open.execute("commit").await?;
    draft.end(Outcome::Committed);
    fleet.grow_to(1).await?;
    let further = workload::commit(&postroom, &mut other, &[of("s")]).await?;
    arrival(&postroom, further[0]).await?;
    let verdict = postroom.verdict(Duration::from_secs(2)).await?;
    ensure!(has_arrived(&postroom, late) == verdict.missing.is_empty());
    Ok(verdict)
}

/// The positive side of a red control: the new owner starts at a low mark that no open transaction is below.
#[tokio::test]
async fn a_row_that_was_passed_while_its_transaction_was_open_survives_a_hand_over() -> Result<()> {
    passed_before_a_hand_over("nothing").await?.require(0)
}

/// F01 with a crash: PostgreSQL is killed behind a pooler, so that the workers see no broken connection where nothing
/// was under way, and transaction numbers are given out again.
#[tokio::test]
async fn late_commits_survive_crashes_of_the_server_behind_a_pooler() -> Result<()> {
    let server = PostgresServer::start(PostgresOptions::default()).await?;
    let pooler = Pooler::start(&server, &PoolerOptions::default()).await?;
    let rabbit = RabbitServer::shared().await?;
    let postroom = Postroom::start_on(&server, rabbit, "late_crash", |resource| {
        narrow_fetches(resource).behind_transaction_pooler()
    })
    .await?;
    postroom
        .connect()
        .await?
        .execute("create table written (message_id uuid primary key)")
        .await?;
    let chance = Chance::new();
    let url = server.url_at(pooler.port(), postroom.database.name());
    let mut fleet = Fleet::new(&postroom, &[NO_SWEEP, ("DATABASE_URL", &url)]);
    fleet.grow_to(2).await?;
    const CRASHES: usize = 3;
    let crashes = async {
        for _ in 0..CRASHES {
            tokio::time::sleep(Duration::from_secs(2) + chance.pause(Duration::from_secs(2))).await;
            server.kill_9().await.context("kill PostgreSQL")?;
            server.start_again().await?;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    };
    let load = Load {
        survives: true,
        ..Load::rough()
    };
    load.beside(&postroom, &chance, crashes).await?;
    commit_left_over(&postroom).await?;
    settle_unknown(&postroom).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}, {} without an answer", postroom.ledger.unknown());
    show_missing(&postroom, &verdict.missing).await?;
    // What is in flight on two workers, and what they completed in three times wal_writer_delay.
    verdict.require(CRASHES * (2 * 2 * WINDOW + 600))?;
    wait_nothing_left(&postroom).await
}

/// Transactions that were prepared when the server or their writer went away are still there: somebody decides.
async fn commit_left_over(postroom: &Postroom) -> Result<()> {
    let mut session = postroom.connect().await?;
    let left: Vec<String> =
        sqlx::query_scalar("select gid from pg_prepared_xacts where database = current_database()")
            .fetch_all(&mut session)
            .await?;
    for name in left {
        let commit = format!("commit prepared '{name}'");
        session.execute(sqlx::AssertSqlSafe(commit)).await?;
    }
    Ok(())
}
