//! What an inbox remembers of what it stored: for how long, at what price, and who may add to it.

use anyhow::{Result, ensure};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::inboxes::{Delivery, Right, receive, start, store};
use crate::sql::{Schema, count, one, rows, run};

fn batch(numbers: std::ops::Range<usize>) -> Vec<Delivery> {
    numbers
        .map(|n| {
            Delivery::new(&format!("m-{n}"), &n.to_string())
                .key(&format!("k-{n}"))
                .stream(&format!("s{}", n % 3))
        })
        .collect()
}

/// How many of a batch are new. Nothing may be refused.
async fn accepted(session: &mut PgConnection, batch: &[Delivery]) -> Result<usize> {
    let outcomes = receive(session, "tasks", batch).await?;
    let new = outcomes.iter().filter(|one| *one == "Accepted").count();
    let known = outcomes
        .iter()
        .filter(|one| *one == "AlreadyAccepted")
        .count();
    ensure!(new + known == batch.len(), "{outcomes:?}");
    Ok(new)
}

/// Lets a third of the window pass, as an upkeep sees it.
async fn age(session: &mut PgConnection) -> Result<()> {
    run(
        session,
        "update deduplication_bucket set opened_at = opened_at - interval '10 days 1 hour'",
    )
    .await?;
    let turned = "select rows from perform_maintenance() where task = 'deduplication_buckets'";
    ensure!(one::<i64>(session, turned).await? == 1, "the ring turns");
    Ok(())
}

/// L-T6, L-T7, L-26, T-29, W-T1, W-T6: whichever batch it comes in, whether handled by then or not, for as long as the window.
#[tokio::test]
async fn a_delivery_is_stored_once_in_a_batch_across_batches_and_buckets() -> Result<()> {
    let schema = start("store_once").await?;
    let mut session = schema.connect().await?;
    let (first, second) = (batch(0..50), batch(25..75));
    let twice = [first.clone(), first.clone()].concat();
    ensure!(accepted(&mut session, &[]).await? == 0);
    ensure!(
        accepted(&mut session, &twice).await? == 50,
        "within a batch"
    );
    ensure!(
        accepted(&mut session, &second).await? == 25,
        "across batches"
    );
    run(&mut session, "delete from inbox").await?;
    for turn in 1..=3 {
        age(&mut session).await?;
        ensure!(
            accepted(&mut session, &first).await? == 0,
            "within the window, after {turn} turns"
        );
    }
    ensure!(
        count(&mut session, "inbox").await? == 0,
        "what was handled does not come back"
    );
    age(&mut session).await?;
    ensure!(
        accepted(&mut session, &first).await? == 50,
        "40 days later it is new"
    );
    Ok(())
}

/// A broker that delivers everything again costs reading alone: no row of any table is inserted, changed or deleted.
#[tokio::test]
async fn known_messages_that_come_again_write_no_row() -> Result<()> {
    const WRITTEN: &str = "select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint from pg_stat_xact_all_tables";
    let schema = start("store_known").await?;
    let mut session = schema.connect().await?;
    let keyed = batch(0..100);
    let plain: Vec<Delivery> = batch(100..500)
        .into_iter()
        .map(|one| Delivery { key: None, ..one })
        .collect();
    for (time, writes) in [("first", true), ("second", false), ("third", false)] {
        for inbox in ["loose", "tasks", "whole"] {
            for batch in [&keyed, &plain] {
                run(&mut session, "begin").await?;
                let before: i64 = one(&mut session, WRITTEN).await?;
                receive(&mut session, inbox, batch).await?;
                let after: i64 = one(&mut session, WRITTEN).await?;
                run(&mut session, "commit").await?;
                ensure!(
                    (after > before) == writes,
                    "{inbox}, the {time} time: {} rows written",
                    after - before
                );
            }
        }
    }
    Ok(())
}

/// What `worker` is told of its right to receive for `tasks`.
async fn right(session: &mut PgConnection, worker: Uuid, consumes: bool) -> Result<Option<i64>> {
    let wanted = if consumes { "'{tasks}'" } else { "'{}'" };
    let claim = format!(
        "select ingress_epoch from claim_work('{worker}', 'h', 'v', interval '1 minute', '{{tasks}}', consumes => {wanted}) where endpoint = 'tasks'"
    );
    let answer: Vec<(Option<i64>,)> = rows(session, &claim).await?;
    ensure!(answer.len() == 1, "{answer:?}");
    Ok(answer[0].0)
}

/// G-03: an owner that was replaced stores nothing, however late it comes.
#[tokio::test]
async fn the_right_to_receive_has_one_owner_and_an_old_epoch_stores_nothing() -> Result<()> {
    let schema: Schema = start("store_right").await?;
    let mut session = schema.connect().await?;
    let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let first = right(&mut session, one, true).await?;
    let Some(epoch) = first else {
        anyhow::bail!("nobody else asks")
    };
    ensure!(
        right(&mut session, other, true).await?.is_none(),
        "it is held"
    );
    ensure!(
        right(&mut session, one, true).await? == first,
        "a renewal keeps its epoch"
    );
    let mine = Right { worker: one, epoch };
    ensure!(
        store(&mut session, mine, "tasks", &batch(0..3))
            .await?
            .is_some()
    );
    for wrong in [
        Right {
            worker: other,
            epoch,
        },
        Right {
            worker: one,
            epoch: epoch + 1,
        },
    ] {
        ensure!(
            store(&mut session, wrong, "tasks", &batch(3..6))
                .await?
                .is_none(),
            "{wrong:?}"
        );
    }
    ensure!(
        right(&mut session, one, false).await?.is_none(),
        "given back"
    );
    let next = right(&mut session, other, true).await?;
    ensure!(next > first, "{next:?} after {first:?}");
    ensure!(
        store(&mut session, mine, "tasks", &batch(3..6))
            .await?
            .is_none()
    );
    ensure!(count(&mut session, "inbox").await? == 3);
    ensure!(
        count(&mut session, "message_deduplication").await? == 3,
        "nothing is remembered of what was not stored"
    );
    Ok(())
}
