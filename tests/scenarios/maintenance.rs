//! Upkeep: what is forgotten and when, what is never touched, and who has to wait for it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{Schema, claim_one, count, one, rows, run, until_waiting, write_one};

async fn turned(session: &mut PgConnection) -> Result<bool> {
    Ok(one::<i64>(
        session,
        "select rows from postroom.perform_maintenance() where task = 'deduplication_buckets'",
    )
    .await?
        == 1)
}

/// Lays the four buckets' times so many days back; the last one is current.
async fn opened(session: &mut PgConnection, days: [u32; 4]) -> Result<()> {
    for (bucket, days) in days.into_iter().enumerate() {
        run(session, &format!("update deduplication_bucket set opened_at = clock_timestamp() - interval '{days} days', current = {} where number = {bucket}", bucket == 3)).await?;
    }
    Ok(())
}

async fn is_known(session: &mut PgConnection, identity: &str) -> Result<bool> {
    run(session, "begin").await?;
    let receipt = write_one(session, &format!("enqueue('orders', 'a', 'x', {identity})")).await?;
    run(session, "rollback").await?;
    Ok(!receipt.is_new())
}

/// W-T2, W-T6, W-30, L-26, T-29: the youngest identity of the bucket is as old as its closing.
#[tokio::test]
async fn an_identity_of_29_days_is_recognised_and_one_of_31_days_is_forgotten() -> Result<()> {
    let schema = Schema::start("window").await?;
    let mut session = schema.connect().await?;
    let identities = ["key => 'old'", "message_id => 'old'"];
    for identity in identities {
        write_one(
            &mut session,
            &format!("enqueue('orders', 'a', 'x', {identity})"),
        )
        .await?;
    }
    opened(&mut session, [39, 29, 20, 11]).await?;
    ensure!(!turned(&mut session).await?, "29 days is within the window");
    for identity in identities {
        ensure!(is_known(&mut session, identity).await?, "{identity}");
    }
    opened(&mut session, [41, 31, 21, 11]).await?;
    write_one(
        &mut session,
        "enqueue('orders', 'a', 'x', key => 'younger')",
    )
    .await?;
    ensure!(turned(&mut session).await?);
    for identity in identities {
        ensure!(!is_known(&mut session, identity).await?, "{identity}");
    }
    ensure!(
        is_known(&mut session, "key => 'younger'").await?,
        "the other buckets are kept"
    );
    ensure!(
        !turned(&mut session).await?,
        "the new bucket has its third of the window before it"
    );
    Ok(())
}

/// G-09: four turns, one identity in each bucket; none is lost before its time.
#[tokio::test]
async fn the_ring_turns_every_third_of_the_window_and_older_buckets_are_still_read() -> Result<()> {
    let schema = Schema::start("ring").await?;
    let mut session = schema.connect().await?;
    for round in 0..9 {
        write_one(
            &mut session,
            &format!("enqueue('orders', 'a', 'x', key => 'K{round}')"),
        )
        .await?;
        ensure!(!turned(&mut session).await?, "not before its time");
        run(
            &mut session,
            "update deduplication_bucket set opened_at = opened_at - interval '9 days 23 hours'",
        )
        .await?;
        ensure!(!turned(&mut session).await?, "not before its time");
        run(
            &mut session,
            "update deduplication_bucket set opened_at = opened_at - interval '61 minutes'",
        )
        .await?;
        ensure!(turned(&mut session).await?, "round {round}");
        for written in 0..=round {
            let known = is_known(&mut session, &format!("key => 'K{written}'")).await?;
            ensure!(
                known == (round - written < 3),
                "key of round {written} after the turn of round {round}: {known}"
            );
        }
        ensure!(count(&mut session, "deduplication_bucket where current").await? == 1);
    }
    Ok(())
}

/// W-16, W-17, W-54: default, then the resource, then a person.
#[tokio::test]
async fn a_setting_of_a_person_wins_over_the_resource_which_wins_over_the_default() -> Result<()> {
    let schema = Schema::start("settings").await?;
    let mut session = schema.connect().await?;
    let effective = "select extract(epoch from retention('dedup_retention_days'))::bigint / 86400";
    write_one(&mut session, "enqueue('orders', 'a', 'x', key => 'old')").await?;
    opened(&mut session, [41, 31, 21, 11]).await?;
    run(
        &mut session,
        "update setting set value = '90' where key = 'dedup_retention_days'",
    )
    .await?;
    run(&mut session, "select register_retention(20, 5)").await?;
    ensure!(one::<i64>(&mut session, effective).await? == 90);
    ensure!(
        !turned(&mut session).await? && is_known(&mut session, "key => 'old'").await?,
        "90 days are in force"
    );
    run(&mut session, "update setting set value = null").await?;
    ensure!(one::<i64>(&mut session, effective).await? == 20);
    ensure!(
        turned(&mut session).await? && !is_known(&mut session, "key => 'old'").await?,
        "20 days are in force"
    );
    run(&mut session, "update setting set resource_value = null").await?;
    ensure!(one::<i64>(&mut session, effective).await? == 30);
    let refusal = crate::sql::refused(
        &mut session,
        "update setting set value = 'a while' where key = 'dedup_retention_days'",
    )
    .await?;
    ensure!(refusal.code == "23514", "{refusal:?}");
    Ok(())
}

/// F36: a writer that stays open puts the turn off; other writers pass meanwhile.
#[tokio::test]
async fn a_long_writer_puts_the_turn_off_and_nobody_waits_for_it() -> Result<()> {
    let schema = Schema::start("long_writer").await?;
    let (mut long, mut keeper, mut writer) = (
        schema.connect().await?,
        schema.connect().await?,
        schema.connect().await?,
    );
    opened(&mut keeper, [41, 31, 21, 11]).await?;
    run(
        &mut long,
        "begin; select postroom.enqueue('orders', 'a', 'x', key => 'long')",
    )
    .await?;
    let ((), slowest) = tokio::try_join!(
        async {
            for _ in 0..10 {
                ensure!(
                    !turned(&mut keeper).await?,
                    "the long writer would lose its memory"
                );
            }
            Ok(())
        },
        async {
            let mut slowest = Duration::ZERO;
            for number in 0..50 {
                let began = Instant::now();
                write_one(
                    &mut writer,
                    &format!("enqueue('orders', 'a', 'x', key => 'W{number}')"),
                )
                .await?;
                slowest = slowest.max(began.elapsed());
            }
            Ok(slowest)
        }
    )?;
    ensure!(
        slowest < Duration::from_secs(2),
        "a writer waited {slowest:?}, the turn may try for 40 ms"
    );
    run(&mut long, "commit").await?;
    ensure!(turned(&mut keeper).await?);
    ensure!(
        is_known(&mut keeper, "key => 'long'").await?
            && is_known(&mut keeper, "key => 'W49'").await?
    );
    Ok(())
}

/// Writers wait from the turn to the end of the pass, so nothing slow may come in between.
#[tokio::test]
async fn writers_do_not_wait_for_the_rest_of_a_pass() -> Result<()> {
    let schema = Schema::start("pass").await?;
    let (mut blocker, mut keeper, mut writer) = (
        schema.connect().await?,
        schema.connect().await?,
        schema.connect().await?,
    );
    opened(&mut writer, [41, 31, 21, 11]).await?;
    run(
        &mut blocker,
        "begin; lock table dead_letter in exclusive mode",
    )
    .await?;
    let pid: i32 = one(&mut keeper, "select pg_backend_pid()").await?;
    run(&mut writer, "set statement_timeout = '20 s'").await?;
    let (turned, ()) = tokio::try_join!(turned(&mut keeper), async {
        until_waiting(&mut blocker, pid).await?;
        ensure!(
            write_one(&mut writer, "enqueue('orders', 'a', 'x', key => 'K')")
                .await?
                .is_new()
        );
        run(&mut blocker, "commit").await
    })?;
    ensure!(turned, "the pass goes on and turns the ring");
    Ok(())
}

/// Dead letters are kept for their time, and go in batches.
#[tokio::test]
async fn dead_letters_go_after_their_retention_in_bounded_batches() -> Result<()> {
    let schema = Schema::start("letters").await?;
    let mut session = schema.connect().await?;
    let insert = "insert into dead_letter (endpoint, direction, partition, xact, id, message_id, tenant, type, content_type, payload, created_at, reason, attempts, buried_at) \
        select 'orders', 'Outbox', 0, '1', n, gen_random_uuid(), '', 'a', 'text/plain', 'x', now(), 'Expired', 0, clock_timestamp() - n * interval '1 day' from";
    run(&mut session, &format!("{insert} generate_series(26, 35) n")).await?;
    for (deleted, status, left) in [(3, "more", 7), (3, "more", 4), (0, "done", 4)] {
        let answer: Vec<(i64, String)> = rows(
            &mut session,
            "select rows, status from perform_maintenance(3) where task = 'dead_letters'",
        )
        .await?;
        ensure!(answer == [(deleted, status.to_owned())], "{answer:?}");
        ensure!(count(&mut session, "dead_letter").await? == left);
    }
    ensure!(
        one::<i64>(&mut session, "select max(id) from dead_letter").await? == 29,
        "the young ones stay"
    );
    Ok(())
}

/// Trap 8, unlike the system that deletes what nobody processed in a week.
#[tokio::test]
async fn a_message_that_is_not_settled_is_never_touched_however_old_it_is() -> Result<()> {
    let schema = Schema::start("untouched").await?;
    let mut session = schema.connect().await?;
    run(&mut session, "insert into outbox (endpoint, type, stream, payload, created_at, expires_at, available_at) values ('orders', 'a', 's', 'x', '2001-01-01', '2001-01-02', 'infinity'), ('loose', 'a', null, 'x', '2001-01-01', null, null)").await?;
    run(&mut session, "update setting set value = '0'").await?;
    let state = "select string_agg(t, ',') from (select row(o.*)::text || o.xmin as t from outbox o union all select row(d.*)::text || d.xmin from deferral d order by 1) s";
    let before: String = one(&mut session, state).await?;
    for _ in 0..6 {
        run(&mut session, "select perform_maintenance()").await?;
    }
    ensure!(one::<String>(&mut session, state).await? == before);
    Ok(())
}

/// W-75.
#[tokio::test]
async fn a_worker_that_is_long_gone_is_cleared_away_and_a_living_one_is_not() -> Result<()> {
    let schema = Schema::start("gone").await?;
    let mut session = schema.connect().await?;
    let (gone, late, living) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
    for (worker, endpoint) in [(gone, "orders"), (late, "loose"), (living, "whole")] {
        claim_one(&mut session, worker, "1 hour", endpoint).await?;
    }
    run(&mut session, &format!("update worker set lease_until = clock_timestamp() - interval '11 minutes' where id = '{gone}'; update worker set lease_until = clock_timestamp() - interval '9 minutes' where id = '{late}'")).await?;
    let cleared = "select rows from perform_maintenance() where task = 'dead_workers'";
    ensure!(
        one::<i64>(&mut session, cleared).await? == 1
            && one::<i64>(&mut session, cleared).await? == 0
    );
    let left: Vec<(Uuid,)> = rows(&mut session, "select id from worker order by id").await?;
    ensure!(left == [(late,), (living,)], "{left:?}");
    let free: Vec<(String, i64)> = rows(
        &mut session,
        "select endpoint, count(*) from lease where owner is null group by 1",
    )
    .await?;
    ensure!(free == [("orders".to_owned(), 64)], "{free:?}");
    ensure!(
        count(&mut session, "lease where suspect").await? == 64,
        "as after a crash"
    );
    Ok(())
}

/// F36: one cleaner at a time.
#[tokio::test]
async fn a_second_pass_at_the_same_time_does_nothing_and_says_so() -> Result<()> {
    let schema = Schema::start("one_pass").await?;
    let (mut first, mut second) = (schema.connect().await?, schema.connect().await?);
    run(
        &mut first,
        "begin; select * from postroom.perform_maintenance()",
    )
    .await?;
    let answer: Vec<(String, i64, String)> = rows(
        &mut second,
        "select task, rows, status from perform_maintenance()",
    )
    .await?;
    ensure!(
        answer == [("all".to_owned(), 0, "another pass is running".to_owned())],
        "{answer:?}"
    );
    run(&mut first, "commit").await?;
    let answer: Vec<(String, String)> = rows(
        &mut second,
        "select task, status from perform_maintenance()",
    )
    .await?;
    ensure!(
        answer.len() == 4 && answer.iter().all(|(_, status)| status == "done"),
        "{answer:?}"
    );
    Ok(())
}
