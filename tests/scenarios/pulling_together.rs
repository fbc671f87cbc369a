//! Several takers of one inbox at once, some of which die.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use sqlx::postgres::PgConnection;

use crate::inboxes::{Taken, accept, command, complete, fail, start, take};
use crate::sql::{PATIENCE, Schema, count, one, run};

const MESSAGES: usize = 2_000;
const STREAMS: usize = 40;
const TAKERS: usize = 8;

/// Takes a few, writes their effects, completes them; some are failed, and some of it is rolled back.
async fn pass(session: &mut PgConnection, number: usize) -> sqlx::Result<usize> {
    sqlx::query("begin").execute(&mut *session).await?;
    let taken = take(session, "'endless', 5").await?;
    let (bad, good): (Vec<Taken>, Vec<Taken>) = taken
        .into_iter()
        .partition(|one| one.attempts == 0 && one.number() % 17 == 0);
    for one in &good {
        sqlx::query("insert into public.effect (message_id, stream, number) values ($1, $2, $3)")
            .bind(one.message_id)
            .bind(&one.stream)
            .bind(one.number())
            .execute(&mut *session)
            .await?;
    }
    for one in &bad {
        fail(session, "endless", &one.ticket, Some("0")).await?;
    }
    let done = complete(session, "endless", &good).await?;
    let end = if number % 5 == 4 {
        "rollback"
    } else {
        "commit"
    };
    sqlx::query(end).execute(&mut *session).await?;
    if usize::try_from(done).ok() == Some(good.len()) {
        Ok(good.len() + bad.len())
    } else {
        Err(sqlx::Error::RowNotFound)
    }
}

/// Works until nothing is left; a session that is ended is replaced.
async fn taker(schema: &Schema, ended: &AtomicUsize) -> Result<()> {
    let end = Instant::now() + PATIENCE * 3;
    let mut session = schema.connect().await?;
    for number in 0.. {
        ensure!(Instant::now() < end, "not done in time");
        match pass(&mut session, number).await {
            Ok(0) => {
                if count(&mut session, "inbox").await.unwrap_or(1) == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(_) => {}
            Err(sqlx::Error::RowNotFound) => anyhow::bail!("somebody else settled what was taken"),
            Err(_) => {
                ended.fetch_add(1, Ordering::Relaxed);
                session = schema.connect().await?;
            }
        }
    }
    Ok(())
}

/// Ends a session that has a transaction open, again and again, while messages are left.
async fn killer(schema: &Schema) -> Result<()> {
    let mut session = schema.connect().await?;
    let kill = "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() \
        and backend_type = 'client backend' and backend_xid is not null order by random() limit 1) s";
    while count(&mut session, "inbox").await? > 0 {
        one::<i64>(&mut session, kill).await?;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    Ok(())
}

/// T-24, W-45: each message has one effect, in the order of its stream, whoever takes it and whatever dies.
#[tokio::test]
async fn eight_takers_share_without_overlap_and_in_order_though_sessions_die() -> Result<()> {
    let schema = start("takers").await?;
    let mut session = schema.connect().await?;
    run(&mut session, "create table public.effect (at bigint generated always as identity, message_id uuid, stream text, number bigint)").await?;
    let commands: Vec<Value> = (0..MESSAGES)
        .map(|n| match n % (STREAMS + 1) {
            STREAMS => command(None, n),
            stream => command(Some(&format!("s{stream}")), n),
        })
        .collect();
    for part in commands.chunks(200) {
        accept(&mut session, "endless", part).await?;
    }
    let ended = AtomicUsize::new(0);
    let takers = async {
        let mut all = Vec::new();
        for _ in 0..TAKERS {
            all.push(taker(&schema, &ended));
        }
        futures::future::try_join_all(all).await
    };
    tokio::try_join!(takers, killer(&schema))?;
    ensure!(
        ended.load(Ordering::Relaxed) > 3,
        "sessions died in the middle of it: {ended:?}"
    );
    let effects = count(&mut session, "public.effect").await?;
    let distinct = count(
        &mut session,
        "(select distinct message_id from public.effect) e",
    )
    .await?;
    ensure!(
        (effects, distinct) == (i64::try_from(MESSAGES)?, i64::try_from(MESSAGES)?),
        "{effects} effects of {distinct} messages"
    );
    let disorder = count(&mut session, "(select number < lag(number) over (partition by stream order by at) as wrong from public.effect where stream is not null) e where wrong").await?;
    ensure!(disorder == 0, "{disorder} out of order");
    ensure!(
        count(&mut session, "deferral").await? + count(&mut session, "dead_letter").await? == 0
    );
    Ok(())
}

/// While one application holds what it took, another gets other streams, and nothing of a stream that is held.
#[tokio::test]
async fn what_one_application_holds_nobody_else_gets() -> Result<()> {
    let schema = start("held").await?;
    let (mut first, mut second) = (schema.connect().await?, schema.connect().await?);
    let commands: Vec<Value> = (0..100)
        .map(|n| command(Some(&format!("s{}", n % 50)), n))
        .collect();
    accept(&mut first, "tasks", &commands).await?;
    run(&mut first, "begin").await?;
    run(&mut second, "begin").await?;
    let held = take(&mut first, "'tasks', 5").await?;
    let mut got: Vec<Taken> = Vec::new();
    loop {
        let more = take(&mut second, "'tasks', 100").await?;
        if more.is_empty() {
            break;
        }
        complete(&mut second, "tasks", &more).await?;
        got.extend(more);
    }
    ensure!(
        held.len() == 5 && got.len() >= 50,
        "{} {}",
        held.len(),
        got.len()
    );
    let overlap: Vec<_> = got
        .iter()
        .filter(|one| held.iter().any(|other| other.stream == one.stream))
        .collect();
    ensure!(overlap.is_empty(), "{overlap:?}");
    run(&mut first, "rollback").await?;
    run(&mut second, "commit").await?;
    ensure!(
        take(&mut first, "'tasks', 100").await?.len() >= 5,
        "they are there again"
    );
    Ok(())
}

/// A failure recorded after a rollback waits for whoever has the message now, and changes nothing once it is settled.
#[tokio::test]
async fn a_failure_that_is_reported_late_meets_the_next_taker_without_a_dead_lock() -> Result<()> {
    let schema = start("late_failure").await?;
    let (mut first, mut second, mut observer) = (
        schema.connect().await?,
        schema.connect().await?,
        schema.connect().await?,
    );
    accept(&mut first, "tasks", &[command(Some("s"), 0)]).await?;
    run(&mut first, "begin").await?;
    let ticket = take(&mut first, "'tasks'").await?.remove(0).ticket;
    run(&mut first, "rollback").await?;
    run(&mut second, "begin").await?;
    let taken = take(&mut second, "'tasks'").await?;
    let pid: i32 = one(&mut first, "select pg_backend_pid()").await?;
    let (answer, ()) = tokio::try_join!(
        async { Ok(fail(&mut first, "tasks", &ticket, None).await?) },
        async {
            crate::sql::until_waiting(&mut observer, pid).await?;
            ensure!(complete(&mut second, "tasks", &taken).await? == 1);
            run(&mut second, "commit").await
        }
    )?;
    ensure!(answer == "Gone", "{answer}");
    ensure!(count(&mut observer, "deferral").await? == 0);
    Ok(())
}
