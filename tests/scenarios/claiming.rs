//! Who works what: shares, hand-over, expiry, and take-overs that meet a renewal.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{Holding, Schema, array, claim, claim_one, one, rows, run};

const LONG: &str = "1 hour";

/// Workers in the order of their ids, which decides about the remainder.
fn workers(count: u128) -> Vec<Uuid> {
    (1..=count).map(|n| Uuid::from_u128(n << 100 | n)).collect()
}

pub(crate) async fn release(
    session: &mut PgConnection,
    worker: Uuid,
    endpoint: &str,
    held: &Holding,
    which: &[i16],
) -> Result<Vec<i16>> {
    let epochs = array(
        "bigint",
        which.iter().map(|&partition| held.epoch(partition)),
    );
    let marks = array("xid8", which.iter().map(|_| 0));
    let which = array("smallint", which);
    one(session, &format!("select postroom.release_work('{worker}', '{endpoint}', {which}, {epochs}, {marks}, {marks})")).await
}

/// F51, G9, W-27, W-66, W-T7: by the facts in one place, not by each worker's own view.
#[tokio::test]
async fn one_to_nine_workers_come_to_a_fair_share_with_the_remainder_by_id() -> Result<()> {
    let schema = Schema::start("shares").await?;
    let mut session = schema.connect().await?;
    let all = workers(9);
    let mut last = BTreeMap::new();
    for fleet in 1..=all.len() {
        for _ in 0..2 {
            for &worker in &all[..fleet] {
                let held = claim_one(&mut session, worker, LONG, "orders").await?;
                let released =
                    release(&mut session, worker, "orders", &held, &held.hand_over).await?;
                ensure!(
                    released == held.hand_over,
                    "what is handed over is released: {released:?} {held:?}"
                );
            }
        }
        let mut seen = BTreeSet::new();
        for (rank, &worker) in all[..fleet].iter().enumerate() {
            let held = claim_one(&mut session, worker, LONG, "orders").await?;
            let share = 64 / fleet + usize::from(rank < 64 % fleet);
            ensure!(
                held.partitions.len() == share && held.hand_over.is_empty(),
                "{rank} of {fleet}: {held:?}"
            );
            ensure!(
                held.partitions
                    .iter()
                    .all(|&partition| seen.insert(partition)),
                "nobody holds what another holds"
            );
            ensure!(
                held.suspects.is_empty(),
                "handed over in good order: {held:?}"
            );
            for (&partition, &epoch) in held.partitions.iter().zip(&held.epochs) {
                let before = last.insert(partition, (worker, epoch));
                if let Some((owner, before)) = before {
                    ensure!(
                        if owner == worker {
                            epoch == before
                        } else {
                            epoch > before
                        },
                        "epochs only grow: {partition} {before} {epoch}"
                    );
                }
            }
        }
        ensure!(seen.len() == 64);
    }
    Ok(())
}

/// Only those who serve an endpoint share it.
#[tokio::test]
async fn workers_share_an_endpoint_only_with_those_that_serve_it() -> Result<()> {
    let schema = Schema::start("serving").await?;
    let mut session = schema.connect().await?;
    let ids = workers(2);
    let first = claim(&mut session, ids[0], LONG, "{orders,loose}").await?;
    ensure!(first["orders"].partitions.len() == 64 && first["loose"].partitions.len() == 64);
    claim(&mut session, ids[1], LONG, "{loose}").await?;
    let first = claim(&mut session, ids[0], LONG, "{orders,loose,unknown}").await?;
    ensure!(
        first["orders"].hand_over.is_empty() && first["loose"].hand_over.len() == 32,
        "{first:?}"
    );
    ensure!(
        first.len() == 2,
        "nothing is answered for an endpoint that does not exist"
    );
    Ok(())
}

/// architecture: a Total endpoint goes whole to one worker.
#[tokio::test]
async fn a_totally_ordered_endpoint_goes_whole_to_one_worker() -> Result<()> {
    let schema = Schema::start("total").await?;
    let mut session = schema.connect().await?;
    let ids = workers(3);
    for (&worker, share) in ids.iter().zip([64, 0, 0]) {
        ensure!(
            claim_one(&mut session, worker, LONG, "whole")
                .await?
                .partitions
                .len()
                == share
        );
    }
    ensure!(
        claim_one(&mut session, ids[0], LONG, "whole")
            .await?
            .hand_over
            .is_empty(),
        "others change nothing"
    );
    run(
        &mut session,
        &format!("select deregister_worker('{}')", ids[0]),
    )
    .await?;
    let next = claim_one(&mut session, ids[2], LONG, "whole").await?;
    ensure!(
        next.partitions.len() == 64 && next.suspects.len() == 64,
        "{next:?}"
    );
    Ok(())
}

/// The drain: endpoints left out are kept until they are released, and others need not wait for the end of the lease.
#[tokio::test]
async fn a_draining_worker_keeps_what_it_holds_and_counts_no_more() -> Result<()> {
    let schema = Schema::start("draining").await?;
    let mut session = schema.connect().await?;
    let (leaving, staying) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let held = claim_one(&mut session, leaving, LONG, "orders").await?;
    let draining = claim(&mut session, leaving, LONG, "{}").await?;
    ensure!(
        draining["orders"].partitions == held.partitions
            && draining["orders"].epochs == held.epochs,
        "{draining:?}"
    );
    ensure!(
        draining["orders"].hand_over == held.partitions,
        "all of it may go"
    );
    ensure!(
        claim_one(&mut session, staying, LONG, "orders")
            .await?
            .partitions
            .is_empty(),
        "what is held is held"
    );
    release(
        &mut session,
        leaving,
        "orders",
        &held,
        &held.partitions[..10],
    )
    .await?;
    ensure!(
        claim_one(&mut session, staying, LONG, "orders")
            .await?
            .partitions
            == held.partitions[..10]
    );
    release(&mut session, leaving, "orders", &held, &held.partitions).await?;
    ensure!(
        claim_one(&mut session, staying, LONG, "orders")
            .await?
            .partitions
            .len()
            == 64,
        "the whole share, not a half"
    );
    ensure!(claim(&mut session, leaving, LONG, "{}").await?.is_empty());
    Ok(())
}

/// W-T7: a limit of the caller's own.
#[tokio::test]
async fn a_worker_takes_no_more_than_it_asks_for() -> Result<()> {
    let schema = Schema::start("at_most").await?;
    let mut session = schema.connect().await?;
    let worker = Uuid::from_u128(1);
    for (most, hold, hand_over) in [(10, 10, 0), (12, 12, 0), (5, 12, 7), (0, 12, 12)] {
        let sql = format!(
            "select cardinality(partitions), cardinality(hand_over) from claim_work('{worker}', 'h', 'v', '{LONG}', '{{orders}}', {most})"
        );
        let answer: Vec<(i32, i32)> = rows(&mut session, &sql).await?;
        ensure!(answer == [(hold, hand_over)], "{most}: {answer:?}");
    }
    Ok(())
}

/// W-62: what costs nothing while nothing happens.
#[tokio::test]
async fn an_idle_call_writes_the_workers_own_row_and_nothing_else() -> Result<()> {
    let schema = Schema::start("idle").await?;
    let mut session = schema.connect().await?;
    let worker = Uuid::from_u128(1);
    claim(&mut session, worker, LONG, "{orders,loose,whole}").await?;
    let state = "select string_agg(t, ',') from (select format('%s %s %s', tableoid::regclass, ctid, xmin) as t from lease union all select format('%s %s %s', tableoid::regclass, ctid, xmin) from endpoint \
        union all select format('%s %s', tableoid::regclass, xmin) from incarnation union all select format('%s %s', tableoid::regclass, xmin) from server order by 1) s";
    let before: String = one(&mut session, state).await?;
    let own: String = one(&mut session, "select xmin::text from worker").await?;
    for _ in 0..5 {
        claim(&mut session, worker, LONG, "{orders,loose,whole}").await?;
    }
    ensure!(
        one::<String>(&mut session, state).await? == before,
        "another row was written"
    );
    ensure!(
        one::<String>(&mut session, "select xmin::text from worker").await? != own,
        "the lease was renewed"
    );
    Ok(())
}

/// A mark is moved only from the value that the caller has seen, by the owner, under its epoch.
#[tokio::test]
async fn a_low_mark_moves_only_from_the_value_that_was_seen() -> Result<()> {
    let schema = Schema::start("marks").await?;
    let mut session = schema.connect().await?;
    let (worker, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let held = claim_one(&mut session, worker, LONG, "orders").await?;
    let mut move_mark = async |who: Uuid, seen: i64, new: i64| -> Result<String> {
        run(&mut session, &format!("select claim_work('{who}', 'h', 'v', '{LONG}', '{{orders}}', null, '{{}}', '{{\"orders\": [[5, \"{seen}\", \"{new}\"]]}}')")).await?;
        one(
            &mut session,
            "select low_mark::text from lease where endpoint = 'orders' and partition = 5",
        )
        .await
    };
    for (who, seen, new, now) in [
        (worker, 0, 100, "100"),
        (worker, 0, 200, "100"),
        (other, 100, 300, "100"),
        (other, 100, 300, "100"),
        (worker, 100, 90, "90"),
        (worker, 90, 120, "120"),
    ] {
        ensure!(
            move_mark(who, seen, new).await? == now,
            "{who} {seen} {new}"
        );
    }
    let epoch = held.epoch(5);
    for (epoch, seen, released, mark) in [(epoch - 1, 120, 0, "120"), (epoch, 110, 1, "120")] {
        let gone: Vec<i16> = one(&mut session, &format!("select release_work('{worker}', 'orders', '{{5}}', '{{{epoch}}}', '{{{seen}}}', '{{999}}')")).await?;
        ensure!(gone.len() == released);
        ensure!(
            one::<String>(
                &mut session,
                "select low_mark::text from lease where endpoint = 'orders' and partition = 5"
            )
            .await?
                == mark
        );
    }
    let successor = claim_one(&mut session, other, LONG, "orders").await?;
    let place = successor
        .partitions
        .iter()
        .position(|&p| p == 5)
        .context("it is free")?;
    ensure!(
        successor.low_marks[place] == 120 && !successor.suspects.contains(&5),
        "{successor:?}"
    );
    Ok(())
}
