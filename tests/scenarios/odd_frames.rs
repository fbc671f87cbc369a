//! Messages as no library writes them, and headers as only other programs write them: none ends the receiver, and what can
//! be kept is kept.

use anyhow::{Context as _, Result, ensure};
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString};
use postroom_tests::broker::RabbitServer;
use postroom_tests::intake::{INTO, Intake, Row};
use postroom_tests::raw;
use postroom_tests::sender::Parcel;
use postroom_tests::vhost::QueueArguments;
use postroom_tests::worker::Worker;
use serde_json::{Value, json};

use crate::traffic::{PATIENCE, wait_well};

/// Flags of the properties.
const HEADERS: u16 = 1 << 13;
const MESSAGE_ID: u16 = 1 << 7;
const TYPE: u16 = 1 << 5;

async fn start(test: &str) -> Result<(Intake, Worker)> {
    let intake = Intake::start(test, &QueueArguments::quorum(), |resource| resource).await?;
    let worker = intake.worker().await?;
    Ok((intake, worker))
}

/// F22: the client library would end the connection over each of these again and again, or the whole process.
#[tokio::test]
async fn a_message_that_the_client_library_cannot_read_is_refused_and_holds_up_nothing()
-> Result<()> {
    let (intake, worker) = start("frames").await?;
    let port = RabbitServer::shared().await?.port();
    let mut deep = b"V".to_vec();
    for _ in 0..20_000 {
        deep = [&b"A"[..], &raw::long(&deep)].concat();
    }
    let id = raw::short;
    let text = |bytes: &[u8]| raw::short_bytes(bytes);
    for (flags, properties) in [
        (MESSAGE_ID, text(b"caf\xe9")),
        (MESSAGE_ID | TYPE, [id("b"), text(b"caf\xe9")].concat()),
        (
            HEADERS | MESSAGE_ID,
            [raw::table(&[(b"caf\xe9", b"V")]), id("c")].concat(),
        ),
        (
            HEADERS | MESSAGE_ID,
            [raw::table(&[(b"deep", &deep)]), id("d")].concat(),
        ),
    ] {
        raw::publish(&intake.vhost, port, INTO, flags, &properties).await?;
    }
    intake.send([Parcel::new("next", "{}")]).await?;
    intake.wait_rows(1, PATIENCE).await?;
    intake.wait_count(&worker, "refused", 4.0, PATIENCE).await?;
    let dead = intake.dead().await?;
    let mut reasons: Vec<_> = dead.iter().map(|dead| dead.reason.as_str()).collect();
    reasons.sort_unstable();
    ensure!(
        reasons == ["BadHeaders", "BadHeaders", "BadIdentity", "BadProperty"],
        "{dead:?}"
    );
    ensure!(
        dead.iter().any(|dead| dead.error.contains("nests deeper")),
        "{dead:?}"
    );
    ensure!(
        !worker.log().contains("Lost transport"),
        "the connection has ended"
    );
    wait_well(&worker).await?;
    intake.drain(&worker).await
}

#[expect(clippy::too_many_lines, reason = "a table: one entry for each type")]
fn one_of_every_type() -> Vec<(&'static str, AMQPValue, Value)> {
    let mut nested = FieldTable::default();
    nested.insert("a".into(), AMQPValue::ShortInt(-7));
    let mut array = FieldArray::default();
    array.push(AMQPValue::FieldTable(nested.clone()));
    array.push(AMQPValue::LongString("text".into()));
    let decimal = AMQPValue::DecimalValue(DecimalValue {
        scale: 2,
        value: (-995_i32).cast_unsigned(),
    });
    vec![
        ("void", AMQPValue::Void, Value::Null),
        ("bool", AMQPValue::Boolean(true), json!(true)),
        (
            "int8",
            AMQPValue::ShortShortInt(i8::MIN),
            json!({"$int8": -128}),
        ),
        (
            "uint8",
            AMQPValue::ShortShortUInt(u8::MAX),
            json!({"$uint8": 255}),
        ),
        (
            "int16",
            AMQPValue::ShortInt(i16::MIN),
            json!({"$int16": -32768}),
        ),
        (
            "uint16",
            AMQPValue::ShortUInt(u16::MAX),
            json!({"$uint16": 65535}),
        ),
        (
            "int32",
            AMQPValue::LongInt(i32::MIN),
            json!({"$int32": i32::MIN}),
        ),
        (
            "uint32",
            AMQPValue::LongUInt(u32::MAX),
            json!({"$uint32": u32::MAX}),
        ),
        ("int64", AMQPValue::LongLongInt(i64::MIN), json!(i64::MIN)),
        ("float", AMQPValue::Float(0.1), json!({"$float": 0.1})),
        (
            "double",
            AMQPValue::Double(-921.729_734_140_960_7),
            json!(-921.729_734_140_960_7),
        ),
        (
            "large double",
            AMQPValue::Double(1e300),
            json!({"$double": 1e300.to_string()}),
        ),
        (
            "decimal",
            decimal,
            json!({"$decimal": {"scale": 2, "value": -995}}),
        ),
        ("epoch", AMQPValue::Timestamp(0), json!({"$timestamp": 0})),
        (
            "far",
            AMQPValue::Timestamp(253_402_300_800),
            json!({"$timestamp": 253_402_300_800_u64}),
        ),
        (
            "text",
            AMQPValue::LongString("ä\u{1f600}".into()),
            json!("ä\u{1f600}"),
        ),
        (
            "bytes",
            AMQPValue::ByteArray(ByteArray::from(vec![0xff, 0])),
            json!({"$bytes": "/wA="}),
        ),
        (
            "no text",
            AMQPValue::LongString(LongString::from(vec![0xff, 0])),
            json!({"$string": "/wA="}),
        ),
        (
            "table",
            AMQPValue::FieldTable(nested),
            json!({"a": {"$int16": -7}}),
        ),
        (
            "array",
            AMQPValue::FieldArray(array),
            json!([{"a": {"$int16": -7}}, "text"]),
        ),
    ]
}

fn headers(row: &Row) -> Result<&Value> {
    Ok(&row.headers.as_ref().context("no headers")?.0)
}

/// F22, W-24: through a real broker and a real database.
#[tokio::test]
async fn headers_of_every_type_are_stored_as_they_were_sent() -> Result<()> {
    let (intake, worker) = start("types_of_headers").await?;
    let all = one_of_every_type();
    let parcel = all
        .iter()
        .fold(Parcel::new("m", "{}"), |parcel, (name, value, _)| {
            parcel.header(name, value.clone())
        });
    intake.send([parcel]).await?;
    let rows = intake.wait_rows(1, PATIENCE).await?;
    for (name, _, expected) in &all {
        let stored = &headers(&rows[0])?[name];
        ensure!(stored == expected, "{name}: {stored}, not {expected}");
    }
    intake.drain(&worker).await
}

/// F22: what the broker itself adds, an array of tables with two entries.
#[tokio::test]
async fn a_message_that_was_dead_lettered_twice_keeps_its_history() -> Result<()> {
    let (intake, worker) = start("history").await?;
    let dead_letters_to = |queue: &str| {
        QueueArguments::classic()
            .with("x-message-ttl", AMQPValue::LongInt(1))
            .with("x-dead-letter-exchange", AMQPValue::LongString("".into()))
            .with(
                "x-dead-letter-routing-key",
                AMQPValue::LongString(queue.into()),
            )
    };
    intake
        .vhost
        .declare_queue("second", &dead_letters_to(INTO))
        .await?;
    intake
        .vhost
        .declare_queue("first", &dead_letters_to("second"))
        .await?;
    let sender = intake.sender().await?;
    sender.send("first", [Parcel::new("m", "{}")]).await?;
    let rows = intake.wait_rows(1, PATIENCE).await?;
    let history = &headers(&rows[0])?["x-death"];
    let queues: Vec<_> = history
        .as_array()
        .context("no history")?
        .iter()
        .map(|entry| {
            (
                entry["queue"].as_str(),
                entry["reason"].as_str(),
                entry["count"].as_i64(),
            )
        })
        .collect();
    ensure!(
        queues
            == [
                (Some("second"), Some("expired"), Some(1)),
                (Some("first"), Some("expired"), Some(1))
            ],
        "{history}"
    );
    ensure!(
        history[0]["time"]["$timestamp"].as_u64() > Some(1_700_000_000),
        "{history}"
    );
    intake.drain(&worker).await
}
