//! Take-overs that meet a renewal, the owner's return, or a newcomer.

use anyhow::{Result, ensure};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::claiming::release;
use crate::sql::{Schema, claim_one, one, run, until, until_waiting};

const LONG: &str = "1 hour";

async fn expired(session: &mut PgConnection, worker: Uuid) -> Result<()> {
    until(
        session,
        &format!(
            "select lease_until < clock_timestamp() from postroom.worker where id = '{worker}'"
        ),
    )
    .await
}

/// F08, F09, LSE: a name that comes back is a new claim.
#[tokio::test]
async fn a_lease_that_has_run_out_is_lost_before_anything_can_be_held_again() -> Result<()> {
    let schema = Schema::start("expired").await?;
    let mut session = schema.connect().await?;
    let (late, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let first = claim_one(&mut session, late, "1 s", "orders").await?;
    ensure!(
        claim_one(&mut session, other, LONG, "orders")
            .await?
            .partitions
            .is_empty()
    );
    ensure!(
        claim_one(&mut session, late, "1 s", "orders").await?.epochs == first.epochs,
        "a renewal keeps the epochs"
    );
    expired(&mut session, late).await?;
    let again = claim_one(&mut session, late, LONG, "orders").await?;
    ensure!(
        again.partitions.len() == 32,
        "the other one counts now: {again:?}"
    );
    for &partition in &again.partitions {
        ensure!(
            again.epoch(partition) == first.epoch(partition) + 1,
            "as if by another worker"
        );
    }
    ensure!(
        again.suspects.is_empty(),
        "its owner is alive, so no message has ended it"
    );
    ensure!(
        release(&mut session, late, "orders", &first, &first.partitions)
            .await?
            .is_empty(),
        "the old epochs are worth nothing"
    );
    Ok(())
}

/// W-T8: a take-over leaves the renewal alone that is on its way, and does not wait for it.
#[tokio::test]
async fn a_renewal_that_is_not_committed_yet_is_not_taken_over() -> Result<()> {
    let schema = Schema::start("renewing").await?;
    let (mut owner, mut rival) = (schema.connect().await?, schema.connect().await?);
    let (held_by, taker) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let held = claim_one(&mut owner, held_by, "3 s", "orders").await?;
    run(&mut owner, "begin").await?;
    ensure!(
        claim_one(&mut owner, held_by, LONG, "orders").await?.epochs == held.epochs,
        "renewed in time"
    );
    expired(&mut rival, held_by).await?;
    run(&mut rival, "set lock_timeout = '10 s'").await?;
    ensure!(
        claim_one(&mut rival, taker, LONG, "orders")
            .await?
            .partitions
            .is_empty(),
        "the row of the owner is locked"
    );
    run(&mut owner, "commit").await?;
    let after = claim_one(&mut owner, held_by, LONG, "orders").await?;
    ensure!(after.epochs == held.epochs && after.partitions == held.partitions);
    ensure!(
        claim_one(&mut rival, taker, LONG, "orders")
            .await?
            .partitions
            .is_empty()
    );
    Ok(())
}

/// W-T8, the other end: the owner comes while the take-over is not committed yet; it has lost what was taken.
#[tokio::test]
async fn an_owner_that_comes_during_its_take_over_has_lost() -> Result<()> {
    let schema = Schema::start("taken").await?;
    let (mut owner, mut rival) = (schema.connect().await?, schema.connect().await?);
    let (late, taker) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let held = claim_one(&mut owner, late, "1 s", "orders").await?;
    expired(&mut rival, late).await?;
    let mut observer = schema.connect().await?;
    let pid: i32 = one(&mut owner, "select pg_backend_pid()").await?;
    run(&mut rival, "begin").await?;
    let taken = claim_one(&mut rival, taker, LONG, "orders").await?;
    ensure!(
        taken.partitions.len() == 64 && taken.suspects.len() == 64,
        "{taken:?}"
    );
    let (answer, ()) = tokio::try_join!(claim_one(&mut owner, late, LONG, "orders"), async {
        until_waiting(&mut observer, pid).await?;
        run(&mut rival, "commit").await
    })?;
    ensure!(answer.partitions.is_empty(), "{answer:?}");
    let now = claim_one(&mut rival, taker, LONG, "orders").await?;
    ensure!(
        now.partitions.len() == 64
            && now
                .epochs
                .iter()
                .zip(&held.epochs)
                .all(|(now, before)| *now == before + 1)
    );
    Ok(())
}

/// What a rival takes whose look at the leases is older than the claim of a newcomer that holds them all; a barrier inside
/// the look holds it there. With `asks_again` off, the second look is left out.
async fn taken_between_look_and_lock(asks_again: bool) -> Result<Vec<i16>> {
    const LOOK: &str = "where l.endpoint = p_endpoint and l.partition between lowest and highest\n          and (l.owner is null";
    const SECOND: &str = " and (l.owner is null or l.owner = any (gone) or not exists (select from worker w where w.id = l.owner));";
    let schema = Schema::start("between").await?;
    let (mut slow, mut quick) = (schema.connect().await?, schema.connect().await?);
    run(&mut quick, "create function postroom.barrier() returns boolean language plpgsql volatile as $$ begin \
        if current_setting('application_name') = 'slow' then perform pg_advisory_lock(7); perform pg_advisory_unlock(7); end if; return true; end $$").await?;
    let text: String = one(
        &mut quick,
        "select pg_get_functiondef('postroom.take_partitions'::regproc)",
    )
    .await?;
    ensure!(
        text.matches(LOOK).count() == 1 && text.matches(SECOND).count() == 1,
        "{text}"
    );
    let held_up = text.replace(
        LOOK,
        "where postroom.barrier() and l.endpoint = p_endpoint and l.partition between lowest and highest and (l.owner is null",
    );
    run(
        &mut quick,
        &if asks_again {
            held_up
        } else {
            held_up.replace(SECOND, ";")
        },
    )
    .await?;
    // The first call of all notes the server; a second one would wait for that.
    claim_one(&mut quick, Uuid::from_u128(9), LONG, "loose").await?;
    run(&mut quick, "select pg_advisory_lock(7)").await?;
    run(&mut slow, "set application_name = 'slow'").await?;
    let (newcomer, rival) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let pid: i32 = one(&mut slow, "select pg_backend_pid()").await?;
    let (late, held) = tokio::try_join!(claim_one(&mut slow, rival, LONG, "orders"), async {
        until_waiting(&mut quick, pid).await?;
        let held = claim_one(&mut quick, newcomer, LONG, "orders").await?;
        run(&mut quick, "select pg_advisory_unlock(7)").await?;
        Ok(held)
    })?;
    ensure!(held.partitions.len() == 64, "{held:?}");
    let after = claim_one(&mut quick, newcomer, LONG, "orders").await?;
    ensure!(
        (after.epochs == held.epochs) == late.partitions.is_empty(),
        "{after:?}"
    );
    Ok(late.partitions)
}

/// F06, F51, G9: a worker that registers and claims after a rival's look at the leases, and before it locks them, does not
/// exist in that look.
#[tokio::test]
async fn a_claim_by_a_new_worker_between_look_and_lock_of_another_stands() -> Result<()> {
    let taken = taken_between_look_and_lock(true).await?;
    ensure!(taken.is_empty(), "taken from a living worker: {taken:?}");
    let taken = taken_between_look_and_lock(false).await?;
    ensure!(
        taken.len() == 64,
        "this is what the second look is for: {taken:?}"
    );
    Ok(())
}
