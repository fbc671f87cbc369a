//! What writers are told when they cannot be served: a stable code, a name, and nothing stored.

use anyhow::{Result, ensure};
use sqlx::postgres::PgConnection;

use crate::sql::{Schema, count, refused, run};

async fn nothing_is_stored(session: &mut PgConnection) -> Result<()> {
    for table in [
        "outbox",
        "deferral",
        "dead_letter",
        "message_deduplication",
        "idempotency_key",
    ] {
        let rows = count(session, table).await?;
        ensure!(rows == 0, "{rows} rows in {table}");
    }
    Ok(())
}

/// Each call is refused with the code, and the message holds the words.
async fn all_refused(test: &str, calls: &[(&str, &str, &[&str])]) -> Result<()> {
    let schema = Schema::start(test).await?;
    let mut session = schema.connect().await?;
    run(&mut session, "select register_endpoint('tiny', 'Outbox', 'None', 'Skip', 'Hold', 100, false, '{}', 'test', 1), \
        register_endpoint('incoming', 'Inbox', 'None', 'Skip', 'Hold', 100, false, '{}', 'test', 1, 'pull')").await?;
    for (call, code, words) in calls {
        let refusal = refused(&mut session, call).await?;
        ensure!(refusal.code == *code, "{call}: {refusal:?}");
        for word in *words {
            ensure!(
                refusal.message.contains(word),
                "{call}: no '{word}' in {refusal:?}"
            );
        }
    }
    nothing_is_stored(&mut session).await
}

/// PR004.
#[tokio::test]
async fn an_endpoint_that_is_unknown_or_no_outbox_is_refused_by_name() -> Result<()> {
    all_refused("unknown_endpoint", &[
        ("select postroom.enqueue('nowhere', 'a', 'x', key => 'K')", "PR004", &["'nowhere'", "not an outbox"]),
        ("select postroom.enqueue(null, 'a', 'x')", "PR004", &["NULL"]),
        ("select postroom.enqueue_bytes('incoming', 'a', '\\x00', message_id => 'M')", "PR004", &["'incoming'"]),
        ("select postroom.store_outbox_messages('nowhere', '[]')", "PR004", &["'nowhere'"]),
        ("insert into postroom.outbox (endpoint, type, payload) values ('nowhere', 'a', 'x')", "PR004", &["'nowhere'"]),
        ("insert into postroom.outbox (endpoint, type, payload) values ('incoming', 'a', 'x')", "PR004", &["'incoming'"]),
        ("insert into postroom.outbox (type, payload) values ('a', 'x')", "PR004", &["NULL"]),
        ("select * from postroom.fetch_outbox_batch('incoming', '{0}', '{0}', '{0}', '{}', 1, 1)", "PR004", &["'incoming'"]),
        ("select postroom.register_endpoint('incoming', 'Outbox', 'None', 'Skip', 'Hold', 100, false, '{}', 'test', 2)", "PR004", &["'incoming'", "Inbox", "Outbox"]),
    ]).await
}

/// PR005: both sizes, and the field or setting.
#[tokio::test]
async fn what_is_too_large_is_refused_with_both_sizes() -> Result<()> {
    all_refused("too_large", &[
        ("select postroom.enqueue('tiny', 'a', repeat('x', 101), key => 'K')", "PR005", &["101 bytes", "allows 100", "'tiny'", "maxMessageBytes"]),
        ("select postroom.enqueue('tiny', 'a', repeat('ä', 51))", "PR005", &["102 bytes", "100"]),
        ("select postroom.enqueue('tiny', 'a', repeat('x', 95), headers => '{\"a\": 1}')", "PR005", &["103 bytes"]),
        ("insert into postroom.outbox (endpoint, type, payload_bytes) values ('tiny', 'a', decode(repeat('00', 101), 'hex'))", "PR005", &["101 bytes", "100"]),
        ("select postroom.enqueue('orders', repeat('t', 256), 'x')", "PR005", &["type", "256", "255"]),
        ("select postroom.enqueue('orders', 'a', 'x', routing_key => repeat('r', 300), key => 'K')", "PR005", &["routing_key", "300", "255"]),
        ("select postroom.enqueue('orders', 'a', 'x', stream => repeat('ä', 128))", "PR005", &["stream", "256", "255"]),
        ("select postroom.enqueue('orders', 'a', 'x', key => repeat('k', 256))", "PR005", &["slot 0", "key", "256", "255"]),
        ("select postroom.enqueue('orders', 'a', 'x', message_id => repeat('m', 9000))", "PR005", &["message_id", "9000", "255"]),
        ("select postroom.enqueue('orders', 'a', 'x', key => 'K', tenant => repeat('n', 9000))", "PR005", &["tenant", "9000", "255"]),
        ("select postroom.store_outbox_messages('orders', jsonb_build_array('{\"type\":\"a\",\"payload\":1,\"key\":\"K\"}'::jsonb, jsonb_build_object('type', 'a', 'payload', 1, 'key', repeat('k', 256))))", "PR005", &["slot 1", "key", "256"]),
        ("insert into postroom.outbox (endpoint, type, payload, correlation_id) values ('orders', 'a', 'x', repeat('c', 256))", "PR005", &["correlation_id", "256", "255"]),
    ]).await
}

/// PR010: the slot and the field.
#[tokio::test]
async fn a_slot_that_is_no_message_is_refused_by_number_and_field() -> Result<()> {
    const CASES: [(&str, &str); 17] = [
        ("{}", "type"),
        (r#"{"type":"","payload":1}"#, "type"),
        (r#"{"type":"a"}"#, "exactly one of payload"),
        (r#"{"type":"a","payload":null}"#, "exactly one of payload"),
        (
            r#"{"type":"a","payload":1,"payload_base64":"AA=="}"#,
            "exactly one of payload",
        ),
        (r#"{"type":"a","payload_base64":"*"}"#, "payload_base64"),
        (
            r#"{"type":"a","payload":1,"colour":"red"}"#,
            "unknown key 'colour'",
        ),
        (
            r#"{"type":"a","payload":1,"partition":1}"#,
            "unknown key 'partition'",
        ),
        (r#"{"type":{"x":1},"payload":1}"#, "type must be text"),
        (r#"{"type":"a","payload":1,"headers":[1]}"#, "headers"),
        (
            r#"{"type":"a","payload":1,"conflict":"maybe","key":"k"}"#,
            "conflict",
        ),
        (
            r#"{"type":"a","payload":1,"conflict":"strict"}"#,
            "conflict",
        ),
        (r#"{"type":"a","payload":1,"key":""}"#, "key is empty"),
        (r#"{"type":"a","payload":1,"request_id":"7"}"#, "request_id"),
        (
            r#"{"type":"a","payload":1,"available_at":"soon"}"#,
            "available_at",
        ),
        (r#"{"type":"a","payload":1,"delay":"-1 s"}"#, "delay"),
        (
            r#"{"type":"a","payload":1,"delay":"1 s","available_at":"2030-01-01"}"#,
            "only one of delay and available_at",
        ),
    ];
    let schema = Schema::start("bad_slot").await?;
    let mut session = schema.connect().await?;
    for (slot, word) in CASES.into_iter().chain([
        ("7", "JSON object"),
        ("null", "JSON object"),
        ("[]", "JSON object"),
    ]) {
        let call = format!(
            r#"select postroom.store_outbox_messages('orders', '[{{"type":"good","payload":1,"key":"K"}}, {slot}]')"#
        );
        let refusal = refused(&mut session, &call).await?;
        ensure!(
            refusal.code == "PR010"
                && refusal.message.contains("slot 1: ")
                && refusal.message.contains(word),
            "{slot}: {refusal:?}"
        );
    }
    nothing_is_stored(&mut session).await
}

/// PR010 outside a batch.
#[tokio::test]
async fn a_wrong_argument_is_refused_by_name() -> Result<()> {
    all_refused("bad_argument", &[
        ("select postroom.complete_outbox_published(gen_random_uuid(), 'orders', '{1,2}', '{1}', '{1}', '{1}', array[gen_random_uuid()])", "PR010", &["complete_outbox_published", "\"partitions\": 2", "\"ids\": 1"]),
        ("select postroom.complete_outbox_published(gen_random_uuid(), 'orders', '{1}', '{1}', '{1}', null, array[gen_random_uuid()])", "PR010", &["\"ids\": null"]),
        ("select postroom.defer_messages(gen_random_uuid(), 'orders', '{1}', '{1}', '{1}', '{1}', array[gen_random_uuid()], '{1 h}', '{null}', '{t}', '{r}', '{e}')", "PR010", &["defer_messages", "\"counted\": null"]),
        ("select postroom.bury_messages(gen_random_uuid(), 'orders', '{1}', '{1}', '{1}', '{1}', array[gen_random_uuid()], '{t}', '{r,r}', '{e}')", "PR010", &["bury_messages", "\"reasons\": 2"]),
        ("select postroom.store_outbox_messages('orders', '{}')", "PR010", &["messages", "array"]),
        ("select postroom.store_outbox_messages('orders', null)", "PR010", &["messages", "array"]),
        ("select postroom.enqueue('orders', null, 'x')", "PR010", &["type"]),
        ("select postroom.enqueue('orders', 'a', null::jsonb)", "PR010", &["payload"]),
        ("select postroom.enqueue_bytes('orders', 'a', null)", "PR010", &["payload"]),
        ("select postroom.enqueue('orders', 'a', 'x', headers => '\"text\"')", "PR010", &["headers"]),
        ("select postroom.enqueue('orders', 'a', 'x', conflict => 'strict')", "PR010", &["conflict", "key"]),
        ("select postroom.enqueue('orders', 'a', 'x', delay => '-1 second')", "PR010", &["delay"]),
        ("select postroom.enqueue('orders', 'a', 'x', delay => '200000 years')", "PR010", &["delay", "1000 years"]),
        ("insert into postroom.outbox (endpoint, payload) values ('orders', 'x')", "PR010", &["type"]),
        ("insert into postroom.outbox (endpoint, type) values ('orders', 'a')", "PR010", &["payload"]),
        ("insert into postroom.outbox (endpoint, type, payload, payload_bytes) values ('orders', 'a', 'x', '\\x00')", "PR010", &["payload"]),
        ("insert into postroom.outbox (endpoint, type, payload, headers) values ('orders', 'a', 'x', '[]')", "PR010", &["headers"]),
        ("insert into postroom.outbox (endpoint, type, payload, headers) values ('orders', 'a', 'x', 'null')", "PR010", &["headers"]),
        ("select postroom.claim_work(null, 'h', 'v', '5 s', '{orders}')", "PR010", &["worker is NULL"]),
        ("select postroom.claim_work(gen_random_uuid(), 'h', 'v', null, '{orders}')", "PR010", &["lease is NULL"]),
        ("select postroom.claim_work(gen_random_uuid(), 'h', 'v', '10 ms', '{orders}')", "PR010", &["lease", "00:00:00.01"]),
        ("select postroom.claim_work(gen_random_uuid(), 'h', 'v', '5 s', null)", "PR010", &["endpoints is NULL"]),
        ("select postroom.claim_work(gen_random_uuid(), null, 'v', '5 s', '{orders}')", "PR010", &["host is NULL"]),
    ]).await
}
