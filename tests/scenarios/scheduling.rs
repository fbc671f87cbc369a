//! Messages with a time: due later, or of no use after it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postroom_tests::setup::Postroom;
use uuid::Uuid;

use crate::ground::{PATIENCE, bind_lost, dead, narrow, small, wait_nothing_left};
use crate::workers::Fleet;
use crate::workload::{Message, commit, lost, of};

/// Far enough for the others to arrive before, on a loaded machine.
const DUE: f64 = 4.0;

fn due(stream: &str) -> Message<'_> {
    Message {
        due_in: Some(DUE),
        ..of(stream)
    }
}

/// The ids in the order in which they arrived first, and when each did.
async fn arrivals(postroom: &Postroom, count: usize) -> Result<Vec<(Uuid, Instant)>> {
    let received = postroom.receiver.wait_for(count, PATIENCE).await?;
    Ok(received
        .iter()
        .filter_map(|received| Some((received.id()?, received.arrived)))
        .collect())
}

fn in_time(arrived: Instant, written: Instant) -> Result<()> {
    let after = arrived.duration_since(written).as_secs_f64();
    ensure!(
        (DUE..DUE + 10.0).contains(&after),
        "due after {DUE} s, arrived after {after} s"
    );
    Ok(())
}

/// The stream waits for its scheduled message, no other does, and everything comes in order once it is due.
#[tokio::test]
async fn a_scheduled_message_holds_its_stream_until_it_is_due() -> Result<()> {
    let postroom = Postroom::start("hold", small).await?;
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    let written = Instant::now();
    let held = commit(
        &postroom,
        &mut session,
        &[of("s"), due("s"), of("s"), of("s")],
    )
    .await?;
    let free = commit(&postroom, &mut session, &[of("t"), due("none"), of("t")]).await?;
    let all = arrivals(&postroom, 7).await?;
    let ids: Vec<Uuid> = all.iter().map(|(id, _)| *id).collect();
    let early: Vec<Uuid> = ids.iter().copied().take(3).collect();
    ensure!(
        [held[0], free[0], free[2]]
            .iter()
            .all(|id| early.contains(id)),
        "what is not held back comes first: {ids:?} of {held:?} and {free:?}"
    );
    for (id, arrived) in &all[3..] {
        ensure!(!early.contains(id));
        in_time(*arrived, written)?;
    }
    postroom.verdict(PATIENCE).await?.require(0)?;
    wait_nothing_left(&postroom).await?;
    fleet.require_nothing_swept().await
}

/// Longer than any pause of the poll: nothing else happens that could wake the worker.
#[tokio::test]
async fn a_message_that_falls_due_on_an_idle_endpoint_goes_out_at_its_time() -> Result<()> {
    const LATER: f64 = 20.0;
    let postroom = Postroom::start("due_idle", |resource| resource).await?;
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    let written = Instant::now();
    let later = Message {
        due_in: Some(LATER),
        ..of("s")
    };
    commit(&postroom, &mut session, &[later]).await?;
    let all = arrivals(&postroom, 1).await?;
    let after = all[0].1.duration_since(written).as_secs_f64();
    ensure!(
        (LATER..LATER + 5.0).contains(&after),
        "due after {LATER} s, arrived after {after} s"
    );
    wait_nothing_left(&postroom).await
}

/// With `onScheduled: Pass` the stream goes on without it.
#[tokio::test]
async fn a_scheduled_message_is_passed_where_the_resource_says_pass() -> Result<()> {
    let postroom = Postroom::start("pass", |resource| {
        small(resource).with("outboxes.0.ordering.onScheduled", "Pass")
    })
    .await?;
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    let written = Instant::now();
    let ids = commit(
        &postroom,
        &mut session,
        &[of("s"), due("s"), of("s"), of("s")],
    )
    .await?;
    let all = arrivals(&postroom, 4).await?;
    let order: Vec<Uuid> = all.iter().map(|(id, _)| *id).collect();
    ensure!(
        order == [ids[0], ids[2], ids[3], ids[1]],
        "{order:?} of {ids:?}"
    );
    in_time(all[3].1, written)?;
    wait_nothing_left(&postroom).await?;
    ensure!(
        postroom.drained(PATIENCE).await?.len() == 4,
        "nothing comes twice"
    );
    Ok(())
}

/// A message that had expired when it was written, and one that expires while its stream is blocked, become dead
/// letters with that reason; their streams go on.
#[tokio::test]
async fn an_expired_message_becomes_a_dead_letter_and_its_stream_goes_on() -> Result<()> {
    let postroom = narrow("expired", |resource| resource).await?;
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    let expires = |stream, seconds| Message {
        expires_in: Some(seconds),
        ..of(stream)
    };
    let ids = commit(
        &postroom,
        &mut session,
        &[
            of("s"),
            expires("s", -1.0),
            of("s"),
            lost("t"),
            expires("t", 1.0),
            of("t"),
            expires("u", 3600.0),
        ],
    )
    .await?;
    let arrived = arrivals(&postroom, 3).await?;
    ensure!(
        [ids[0], ids[2], ids[6]]
            .iter()
            .all(|id| arrived.iter().any(|(seen, _)| seen == id)),
        "{arrived:?}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    bind_lost(&postroom).await?;
    arrivals(&postroom, 5).await?;
    wait_nothing_left(&postroom).await?;
    let expired = dead(&postroom, "Expired").await?;
    ensure!(expired == [ids[1], ids[4]].into(), "{expired:?} of {ids:?}");
    let verdict = postroom.verdict(Duration::from_secs(1)).await?;
    ensure!(verdict.missing.len() == 2, "{verdict}");
    verdict.excuse(&expired).require(0)
}
