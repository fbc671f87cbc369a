//! Who may work what: workers that are frozen past their lease, and tokens that are out of date.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::eventually::{eventually, when};
use postroom_tests::setup::{OUTBOX, Postroom};
use sqlx::Executor as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::ground::{PATIENCE, WINDOW, bind_lost, committed, narrow, small, wait_nothing_left};
use crate::workers::Fleet;
use crate::workload::{Chance, Load, commit, of};

/// Notes every change of hands in the database's own time, with the end of the lease of who had it before, and every
/// settle of a worker that does not hold the partition.
const HISTORY: &str = "
    create table public.history (at timestamptz, partition smallint, old_owner uuid, new_owner uuid, old_epoch bigint, new_epoch bigint, old_until timestamptz);
    create table public.trespass (what text, worker uuid, partition smallint);
    create function public.note_change() returns trigger language plpgsql security definer as $$ begin
        insert into public.history select clock_timestamp(), new.partition, old.owner, new.owner, old.epoch, new.epoch,
            (select w.lease_until from postroom.worker w where w.id = old.owner);
        return null;
    end $$;
    create trigger note_change after update on postroom.lease for each row
        when (old.owner is distinct from new.owner or old.epoch <> new.epoch) execute function public.note_change();
    create function public.note_trespass() returns trigger language plpgsql security definer as $$
    declare who uuid := coalesce(to_jsonb(new) ->> 'worker', to_jsonb(new) ->> 'buried_by');
    begin
        if who is not null and not exists (select from postroom.lease l where l.endpoint = new.endpoint and l.partition = new.partition and l.owner = who) then
            insert into public.trespass values (tg_table_name, who, new.partition);
        end if;
        return null;
    end $$;
    create trigger note_trespass after insert or update on postroom.deferral for each row execute function public.note_trespass();
    create trigger note_trespass after insert on postroom.dead_letter for each row execute function public.note_trespass();
";

/// Starts to keep the history of all leases.
pub(crate) async fn keep_history(postroom: &Postroom) -> Result<()> {
    let mut session = postroom.connect().await?;
    session
        .execute(HISTORY)
        .await
        .map(drop)
        .context("keep the history of leases")
}

/// G9, F51: nobody has taken a partition whose owner was alive, no epoch was given twice, and nobody has written under
/// a lease that was somebody else's. Returns how often partitions changed hands.
pub(crate) async fn require_exclusion(postroom: &Postroom) -> Result<i64> {
    let mut session = postroom.connect().await?;
    let faults = "select
        count(*) filter (where old_owner <> new_owner and old_until > at),
        count(*) filter (where new_epoch < old_epoch or new_owner is distinct from old_owner and new_owner is not null and new_epoch <= old_epoch),
        (select count(*) from public.trespass),
        count(*) filter (where new_owner is not null)
        from public.history";
    let (stolen, stale, trespassed, taken): (i64, i64, i64, i64) =
        sqlx::query_as(faults).fetch_one(&mut session).await?;
    ensure!(
        (stolen, stale, trespassed) == (0, 0, 0),
        "taken from a living owner: {stolen}, epochs that did not grow: {stale}, settles without a lease: {trespassed}"
    );
    Ok(taken)
}

/// G1 to G5, G9, F08, W-T8: a worker is frozen under load until another one has taken over, then goes on where it was. Twice.
#[tokio::test]
async fn a_worker_that_wakes_up_after_its_lease_changes_nothing_and_repeats_little() -> Result<()> {
    const ROUNDS: usize = 2;
    let postroom = narrow("zombie", |resource| resource).await?;
    keep_history(&postroom).await?;
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(2).await?;
    let freezes = async {
        for round in 0..ROUNDS {
            fleet.wait_fair_shares().await?;
            committed(&postroom, 100).await?;
            let zombie = &fleet.workers[round % 2];
            let before = lost_leases(zombie).await?;
            zombie.sigstop()?;
            one_holds_everything(&postroom).await?;
            committed(&postroom, 100).await?;
            zombie.sigcont()?;
            eventually("the zombie notices", PATIENCE, || async {
                let lost = lost_leases(zombie)
                    .await
                    .map_err(|error| error.to_string())?;
                when(lost > before, || format!("{lost} leases lost"))
            })
            .await?;
        }
        fleet.wait_fair_shares().await?;
        bind_lost(&postroom).await?;
        committed(&postroom, 100).await
    };
    let load = Load {
        lost: true,
        ..Load::plain()
    };
    load.beside(&postroom, &chance, freezes).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}");
    verdict.require(ROUNDS * 2 * WINDOW)?;
    wait_nothing_left(&postroom).await?;
    fleet.require_nothing_swept().await?;
    ensure!(
        require_exclusion(&postroom).await? > 64,
        "nothing changed hands"
    );
    Ok(())
}

async fn lost_leases(worker: &postroom_tests::worker::Worker) -> Result<f64> {
    let lost = worker.metric("postroom_lease_lost_total", &[]).await?;
    Ok(lost.unwrap_or_default())
}

/// Waits until a single living worker holds all partitions.
pub(crate) async fn one_holds_everything(postroom: &Postroom) -> Result<()> {
    let holders = "select count(distinct owner) filter (where alive), count(*) filter (where alive) from postroom.lease_holder";
    let mut session = postroom.connect().await?;
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let seen: (i64, i64) = sqlx::query_as(holders).fetch_one(&mut session).await?;
        if seen == (1, 64) {
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < end,
            "{} living workers hold {} partitions",
            seen.0,
            seen.1
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The only worker is frozen until its lease has run out, and wakes up; then messages are written.
#[tokio::test]
async fn a_lone_worker_goes_on_after_it_was_frozen_past_its_lease() -> Result<()> {
    let postroom = Postroom::start("frozen", small).await?;
    let mut session = postroom.connect().await?;
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    commit(&postroom, &mut session, &[of("s"), of("t")]).await?;
    postroom.drained(PATIENCE).await?;
    wait_nothing_left(&postroom).await?;
    fleet.workers[0].sigstop()?;
    let end = tokio::time::Instant::now() + PATIENCE;
    while sqlx::query_scalar("select exists (select from postroom.lease_holder where alive)")
        .fetch_one(&mut session)
        .await?
    {
        ensure!(
            tokio::time::Instant::now() < end,
            "the lease never runs out"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    fleet.workers[0].sigcont()?;
    for _ in 0..5 {
        commit(&postroom, &mut session, &[of("s"), of("t")]).await?;
    }
    postroom.verdict(PATIENCE).await?.require(0)?;
    fleet.require_nothing_swept().await
}

/// What a claim says of the only message's partition: (partition, epoch).
async fn claim(
    session: &mut PgConnection,
    worker: Uuid,
    partition: i16,
    lease: &str,
) -> Result<Option<i64>> {
    let claim = "select (select e from unnest(partitions, epochs) u(p, e) where p = $2) \
         from postroom.claim_work($1, 'test', '0', $3::interval, array['orders'])";
    sqlx::query_scalar(claim)
        .bind(worker)
        .bind(partition)
        .bind(lease)
        .fetch_one(session)
        .await
        .context("claim_work")
}

/// Defers, buries and releases under a token; returns (deferred, buried, released) and whether each said that the lease
/// was lost.
async fn act(
    session: &mut PgConnection,
    worker: Uuid,
    epoch: i64,
) -> Result<((i64, bool), (i64, bool), bool)> {
    let key = "$1, o.endpoint, array[o.partition], array[$2::bigint], array[o.xact], array[o.id], array[o.message_id]";
    let defer = format!(
        "select deferred, lost_partitions <> '{{}}' from postroom.outbox o cross join lateral \
         postroom.defer_messages({key}, array[interval '1 hour'], array[true], array[true], array['Test'], array['test'])"
    );
    let bury = format!(
        "select buried, lost_partitions <> '{{}}' from postroom.outbox o cross join lateral \
         postroom.bury_messages({key}, array[true], array['Test'], array['test'])"
    );
    let release = "select postroom.release_work($1, endpoint, array[partition], array[$2::bigint], array[low_mark], array[low_mark]) <> '{}' \
         from postroom.lease where partition = (select partition from postroom.outbox limit 1)";
    let deferred = sqlx::query_as(sqlx::AssertSqlSafe(defer))
        .bind(worker)
        .bind(epoch)
        .fetch_one(&mut *session)
        .await?;
    let released = sqlx::query_scalar(release)
        .bind(worker)
        .bind(epoch)
        .fetch_one(&mut *session)
        .await?;
    let buried = sqlx::query_as(sqlx::AssertSqlSafe(bury))
        .bind(worker)
        .bind(epoch)
        .fetch_one(&mut *session)
        .await?;
    Ok((deferred, buried, released))
}

/// F08, G9: the same worker, or another one, claims again after the lease ran out; the old token then changes nothing
/// and is told so.
#[tokio::test]
async fn an_old_epoch_changes_nothing_and_is_told_so() -> Result<()> {
    old_epochs(async |_| Ok(())).await
}

/// The scenario of old tokens; `prepare` may break the database's side.
pub(crate) async fn old_epochs(
    prepare: impl AsyncFnOnce(&mut PgConnection) -> Result<()>,
) -> Result<()> {
    let postroom = Postroom::start("epochs", small).await?;
    let mut session = postroom.connect().await?;
    prepare(&mut session).await?;
    commit(&postroom, &mut session, &[of("s")]).await?;
    let partition: i16 = sqlx::query_scalar("select partition from postroom.outbox")
        .fetch_one(&mut session)
        .await?;
    let (one, other) = (Uuid::new_v4(), Uuid::new_v4());
    let first = claim(&mut session, one, partition, "1 second")
        .await?
        .context("nothing claimed")?;
    ensure!(
        claim(&mut session, other, partition, "1 second")
            .await?
            .is_none(),
        "a living owner keeps what it holds"
    );
    expired(&mut session).await?;
    let second = claim(&mut session, one, partition, "1 second")
        .await?
        .context("not claimed again")?;
    ensure!(
        second > first,
        "the epoch has not grown: {second} after {first}"
    );
    expired(&mut session).await?;
    let third = claim(&mut session, other, partition, "1 minute")
        .await?
        .context("not taken over")?;
    ensure!(third > second, "{third} after {second}");
    for (worker, epoch) in [(one, first), (one, second), (one, third), (other, first)] {
        let answer = act(&mut session, worker, epoch).await?;
        ensure!(
            answer == ((0, true), (0, true), false),
            "epoch {epoch}: {answer:?}"
        );
    }
    let untouched: (i64, i64, i64, bool) = sqlx::query_as(
        "select (select count(*) from postroom.outbox where endpoint = $1), (select count(*) from postroom.deferral), \
         (select count(*) from postroom.dead_letter), (select owner = $2 from postroom.lease where partition = $3)",
    )
    .bind(OUTBOX)
    .bind(other)
    .bind(partition)
    .fetch_one(&mut session)
    .await?;
    ensure!(untouched == (1, 0, 0, true), "{untouched:?}");
    let answer = act(&mut session, other, third).await?;
    ensure!(
        answer == ((1, false), (0, true), true),
        "the living token works until it is released: {answer:?}"
    );
    Ok(())
}

/// Waits until nobody's lease lives.
async fn expired(session: &mut PgConnection) -> Result<()> {
    let wait = "select pg_sleep(greatest(0, extract(epoch from max(lease_until) - clock_timestamp())) + 0.01) from postroom.worker";
    session
        .execute(wait)
        .await
        .map(drop)
        .context("wait for the end of the leases")
}
