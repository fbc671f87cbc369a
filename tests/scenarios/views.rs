//! What people look at: where a message is, and how much waits where.

use anyhow::{Result, ensure};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{Schema, claim_one, count, keys, one, rows, run, write_one};

async fn explained(session: &mut PgConnection, arguments: &str) -> Result<Vec<String>> {
    let found: Vec<(String,)> = rows(
        session,
        &format!("select * from postroom.explain_message({arguments})"),
    )
    .await?;
    Ok(found.into_iter().map(|(sentence,)| sentence).collect())
}

/// There is one sentence about a message, and it holds the words.
async fn says(session: &mut PgConnection, message: &str, words: &[&str]) -> Result<()> {
    let said = explained(session, &format!("'{message}'")).await?;
    ensure!(
        said.len() == 1 && words.iter().all(|word| said[0].contains(word)),
        "{words:?} in {said:?}"
    );
    Ok(())
}

async fn defer(session: &mut PgConnection, message: &str, delay: &str) -> Result<()> {
    run(session, &format!("insert into deferral (endpoint, partition, xact, id, message_id, stream_key, blocking, due_at, attempts, deferrals, reason, error) \
        select endpoint, partition, xact, id, message_id, stream_key('PerStream', tenant, stream), true, clock_timestamp() + '{delay}', 3, 4, 'Unroutable', 'no queue 17' from outbox where foreign_id = '{message}'")).await
}

/// What happens, which message is asked about, and what is said then.
const STATES: [(&str, &str, &[&str]); 8] = [
    (
        "",
        "FREE",
        &[
            "outbox 'orders'",
            "position 1",
            "no living worker holds its partition",
            "lease_holder",
        ],
    ),
    (
        "select claim_work('00000000-0000-0000-0000-000000000007', 'here', '0', '1 hour', '{orders}')",
        "FREE",
        &[
            "waiting to be published",
            "00000000-0000-0000-0000-000000000007",
            "on here",
        ],
    ),
    ("", "LATER", &["scheduled", "published from"]),
    (
        "update endpoint set paused = true",
        "FREE",
        &["paused", "resumed"],
    ),
    (
        "update endpoint set paused = false",
        "FREE",
        &["waiting to be published"],
    ),
    (
        "update worker set lease_until = clock_timestamp()",
        "FREE",
        &["no living worker"],
    ),
    (
        "with m as (delete from outbox where foreign_id = 'FREE' returning *) \
        insert into dead_letter (endpoint, direction, partition, xact, id, message_id, tenant, type, content_type, payload, created_at, reason, error, attempts) \
        select endpoint, 'Outbox', partition, xact, id, message_id, tenant, type, content_type, payload, created_at, 'Unroutable', 'no queue', 5 from m",
        "FREE",
        &[
            "given up",
            "5 counted failures",
            "Unroutable (no queue)",
            "dead_letter",
        ],
    ),
    (
        "",
        "NOBODY",
        &[
            "No message NOBODY",
            "published or handled, never committed, or its id is wrong",
        ],
    ),
];

/// G-13, T-30: one sentence for each place, with the reason and what happens next.
#[tokio::test]
async fn a_message_is_explained_in_every_state_it_can_be_in() -> Result<()> {
    let schema = Schema::start("explain").await?;
    let mut session = schema.connect().await?;
    for (message, more) in [
        ("FREE", ""),
        ("HEAD", ", stream => 's'"),
        ("NEXT", ", stream => 's'"),
        ("LATER", ", delay => '1 day'"),
    ] {
        let call = format!("enqueue('orders', 'a', 'x', message_id => '{message}'{more})");
        write_one(&mut session, &call).await?;
    }
    for (event, message, words) in STATES {
        run(&mut session, event).await?;
        says(&mut session, message, words).await?;
    }
    defer(&mut session, "HEAD", "1 hour").await?;
    let deferred = [
        "deferred after 3 counted failures",
        "Unroutable: no queue 17",
        "tried again at",
    ];
    says(&mut session, "HEAD", &deferred).await?;
    let head: Uuid = one(
        &mut session,
        "select message_id from outbox where foreign_id = 'HEAD'",
    )
    .await?;
    says(&mut session, &head.to_string(), &deferred).await?;
    says(
        &mut session,
        "NEXT",
        &["parked behind message", &head.to_string()],
    )
    .await
}

/// One id may be several messages: of several endpoints, tenants, or plain inserts.
#[tokio::test]
async fn every_place_of_a_message_is_named_and_a_tenant_narrows_it() -> Result<()> {
    let schema = Schema::start("places").await?;
    let mut session = schema.connect().await?;
    let id = Uuid::new_v4();
    for (endpoint, tenant) in [("orders", "A"), ("orders", "B"), ("loose", "A")] {
        write_one(
            &mut session,
            &format!("enqueue('{endpoint}', 'a', 'x', message_id => '{id}', tenant => '{tenant}')"),
        )
        .await?;
    }
    ensure!(explained(&mut session, &format!("'{id}'")).await?.len() == 3);
    ensure!(
        explained(&mut session, &format!("'{id}', tenant => 'A'"))
            .await?
            .len()
            == 2
    );
    ensure!(
        explained(&mut session, &format!("'{id}', tenant => 'C'")).await?[0]
            .starts_with("No message")
    );
    Ok(())
}

/// Endpoint, pending, in flight, deferred, parked, dead, day of the oldest pending one.
type Line = (String, i64, i64, i64, i64, i64, Option<String>);

/// pending, deferred and parked add up to what is there; a scheduled message without a stream parks nobody.
#[tokio::test]
async fn the_backlog_counts_every_message_once() -> Result<()> {
    let schema = Schema::start("backlog").await?;
    let mut session = schema.connect().await?;
    run(&mut session, "insert into outbox (endpoint, type, stream, payload, created_at) values ('orders', 'a', 's', '1', '2026-01-01'), ('orders', 'a', 's', '2', '2026-01-02'), \
        ('orders', 'a', 's', '3', '2026-01-03'), ('orders', 'a', 't', '4', '2026-01-04'), ('orders', 'a', null, '5', '2026-01-05'), ('loose', 'a', 's', '6', '2026-01-06')").await?;
    run(&mut session, "insert into outbox (endpoint, type, payload, available_at) values ('orders', 'a', '7', 'infinity')").await?;
    run(&mut session, "update outbox set foreign_id = payload").await?;
    defer(&mut session, "1", "1 hour").await?;
    claim_one(&mut session, Uuid::from_u128(1), "1 hour", "orders").await?;
    run(&mut session, "select claim_work('00000000-0000-0000-0000-000000000001', 'host', '0', '1 hour', '{orders}', null, '{\"orders\": 2}')").await?;
    let found: Vec<Line> = rows(&mut session,
        "select endpoint, pending, in_flight, deferred, parked, dead, to_char(oldest_pending_time, 'YYYY-MM-DD') from backlog order by endpoint").await?;
    let line = |name: &str, numbers: [i64; 5], oldest: Option<&str>| {
        (
            name.to_owned(),
            numbers[0],
            numbers[1],
            numbers[2],
            numbers[3],
            numbers[4],
            oldest.map(str::to_owned),
        )
    };
    ensure!(
        found[0] == line("loose", [1, 0, 0, 0, 0], Some("2026-01-06"))
            && found[2] == line("whole", [0; 5], None),
        "{found:?}"
    );
    let orders = &found[1];
    ensure!(
        (orders.1, orders.2, orders.3, orders.4, orders.5) == (2, 2, 2, 2, 0),
        "{orders:?}"
    );
    let blocked: Vec<(String, String, i64, i32, String)> = rows(
        &mut session,
        "select endpoint, stream, parked, attempts, reason from blocked_stream",
    )
    .await?;
    ensure!(
        blocked
            == [(
                "orders".to_owned(),
                "s".to_owned(),
                2,
                3,
                "Unroutable".to_owned()
            )],
        "{blocked:?}"
    );
    Ok(())
}

/// Who holds what, and whether it lives; also what nobody holds.
#[tokio::test]
async fn lease_holders_are_shown_with_their_life() -> Result<()> {
    let schema = Schema::start("holders").await?;
    let mut session = schema.connect().await?;
    claim_one(&mut session, Uuid::from_u128(1), "1 hour", "orders").await?;
    ensure!(
        count(
            &mut session,
            "lease_holder where alive and host = 'host' and epoch = 1"
        )
        .await?
            == 64
    );
    run(
        &mut session,
        "update worker set lease_until = clock_timestamp()",
    )
    .await?;
    ensure!(
        count(
            &mut session,
            "lease_holder where endpoint = 'orders' and not alive and owner is not null"
        )
        .await?
            == 64
    );
    ensure!(
        count(
            &mut session,
            "lease_holder where owner is null and not alive"
        )
        .await?
            == 128
    );
    Ok(())
}

/// W-84: numbers in an error do not make it another error.
#[tokio::test]
async fn dead_letters_are_summed_up_by_reason_and_kind_of_error() -> Result<()> {
    let schema = Schema::start("summary").await?;
    let mut session = schema.connect().await?;
    for (error, reason) in [
        ("line 1 of 20", "A"),
        ("line 300 of 4", "A"),
        ("line one", "A"),
        ("line 1 of 20", "B"),
    ] {
        run(&mut session, &format!("insert into outbox (endpoint, type, payload) values ('orders', '{reason}', '{error}')")).await?;
    }
    ensure!(keys(&mut session, "orders").await?.len() == 4);
    run(&mut session, "insert into dead_letter (endpoint, direction, partition, xact, id, message_id, tenant, type, content_type, payload, created_at, reason, error, attempts) \
        select endpoint, 'Outbox', partition, xact, id, message_id, tenant, type, content_type, payload, created_at, type, payload, 1 from outbox").await?;
    let found: Vec<(String, i64)> = rows(
        &mut session,
        "select reason, messages from dead_letter_summary order by reason, messages",
    )
    .await?;
    ensure!(
        found
            == [
                ("A".to_owned(), 1),
                ("A".to_owned(), 2),
                ("B".to_owned(), 1)
            ],
        "{found:?}"
    );
    Ok(())
}
