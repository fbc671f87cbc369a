//! The order of a stream, through messages that fail and brokers that go away.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::broker::{RabbitOptions, RabbitServer};
use postroom_tests::postgres::PostgresServer;
use postroom_tests::setup::Postroom;
use postroom_tests::verdict::Verdict;
use uuid::Uuid;

use crate::ground::{PATIENCE, WINDOW, bind_lost, narrow, small, wait_nothing_left};
use crate::workers::Fleet;
use crate::workload::{Chance, Load, commit, lost, of};

/// G1 to G5, G11: the plain case. Without a fault there is not a single repeat, and the sweep finds nothing. Messages
/// with a due time make the readers go back all the time, which is when a careless one repeats itself.
#[tokio::test]
async fn everything_committed_arrives_once_in_order_and_nothing_that_was_rolled_back() -> Result<()>
{
    let verdict = busy_without_faults("nothing", 2_000).await?;
    eprintln!("{verdict}");
    verdict.require(0)?;
    ensure!(verdict.committed >= 2_000, "too little happened: {verdict}");
    Ok(())
}

/// Two workers under load, nothing broken but what `variant` breaks.
pub(crate) async fn busy_without_faults(variant: &str, messages: usize) -> Result<Verdict> {
    let postroom = Postroom::start("plain", |resource| resource).await?;
    let chance = Chance::new();
    let mut fleet = Fleet::new(&postroom, &[("POSTROOM_TEST_BREAK", variant)]);
    fleet.grow_to(2).await?;
    let load = Load {
        scheduled: 10,
        nested: true,
        ..Load::plain()
    };
    load.write(messages, &postroom, &chance).await?;
    let verdict = postroom.verdict(PATIENCE).await?;
    if variant == "nothing" {
        ensure!(
            postroom.ledger.rolled_back() > 100,
            "too little was rolled back"
        );
        wait_nothing_left(&postroom).await?;
        fleet.require_nothing_swept().await?;
    }
    Ok(verdict)
}

/// What a stream looks like whose first message has no queue: (reason, attempts, parked).
async fn blocked_stream(postroom: &Postroom, head: Uuid) -> Result<Option<(String, i32, i64)>> {
    sqlx::query_as(
        "select reason, attempts, parked from postroom.blocked_stream where message_id = $1",
    )
    .bind(head)
    .fetch_optional(&mut postroom.connect().await?)
    .await
    .context("read blocked_stream")
}

/// A head without a queue, ten followers, and 600 messages of other streams; then the binding is added. `variant`
/// breaks the worker; `during` looks at the blocked stream.
pub(crate) async fn failing_head(
    variant: &str,
    during: impl AsyncFnOnce(&Postroom, &Fleet<'_>, &[Uuid]) -> Result<()>,
) -> Result<Verdict> {
    let postroom = narrow("failing_head", |resource| {
        resource.with("outboxes.0.retry.maxDelaySeconds", 4)
    })
    .await?;
    let mut fleet = Fleet::new(&postroom, &[("POSTROOM_TEST_BREAK", variant)]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    let mut blocked = commit(&postroom, &mut session, &[lost("blocked")]).await?;
    for _ in 0..10 {
        blocked.extend(commit(&postroom, &mut session, &[of("blocked")]).await?);
    }
    for number in 0..200 {
        let stream = format!("other {}", number % 20);
        commit(
            &postroom,
            &mut session,
            &[of(&stream), of(&stream), Default::default()],
        )
        .await?;
    }
    during(&postroom, &fleet, &blocked).await?;
    bind_lost(&postroom).await?;
    let patience = if variant == "nothing" {
        PATIENCE
    } else {
        Duration::from_secs(4)
    };
    let verdict = postroom.verdict(patience).await?;
    if variant == "nothing" {
        wait_nothing_left(&postroom).await?;
        fleet.require_nothing_swept().await?;
    }
    Ok(verdict)
}

/// G3, F05, F12: the followers of a failing message wait, others do not; it is tried now and then, not all the time;
/// the view says why; once there is a queue, everything comes in order, without help and without a repeat.
#[tokio::test]
async fn a_failing_message_holds_back_its_stream_alone_and_goes_out_once_it_can() -> Result<()> {
    let verdict = failing_head("nothing", async |postroom, fleet, blocked| {
        postroom.receiver.wait_for(600, PATIENCE).await?;
        let pid = fleet.workers[0].pid();
        let before = processor_time(pid)?;
        tokio::time::sleep(Duration::from_secs(6)).await;
        let busy = processor_time(pid)? - before;
        ensure!(
            busy < Duration::from_millis(1_500),
            "it spins: {busy:?} of 6 s"
        );
        let arrived = postroom.receiver.received();
        ensure!(arrived.len() == 600, "{} instead of 600", arrived.len());
        let early = arrived.iter().filter_map(|received| received.id());
        ensure!(early.filter(|id| blocked.contains(id)).count() == 0);
        let seen = blocked_stream(postroom, blocked[0]).await?;
        let (reason, attempts, parked) = seen.context("the stream is not shown as blocked")?;
        ensure!(
            reason == "Unroutable" && parked == 10,
            "{reason}, {parked} parked"
        );
        ensure!((2..20).contains(&attempts), "{attempts} attempts");
        Ok(())
    })
    .await?;
    verdict.require(0)
}

/// The processor time a process has used.
fn processor_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().context("a name in brackets")?;
    let ticks: Vec<u64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // The kernel shows hundredths of a second on every machine that the tests run on.
    Ok(Duration::from_millis(10 * ticks.iter().sum::<u64>()))
}

/// With `onFailure: Skip` the same head holds nobody back.
#[tokio::test]
async fn a_failing_message_is_passed_where_the_resource_says_skip() -> Result<()> {
    let postroom = narrow("skip", |resource| {
        resource.with("outboxes.0.ordering.onFailure", "Skip")
    })
    .await?;
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    let head = commit(&postroom, &mut session, &[lost("s")]).await?[0];
    for _ in 0..20 {
        commit(&postroom, &mut session, &[of("s")]).await?;
    }
    let arrived = postroom.receiver.wait_for(20, PATIENCE).await?;
    ensure!(arrived.iter().all(|received| received.id() != Some(head)));
    bind_lost(&postroom).await?;
    let arrived = postroom.drained(PATIENCE).await?;
    ensure!(
        arrived.len() == 21,
        "{} messages instead of 21",
        arrived.len()
    );
    ensure!(arrived[20].id() == Some(head), "it comes last");
    wait_nothing_left(&postroom).await
}

/// F02: the broker goes away after the 50th of 200 messages, while writing goes on; older ones are first when it is
/// back, also where they had failed before.
#[tokio::test]
async fn the_order_of_a_stream_survives_a_restart_of_the_broker() -> Result<()> {
    let rabbit = RabbitServer::start(RabbitOptions::default()).await?;
    let postgres = PostgresServer::shared().await?;
    let postroom = Postroom::start_on(postgres, &rabbit, "restart", small).await?;
    let mut fleet = Fleet::new(&postroom, &[]);
    fleet.grow_to(1).await?;
    let mut session = postroom.connect().await?;
    let written = async {
        for _ in 0..200 {
            commit(&postroom, &mut session, &[of("s"), Default::default()]).await?;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        anyhow::Ok(())
    };
    let restarted = async {
        postroom.receiver.wait_for(100, PATIENCE).await?;
        rabbit.stop().await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        rabbit.start_again().await?;
        postroom.receiver.wait_connected(PATIENCE).await
    };
    tokio::try_join!(written, restarted)?;
    let verdict = postroom.verdict(PATIENCE).await?;
    eprintln!("{verdict}");
    // One of the stream and some of those without one were in doubt.
    verdict.require(WINDOW)?;
    wait_nothing_left(&postroom).await?;
    fleet.require_nothing_swept().await
}
