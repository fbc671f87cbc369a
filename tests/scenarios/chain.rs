//! The whole chain: a request, its message through the outbox, the broker, the inbox, and one task at its end.

use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::resource::Inbox;
use postroom_tests::setup::{EXCHANGE, Postroom};
use postroom_tests::vhost::QueueArguments;
use serde_json::json;

use crate::ground::PATIENCE;
use crate::sql::{count, rows, run, until};

const TASKS: &str = "create schema app; create table app.task (number bigint generated always as identity, message_id uuid, payload text, causation_id text);
    create function app.task(m postroom.inbox_message) returns void language plpgsql set search_path = app, pg_temp as
    $$ begin insert into task (message_id, payload, causation_id) values (m.message_id, m.payload, m.causation_id); end $$";

/// An outbox that feeds the queue of an inbox in the same database.
async fn chained(test: &str) -> Result<Postroom> {
    let postroom = Postroom::start(test, |resource| {
        resource
            .inbox(Inbox::handled("tasks", "tasks", "app.task").with("retry.maxDelaySeconds", 1))
            .lease_seconds(5)
    })
    .await?;
    postroom
        .vhost
        .declare_queue("tasks", &QueueArguments::quorum())
        .await?;
    postroom.vhost.bind("tasks", EXCHANGE, "#").await?;
    run(&mut postroom.connect().await?, TASKS).await?;
    Ok(postroom)
}

/// T-35, the last line of the example: the dispatcher dies after the broker has the message and before it could note that. The
/// message goes out twice, and makes one task.
#[tokio::test]
async fn a_message_sent_twice_makes_one_task() -> Result<()> {
    let postroom = chained("sent_twice").await?;
    let mut session = postroom.connect().await?;
    run(&mut session, "begin; select postroom.begin_request('T', 'reserve', 'IDEM-A', 'm');
        select postroom.enqueue('orders', 'item.reserved', '3 books', message_id => 'MSG-A', request_id => (select request_id from postroom.request));
        select postroom.finish_request('T', 'reserve', 'IDEM-A', 'accepted'); commit").await?;
    let dying = postroom
        .launch("run")
        .env("POSTROOM_TEST_ABORT", "confirmed:1");
    dying.start()?.wait_exit(PATIENCE).await?;
    ensure!(
        count(&mut session, "postroom.outbox").await? == 1,
        "the death came before it was noted"
    );
    let _second = postroom.worker().await?;
    until(&mut session, "select not exists (select from postroom.outbox) and not exists (select from postroom.inbox) and exists (select from app.task)").await?;
    let arrived = postroom
        .receiver
        .wait_quiet(Duration::from_secs(2), PATIENCE)
        .await?;
    ensure!(
        arrived.len() == 2 && arrived[0].message_id == arrived[1].message_id,
        "{} arrivals",
        arrived.len()
    );
    until(&mut session, "select count(*) = 1 from app.task").await?;
    let told: Vec<(String,)> = rows(
        &mut session,
        "select * from postroom.explain_request('T', 'reserve', 'IDEM-A')",
    )
    .await?;
    ensure!(
        told[1].0.ends_with("it was published and confirmed."),
        "{told:?}"
    );
    // Another content under the same id is noticed, and makes no task (T-25).
    run(&mut session, "insert into postroom.outbox (endpoint, type, payload, message_id) select 'orders', 'item.reserved', '30 books', message_id from app.task").await?;
    until(&mut session, "select exists (select from postroom.dead_letter where endpoint = 'tasks' and reason = 'Conflict')").await?;
    ensure!(count(&mut session, "app.task").await? == 1);
    Ok(())
}

/// Workers die at the worst points of both flows, again and again; each order has one task, in the order of its stream.
#[tokio::test]
async fn the_chain_makes_one_task_of_every_order_whoever_dies() -> Result<()> {
    let postroom = chained("chain").await?;
    let mut session = postroom.connect().await?;
    let mut written = 0;
    for point in [
        "published:3",
        "confirmed:2",
        "accepted:2",
        "handled:3",
        "delivered:1",
        "settled:2",
    ] {
        let batch: Vec<_> = (written..written + 150)
            .map(|n| json!({"type": "order", "stream": format!("s{}", n % 9), "payload": n.to_string(), "content_type": "text/plain"}))
            .collect();
        written += batch.len();
        sqlx::query("select postroom.store_outbox_messages('orders', $1)")
            .bind(serde_json::Value::from(batch))
            .execute(&mut session)
            .await?;
        let dying = postroom.launch("run").env("POSTROOM_TEST_ABORT", point);
        dying.start()?.wait_exit(PATIENCE).await?;
    }
    let _last = postroom.worker().await?;
    until(&mut session, "select not exists (select from postroom.outbox) and not exists (select from postroom.inbox)").await?;
    until(
        &mut session,
        &format!("select count(*) >= {written} from app.task"),
    )
    .await?;
    postroom
        .receiver
        .wait_quiet(Duration::from_secs(2), PATIENCE)
        .await?;
    until(
        &mut session,
        "select not exists (select from postroom.inbox)",
    )
    .await?;
    let (tasks, different) = (
        count(&mut session, "app.task").await?,
        count(&mut session, "(select distinct payload from app.task) t").await?,
    );
    ensure!(
        tasks == i64::try_from(written)? && different == tasks,
        "{written} orders, {tasks} tasks, {different} different"
    );
    let disorder = count(&mut session, "(select payload::int < lag(payload::int) over (partition by payload::int % 9 order by number) as wrong from app.task) t where wrong").await?;
    ensure!(disorder == 0, "{disorder} tasks out of order");
    Ok(())
}
