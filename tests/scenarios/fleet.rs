//! Many workers at one backlog.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postroom_tests::setup::Postroom;

use crate::ground::{PATIENCE, WINDOW, bind_lost, committed, narrow, small, wait_nothing_left};
use crate::leases::{keep_history, one_holds_everything, require_exclusion};
use crate::workers::Fleet;
use crate::workload::{Chance, Load, Message, commit, lost, of};

/// Between two changes of the fleet.
const CHANGE: Duration = Duration::from_millis(600);

/// G1 to G5, G9, F51: two to eight workers and back, some going in good order and some killed, while a backlog and new
/// messages of 200 streams are worked off.
#[tokio::test]
async fn workers_that_come_and_go_share_a_backlog_fairly_and_never_work_the_same_stream()
-> Result<()> {
    let postroom = Postroom::start("fleet", small).await?;
    keep_history(&postroom).await?;
    let mut session = postroom.connect().await?;
    for number in 0..200 {
        let stream = format!("stream {number}");
        commit(&postroom, &mut session, &[of(&stream); 10]).await?;
    }
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[]);
    let changes = async {
        for step in [1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, 1, 1, 1] {
            match step {
                1 => fleet.start()?,
                _ if chance.one_in(2) => fleet.kill(&chance).await?,
                _ => fleet.retire(&chance).await?,
            }
            tokio::time::sleep(CHANGE).await;
        }
        fleet.grow_to(5).await?;
        fleet.wait_fair_shares().await
    };
    let load = Load {
        streams: 200,
        pause: Duration::from_millis(120),
        ..Load::plain()
    };
    load.beside(&postroom, &chance, changes).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict} after {} kills", fleet.kills);
    verdict.require(fleet.kills * 2 * WINDOW)?;
    wait_nothing_left(&postroom).await?;
    fleet.require_nothing_swept().await?;
    ensure!(
        require_exclusion(&postroom).await? > 128,
        "too little changed hands"
    );
    Ok(())
}

/// F06: 500 messages are deferred and due when ten workers start at once after all were killed.
#[tokio::test]
async fn many_workers_restarted_at_once_do_not_send_the_same_messages() -> Result<()> {
    const MANY: usize = 10;
    let postroom = narrow("stampede", |resource| resource).await?;
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(MANY).await?;
    let mut session = postroom.connect().await?;
    let failing = Message {
        stream: None,
        ..lost("")
    };
    commit(&postroom, &mut session, &[failing; 500]).await?;
    let end = Instant::now() + PATIENCE;
    while 500
        != sqlx::query_scalar::<_, i64>("select count(*) from postroom.deferral")
            .fetch_one(&mut session)
            .await?
    {
        ensure!(Instant::now() < end, "not all have failed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while !fleet.workers.is_empty() {
        fleet.kill(&chance).await?;
    }
    // What the dead had sent has been returned to nobody by now.
    let early = postroom
        .receiver
        .wait_quiet(Duration::from_millis(500), PATIENCE)
        .await?;
    ensure!(early.is_empty());
    bind_lost(&postroom).await?;
    fleet.grow_to(MANY).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}");
    verdict.require(0)?;
    wait_nothing_left(&postroom).await?;
    fleet.require_nothing_swept().await
}

/// G3 over all streams: with `mode: Total` one worker at a time has the whole endpoint, also after a death.
#[tokio::test]
async fn total_order_holds_across_workers_and_a_take_over() -> Result<()> {
    let postroom = Postroom::start("total", |resource| {
        small(resource).with("outboxes.0.ordering.mode", "Total")
    })
    .await?;
    keep_history(&postroom).await?;
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(2).await?;
    let changes = async {
        committed(&postroom, 100).await?;
        one_holds_everything(&postroom).await?;
        // Until the holder was among the dead: the holder does not change otherwise.
        for _ in 0..2 {
            fleet.kill(&chance).await?;
            fleet.grow_to(2).await?;
            committed(&postroom, 50).await?;
            one_holds_everything(&postroom).await?;
        }
        fleet.retire(&chance).await?;
        fleet.retire(&chance).await?;
        fleet.grow_to(1).await?;
        committed(&postroom, 50).await
    };
    let load = Load {
        writers: 4,
        total: true,
        open: Duration::from_millis(500),
        ..Load::plain()
    };
    load.beside(&postroom, &chance, changes).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}");
    // One message at a time is in flight; its completion may be under way when the next one goes.
    verdict.require(fleet.kills * WINDOW)?;
    wait_nothing_left(&postroom).await?;
    fleet.require_nothing_swept().await?;
    ensure!(
        require_exclusion(&postroom).await? >= 128,
        "nothing was taken over"
    );
    Ok(())
}

/// G5, R3: workers are replaced one after the other under load. Each ends with exit code 0 well within its grace
/// period, and nothing is ever repeated.
#[tokio::test]
async fn a_drained_worker_ends_in_time_and_leaves_nothing_to_repeat() -> Result<()> {
    const GRACE: u64 = 20;
    let postroom = Postroom::start("drain", |resource| {
        resource.with("workers.terminationGracePeriodSeconds", GRACE)
    })
    .await?;
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(2).await?;
    let rolling = async {
        for _ in 0..4 {
            committed(&postroom, 100).await?;
            let began = Instant::now();
            fleet.retire(&chance).await?;
            ensure!(
                began.elapsed() < Duration::from_secs(GRACE),
                "the drain took {:?}",
                began.elapsed()
            );
            fleet.grow_to(2).await?;
        }
        Ok(())
    };
    Load::plain().beside(&postroom, &chance, rolling).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}");
    verdict.require(0)?;
    wait_nothing_left(&postroom).await?;
    fleet.require_nothing_swept().await
}
