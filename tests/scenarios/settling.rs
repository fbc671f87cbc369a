//! Recording outcomes: each once, under the right epoch, and never for another message.

use anyhow::{Context as _, Result, ensure};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{
    Holding, Key, Schema, array, arrays, claim_one, count, keys, one, rows, run, until_waiting,
    write_one,
};

const LONG: &str = "1 hour";

/// What `complete_outbox_published` answers: deleted, lost, freed partitions and their counters.
pub(crate) type Completed = (i64, Vec<i16>, Vec<i16>, Vec<i64>);

fn complete(worker: Uuid, keys: &[Key], epoch: impl Fn(i16) -> i64) -> String {
    format!(
        "select deleted, lost_partitions, freed_partitions, freed_removals from postroom.complete_outbox_published('{worker}', 'orders', {})",
        arrays(keys, epoch)
    )
}

pub(crate) fn defer(
    worker: Uuid,
    keys: &[Key],
    epoch: impl Fn(i16) -> i64,
    delay: &str,
    blocking: bool,
) -> String {
    let same = |kind: &str, value: &str| array(kind, keys.iter().map(|_| value));
    format!(
        "select deferred, lost_partitions from postroom.defer_messages('{worker}', 'orders', {}, {}, {}, {}, {}, {})",
        arrays(keys, epoch),
        same("interval", delay),
        same("boolean", "true"),
        same("boolean", &blocking.to_string()),
        same("text", "Unroutable"),
        same("text", "no_binding"),
    )
}

pub(crate) fn bury(worker: Uuid, keys: &[Key], epoch: impl Fn(i16) -> i64) -> String {
    let same = |value: &str| array("text", keys.iter().map(|_| value));
    format!(
        "select buried, lost_partitions, freed_partitions, freed_removals from postroom.bury_messages('{worker}', 'orders', {}, {}, {}, {})",
        arrays(keys, epoch),
        array("boolean", keys.iter().map(|_| "true")),
        same("Unroutable"),
        same("gone"),
    )
}

pub(crate) async fn settle<T>(session: &mut PgConnection, sql: &str) -> Result<T>
where
    T: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
{
    rows(session, sql).await?.pop().context("one row")
}

/// A schema, a session, a worker that holds everything of `orders`, and its holding.
pub(crate) async fn with_worker(test: &str) -> Result<(Schema, PgConnection, Uuid, Holding)> {
    let schema = Schema::start(test).await?;
    let mut session = schema.connect().await?;
    let worker = Uuid::from_u128(1);
    let held = claim_one(&mut session, worker, LONG, "orders").await?;
    Ok((schema, session, worker, held))
}

/// As if a new owner had taken everything.
async fn next_epoch(session: &mut PgConnection) -> Result<()> {
    run(
        session,
        "update lease set epoch = epoch + 1, owner = gen_random_uuid()",
    )
    .await
}

/// W-28, W-29, W-T3, L-29, trap 4.
#[tokio::test]
async fn a_completion_deletes_each_message_once_and_unknown_ones_are_no_mistake() -> Result<()> {
    let (_schema, mut session, worker, held) = with_worker("complete").await?;
    run(&mut session, "insert into outbox (endpoint, type, stream, payload) select 'orders', 'a', 's' || n % 7, 'x' from generate_series(1, 100) n").await?;
    let all = keys(&mut session, "orders").await?;
    let half = complete(worker, &all[..50], |p| held.epoch(p));
    for deleted in [50, 0] {
        let answer: Completed = settle(&mut session, &half).await?;
        ensure!(answer == (deleted, vec![], vec![], vec![]), "{answer:?}");
        ensure!(
            keys(&mut session, "orders").await? == all[50..],
            "the others are untouched"
        );
    }
    let answer: Completed =
        settle(&mut session, &complete(worker, &all, |p| held.epoch(p))).await?;
    ensure!(answer.0 == 50, "the known ones of a mixture: {answer:?}");
    ensure!(count(&mut session, "outbox").await? + count(&mut session, "dead_letter").await? == 0);
    let answer: Completed = settle(&mut session, &complete(worker, &[], |_| 0)).await?;
    ensure!(answer.0 == 0, "an empty list is no mistake: {answer:?}");
    Ok(())
}

/// Every part of the name counts: a settle that differs in one of them is about another message.
#[tokio::test]
async fn a_settle_touches_only_the_very_message_that_it_names() -> Result<()> {
    let (_schema, mut session, worker, held) = with_worker("named").await?;
    let receipt = write_one(&mut session, "enqueue('orders', 'a', 'x', stream => 's')").await?;
    let right = keys(&mut session, "orders")
        .await?
        .pop()
        .context("it is there")?;
    let wrong = [
        Key {
            message_id: Uuid::new_v4(),
            ..right.clone()
        },
        Key {
            id: right.id + 1,
            ..right.clone()
        },
        Key {
            xact: right.xact - 1,
            ..right.clone()
        },
        Key {
            partition: (right.partition + 1) % 64,
            ..right.clone()
        },
    ];
    for key in wrong {
        let key = [key];
        let completed: Completed =
            settle(&mut session, &complete(worker, &key, |p| held.epoch(p))).await?;
        let deferred: (i64, Vec<i16>) = settle(
            &mut session,
            &defer(worker, &key, |p| held.epoch(p), "1 h", true),
        )
        .await?;
        let buried: Completed =
            settle(&mut session, &bury(worker, &key, |p| held.epoch(p))).await?;
        ensure!((completed.0, deferred.0, buried.0) == (0, 0, 0), "{key:?}");
    }
    ensure!(
        count(&mut session, "outbox").await? == 1
            && count(&mut session, "deferral").await? + count(&mut session, "dead_letter").await?
                == 0
    );
    ensure!(receipt.id == right.message_id);
    Ok(())
}

/// F08, G9, G-04, trap 2: an old epoch changes nothing and is told so; only the deletion of what was confirmed stands.
#[tokio::test]
async fn under_an_old_epoch_nothing_is_deferred_or_buried_and_the_answer_says_so() -> Result<()> {
    let (_schema, mut session, worker, held) = with_worker("fenced").await?;
    run(&mut session, "insert into outbox (endpoint, type, stream, payload) values ('orders', 'a', 's', 'x'), ('orders', 'a', 't', 'y')").await?;
    let all = keys(&mut session, "orders").await?;
    let lost: Vec<i16> = all.iter().map(|key| key.partition).collect();
    ensure!(
        lost.len() == 2 && lost[0] != lost[1],
        "two partitions: {all:?}"
    );
    run(
        &mut session,
        &format!(
            "update lease set epoch = epoch + 1 where endpoint = 'orders' and partition = {}",
            lost[0]
        ),
    )
    .await?;
    let deferred: (i64, Vec<i16>) = settle(
        &mut session,
        &defer(worker, &all, |p| held.epoch(p), "1 h", true),
    )
    .await?;
    ensure!(deferred == (1, vec![lost[0]]), "{deferred:?}");
    next_epoch(&mut session).await?;
    let deferred: (i64, Vec<i16>) = settle(
        &mut session,
        &defer(worker, &all, |p| held.epoch(p), "1 h", true),
    )
    .await?;
    let buried: Completed = settle(&mut session, &bury(worker, &all, |p| held.epoch(p))).await?;
    ensure!(
        deferred == (0, lost.clone()) && buried == (0, lost.clone(), vec![], vec![]),
        "{deferred:?} {buried:?}"
    );
    let attempts: Vec<(i32, i32)> =
        rows(&mut session, "select attempts, deferrals from deferral").await?;
    ensure!(attempts == [(1, 1)], "{attempts:?}");
    ensure!(
        count(&mut session, "outbox").await? == 2 && count(&mut session, "dead_letter").await? == 0
    );
    let completed: Completed =
        settle(&mut session, &complete(worker, &all, |p| held.epoch(p))).await?;
    ensure!(
        completed.0 == 2 && completed.1 == lost,
        "it was confirmed, whoever says it; and it is told: {completed:?}"
    );
    Ok(())
}

/// The reader learns in its own snapshot that a stream was freed behind its cursor.
#[tokio::test]
async fn removing_a_blocking_deferral_lowers_the_low_mark_and_counts() -> Result<()> {
    let (_schema, mut session, worker, held) = with_worker("freed").await?;
    run(
        &mut session,
        "insert into outbox (endpoint, type, stream, payload) values ('orders', 'a', 's', '1')",
    )
    .await?;
    run(
        &mut session,
        "insert into outbox (endpoint, type, stream, payload) values ('orders', 'a', 's', '2')",
    )
    .await?;
    run(
        &mut session,
        "insert into outbox (endpoint, type, payload) values ('orders', 'a', 'alone')",
    )
    .await?;
    let all = keys(&mut session, "orders").await?;
    let stream: Vec<Key> = all
        .iter()
        .filter(|key| {
            all.iter()
                .filter(|other| other.partition == key.partition)
                .count()
                > 1
        })
        .cloned()
        .collect();
    ensure!(stream.len() == 2, "{all:?}");
    let p = stream[0].partition;
    let mark = format!(
        "select low_mark::text || ' ' || removals from lease where endpoint = 'orders' and partition = {p}"
    );
    let high = stream[1].xact + 1000;
    for (round, settle_it) in [complete as fn(Uuid, &[Key], fn(i16) -> i64) -> String, bury]
        .into_iter()
        .enumerate()
    {
        let head = &stream[round..=round];
        let deferred: (i64, Vec<i16>) = settle(
            &mut session,
            &defer(worker, head, |p| held.epoch(p), "0", true),
        )
        .await?;
        ensure!(deferred.0 == 1);
        run(
            &mut session,
            &format!("update lease set low_mark = '{high}' where endpoint = 'orders'"),
        )
        .await?;
        let answer: Completed = settle(&mut session, &settle_it(worker, head, |_| 1)).await?;
        let removals = i64::try_from(round)? + 1;
        ensure!(answer == (1, vec![], vec![p], vec![removals]), "{answer:?}");
        let now: String = one(&mut session, &mark).await?;
        ensure!(now == format!("{} {removals}", head[0].xact), "{now}");
    }
    let alone: Vec<Key> = keys(&mut session, "orders").await?;
    settle::<(i64, Vec<i16>)>(
        &mut session,
        &defer(worker, &alone, |p| held.epoch(p), "0", true),
    )
    .await?;
    let answer: Completed =
        settle(&mut session, &complete(worker, &alone, |p| held.epoch(p))).await?;
    ensure!(
        answer == (1, vec![], vec![], vec![]),
        "a message without stream held nobody: {answer:?}"
    );
    ensure!(count(&mut session, "deferral").await? == 0);
    Ok(())
}

/// Defer and complete of one message at the same time, in both orders: the deferral never outlives the message.
#[tokio::test]
async fn a_deferral_that_meets_a_completion_leaves_no_orphan() -> Result<()> {
    let (schema, mut first, worker, held) = with_worker("meeting").await?;
    let (mut second, mut observer) = (schema.connect().await?, schema.connect().await?);
    let pid: i32 = one(&mut second, "select pg_backend_pid()").await?;
    for defer_first in [true, false] {
        run(
            &mut first,
            "insert into outbox (endpoint, type, stream, payload) values ('orders', 'a', 's', 'x')",
        )
        .await?;
        let key = keys(&mut first, "orders").await?;
        let (defer, complete) = (
            defer(worker, &key, |p| held.epoch(p), "1 h", true),
            complete(worker, &key, |p| held.epoch(p)),
        );
        let (one_first, then) = if defer_first {
            (&defer, &complete)
        } else {
            (&complete, &defer)
        };
        run(&mut first, &format!("begin; {one_first}")).await?;
        tokio::try_join!(run(&mut second, then), async {
            until_waiting(&mut observer, pid).await?;
            run(&mut first, "commit").await
        })?;
        ensure!(
            count(&mut observer, "outbox").await? == 0,
            "it was confirmed"
        );
        ensure!(
            count(&mut observer, "deferral").await? == 0,
            "an orphan would block its stream; deferred first: {defer_first}"
        );
    }
    Ok(())
}

/// Should one exist all the same: fetch names it, and a settle of it takes it away and frees the stream.
#[tokio::test]
async fn a_deferral_without_its_message_is_found_and_removed() -> Result<()> {
    let (_schema, mut session, worker, held) = with_worker("orphan").await?;
    run(
        &mut session,
        "insert into outbox (endpoint, type, stream, payload) values ('orders', 'a', 's', '1')",
    )
    .await?;
    let head = keys(&mut session, "orders").await?;
    settle::<(i64, Vec<i16>)>(
        &mut session,
        &defer(worker, &head, |p| held.epoch(p), "0", true),
    )
    .await?;
    run(&mut session, "delete from outbox").await?;
    run(
        &mut session,
        "insert into outbox (endpoint, type, stream, payload) values ('orders', 'a', 's', '2')",
    )
    .await?;
    let p = head[0].partition;
    let fetch = format!(
        "select kind, message_id from fetch_outbox_batch('orders', '{{{p}}}', '{{{}}}', '{{{}}}', '{{}}', 10, 1000) where kind > 0",
        head[0].xact, head[0].id
    );
    let found: Vec<(i16, Option<Uuid>)> = rows(&mut session, &fetch).await?;
    ensure!(
        found.iter().map(|(kind, _)| *kind).eq([4, 5]),
        "the next one waits, and the orphan is named: {found:?}"
    );
    ensure!(found[1].1 == Some(head[0].message_id));
    let answer: Completed =
        settle(&mut session, &complete(worker, &head, |p| held.epoch(p))).await?;
    ensure!(answer == (0, vec![], vec![p], vec![1]), "{answer:?}");
    let found: Vec<(i16,)> =
        rows(&mut session, &fetch.replace(", message_id from", " from")).await?;
    ensure!(found == [(2,)], "the stream is free: {found:?}");
    Ok(())
}
