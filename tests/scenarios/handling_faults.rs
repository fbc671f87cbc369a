//! SQL handlers at the worst moment: workers that die, stall or are stopped, and a broken one that must be found out.

use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::worker::Worker;
use uuid::Uuid;

use crate::ground::PATIENCE;
use crate::handling_ground::{
    Handling, accept, all_settled, effects, message, numbered, require_once_and_in_order,
};
use crate::sql::{count, one, rows, until};

const MESSAGES: usize = 400;

/// A worker that dies the nth time it gets to a point.
fn mortal(handling: &Handling, point: &str, passes: u32) -> Result<Worker> {
    let launch = handling.launch("run");
    launch
        .env("POSTROOM_TEST_ABORT", format!("{point}:{passes}"))
        .start()
}

/// Three workers die at the point, the fourth finishes: each message has one effect, in the order of its stream.
async fn workers_die_at(point: &str) -> Result<()> {
    let handling = Handling::start(&format!("handler_{}", point.replace('-', "_")), |inbox| {
        inbox
    })
    .await?;
    let mut session = handling.connect().await?;
    let mut ids = Vec::new();
    for (round, passes) in [1, 2, 3].into_iter().enumerate() {
        let numbers = round * MESSAGES..(round + 1) * MESSAGES;
        ids.extend(accept(&mut session, &numbered("plain", numbers, 12)).await?);
        mortal(&handling, point, passes)?
            .wait_exit(PATIENCE)
            .await?;
    }
    let _last = handling.worker().await?;
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await
}

#[tokio::test]
async fn death_before_the_handler_gives_every_message_one_effect() -> Result<()> {
    workers_die_at("handling").await
}

#[tokio::test]
async fn death_after_the_commit_of_the_handler_gives_every_message_one_effect() -> Result<()> {
    workers_die_at("handled").await
}

/// R1, in the handler: the process is gone while the effect is half done.
#[tokio::test]
async fn death_in_the_middle_of_a_handler_leaves_no_half_effect() -> Result<()> {
    let handling = Handling::start("half", |inbox| {
        inbox.with("handler.sqlFunction.concurrency", 1)
    })
    .await?;
    let mut session = handling.connect().await?;
    let mut messages = numbered("plain", 0..5, 5);
    messages.push(message("slow", Some("s9"), 4));
    let ids = accept(&mut session, &messages).await?;
    let first = handling.worker().await?;
    let sleeps = "exists (select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep')";
    until(&mut session, &format!("select {sleeps}")).await?;
    first.kill_9().await?;
    let _second = handling.worker().await?;
    all_settled(&mut session).await?;
    let found = effects(&mut session).await?;
    ensure!(
        found.len() == ids.len() && found.values().all(|times| *times == 1),
        "{found:?}"
    );
    Ok(())
}

/// F07, F08: a handler longer than the lease. While it runs, nobody takes its partition; a worker that stalls past its lease loses
/// everything but the transaction that is under way, and no effect comes twice.
#[tokio::test]
async fn a_handler_longer_than_its_lease_has_one_effect() -> Result<()> {
    let handling = Handling::start("longer", |inbox| {
        inbox.with("handler.sqlFunction.timeoutSeconds", 20)
    })
    .await?;
    let mut session = handling.connect().await?;
    let mut ids = accept(&mut session, &[message("slow", Some("a"), 12)]).await?;
    ids.extend(accept(&mut session, &[message("plain", Some("a"), 13)]).await?);
    let first = handling.worker().await?;
    let sleeps = "exists (select from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep')";
    until(&mut session, &format!("select {sleeps}")).await?;
    first.sigstop()?;
    let second = handling.worker().await?;
    until(&mut session, "select count(distinct owner) = 2 or (select count(*) from postroom.lease where partition >= 0 and endpoint = 'payments' and owner is not null) >= 63 from postroom.lease where endpoint = 'payments'").await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let running = count(
        &mut session,
        "pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'",
    )
    .await?;
    ensure!(running <= 1, "{running} sessions run the same handler");
    first.sigcont()?;
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await?;
    drop(second);
    Ok(())
}

/// A message that kills its process every time is found, and buried at the limit; the others are handled.
#[tokio::test]
async fn a_message_that_kills_the_worker_is_buried_in_the_end() -> Result<()> {
    let handling = Handling::start("poison", |inbox| inbox.with("retry.maxAttempts", 2)).await?;
    let mut session = handling.connect().await?;
    let mut messages = numbered("plain", 0..30, 6);
    messages.push(message("poison", Some("s1"), 30));
    messages.extend(numbered("plain", 31..60, 6));
    let mut ids = accept(&mut session, &messages).await?;
    let poison = ids.remove(30);
    let mut deaths = 0;
    while count(&mut session, "postroom.dead_letter").await? == 0 {
        deaths += 1;
        ensure!(deaths <= 12, "the message was not found in {deaths} deaths");
        let worker = handling
            .launch("run")
            .env("POSTROOM_TEST_ABORT_TYPE", "poison")
            .start()?;
        let buried = until(
            &mut session,
            "select exists (select from postroom.dead_letter)",
        );
        tokio::select! {
            buried = buried => buried?,
            died = worker.wait_exit(PATIENCE) => drop(died?),
        }
    }
    let _last = handling.worker().await?;
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await?;
    let dead: Vec<(Uuid, String)> = rows(
        &mut session,
        "select message_id, reason from postroom.dead_letter",
    )
    .await?;
    ensure!(
        dead == [(poison, "WorkerVanished".to_owned())],
        "{dead:?} after {deaths} deaths"
    );
    Ok(())
}

/// F28: on SIGTERM nothing new begins, what runs is finished, the rest is free at once.
#[tokio::test]
async fn a_stopped_worker_finishes_what_runs_and_begins_nothing_new() -> Result<()> {
    let handling = Handling::start("stopped", |inbox| {
        inbox
            .with("handler.sqlFunction.concurrency", 4)
            .with("handler.sqlFunction.batchSize", 1)
    })
    .await?;
    let mut session = handling.connect().await?;
    let messages: Vec<_> = (0..16)
        .map(|n| message("slow", Some(&format!("s{n}")), 3))
        .collect();
    let ids = accept(&mut session, &messages).await?;
    let first = handling.worker().await?;
    let sleeping = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";
    until(&mut session, &format!("select ({sleeping}) >= 2")).await?;
    let run_now: i64 = one(&mut session, sleeping).await?;
    first.sigterm()?;
    let status = first.wait_exit(Duration::from_secs(15)).await?;
    ensure!(status.success(), "{status}");
    let handled = count(&mut session, "app.effect").await?;
    ensure!(
        handled <= run_now + 2,
        "{run_now} ran at the signal, {handled} were handled"
    );
    let _second = handling.worker().await?;
    until(&mut session, &format!("select ({sleeping}) >= 2")).await?;
    all_settled(&mut session).await?;
    let found = effects(&mut session).await?;
    ensure!(
        found.len() == ids.len() && found.values().all(|times| *times == 1),
        "{found:?}"
    );
    Ok(())
}

/// The database is killed while handlers run.
#[tokio::test]
async fn a_killed_database_repeats_no_effect() -> Result<()> {
    let server = PostgresServer::start(PostgresOptions::default()).await?;
    let handling = Handling::start_on(&server, "killed", |inbox| inbox).await?;
    let mut session = handling.connect().await?;
    let ids = accept(&mut session, &numbered("plain", 0..3_000, 30)).await?;
    let _worker = handling.worker().await?;
    until(&mut session, "select count(*) > 300 from app.effect").await?;
    drop(session);
    server.kill_9().await?;
    server.start_again().await?;
    let mut session = handling.connect().await?;
    all_settled(&mut session).await?;
    require_once_and_in_order(&mut session, &ids).await
}

/// Red control: with effect and completion in two transactions, a death between them gives a second effect, and is seen.
#[tokio::test]
async fn a_handler_whose_effect_and_completion_are_two_transactions_is_caught() -> Result<()> {
    let handling = Handling::start("two_commits", |inbox| inbox).await?;
    let mut session = handling.connect().await?;
    let ids = accept(&mut session, &numbered("plain", 0..50, 50)).await?;
    let broken = handling
        .launch("run")
        .env("POSTROOM_TEST_BREAK", "two-commits");
    broken
        .env("POSTROOM_TEST_ABORT", "effect:1")
        .start()?
        .wait_exit(PATIENCE)
        .await?;
    let _good = handling.worker().await?;
    all_settled(&mut session).await?;
    let verdict = require_once_and_in_order(&mut session, &ids).await;
    ensure!(verdict.is_err(), "effects came twice and nobody noticed");
    Ok(())
}
