//! Relays that are broken on purpose: the scenarios must find each of them out, else they prove nothing.
//!
//! Where chance has a part in it, a few rounds are allowed; never being caught is a failure.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use postroom_tests::broker::RabbitServer;
use postroom_tests::proxy::{Flow, TcpProxy};
use postroom_tests::setup::Postroom;
use postroom_tests::verdict::Verdict;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _};
use uuid::Uuid;

use crate::ground::{PATIENCE, small, wait_nothing_left};
use crate::late_commits::{NO_SWEEP, narrow_fetches, passed_before_a_hand_over};
use crate::leases::old_epochs;
use crate::order::{busy_without_faults, failing_head};
use crate::workers::Fleet;
use crate::workload::{Chance, Load, commit, of};

/// How often a broken variant may get away with it before it must be caught.
const ROUNDS: usize = 5;

/// The verdict must not be clean, however many repeats are allowed.
fn is_caught(verdict: &Verdict) -> bool {
    eprintln!("{verdict}");
    verdict.require(usize::MAX).is_err()
}

/// Late commits, one worker with small fetches, no faults: round after round until something is lost or out of order.
async fn late_commits_catch(variant: &str) -> Result<()> {
    let postroom = Postroom::start("red_late", narrow_fetches).await?;
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[NO_SWEEP, ("POSTROOM_TEST_BREAK", variant)]);
    fleet.grow_to(1).await?;
    let load = Load {
        open: Duration::from_millis(500),
        ..Load::rough()
    };
    for _ in 0..ROUNDS {
        load.write(1_000, &postroom, &chance).await?;
        if is_caught(&postroom.verdict(Duration::from_secs(3)).await?) {
            return Ok(());
        }
    }
    bail!("'{variant}' was never caught")
}

/// A reader that goes by its cursor alone.
#[tokio::test]
async fn a_reader_that_remembers_no_running_transactions_is_caught() -> Result<()> {
    late_commits_catch("cursor").await
}

/// A reader that uses one set of running transactions for two snapshots.
#[tokio::test]
async fn a_reader_that_shares_running_transactions_between_two_fetches_is_caught() -> Result<()> {
    late_commits_catch("split").await
}

/// A low mark that ignores running transactions.
#[tokio::test]
async fn a_low_mark_above_an_open_transaction_is_caught() -> Result<()> {
    let verdict = passed_before_a_hand_over("forgetful").await?;
    ensure!(
        is_caught(&verdict) && verdict.missing.len() == 1,
        "{verdict}"
    );
    Ok(())
}

/// The next of a stream goes before the one before it is confirmed.
#[tokio::test]
async fn a_stream_that_does_not_wait_for_its_confirms_is_caught() -> Result<()> {
    let verdict = failing_head("pipelined", async |_, _, _| Ok(())).await?;
    ensure!(
        is_caught(&verdict) && !verdict.out_of_order.is_empty(),
        "{verdict}"
    );
    Ok(())
}

/// A returned message counts as published.
#[tokio::test]
async fn a_relay_that_ignores_returns_is_caught() -> Result<()> {
    let verdict = failing_head("ignore-returns", async |postroom, _, _| {
        postroom.receiver.wait_for(610, PATIENCE).await.map(drop)
    })
    .await?;
    ensure!(
        is_caught(&verdict) && verdict.missing.len() == 1,
        "{verdict}"
    );
    Ok(())
}

/// An id that leaves the in-flight set too early: repeats although nothing failed.
#[tokio::test]
async fn a_relay_that_forgets_too_early_what_is_in_flight_is_caught() -> Result<()> {
    for _ in 0..ROUNDS {
        let verdict = busy_without_faults("forget-early", 1_000).await?;
        eprintln!("{verdict}");
        if verdict.require(0).is_err() {
            return Ok(());
        }
    }
    bail!("'forget-early' was never caught")
}

/// The broker vanishes into a black hole, messages are written, the worker dies, another one works without the hole.
async fn broker_lost_and_worker_killed(variant: &str) -> Result<Verdict> {
    let rabbit = RabbitServer::shared().await?;
    let postroom = Postroom::start("black_hole", small).await?;
    let proxy = TcpProxy::start(rabbit.port()).await?;
    let through = postroom.vhost.amqp_url_at(proxy.port());
    let broken = ("POSTROOM_TEST_BREAK", variant);
    let mut fleet = Fleet::new(&postroom, &[broken, ("AMQP_URL", &through)]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    commit(&postroom, &mut session, &[of("before")]).await?;
    postroom.drained(PATIENCE).await?;
    proxy.black_hole();
    for number in 0..10 {
        let stream = format!("s {number}");
        commit(&postroom, &mut session, &[of(&stream)]).await?;
    }
    // Long enough for a worker that settles before the confirm to have settled everything.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    fleet.kill(&Chance::new()).await?;
    let mut fleet = Fleet::new(&postroom, &[broken]);
    fleet.grow_to(1).await?;
    postroom.verdict(Duration::from_secs(10)).await
}

#[tokio::test]
async fn what_the_broker_has_not_confirmed_survives_the_death_of_the_worker() -> Result<()> {
    broker_lost_and_worker_killed("nothing").await?.require(0)
}

/// A row that goes before its confirm.
#[tokio::test]
async fn a_relay_that_settles_before_the_confirm_is_caught() -> Result<()> {
    let verdict = broker_lost_and_worker_killed("early-settle").await?;
    ensure!(
        is_caught(&verdict) && verdict.missing.len() == 10,
        "{verdict}"
    );
    Ok(())
}

/// While a message waits for its confirm, its key is given to another one, as a crash with asynchronous commits does it.
async fn key_given_out_again(variant: &str) -> Result<Verdict> {
    let rabbit = RabbitServer::shared().await?;
    let postroom = Postroom::start("same_key", small).await?;
    let proxy = TcpProxy::start(rabbit.port()).await?;
    let through = postroom.vhost.amqp_url_at(proxy.port());
    let broken = ("POSTROOM_TEST_BREAK", variant);
    let mut fleet = Fleet::new(&postroom, &[broken, NO_SWEEP, ("AMQP_URL", &through)]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    commit(&postroom, &mut session, &[of("before")]).await?;
    postroom.drained(PATIENCE).await?;
    // Confirms are held up; the message itself gets through.
    proxy.set(Flow::Pass, Flow::Stall);
    let first = commit(&postroom, &mut session, &[of("s")]).await?[0];
    postroom.receiver.wait_for(2, PATIENCE).await?;
    give_key_to_another(&postroom, &mut session, first).await?;
    proxy.pass();
    // The completion of the first message is there when the next one of the same stream has arrived.
    let next = commit(&postroom, &mut session, &[of("s")]).await?[0];
    arrived(&postroom, next).await?;
    // To the worker the server has crashed: it forgets all numbers and reads again what is there.
    session
        .execute("update postroom.incarnation set id = gen_random_uuid()")
        .await?;
    let patience = if variant == "nothing" {
        PATIENCE
    } else {
        Duration::from_secs(5)
    };
    postroom.verdict(patience).await
}

async fn arrived(postroom: &Postroom, id: Uuid) -> Result<()> {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !postroom
        .receiver
        .received()
        .iter()
        .any(|received| received.id() == Some(id))
    {
        ensure!(tokio::time::Instant::now() < end, "{id} has not arrived");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The row gets another message id, and a body to match: to the relay another message with the same key.
async fn give_key_to_another(
    postroom: &Postroom,
    session: &mut PgConnection,
    first: Uuid,
) -> Result<()> {
    let (other, body) = (Uuid::new_v4(), "\"another\"");
    let mut draft = postroom.ledger.begin();
    let changed = sqlx::query(
        "update postroom.outbox set message_id = $2, payload = $3 where message_id = $1",
    )
    .bind(first)
    .bind(other)
    .bind(body)
    .execute(&mut *session)
    .await?;
    ensure!(changed.rows_affected() == 1, "the row is gone already");
    draft.wrote(None, other, body.as_bytes());
    draft.end(postroom_tests::ledger::Outcome::Committed);
    Ok(())
}

/// Every settle names the message id as well as the key.
#[tokio::test]
async fn a_late_completion_does_not_delete_another_message_with_the_same_key() -> Result<()> {
    key_given_out_again("nothing").await?.require(0)
}

/// A settle by key alone.
#[tokio::test]
async fn a_settle_without_the_message_id_is_caught() -> Result<()> {
    let verdict = key_given_out_again("anonymous-settle").await?;
    ensure!(
        is_caught(&verdict) && verdict.missing.len() == 1,
        "{verdict}"
    );
    Ok(())
}

/// Replaces a part of a function by another text; the part must be there.
async fn break_function(
    session: &mut PgConnection,
    function: &str,
    part: &str,
    instead: &str,
) -> Result<()> {
    let text: String = sqlx::query_scalar("select pg_get_functiondef($1::regproc)")
        .bind(function)
        .fetch_one(&mut *session)
        .await?;
    ensure!(text.contains(part), "{function} has no '{part}':\n{text}");
    session
        .execute(AssertSqlSafe(text.replacen(part, instead, 1)))
        .await?;
    Ok(())
}

/// A lease that is renewed after it has run out: tokens from before would go on working.
#[tokio::test]
async fn a_renewal_of_an_expired_lease_is_caught() -> Result<()> {
    let noticed = old_epochs(async |session| {
        let part = "where w.id = me and w.lease_until > clock_timestamp()";
        break_function(session, "postroom.claim_work", part, "where w.id = me").await
    })
    .await;
    let error = noticed.expect_err("an old token still works");
    ensure!(
        error.to_string().contains("the epoch has not grown"),
        "{error:#}"
    );
    Ok(())
}

/// Returns when a session waits for a lock.
async fn is_blocked(postroom: &Postroom, pid: i32) -> Result<()> {
    let mut session = postroom.connect().await?;
    while !sqlx::query_scalar("select cardinality(pg_blocking_pids($1)) > 0")
        .bind(pid)
        .fetch_one(&mut session)
        .await?
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// One worker defers a message while another one completes it; returns the deferrals that have outlived their message.
async fn defer_beside_a_completion(broken: bool) -> Result<i64> {
    let postroom = Postroom::start("defer", small).await?;
    let (mut completing, mut deferring) = (postroom.connect().await?, postroom.connect().await?);
    if broken {
        break_function(
            &mut deferring,
            "postroom.defer_messages",
            "for update of o",
            "",
        )
        .await?;
    }
    commit(&postroom, &mut deferring, &[of("s")]).await?;
    let worker = Uuid::new_v4();
    sqlx::query(
        "select from postroom.claim_work($1, 'test', '0', interval '1 minute', array['orders'])",
    )
    .bind(worker)
    .execute(&mut deferring)
    .await?;
    completing.execute("begin").await?;
    let complete = "select deleted from postroom.outbox o join postroom.lease l using (endpoint, partition) cross join lateral \
         postroom.complete_outbox_published($1, 'orders', array[o.partition], array[l.epoch], array[o.xact], array[o.id], array[o.message_id])";
    let deleted: i64 = sqlx::query_scalar(complete)
        .bind(worker)
        .fetch_one(&mut completing)
        .await?;
    ensure!(deleted == 1);
    let defer = "select deferred from postroom.outbox o join postroom.lease l using (endpoint, partition) cross join lateral \
         postroom.defer_messages($1, 'orders', array[o.partition], array[l.epoch], array[o.xact], array[o.id], array[o.message_id], \
         array[interval '0'], array[true], array[true], array['Test'], array['test'])";
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut deferring)
        .await?;
    {
        let deferred = sqlx::query_scalar::<_, i64>(defer)
            .bind(worker)
            .fetch_optional(&mut deferring);
        let mut deferred = std::pin::pin!(tokio::time::timeout(PATIENCE, deferred));
        let waits = tokio::select! {
            deferred = &mut deferred => deferred.context("the deferral hangs")?.map(|_| false)?,
            blocked = is_blocked(&postroom, pid) => blocked.map(|()| true)?,
        };
        ensure!(
            waits != broken,
            "with the lock it waits for the completion, without it does not"
        );
        completing.execute("commit").await?;
        if waits {
            deferred.await.context("the deferral hangs")??;
        }
    }
    let orphans = "select count(*) from postroom.deferral d where not exists (select from postroom.outbox o \
         where (o.endpoint, o.partition, o.xact, o.id) = (d.endpoint, d.partition, d.xact, d.id))";
    let orphans = sqlx::query_scalar(orphans)
        .fetch_one(&mut deferring)
        .await?;
    if !broken {
        wait_nothing_left(&postroom).await?;
    }
    Ok(orphans)
}

/// A deferral that outlives its message would block its stream.
#[tokio::test]
async fn a_deferral_never_outlives_a_message_that_is_completed_at_the_same_time() -> Result<()> {
    ensure!(defer_beside_a_completion(false).await? == 0);
    Ok(())
}

#[tokio::test]
async fn a_deferral_without_the_lock_on_its_message_is_caught() -> Result<()> {
    ensure!(defer_beside_a_completion(true).await? == 1);
    Ok(())
}
