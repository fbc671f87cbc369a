//! Receivers that are broken on purpose: the scenarios must find each of them out, else they prove nothing.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use postroom_tests::intake::{INTO, Intake};
use postroom_tests::sender::Parcel;
use postroom_tests::vhost::QueueArguments;
use postroom_tests::worker::Worker;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::accepting::{all_in_order, parcels};
use crate::receiving_faults::{small, wait_consumers};
use crate::traffic::PATIENCE;

/// How often a broken variant may get away with it before it must be caught.
const ROUNDS: usize = 5;

fn broken(intake: &Intake, variant: &str, abort: &str) -> Result<Worker> {
    let launch = intake.launch("run").env("POSTROOM_TEST_BREAK", variant);
    Ok(launch.env("POSTROOM_TEST_ABORT", abort).start()?.quiet())
}

/// A death before the store, as in the scenario of a sound receiver: what is missing then?
async fn missing_after_a_death(variant: &str) -> Result<usize> {
    let intake = Intake::start("red_death", &QueueArguments::quorum(), small).await?;
    intake.send(parcels(12, 500)).await?;
    // At the fourth store: what the first ones acknowledged has long been written by then.
    broken(&intake, variant, "delivered:4")?
        .wait_exit(PATIENCE)
        .await?;
    let worker = intake.worker().await?;
    wait_consumers(&worker, 1.0).await?;
    intake
        .send([Parcel::new("order-500", "{}").stream("last")])
        .await?;
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let rows = intake.rows().await?;
        if rows.iter().any(|row| row.stream.as_deref() == Some("last")) {
            return Ok(501 - rows.len());
        }
        ensure!(
            std::time::Instant::now() < end,
            "the last one does not come"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// G7.
#[tokio::test]
async fn a_receiver_that_acknowledges_before_it_stores_is_caught() -> Result<()> {
    ensure!(missing_after_a_death("nothing").await? == 0);
    for _ in 0..ROUNDS {
        let missing = missing_after_a_death("ack-before-store").await?;
        eprintln!("{missing} are missing");
        if missing > 0 {
            return Ok(());
        }
    }
    bail!("'ack-before-store' was never caught")
}

/// G3.
#[tokio::test]
async fn a_receiver_that_stores_batches_out_of_order_is_caught() -> Result<()> {
    for variant in ["nothing", "accept-out-of-order"] {
        let intake = Intake::start("red_order", &QueueArguments::quorum(), small).await?;
        let worker = broken(&intake, variant, "")?;
        intake.send(parcels(12, 1_000)).await?;
        let rows = intake.wait_rows(1_000, PATIENCE).await?;
        let verdict = all_in_order(&rows, 1_000);
        drop(worker);
        match (variant, verdict) {
            ("nothing", verdict) => verdict?,
            (_, Ok(())) => bail!("'{variant}' was not caught"),
            (_, Err(found)) => ensure!(found.to_string().contains("out of order"), "{found}"),
        }
    }
    Ok(())
}

/// The rows of pairs of the same message that two receivers get at the same time.
async fn rows_of_pairs(intake: &Intake) -> Result<usize> {
    let (one, other) = (intake.worker().await?, intake.worker().await?);
    wait_consumers(&one, 1.0).await?;
    wait_consumers(&other, 1.0).await?;
    let pairs = parcels(12, 1_000);
    intake
        .send(pairs.iter().flat_map(|one| [one.clone(), one.clone()]))
        .await?;
    for worker in [one, other] {
        worker.sigterm()?;
        worker.wait_exit(PATIENCE).await?;
    }
    let worker = intake.worker().await?;
    wait_consumers(&worker, 1.0).await?;
    while intake.vhost.depth(INTO).await? > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    intake.drain(&worker).await?;
    Ok(intake.rows().await?.len())
}

/// F25: identities that are looked up, and written down without a key that would be unique.
#[tokio::test]
async fn a_database_that_looks_identities_up_instead_of_enforcing_them_is_caught() -> Result<()> {
    let unordered = |resource| {
        postroom_tests::resource::Resource::with(small(resource), "inboxes.0.ordering.mode", "None")
    };
    for _ in 0..ROUNDS {
        let intake = Intake::start("red_lookup", &QueueArguments::quorum(), unordered).await?;
        look_up(&intake).await?;
        let rows = rows_of_pairs(&intake).await?;
        eprintln!("{rows} rows of 1000 pairs");
        if rows > 1_000 {
            return Ok(());
        }
    }
    bail!("a look-up was never caught")
}

/// Replaces the unique key by a look-up before the insert.
async fn look_up(intake: &Intake) -> Result<()> {
    let mut session = intake.connect().await?;
    let definition = "select pg_get_functiondef(oid) from pg_proc where proname = 'store_inbox_messages' and pronargs = 20";
    let text: String = sqlx::query_scalar(definition)
        .fetch_one(&mut session)
        .await?;
    let changed =
        text.replacen("d.bucket <> open and ", "", 1)
            .replacen("on conflict do nothing", "", 1);
    ensure!(
        changed.len() + 40 < text.len(),
        "the function reads otherwise now"
    );
    session.execute(AssertSqlSafe(changed)).await?;
    session
        .execute(
            "alter table postroom.message_deduplication drop constraint message_deduplication_pkey",
        )
        .await?;
    Ok(())
}
