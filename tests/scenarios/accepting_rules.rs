//! The rules of an inbox at a real broker: what identity, tenant, type and size make of a message, and what is kept of those
//! that are not accepted.

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use lapin::types::AMQPValue;
use postroom_tests::intake::{Dead, INBOX, INTO, Intake};
use postroom_tests::resource::{Inbox, Resource};
use postroom_tests::sender::Parcel;
use postroom_tests::vhost::QueueArguments;
use postroom_tests::worker::Worker;
use serde_json::json;

use crate::traffic::PATIENCE;

async fn start(test: &str, adjust: impl FnOnce(Resource) -> Resource) -> Result<(Intake, Worker)> {
    let intake = Intake::start(test, &QueueArguments::quorum(), adjust).await?;
    let worker = intake.worker().await?;
    Ok((intake, worker))
}

fn only(dead: &[Dead]) -> Result<&Dead> {
    let [one] = dead else {
        anyhow::bail!("one is kept: {dead:?}");
    };
    Ok(one)
}

/// F21, L-T13: it has no identity, so its digest is what it is recognised by.
#[tokio::test]
async fn a_message_without_an_identity_becomes_one_dead_letter_however_often_it_comes() -> Result<()>
{
    let (intake, worker) = start("missing", |resource| resource).await?;
    let bare = || Parcel::bare("{\"who\": \"knows\"}");
    intake
        .send([bare(), Parcel::new("m-1", "{}"), bare()])
        .await?;
    intake.wait_rows(1, PATIENCE).await?;
    intake.send([bare()]).await?;
    intake.wait_count(&worker, "refused", 3.0, PATIENCE).await?;
    let dead = intake.dead().await?;
    let one = only(&dead)?;
    ensure!(
        one.reason == "MissingIdentity" && one.error.contains("message_id"),
        "{one:?}"
    );
    ensure!(
        one.payload.as_deref() == Some("{\"who\": \"knows\"}"),
        "{one:?}"
    );
    intake.send([Parcel::bare("another")]).await?;
    intake.wait_count(&worker, "refused", 4.0, PATIENCE).await?;
    ensure!(intake.dead().await?.len() == 2, "another is another");
    let remembered = "select count(*) from postroom.message_deduplication";
    let remembered: i64 = sqlx::query_scalar(remembered)
        .fetch_one(&mut intake.connect().await?)
        .await?;
    ensure!(
        remembered == 1,
        "nothing is remembered of those: {remembered}"
    );
    intake.drain(&worker).await
}

/// L-T13: by rule, and counted.
#[tokio::test]
async fn messages_without_an_identity_are_discarded_where_the_inbox_says_so() -> Result<()> {
    let (intake, worker) = start("discard", |resource| {
        resource.with("inboxes.0.identity.onMissing", "Discard")
    })
    .await?;
    let all = (0..300).map(|number| match number % 3 {
        0 => Parcel::new(&format!("m-{number}"), "{}"),
        _ => Parcel::bare("{}"),
    });
    intake.send(all).await?;
    intake.wait_rows(100, PATIENCE).await?;
    intake
        .wait_count(&worker, "discarded", 200.0, PATIENCE)
        .await?;
    ensure!(intake.dead().await?.is_empty());
    intake.drain(&worker).await
}

/// T-25, G8: never a repeat, never a second effect.
#[tokio::test]
async fn the_same_id_with_another_meaning_is_kept_once_with_both_digests() -> Result<()> {
    let (intake, worker) = start("conflict", |resource| resource).await?;
    let (first, other) = (
        Parcel::new("m-1", "{\"a\": 1}"),
        Parcel::new("m-1", "{\"a\": 2}"),
    );
    intake
        .send([
            first.clone(),
            other.clone(),
            first,
            other.clone(),
            other.clone(),
        ])
        .await?;
    intake
        .wait_count(&worker, "conflict", 3.0, PATIENCE)
        .await?;
    intake.send([other]).await?;
    intake
        .wait_count(&worker, "conflict", 4.0, PATIENCE)
        .await?;
    intake
        .wait_count(&worker, "duplicate", 1.0, PATIENCE)
        .await?;
    let rows = intake.wait_rows(1, PATIENCE).await?;
    ensure!(
        rows[0].payload.as_deref() == Some("{\"a\": 1}"),
        "the first one counts"
    );
    let dead = intake.dead().await?;
    let one = only(&dead)?;
    ensure!(
        one.reason == "Conflict" && one.payload.as_deref() == Some("{\"a\": 2}"),
        "{one:?}"
    );
    let digests = one
        .error
        .split_whitespace()
        .map(|word| word.trim_matches(','));
    let digests =
        digests.filter(|word| word.len() == 64 && word.chars().all(|c| c.is_ascii_hexdigit()));
    let digests: std::collections::BTreeSet<_> = digests.collect();
    ensure!(digests.len() == 2, "both digests: {}", one.error);
    intake.drain(&worker).await
}

#[tokio::test]
async fn conflicts_are_discarded_where_the_inbox_says_so() -> Result<()> {
    let (intake, worker) = start("no_conflict", |resource| {
        resource.with("inboxes.0.identity.onConflict", "Discard")
    })
    .await?;
    intake
        .send([Parcel::new("m-1", "1"), Parcel::new("m-1", "2")])
        .await?;
    intake
        .wait_count(&worker, "conflict", 1.0, PATIENCE)
        .await?;
    intake.wait_rows(1, PATIENCE).await?;
    ensure!(intake.dead().await?.is_empty());
    intake.drain(&worker).await
}

/// Nobody here handles them: no row, no memory of them, and the acknowledgement goes past them.
#[tokio::test]
async fn types_that_are_not_listed_never_reach_the_database() -> Result<()> {
    let (intake, worker) = start("types", |resource| {
        resource.with("inboxes.0.types", json!(["order.placed", "order.paid"]))
    })
    .await?;
    let all = (0..1_000).map(|number| {
        let kind = ["order.placed", "order.paid", "order.lost", ""][number % 4];
        Parcel::new(&format!("m-{number}"), "{}").with(|p| p.with_type(kind.into()))
    });
    intake.send(all).await?;
    let rows = intake.wait_rows(500, PATIENCE).await?;
    intake
        .wait_count(&worker, "discarded", 500.0, PATIENCE)
        .await?;
    ensure!(
        rows.iter()
            .all(|row| ["order.placed", "order.paid"].contains(&row.kind.as_str()))
    );
    intake
        .send((0..50).map(|_| Parcel::new("x", "{}").with(|p| p.with_type("order.lost".into()))))
        .await?;
    intake
        .wait_count(&worker, "discarded", 550.0, PATIENCE)
        .await?;
    intake.drain(&worker).await
}

/// F24: who consumes is part of the identity.
#[tokio::test]
async fn two_inboxes_of_one_schema_do_not_share_what_they_remember() -> Result<()> {
    let (intake, worker) = {
        let intake = Intake::start("subscribers", &QueueArguments::quorum(), |resource| {
            resource.inbox(Inbox::pulled("billing-in", "to-billing"))
        })
        .await?;
        intake
            .vhost
            .declare_queue("to-billing", &QueueArguments::classic())
            .await?;
        intake
            .vhost
            .declare_exchange("events", ExchangeKind::Fanout)
            .await?;
        for queue in [INTO, "to-billing"] {
            intake.vhost.bind(queue, "events", "").await?;
        }
        let worker = intake.worker().await?;
        (intake, worker)
    };
    let sender = intake.sender().await?;
    for _ in 0..2 {
        let events = (0..100).map(|number| Parcel::new(&format!("e-{number}"), "{}"));
        sender.publish("events", "", events).await?;
    }
    intake.wait_rows(100, PATIENCE).await?;
    intake
        .wait_count(&worker, "duplicate", 100.0, PATIENCE)
        .await?;
    let mut session = intake.connect().await?;
    let query = "select count(*) from postroom.inbox where endpoint = 'billing-in'";
    let end = std::time::Instant::now() + PATIENCE;
    while sqlx::query_scalar::<_, i64>(query)
        .fetch_one(&mut session)
        .await?
        < 100
    {
        ensure!(
            std::time::Instant::now() < end,
            "the other inbox has not got them"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    ensure!(
        intake.rows_of("billing-in").await?.len() == 100
            && intake.rows_of(INBOX).await?.len() == 100
    );
    intake.drain(&worker).await
}

/// W-22, L-41.
#[tokio::test]
async fn the_key_of_a_sender_counts_only_where_the_inbox_trusts_it() -> Result<()> {
    let keyed = |id: &str| Parcel::new(id, "{}").text_header("x-postroom-idempotency-key", "k-1");
    let (intake, worker) = start("trusting", |resource| {
        resource.with("inboxes.0.identity.trustHeaders", true)
    })
    .await?;
    intake
        .send([keyed("a"), keyed("b"), Parcel::new("c", "{}")])
        .await?;
    intake
        .wait_count(&worker, "duplicate", 1.0, PATIENCE)
        .await?;
    let rows = intake.wait_rows(2, PATIENCE).await?;
    ensure!(
        rows[0].idempotency_key.as_deref() == Some("k-1"),
        "{rows:?}"
    );
    intake.drain(&worker).await?;
    let (intake, worker) = start("untrusting", |resource| resource).await?;
    intake.send([keyed("a"), keyed("b")]).await?;
    let rows = intake.wait_rows(2, PATIENCE).await?;
    ensure!(
        rows.iter().all(|row| row.idempotency_key.is_none()),
        "{rows:?}"
    );
    intake.drain(&worker).await
}

#[tokio::test]
async fn identity_stream_and_tenant_are_found_where_the_inbox_says() -> Result<()> {
    let (intake, worker) = start("sources", |resource| {
        resource
            .with(
                "inboxes.0.identity",
                json!({"source": "Header", "header": "event-id"}),
            )
            .with(
                "inboxes.0.tenant",
                json!({"source": "RoutingKeySegment", "segment": 1, "required": true}),
            )
            .with("inboxes.0.stream", json!({"source": "RoutingKey"}))
    })
    .await?;
    intake
        .vhost
        .declare_exchange("shop", ExchangeKind::Topic)
        .await?;
    intake.vhost.bind(INTO, "shop", "#").await?;
    let sender = intake.sender().await?;
    let event = |id: &str| Parcel::bare("{}").text_header("event-id", id);
    for key in ["eu.acme.cart-1", "eu.other.cart-1", "eu.acme.cart-1"] {
        sender.publish("shop", key, [event("e-1")]).await?;
    }
    sender.publish("shop", "eu", [event("e-2")]).await?;
    intake.wait_count(&worker, "refused", 1.0, PATIENCE).await?;
    intake
        .wait_count(&worker, "duplicate", 1.0, PATIENCE)
        .await?;
    let rows = intake.wait_rows(2, PATIENCE).await?;
    let seen: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row.tenant.as_str(),
                row.stream.as_deref(),
                row.foreign_id.as_deref(),
            )
        })
        .collect();
    ensure!(
        seen == [
            ("acme", Some("eu.acme.cart-1"), Some("e-1")),
            ("other", Some("eu.other.cart-1"), Some("e-1"))
        ],
        "per tenant: {seen:?}"
    );
    let exchange = rows[0]
        .headers
        .as_ref()
        .map(|headers| headers["x-postroom-amqp"]["exchange"].clone());
    ensure!(exchange == Some(json!("shop")), "{rows:?}");
    let dead = intake.dead().await?;
    ensure!(only(&dead)?.reason == "MissingTenant", "{dead:?}");
    intake.drain(&worker).await
}

/// All of the body is kept: it may be taken in by hand once the limit is raised.
#[tokio::test]
async fn a_body_that_is_too_large_becomes_a_dead_letter_and_holds_up_nothing() -> Result<()> {
    let (intake, worker) = start("oversize", |resource| {
        resource.with("inboxes.0.consumer.maxMessageBytes", 100_000)
    })
    .await?;
    let large = "x".repeat(15_000_000);
    intake
        .send([
            Parcel::new("a", "x".repeat(100_000)),
            Parcel::new("b", large.clone()),
            Parcel::new("c", "{}"),
        ])
        .await?;
    let rows = intake.wait_rows(2, PATIENCE).await?;
    ensure!(rows[1].foreign_id.as_deref() == Some("c"), "{rows:?}");
    let dead = intake.dead().await?;
    let one = only(&dead)?;
    ensure!(
        one.reason == "Oversize" && one.foreign_id.as_deref() == Some("b"),
        "{} {}",
        one.reason,
        one.error
    );
    ensure!(
        one.error.contains("15000000") && one.error.contains("100000"),
        "{}",
        one.error
    );
    ensure!(
        one.payload.as_deref() == Some(large.as_str()),
        "not all of it"
    );
    intake.drain(&worker).await
}

/// F22, W-24: whatever a sender writes into headers and properties, the next message is received too.
#[tokio::test]
async fn odd_properties_and_headers_are_kept_or_refused_and_hold_up_nothing() -> Result<()> {
    let (intake, worker) = start("odd", |resource| resource).await?;
    let with = |id: &str, name: &str, value: AMQPValue| Parcel::new(id, "{}").header(name, value);
    let mut deep = AMQPValue::Void;
    for _ in 0..30 {
        let mut array = lapin::types::FieldArray::default();
        array.push(deep);
        deep = AMQPValue::FieldArray(array);
    }
    intake
        .send([
            with("a", "nul\0name", AMQPValue::Void),
            with("b", "deep", deep),
            with("c", "x-postroom-stream", AMQPValue::LongInt(7)),
            Parcel::new("d\0d", "{}"),
            Parcel::new("e", "{}").with(|p| p.with_type("a\0b".into())),
            Parcel::new("f", "a\0b"),
            Parcel::new("g", vec![0xff, 0x00]),
            Parcel::new("h", "{}").with(|p| p.with_correlation_id("x\0".into())),
            with("i", "nul", AMQPValue::LongString("a\0b".into())),
            with("j", "bytes", AMQPValue::LongString(vec![0xff].into())),
        ])
        .await?;
    let rows = intake.wait_rows(4, PATIENCE).await?;
    intake.wait_count(&worker, "refused", 6.0, PATIENCE).await?;
    let row = |id: &str| {
        let mut found = rows
            .iter()
            .filter(|row| row.foreign_id.as_deref() == Some(id));
        found.next().with_context(|| format!("{id} is missing"))
    };
    ensure!(
        row("f")?.payload_bytes.as_deref() == Some(b"a\0b")
            && row("g")?.payload_bytes.as_deref() == Some(&[0xff, 0])
    );
    let header = |id: &str, name: &str| {
        anyhow::Ok(
            row(id)?
                .headers
                .as_ref()
                .map(|headers| headers[name].clone()),
        )
    };
    ensure!(header("i", "nul")? == Some(json!({"$string": "YQBi"})));
    ensure!(header("j", "bytes")? == Some(json!({"$string": "/w=="})));
    let mut reasons: Vec<_> = intake
        .dead()
        .await?
        .into_iter()
        .map(|dead| dead.reason)
        .collect();
    reasons.sort_unstable();
    ensure!(
        reasons
            == [
                "BadHeaders",
                "BadHeaders",
                "BadIdentity",
                "BadProperty",
                "BadProperty",
                "BadStream"
            ],
        "{reasons:?}"
    );
    intake.drain(&worker).await
}

/// Nothing that is known is refused by the database; should anything be, it does not stand in the way of the others.
#[tokio::test]
async fn a_message_that_the_database_will_not_have_becomes_a_dead_letter_and_the_others_are_accepted()
-> Result<()> {
    let (intake, worker) = start("unstorable", |resource| resource).await?;
    sqlx::query("alter table postroom.inbox add check (payload <> 'poison')")
        .execute(&mut intake.connect().await?)
        .await?;
    let all = (0..500).map(|number| {
        let body = if number % 100 == 77 { "poison" } else { "{}" };
        Parcel::new(&format!("m-{number}"), body).text_header("who", "knows")
    });
    intake.send(all).await?;
    let rows = intake.wait_rows(495, PATIENCE).await?;
    intake.wait_count(&worker, "refused", 5.0, PATIENCE).await?;
    let order: Vec<&str> = rows
        .iter()
        .filter_map(|row| row.foreign_id.as_deref())
        .collect();
    let sent: Vec<String> = (0..500)
        .filter(|number| number % 100 != 77)
        .map(|number| format!("m-{number}"))
        .collect();
    ensure!(order == sent, "out of order");
    let dead = intake.dead().await?;
    ensure!(dead.len() == 5, "{dead:?}");
    for one in dead {
        ensure!(
            one.reason == "Unstorable" && one.error.contains("23514"),
            "{one:?}"
        );
        ensure!(one.payload_bytes.as_deref() == Some(b"poison"), "{one:?}");
    }
    crate::traffic::wait_well(&worker).await?;
    intake.drain(&worker).await
}
