//! The ground that most scenarios stand on, and the questions they ask the database in the end.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::eventually::{eventually, when};
use postroom_tests::resource::Resource;
use postroom_tests::setup::{Postroom, QUEUE};
use uuid::Uuid;

use crate::workload::{GOOD, LOST};

/// For every wait that should be over much sooner; other tests need the processors as well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An exchange whose queue takes only [`GOOD`], until [`bind_lost`].
pub(crate) const NARROW: &str = "narrow";

/// Waits until so many messages more are committed.
pub(crate) async fn committed(postroom: &Postroom, count: usize) -> Result<()> {
    let wanted = postroom.ledger.committed() + count;
    eventually("writers commit", PATIENCE, || async {
        let committed = postroom.ledger.committed();
        when(committed >= wanted, || format!("{committed} of {wanted}"))
    })
    .await
}

/// Asks the database which transactions without an answer were committed, after a crash.
pub(crate) async fn settle_unknown(postroom: &Postroom) -> Result<()> {
    let written: Vec<Uuid> = sqlx::query_scalar("select message_id from written")
        .fetch_all(&mut postroom.connect().await?)
        .await?;
    let written = written.into_iter().collect();
    ensure!(
        postroom.ledger.committed_ids().is_subset(&written),
        "the database itself has lost acknowledged commits; this run says nothing about the relay"
    );
    postroom.ledger.settle_unknown(&written);
    Ok(())
}

/// A scenario with the exchange [`NARROW`], few messages in flight and the shortest lease.
pub(crate) async fn narrow(
    test: &str,
    adjust: impl FnOnce(Resource) -> Resource,
) -> Result<Postroom> {
    let postroom = Postroom::start(test, |resource| {
        adjust(small(resource).with("outboxes.0.exchange", NARROW))
    })
    .await?;
    postroom
        .vhost
        .declare_exchange(NARROW, lapin::ExchangeKind::Topic)
        .await?;
    postroom.vhost.bind(QUEUE, NARROW, GOOD).await?;
    Ok(postroom)
}

/// Gives [`LOST`] a queue.
pub(crate) async fn bind_lost(postroom: &Postroom) -> Result<()> {
    postroom.vhost.bind(QUEUE, NARROW, LOST).await
}

/// So many messages may be in flight in [`small`] and [`narrow`].
pub(crate) const WINDOW: usize = 100;

/// Few messages in flight, so that repeats have a small bound; two channels, so that partitions do not share everything; retries that come soon and never end; the shortest lease.
pub(crate) fn small(resource: Resource) -> Resource {
    resource
        .with("outboxes.0.delivery.maxInFlight", WINDOW)
        .with("outboxes.0.delivery.channels", 2)
        .with("outboxes.0.retry.maxAttempts", 0)
        .with("outboxes.0.retry.maxDelaySeconds", 1)
        .lease_seconds(5)
}

/// Waits until nothing is left to do and no deferral has outlived its message (G11).
pub(crate) async fn wait_nothing_left(postroom: &Postroom) -> Result<()> {
    let mut session = postroom.connect().await?;
    let counts =
        "select (select count(*) from postroom.outbox), (select count(*) from postroom.deferral)";
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let left: (i64, i64) = sqlx::query_as(counts).fetch_one(&mut session).await?;
        if left == (0, 0) {
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < end,
            "messages and deferrals left: {left:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The ids of all dead letters with this reason.
pub(crate) async fn dead(postroom: &Postroom, reason: &str) -> Result<HashSet<Uuid>> {
    let dead: Vec<Uuid> =
        sqlx::query_scalar("select message_id from postroom.dead_letter where reason = $1")
            .bind(reason)
            .fetch_all(&mut postroom.connect().await?)
            .await?;
    Ok(dead.into_iter().collect())
}

/// What the database knows of messages that should have arrived: the first lines of a bug report.
pub(crate) async fn show_missing(postroom: &Postroom, missing: &[Uuid]) -> Result<()> {
    let rows: Vec<String> = sqlx::query_scalar(
        "select format('partition %s xact %s id %s stream %s created %s; lease: low mark %s, removals %s, suspect %s, owner %s; deferral: %s; now %s', o.partition, o.xact, o.id, o.stream, o.created_at, \
         l.low_mark, l.removals, l.suspect, l.owner, to_jsonb(d), clock_timestamp()) from postroom.outbox o join postroom.lease l using (endpoint, partition) \
         left join postroom.deferral d using (endpoint, partition, xact, id) where o.message_id = any ($1) order by o.partition, o.xact, o.id",
    )
    .bind(missing)
    .fetch_all(&mut postroom.connect().await?)
    .await?;
    eprintln!(
        "{} missing, of which the outbox still has {}:\n{}",
        missing.len(),
        rows.len(),
        rows.join("\n")
    );
    Ok(())
}
