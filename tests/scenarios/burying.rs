//! Giving a message up: nothing of it is lost.

use anyhow::{Result, ensure};
use uuid::Uuid;

use crate::settling::{Completed, bury, defer, settle, with_worker};
use crate::sql::{count, keys, one, rows, write_one};

/// G1, trap 8: what is given up is kept whole.
#[tokio::test]
async fn a_buried_message_is_kept_with_everything_it_had() -> Result<()> {
    let (_schema, mut session, worker, held) = with_worker("buried").await?;
    let full = "stream => 's', tenant => 'T', message_id => 'ORDER-1', key => 'K', routing_key => 'r', headers => '{\"h\": {\"$int16\": 7}}', content_type => 'text/x', \
        delay => '1 h', expires_at => '2090-01-01', correlation_id => 'c', causation_id => 'd', traceparent => 't', request_id => '00000000-0000-7000-8000-000000000009'";
    write_one(
        &mut session,
        &format!("enqueue('orders', 'a', 'body', {full})"),
    )
    .await?;
    write_one(&mut session, "enqueue_bytes('orders', 'a', '\\x00ff')").await?;
    let columns: String = one(&mut session, "select string_agg(attname, ', ' order by attnum) from pg_attribute where attrelid = 'outbox'::regclass and attnum > 0 and not attisdropped").await?;
    let before: Vec<(String,)> = rows(
        &mut session,
        &format!("select row({columns})::text from outbox order by id"),
    )
    .await?;
    let all = keys(&mut session, "orders").await?;
    settle::<(i64, Vec<i16>)>(
        &mut session,
        &defer(worker, &all, |p| held.epoch(p), "1 h", true),
    )
    .await?;
    let answer: Completed = settle(&mut session, &bury(worker, &all, |p| held.epoch(p))).await?;
    ensure!(answer.0 == 2 && answer.1.is_empty(), "{answer:?}");
    let after: Vec<(String,)> = rows(
        &mut session,
        &format!("select row({columns})::text from dead_letter order by id"),
    )
    .await?;
    ensure!(after == before, "{after:?} {before:?}");
    let why: Vec<(String, String, i32, String, Uuid)> = rows(
        &mut session,
        "select reason, error, attempts, direction, buried_by from dead_letter",
    )
    .await?;
    let expected = (
        "Unroutable".to_owned(),
        "gone".to_owned(),
        2,
        "Outbox".to_owned(),
        worker,
    );
    ensure!(why == [expected.clone(), expected], "{why:?}");
    ensure!(count(&mut session, "outbox").await? + count(&mut session, "deferral").await? == 0);
    ensure!(
        !write_one(
            &mut session,
            &format!("enqueue('orders', 'a', 'body', {full})")
        )
        .await?
        .is_new(),
        "a dead letter is remembered as well"
    );
    let answer: Completed = settle(&mut session, &bury(worker, &all, |p| held.epoch(p))).await?;
    ensure!(
        answer.0 == 0 && count(&mut session, "dead_letter").await? == 2,
        "once: {answer:?}"
    );
    Ok(())
}
