//! What a message looks like on the wire, the first time and on a repeat.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, LongString};
use postroom_tests::broker::RabbitServer;
use postroom_tests::proxy::{Flow, TcpProxy};
use postroom_tests::received::Received;
use postroom_tests::setup::{EXCHANGE, OUTBOX, Postroom};
use serde_json::json;
use uuid::Uuid;

use crate::traffic::{PATIENCE, RECOVERY, rows, wait_condition, wait_settled, wait_well, write};

/// A row with a value in every column that travels.
const FULL: &str = "insert into postroom.outbox (endpoint, type, stream, tenant, message_id, payload, content_type, headers, correlation_id, causation_id, traceparent, \
     idempotency_key, created_at) \
     values ('orders', 'order.placed', 'cart-1', 'acme', '0197f3a2-5c1e-7d0a-9b1f-3f6f0c2a7e55', '{\"a\": \"ü\\\\n\"}', 'application/vnd.shop+json', $1, 'corr-1', 'cause-1', \
     '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', 'key-1', '2026-01-02 03:04:05.678Z') returning id";

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text.as_bytes()))
}

/// Headers as the application writes them, and as they must arrive, with their types.
fn typed_headers() -> (serde_json::Value, Vec<(&'static str, AMQPValue)>) {
    let written = json!({
        "text": "grün", "whole": 7, "broken": 1.5, "yes": true, "nothing": null, "huge": 18_446_744_073_709_551_615_u64,
        "i8": {"$int8": -8}, "u8": {"$uint8": 200}, "i16": {"$int16": -300}, "u16": {"$uint16": 65_535}, "i32": {"$int32": -70_000},
        "u32": {"$uint32": 4_000_000_000_u32}, "i64": {"$int64": "9007199254740993"}, "single": {"$float": 0.5},
        "time": {"$timestamp": 1_700_000_000}, "raw": {"$bytes": "AP8="}, "nul": {"$string": "YQBi"}, "money": {"$decimal": {"scale": 2, "value": 1234}},
        "list": [1, "two", {"$int16": 3}], "table": {"inner": {"$uint8": 1}, "more": "x"},
    });
    let mut list = FieldArray::default();
    list.push(AMQPValue::LongLongInt(1));
    list.push(text("two"));
    list.push(AMQPValue::ShortInt(3));
    let mut table = FieldTable::default();
    table.insert("inner".into(), AMQPValue::ShortShortUInt(1));
    table.insert("more".into(), text("x"));
    let money = DecimalValue {
        scale: 2,
        value: 1234,
    };
    let expected = vec![
        ("text", text("grün")),
        ("whole", AMQPValue::LongLongInt(7)),
        ("broken", AMQPValue::Double(1.5)),
        ("yes", AMQPValue::Boolean(true)),
        ("nothing", AMQPValue::Void),
        ("huge", AMQPValue::Double(18_446_744_073_709_551_615.0)),
        ("i8", AMQPValue::ShortShortInt(-8)),
        ("u8", AMQPValue::ShortShortUInt(200)),
        ("i16", AMQPValue::ShortInt(-300)),
        ("u16", AMQPValue::ShortUInt(65_535)),
        ("i32", AMQPValue::LongInt(-70_000)),
        ("u32", AMQPValue::LongUInt(4_000_000_000)),
        ("i64", AMQPValue::LongLongInt(9_007_199_254_740_993)),
        ("single", AMQPValue::Float(0.5)),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("raw", AMQPValue::ByteArray(vec![0, 255].into())),
        ("nul", text("a\0b")),
        ("money", AMQPValue::DecimalValue(money)),
        ("list", AMQPValue::FieldArray(list)),
        ("table", AMQPValue::FieldTable(table)),
    ];
    (written, expected)
}

async fn insert(postroom: &Postroom, headers: &serde_json::Value) -> Result<i64> {
    let query = sqlx::query_scalar(FULL).bind(sqlx::types::Json(headers));
    Ok(query.fetch_one(&mut postroom.connect().await?).await?)
}

async fn with_template(test: &str, template: &str) -> Result<Postroom> {
    Postroom::start(test, |resource| {
        resource
            .with("outboxes.0.routingKey", template)
            .with(
                "outboxes.0.headers",
                json!({"x-producer": "shop", "text": "of the endpoint"}),
            )
            .with("outboxes.0.delivery.confirmTimeoutSeconds", 2)
    })
    .await
}

fn check(message: &Received, position: i64) -> Result<()> {
    let properties = &message.properties;
    let short = |value: &Option<lapin::types::ShortString>| {
        value.as_ref().map(|text| text.as_str().to_owned())
    };
    ensure!(message.message_id == "0197f3a2-5c1e-7d0a-9b1f-3f6f0c2a7e55");
    ensure!(short(properties.kind()).as_deref() == Some("order.placed"));
    ensure!(short(properties.content_type()).as_deref() == Some("application/vnd.shop+json"));
    ensure!(short(properties.correlation_id()).as_deref() == Some("corr-1"));
    ensure!(
        *properties.timestamp() == Some(1_767_323_045),
        "{properties:?}"
    );
    ensure!(*properties.delivery_mode() == Some(2), "{properties:?}");
    ensure!(message.exchange == EXCHANGE, "{}", message.exchange);
    ensure!(
        message.text() == "{\"a\": \"ü\\\\n\"}",
        "{}",
        message.text()
    );
    let mut expected: BTreeMap<&str, AMQPValue> = typed_headers().1.into_iter().collect();
    let own = [
        ("x-producer", "shop"),
        ("x-postroom-endpoint", OUTBOX),
        ("x-postroom-stream", "cart-1"),
        ("x-postroom-tenant", "acme"),
        ("x-postroom-causation-id", "cause-1"),
        ("x-postroom-idempotency-key", "key-1"),
        (
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
    ];
    expected.extend(own.map(|(name, value)| (name, text(value))));
    expected.insert("x-postroom-position", AMQPValue::LongLongInt(position));
    for (name, value) in &expected {
        let arrived = message.headers.get(*name);
        ensure!(
            arrived == Some(value),
            "header {name}: {arrived:?}, not {value:?}"
        );
    }
    let more: Vec<_> = message
        .headers
        .keys()
        .filter(|name| !expected.contains_key(name.as_str()))
        .collect();
    ensure!(more.is_empty(), "and no others: {more:?}");
    Ok(())
}

/// Contract of the wire format, F22, G4: nothing depends on the attempt.
#[tokio::test]
async fn every_column_travels_with_its_type_and_a_repeat_is_the_same_to_the_last_header()
-> Result<()> {
    let postroom = with_template(
        "wire",
        "{tenant}.{type}.{stream}.{header.text}.{header.whole}",
    )
    .await?;
    let proxy = TcpProxy::start(RabbitServer::shared().await?.port()).await?;
    let url = postroom.vhost.amqp_url_at(proxy.port());
    let worker = postroom.launch("run").amqp_url(url).start()?;
    worker.ready(PATIENCE).await?;
    write(&postroom, &rows(1, 1)).await?;
    postroom.receiver.wait_for(1, PATIENCE).await?;
    wait_settled(&postroom).await?;
    // The broker's confirms get lost, so the message is sent twice.
    proxy.set(Flow::Pass, Flow::Swallow);
    let position = insert(&postroom, &typed_headers().0).await?;
    postroom.receiver.wait_for(2, PATIENCE).await?;
    wait_condition(&worker, "transport", "ConnectionLost").await?;
    proxy.pass();
    proxy.reset_all();
    wait_settled(&postroom).await?;
    let received = postroom
        .receiver
        .wait_quiet(std::time::Duration::from_millis(300), RECOVERY)
        .await?;
    ensure!(received.len() == 3, "a repeat: {}", received.len());
    for message in &received[1..] {
        check(message, position)?;
        ensure!(
            message.routing_key == "acme.order.placed.cart-1.grün.7",
            "{}",
            message.routing_key
        );
    }
    Ok(())
}

/// Bodies as bytes and as text, the defaults of what is left out, and a row's own routing key.
#[tokio::test]
async fn bytes_and_text_arrive_as_written_and_what_was_left_out_has_its_default() -> Result<()> {
    let postroom = Postroom::start("bodies", |resource| {
        resource.with("outboxes.0.routingKey", "order.{type}.{stream}")
    })
    .await?;
    let worker = postroom.worker().await?;
    let mut session = postroom.connect().await?;
    let bytes: Vec<u8> = (0..=255).collect();
    sqlx::query("insert into postroom.outbox (endpoint, type, payload_bytes, stream) values ('orders', 'raw', $1, 's')")
        .bind(&bytes)
        .execute(&mut session)
        .await?;
    postroom.receiver.wait_for(1, PATIENCE).await?;
    sqlx::query("insert into postroom.outbox (endpoint, type, payload, routing_key, content_type) values ('orders', 'plain', $1, 'own.key', 'text/plain')")
        .bind("back\\slash \\x41 ü")
        .execute(&mut session)
        .await?;
    postroom.receiver.wait_for(2, PATIENCE).await?;
    sqlx::query(
        "insert into postroom.outbox (endpoint, type, payload) values ('orders', 'bare', '')",
    )
    .execute(&mut session)
    .await?;
    let received = postroom.receiver.wait_for(3, PATIENCE).await?;
    let [raw, plain, bare] = received.as_slice() else {
        anyhow::bail!("three messages: {received:?}");
    };
    let content_type = |message: &Received| {
        let content_type = message.properties.content_type().as_ref();
        content_type.map(|text| text.as_str().to_owned())
    };
    ensure!(raw.body == bytes && raw.routing_key == "order.raw.s");
    ensure!(content_type(raw).as_deref() == Some("application/octet-stream"));
    ensure!(plain.text() == "back\\slash \\x41 ü" && plain.routing_key == "own.key");
    ensure!(content_type(plain).as_deref() == Some("text/plain"));
    ensure!(bare.body.is_empty() && bare.routing_key == "order.bare.");
    ensure!(content_type(bare).as_deref() == Some("application/json"));
    for message in &received {
        ensure!(message.id().as_ref().map(Uuid::get_version_num) == Some(7));
        ensure!(message.properties.timestamp().is_some());
        ensure!(message.properties.correlation_id().is_none());
        for absent in [
            "x-postroom-tenant",
            "x-postroom-causation-id",
            "traceparent",
        ] {
            ensure!(!message.headers.contains_key(absent), "{absent}");
        }
    }
    ensure!(raw.header("x-postroom-stream").as_deref() == Some("s"));
    ensure!(plain.header("x-postroom-stream").is_none());
    drop(worker);
    Ok(())
}

/// What cannot be put on the wire is given up with the reason, and its stream goes on. A number that is none would make
/// the broker close the connection, for everybody.
#[tokio::test]
async fn a_header_that_cannot_be_sent_is_buried_with_a_sentence_that_names_it() -> Result<()> {
    let postroom = with_template("unreadable", "{type}").await?;
    let worker = postroom.worker().await?;
    let mut session = postroom.connect().await?;
    let all = [
        json!({"limit": {"$int8": 300}}),
        json!({"limit": {"$double": "NaN"}}),
        json!({"limit": {"$float": 1e300}}),
        json!({"limit": "x".repeat(140_000)}),
        json!({"limit": {"$uint8": 30}}),
    ];
    for headers in all {
        let query = "insert into postroom.outbox (endpoint, type, stream, payload, headers) values ('orders', 't', 's', '1', $1)";
        sqlx::query(query)
            .bind(sqlx::types::Json(headers))
            .execute(&mut session)
            .await?;
    }
    wait_settled(&postroom).await?;
    let received = postroom.receiver.wait_for(1, PATIENCE).await?;
    ensure!(received.len() == 1, "{received:?}");
    let query = "select reason, error from postroom.dead_letter order by id";
    let dead: Vec<(String, String)> = sqlx::query_as(query).fetch_all(&mut session).await?;
    ensure!(dead.len() == 4, "{dead:?}");
    let named = [
        ["'limit'", "300", "int8"],
        ["'limit'", "NaN", "double"],
        ["'limit'", "1e+300", "float"],
        ["headers", "140", "131072"],
    ];
    for ((reason, error), words) in dead.iter().zip(named) {
        ensure!(reason == "Unpublishable", "{reason} {error}");
        ensure!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let lost = [("transport", "main")];
    let up = worker.metric("postroom_transport_up", &lost).await?;
    ensure!(up == Some(1.0), "the connection is left alone: {up:?}");
    wait_well(&worker).await.map(drop)
}
