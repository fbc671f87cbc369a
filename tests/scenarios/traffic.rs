//! What several scenarios need: rows that go into the ledger as they are written, a steady load that outlives faults of
//! the database, and looks at conditions and deferrals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::ledger::{Ledger, Outcome};
use postroom_tests::postgres;
use postroom_tests::setup::{OUTBOX, Postroom};
use postroom_tests::worker::Worker;
use serde_json::Value;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};
use uuid::Uuid;

/// How long anything may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take until a fault shows, or until work goes on after it.
pub(crate) const RECOVERY: Duration = Duration::from_secs(30);

/// A row to write; empty text stands for none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) stream: String,
    pub(crate) routing_key: String,
    pub(crate) body: String,
}

/// A row of a stream.
pub(crate) fn row(stream: &str, routing_key: &str, body: impl Into<String>) -> Row {
    Row {
        stream: stream.to_owned(),
        routing_key: routing_key.to_owned(),
        body: body.into(),
    }
}

/// `count` rows, dealt out to as many streams in turn.
pub(crate) fn rows(streams: usize, count: usize) -> Vec<Row> {
    let stream = |number: usize| format!("stream-{}", number % streams);
    (0..count)
        .map(|number| row(&stream(number), "", number.to_string()))
        .collect()
}

/// Writes rows to the usual outbox in one transaction.
pub(crate) async fn write(postroom: &Postroom, rows: &[Row]) -> Result<Vec<Uuid>> {
    write_to(postroom, OUTBOX, rows).await
}

/// Writes rows to an outbox in one transaction.
pub(crate) async fn write_to(postroom: &Postroom, outbox: &str, rows: &[Row]) -> Result<Vec<Uuid>> {
    let mut session = postroom.connect().await?;
    let mut draft = postroom.ledger.begin();
    let ids = insert(&mut session, outbox, rows).await?;
    for (row, &id) in rows.iter().zip(&ids) {
        draft.wrote(Some(&row.stream), id, row.body.as_bytes());
    }
    draft.end(Outcome::Committed);
    Ok(ids)
}

async fn insert(session: &mut PgConnection, outbox: &str, rows: &[Row]) -> Result<Vec<Uuid>> {
    let column = |of: fn(&Row) -> &String| rows.iter().map(|row| of(row).clone()).collect();
    let (streams, keys): (Vec<String>, Vec<String>) =
        (column(|row| &row.stream), column(|row| &row.routing_key));
    let bodies: Vec<String> = column(|row| &row.body);
    let insert = "insert into postroom.outbox (endpoint, type, stream, routing_key, payload) \
         select $1, 'placed', nullif(s, ''), nullif(k, ''), b from unnest($2::text[], $3::text[], $4::text[]) with ordinality u(s, k, b, n) order by n \
         returning message_id";
    let ids = sqlx::query_scalar(insert)
        .bind(outbox)
        .bind(streams)
        .bind(keys)
        .bind(bodies)
        .fetch_all(session)
        .await?;
    ensure!(ids.len() == rows.len(), "one id a row");
    Ok(ids)
}

/// Notes the ids of what was committed, beside the rows themselves: decides commits without an answer.
const NOTES: &str = "create table if not exists written (id uuid)";

/// Writes small transactions to fifty streams, some tens of rows a second, until told to stop, whatever happens to
/// the database meanwhile. Afterwards no outcome is unknown.
pub(crate) async fn load(postroom: &Postroom, stop: &AtomicBool) -> Result<()> {
    let url = postroom.database.url().to_owned();
    postroom.connect().await?.execute(NOTES).await?;
    let mut session = None;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut current = match session.take() {
            Some(session) => session,
            None => match postgres::connect(&url).await {
                Ok(session) => session,
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let rows: Vec<Row> = (0..3)
            .map(|step| {
                row(
                    &format!("load-{}", number % 50),
                    "",
                    format!("{number} {step}"),
                )
            })
            .collect();
        number += 1;
        // Without an answer the outcome stays unknown until the notes are read.
        if transaction(&mut current, &postroom.ledger, &rows)
            .await
            .is_ok()
        {
            session = Some(current);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut session = postroom.connect().await?;
    let written: Vec<Uuid> = sqlx::query_scalar("select id from written")
        .fetch_all(&mut session)
        .await?;
    postroom
        .ledger
        .settle_unknown(&written.into_iter().collect());
    Ok(())
}

async fn transaction(session: &mut PgConnection, ledger: &Ledger, rows: &[Row]) -> Result<()> {
    let mut draft = ledger.begin();
    let mut transaction = session.begin().await?;
    let ids = insert(&mut transaction, OUTBOX, rows).await?;
    for (row, &id) in rows.iter().zip(&ids) {
        draft.wrote(Some(&row.stream), id, row.body.as_bytes());
    }
    sqlx::query("insert into written select unnest($1::uuid[])")
        .bind(&ids)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    draft.end(Outcome::Committed);
    Ok(())
}

/// Runs `faults` under load, then waits until everything has arrived and returns after that.
pub(crate) async fn under_load(
    postroom: &Postroom,
    faults: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let stop = AtomicBool::new(false);
    let faults = async {
        let answer = faults().await;
        stop.store(true, Ordering::Relaxed);
        answer
    };
    let (loaded, happened) = tokio::join!(load(postroom, &stop), faults);
    loaded.and(happened)
}

/// The condition with this code about `scope` (`database`, `transport` or `endpoint`), if `/stats` shows it.
pub(crate) fn condition<'a>(stats: &'a Value, scope: &str, code: &str) -> Option<&'a Value> {
    let conditions = stats["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["scope"] == scope && condition["code"] == code)
}

/// Waits until a condition is shown; it must say what to do next.
pub(crate) async fn wait_condition(worker: &Worker, scope: &str, code: &str) -> Result<Value> {
    let what = format!("the condition {code} of the {scope}");
    let stats = worker
        .wait_stats(&what, RECOVERY, |_, stats| {
            condition(stats, scope, code).is_some()
        })
        .await?;
    let found = condition(&stats, scope, code).cloned().unwrap_or_default();
    for part in ["message", "nextStep"] {
        let text = found[part].as_str().unwrap_or_default();
        ensure!(text.len() > 10, "{code} has a {part}: {found}");
    }
    worker.wait_log(code, RECOVERY).await?;
    Ok(found)
}

/// Waits until nothing is wrong any more.
pub(crate) async fn wait_well(worker: &Worker) -> Result<Value> {
    worker
        .wait_stats("no condition is left", RECOVERY, |_, stats| {
            stats["conditions"].as_array().is_some_and(Vec::is_empty)
        })
        .await
}

/// How many messages are put off, and the most counted failures of one.
pub(crate) async fn deferrals(session: &mut PgConnection) -> Result<(i64, i32)> {
    let query = "select count(*), coalesce(max(attempts), 0) from postroom.deferral";
    Ok(sqlx::query_as(query).fetch_one(session).await?)
}

/// How many messages are not settled.
pub(crate) async fn unsettled(session: &mut PgConnection) -> Result<i64> {
    let query = "select count(*) from postroom.outbox";
    Ok(sqlx::query_scalar(query).fetch_one(session).await?)
}

/// Waits until every row is settled.
pub(crate) async fn wait_settled(postroom: &Postroom) -> Result<()> {
    let mut session = postroom.connect().await?;
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let left = unsettled(&mut session).await?;
        if left == 0 {
            return Ok(());
        }
        ensure!(
            tokio::time::Instant::now() < end,
            "{left} rows are not settled"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
