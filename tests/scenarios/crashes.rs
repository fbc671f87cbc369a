//! Workers that are killed at each named point of the relay, again and again, under load.
//!
//! Each scenario writes its own table line: the point, and how often a worker passes it before it dies there.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::eventually::{eventually, when};
use postroom_tests::setup::{OUTBOX, Postroom};
use postroom_tests::worker::Worker;

use crate::ground::{
    NARROW, PATIENCE, WINDOW, bind_lost, committed, dead, narrow, wait_nothing_left,
};
use crate::workers::Fleet;
use crate::workload::{Chance, GOOD, Load, Message, commit, of};

/// The signal of an abort.
const SIGABRT: i32 = 6;

/// A line of the table.
struct Point {
    name: &'static str,
    /// One death for each: the first time the worker gets there, or a later one.
    passes: &'static [u32],
    load: Load,
    /// Somebody joins, so that partitions have to be handed over.
    company: bool,
}

fn point(name: &'static str, passes: &'static [u32]) -> Point {
    Point {
        name,
        passes,
        load: Load {
            writers: 5,
            streams: 12,
            ..Load::plain()
        },
        company: false,
    }
}

/// G1 to G5, G11: three workers die at the point, the fourth finishes the work. Nothing is lost, the order holds, and
/// no death repeats more than what was in flight.
async fn workers_die_at(point: Point) -> Result<()> {
    let postroom = narrow(&format!("dies_{}", point.name.replace('-', "_")), |r| r).await?;
    let chance = Chance::new();
    let deaths = async {
        for passes in point.passes {
            die(&postroom, &point, *passes).await?;
        }
        bind_lost(&postroom).await?;
        let mut fleet = Fleet::new(&postroom, &[]);
        fleet.grow_to(1).await?;
        committed(&postroom, 50).await?;
        Ok(fleet)
    };
    let fleet = point.load.beside(&postroom, &chance, deaths).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    let expired = dead(&postroom, "Expired").await?;
    eprintln!("{verdict}; {} expired", expired.len());
    verdict
        .excuse(&expired)
        .require(point.passes.len() * 2 * WINDOW)?;
    ensure!(point.load.expired == 0 || !expired.is_empty());
    wait_nothing_left(&postroom).await?;
    fleet.require_nothing_swept().await
}

/// Starts a worker and waits until it has died at the point, not of anything else.
async fn die(postroom: &Postroom, point: &Point, passes: u32) -> Result<()> {
    let mut company = Fleet::new(postroom, &[]);
    let worker = mortal(postroom, point.name, passes)?;
    if point.company {
        worker.ready(PATIENCE).await?;
        holds_everything(&worker).await?;
        company.grow_to(1).await?;
    }
    has_died(&worker, point.name).await?;
    if point.company {
        company.retire(&Chance::new()).await?;
    }
    Ok(())
}

fn mortal(postroom: &Postroom, point: &str, passes: u32) -> Result<Worker> {
    postroom
        .launch("run")
        .env("POSTROOM_TEST_ABORT", format!("{point}:{passes}"))
        .start()
}

async fn has_died(worker: &Worker, point: &str) -> Result<()> {
    let status = worker.wait_exit(PATIENCE).await?;
    ensure!(
        status.signal() == Some(SIGABRT),
        "the worker did not die at '{point}' but ended with {status}"
    );
    Ok(())
}

/// Waits until the worker has everything, so that it must give something away when somebody joins.
async fn holds_everything(worker: &Worker) -> Result<()> {
    eventually("the worker holds all partitions", PATIENCE, || async {
        let held = worker.metric("postroom_leases", &[]).await;
        let held = held.map_err(|error| error.to_string())?;
        when(held == Some(64.0), || format!("{held:?}"))
    })
    .await
}

#[tokio::test]
async fn death_after_the_commit_of_a_claim_loses_and_reorders_nothing() -> Result<()> {
    workers_die_at(point("claimed", &[1, 2, 3])).await
}

#[tokio::test]
async fn death_during_a_renewal_loses_and_reorders_nothing() -> Result<()> {
    workers_die_at(point("renewing", &[1, 2, 3])).await
}

#[tokio::test]
async fn death_before_a_publish_loses_and_reorders_nothing() -> Result<()> {
    workers_die_at(point("publishing", &[1, 9, 60])).await
}

#[tokio::test]
async fn death_after_a_publish_and_before_its_confirm_loses_and_reorders_nothing() -> Result<()> {
    workers_die_at(point("published", &[1, 9, 60])).await
}

#[tokio::test]
async fn death_after_a_confirm_and_before_the_completion_loses_and_reorders_nothing() -> Result<()>
{
    workers_die_at(point("confirmed", &[1, 9, 60])).await
}

#[tokio::test]
async fn death_between_a_settle_and_its_reply_loses_and_reorders_nothing() -> Result<()> {
    workers_die_at(point("settled", &[1, 9, 60])).await
}

#[tokio::test]
async fn death_while_a_message_is_parked_loses_and_reorders_nothing() -> Result<()> {
    let mut line = point("parking", &[1, 4, 9]);
    line.load.lost = true;
    workers_die_at(line).await
}

#[tokio::test]
async fn death_while_a_message_is_buried_loses_and_reorders_nothing() -> Result<()> {
    let mut line = point("burying", &[1, 3, 5]);
    line.load.expired = 20;
    workers_die_at(line).await
}

#[tokio::test]
async fn death_while_partitions_are_handed_over_loses_and_reorders_nothing() -> Result<()> {
    let mut line = point("handing-over", &[1, 1, 1]);
    line.company = true;
    workers_die_at(line).await
}

/// The chores begin at a time by chance within the first minute; of four workers the first gets there soon.
#[tokio::test]
async fn death_during_upkeep_loses_and_reorders_nothing() -> Result<()> {
    let postroom = narrow("dies_upkeep", |resource| resource).await?;
    let chance = Chance::new();
    let load = Load {
        writers: 2,
        pause: Duration::from_millis(300),
        ..Load::plain()
    };
    let mortals: Vec<Worker> = (0..4)
        .map(|_| mortal(&postroom, "upkeep", 1))
        .collect::<Result<_>>()?;
    let deaths = async {
        let deaths = mortals
            .iter()
            .map(|worker| Box::pin(has_died(worker, "upkeep")));
        let (first, _, _) = futures::future::select_all(deaths).await;
        first?;
        committed(&postroom, 20).await
    };
    load.beside(&postroom, &chance, deaths).await?;
    let died = mortals
        .iter()
        .filter(|worker| matches!(worker.exited(), Ok(Some(_))))
        .count();
    drop(mortals);
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    ensure!(died >= 1, "nobody died");
    // The others were ended without ceremony.
    verdict.require(4 * 2 * WINDOW)?;
    wait_nothing_left(&postroom).await
}

/// The message that ends every process which touches it.
const POISON: &str = "poison";

/// A message that kills its worker is buried once it has done so often enough; the others go on, and not one of those
/// that were in flight beside it is buried with it. One worker after another is started, as a supervisor does.
#[tokio::test]
async fn a_message_that_kills_its_worker_is_buried_and_innocent_ones_are_not() -> Result<()> {
    let postroom = narrow("poison", |resource| {
        resource.with("outboxes.0.retry.maxAttempts", 2)
    })
    .await?;
    let mut session = postroom.connect().await?;
    let mut batch: Vec<Message<'_>> = vec![of("innocent"), of("poisoned")];
    batch.push(Message {
        kind: Some(POISON),
        ..of("poisoned")
    });
    batch.extend([of("poisoned"), of("innocent"), Message::default()]);
    let ids = commit(&postroom, &mut session, &batch).await?;
    for _ in 0..20 {
        commit(
            &postroom,
            &mut session,
            &[of("innocent"), Message::default()],
        )
        .await?;
    }
    postroom
        .vhost
        .bind(postroom_tests::setup::QUEUE, NARROW, POISON)
        .await?;
    let mut deaths = 0;
    let last = loop {
        let worker = postroom
            .launch("run")
            .env("POSTROOM_TEST_ABORT_TYPE", POISON)
            .start()?;
        let buried = async {
            while dead(&postroom, "WorkerVanished").await?.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            died = has_died(&worker, POISON) => died?,
            buried = tokio::time::timeout(PATIENCE, buried) => {
                buried.context("neither death nor burial")??;
                break worker;
            }
        }
        deaths += 1;
        ensure!(deaths < 8, "it still kills after {deaths} deaths");
    };
    let buried = dead(&postroom, "WorkerVanished").await?;
    ensure!(
        buried.iter().eq([&ids[2]]),
        "buried: {buried:?}, the poison is {}",
        ids[2]
    );
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict} after {deaths} deaths");
    // The first death is not put down to anybody: everything was in flight.
    ensure!((2..=3).contains(&deaths), "{deaths} deaths");
    verdict.excuse(&buried).require(deaths * WINDOW)?;
    wait_nothing_left(&postroom).await?;
    let attempts: Vec<i32> = sqlx::query_scalar(
        "select attempts from postroom.dead_letter where endpoint = $1 and type <> $2",
    )
    .bind(OUTBOX)
    .bind(GOOD)
    .fetch_all(&mut session)
    .await?;
    ensure!(attempts == [2], "{attempts:?}");
    drop(last);
    Ok(())
}
