//! The plain way to write: an INSERT from anything that speaks SQL; and messages that wait for a time.

use anyhow::{Result, ensure};
use postroom_tests::postgres::PostgresServer;

use crate::sql::{Schema, count, login, one, rows, run, write_one};

/// L-02, W-26: no identity, no memory; and a plain insert has none, whatever id it gives.
#[tokio::test]
async fn without_a_key_and_by_plain_insert_every_write_is_a_message() -> Result<()> {
    let schema = Schema::start("plain").await?;
    let mut session = schema.connect().await?;
    for _ in 0..2 {
        ensure!(
            write_one(&mut session, "enqueue('orders', 'a', 'x')")
                .await?
                .is_new()
        );
        run(&mut session, "insert into outbox (endpoint, type, payload, message_id) values ('orders', 'a', 'x', '00000000-0000-7000-8000-000000000001')").await?;
    }
    ensure!(count(&mut session, "outbox").await? == 4);
    ensure!(
        count(&mut session, "message_deduplication").await?
            + count(&mut session, "idempotency_key").await?
            == 0
    );
    Ok(())
}

/// Type, partition, position, content type, tenant, whether the rest is as it must be, stream.
type Stored = (String, i16, i64, String, String, bool, Option<String>);

/// What an ORM sends: every column, with NULL where it has nothing.
#[tokio::test]
async fn a_plain_insert_is_completed_and_cannot_choose_its_place() -> Result<()> {
    let schema = Schema::start("orm").await?;
    let server = PostgresServer::shared().await?;
    let (_, mut app) = login(server, &schema.database, "app").await?;
    run(&mut app, "insert into postroom.outbox (endpoint, partition, xact, id, message_id, tenant, stream, type, routing_key, content_type, headers, payload, payload_bytes, \
        correlation_id, causation_id, traceparent, request_id, foreign_id, idempotency_key, created_at, available_at, expires_at) values \
        ('orders', null, null, null, null, null, null, 'a', null, null, null, '{}', null, null, null, null, null, null, null, null, null, null), \
        ('loose', 63, '7', -5, null, ' ', '', 'b', null, null, null, null, '\\x00', null, null, null, null, null, null, null, '-infinity', null)").await?;
    run(&mut app, "insert into postroom.outbox (endpoint, type, payload, stream, partition, xact, id) values ('orders', 'c', 'x', 's', 63, pg_current_xact_id(), -6), ('whole', 'd', 'x', 's', 63, pg_current_xact_id(), -6)").await?;
    let mut session = schema.connect().await?;
    let stored: Vec<Stored> = rows(&mut session,
        "select type, partition, id, content_type, tenant, xact > '7' and created_at <= clock_timestamp() and uuid_send(message_id) is not null and available_at is null, stream from outbox order by id").await?;
    let expected_partitions = [("a", Some(1)), ("b", Some(2)), ("c", None), ("d", Some(0))];
    for (number, (kind, partition)) in expected_partitions.into_iter().enumerate() {
        let row = &stored[number];
        ensure!(
            row.0 == kind && row.2 == i64::try_from(number)? + 1 && row.4.is_empty() && row.5,
            "{row:?}"
        );
        ensure!(row.1 == partition.unwrap_or(PARTITION_OF_S), "{row:?}");
    }
    ensure!(
        stored[0].3 == "application/json" && stored[1].3 == "application/octet-stream",
        "{stored:?}"
    );
    ensure!(stored[1].6.is_none(), "an empty stream is none");
    Ok(())
}

/// The first byte of the SHA-256 of a line feed and `s`, modulo 64. It may never change, or streams would be split.
const PARTITION_OF_S: i16 = 41;

/// L-16: due times before now are now; those that never come are kept and listed.
#[tokio::test]
async fn a_due_time_in_the_past_is_now_and_one_that_never_comes_is_kept() -> Result<()> {
    let schema = Schema::start("due").await?;
    let mut session = schema.connect().await?;
    for (number, due) in [
        "available_at => '-infinity'",
        "delay => '0'",
        "available_at => clock_timestamp() - interval '1 s'",
        "available_at => 'infinity'",
        "available_at => '9999-12-31 00:00Z'",
        "delay => '90 minutes'",
    ]
    .into_iter()
    .enumerate()
    {
        write_one(
            &mut session,
            &format!("enqueue('orders', 't{number}', 'x', stream => 's{number}', {due})"),
        )
        .await?;
    }
    let listed: Vec<(String, String, bool)> = rows(&mut session,
        "select o.type, d.reason, d.blocking and d.due_at = o.available_at and d.attempts = 0 from deferral d join outbox o using (endpoint, partition, xact, id, message_id) order by o.id").await?;
    let expected = ["t3", "t4", "t5"].map(|kind| (kind.to_owned(), "Scheduled".to_owned(), true));
    ensure!(listed == expected, "{listed:?}");
    let soon: bool = one(&mut session, "select available_at - created_at between '89 minutes' and '91 minutes' from outbox where type = 't5'").await?;
    ensure!(soon, "a delay counts from now");
    ensure!(count(&mut session, "outbox where available_at is null").await? == 3);
    run(&mut session, "insert into outbox (endpoint, type, payload, available_at) values ('loose', 'p', 'x', 'infinity')").await?;
    let blocking: bool = one(
        &mut session,
        "select blocking from deferral where endpoint = 'loose'",
    )
    .await?;
    ensure!(
        !blocking,
        "a plain insert is scheduled as well, and without a stream it holds nobody"
    );
    let never: Option<f64> = one(&mut session, "select next_due_in from fetch_outbox_batch('loose', '{0}', '{0}', '{0}', '{}', 10, 1000) where kind = 0").await?;
    ensure!(
        never.is_none(),
        "nobody waits for a time that does not come"
    );
    Ok(())
}
