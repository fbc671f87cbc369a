//! Writers that meet: the database decides who was first, and nobody waits in a circle.

use anyhow::{Context as _, Result, ensure};

use crate::sql::{Receipt, Schema, count, one, refused, run, until_waiting, write, write_one};

/// A transaction at this level writes a key while another one, that wrote it first, is still open; what it gets.
async fn second_writer(
    identity: &str,
    level: &str,
    first_commits: bool,
) -> Result<std::result::Result<Receipt, String>> {
    let schema = Schema::start("race").await?;
    let (mut first, mut second, mut observer) = (
        schema.connect().await?,
        schema.connect().await?,
        schema.connect().await?,
    );
    let call = format!("enqueue('orders', 'a', 'x', {identity})");
    run(
        &mut second,
        &format!("begin isolation level {level}; select 1"),
    )
    .await?;
    run(&mut first, "begin").await?;
    let winner = write_one(&mut first, &call).await?;
    ensure!(winner.is_new());
    let pid: i32 = one(&mut second, "select pg_backend_pid()").await?;
    let (result, ()) = tokio::try_join!(
        async {
            let sql = format!("select * from postroom.{call}");
            let outcome = sqlx::query(sqlx::AssertSqlSafe(sql.as_str()))
                .execute(&mut second)
                .await;
            match outcome {
                Ok(_) => Ok(None),
                Err(error) => Ok(Some(crate::sql::refusal(error)?.code)),
            }
        },
        async {
            until_waiting(&mut observer, pid).await?;
            run(
                &mut first,
                if first_commits { "commit" } else { "rollback" },
            )
            .await
        }
    )?;
    if let Some(code) = result {
        run(&mut second, "rollback").await?;
        ensure!(count(&mut observer, "outbox").await? == 1);
        return Ok(Err(code));
    }
    let receipt = write_one(&mut second, &call).await?;
    run(&mut second, "commit").await?;
    ensure!(
        count(&mut observer, "outbox").await? == 1,
        "one message, whoever wrote it"
    );
    ensure!(
        receipt.names_the_same(&winner) == first_commits,
        "{receipt:?} {winner:?}"
    );
    Ok(Ok(receipt))
}

/// T-17, F25 on the writing side: under READ COMMITTED the second one waits for the outcome.
#[tokio::test]
async fn of_two_transactions_with_one_identity_the_second_waits_and_gets_the_first_ones_message()
-> Result<()> {
    for identity in ["key => 'K'", "message_id => 'M'"] {
        let receipt = second_writer(identity, "read committed", true).await?;
        ensure!(receipt.is_ok_and(|receipt| !receipt.is_new()));
    }
    second_writer("key => 'K'", "read committed", false)
        .await?
        .map_err(anyhow::Error::msg)?;
    Ok(())
}

/// Its snapshot is older than the first one's commit, so it may neither accept nor see it.
#[tokio::test]
async fn under_repeatable_read_the_second_of_two_transactions_has_to_begin_again() -> Result<()> {
    for level in ["repeatable read", "serializable"] {
        let code = second_writer("key => 'K'", level, true)
            .await?
            .err()
            .context("it may not succeed")?;
        ensure!(code == "40001", "{level}: {code}");
    }
    Ok(())
}

/// The memory's ring turned after the snapshot was taken: what stands in the newer bucket is invisible to it.
#[tokio::test]
async fn a_transaction_older_than_the_last_turn_of_the_ring_has_to_begin_again() -> Result<()> {
    let schema = Schema::start("stale").await?;
    let (mut old, mut other) = (schema.connect().await?, schema.connect().await?);
    run(&mut old, "begin isolation level repeatable read; select 1").await?;
    run(
        &mut other,
        "update deduplication_bucket set opened_at = opened_at - interval '11 days' where current",
    )
    .await?;
    let turned: i64 = one(
        &mut other,
        "select rows from perform_maintenance() where task = 'deduplication_buckets'",
    )
    .await?;
    ensure!(turned == 1);
    ensure!(
        write_one(&mut other, "enqueue('orders', 'a', 'x', key => 'K')")
            .await?
            .is_new()
    );
    let refusal = refused(
        &mut old,
        "select postroom.enqueue('orders', 'a', 'x', key => 'K')",
    )
    .await?;
    ensure!(refusal.code == "40001", "{refusal:?}");
    ensure!(count(&mut other, "outbox").await? == 1);
    Ok(())
}

/// Each round, two sessions write the same keys and ids in opposite order at the same time.
#[tokio::test]
async fn batches_with_the_same_identities_in_opposite_order_never_dead_lock() -> Result<()> {
    const ROUNDS: usize = 150;
    let schema = Schema::start("swapped").await?;
    let together = tokio::sync::Barrier::new(3);
    let writer = |reversed: bool| {
        let (schema, together) = (&schema, &together);
        async move {
            let mut session = schema.connect().await?;
            let mut new = 0;
            for round in 0..ROUNDS {
                let mut slots: Vec<String> = (0..8)
                    .map(|n| match n % 3 {
                        0 => format!(r#"{{"type":"a","payload":1,"key":"{round}-{n}"}}"#),
                        1 => format!(r#"{{"type":"a","payload":1,"message_id":"{round}-{n}"}}"#),
                        _ => format!(r#"{{"type":"a","payload":1,"key":"{round}-{n}","message_id":"{round}-{n}","tenant":"T"}}"#),
                    })
                    .collect();
                if reversed {
                    slots.reverse();
                }
                together.wait().await;
                let call = format!("store_outbox_messages('orders', '[{}]')", slots.join(","));
                new += write(&mut session, &call)
                    .await?
                    .iter()
                    .filter(|receipt| receipt.is_new())
                    .count();
            }
            Ok::<_, anyhow::Error>(new)
        }
    };
    let (a, b, c) = tokio::try_join!(writer(false), writer(true), writer(true))?;
    ensure!(
        a + b + c == ROUNDS * 8,
        "each message was new once: {a} {b} {c}"
    );
    let mut session = schema.connect().await?;
    ensure!(count(&mut session, "outbox").await? == i64::try_from(ROUNDS * 8)?);
    ensure!(a.max(b).max(c) < ROUNDS * 8, "they met: {a} {b} {c}");
    Ok(())
}
