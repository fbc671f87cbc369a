//! What becomes of a delivery, by the rules of an inbox.

use lapin::types::AMQPValue;
use serde_json::from_str;

use super::*;

fn config(change: &Value) -> InboxConfig {
    let mut document = json!({
        "name": "orders-in", "transport": "main", "queue": "q", "types": [], "consumer": {}, "identity": {}, "stream": {"source": "Header", "header": "x-postroom-stream"},
        "tenant": {"source": "Header", "header": "x-postroom-tenant"}, "handler": {"pull": {}}, "ordering": {}, "retry": {}, "paused": false,
    });
    for (name, value) in change.as_object().unwrap() {
        document[name] = value.clone();
    }
    serde_json::from_value(document).unwrap()
}

fn delivery(properties: BasicProperties, body: &[u8]) -> Delivery {
    let mut delivery = Delivery::mock(
        1,
        "shop".into(),
        "eu.acme.placed".into(),
        false,
        body.to_vec(),
    );
    delivery.properties = properties;
    delivery
}

fn with_id() -> BasicProperties {
    BasicProperties::default().with_message_id("m-1".into())
}

fn headers(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn slot(change: &Value, properties: BasicProperties, body: &[u8]) -> Slot {
    match judge(delivery(properties, body), &config(change)) {
        Judgement::Store(slot) => *slot,
        Judgement::Discard => panic!("discarded"),
    }
}

fn code(slot: &Slot) -> Option<&'static str> {
    slot.refusal.as_ref().map(|refusal| refusal.code)
}

#[test]
fn a_delivery_is_read_into_the_columns_of_a_message() {
    let properties = with_id()
        .with_type("order.placed".into())
        .with_content_type("application/json".into())
        .with_correlation_id("c-1".into())
        .with_headers(headers(&[
            ("x-postroom-stream", text("cart-1")),
            ("x-postroom-tenant", text("acme")),
            ("x-postroom-causation-id", text("cause")),
            ("x-postroom-idempotency-key", text("forged")),
            ("traceparent", text("00-1-2-01")),
        ]));
    let slot = slot(&json!({}), properties, b"{\"a\": 1}");
    assert_eq!(slot.message_id, None);
    assert_eq!(slot.foreign_id.as_deref(), Some("m-1"));
    assert_eq!(slot.stream.as_deref(), Some("cart-1"));
    assert_eq!(slot.tenant.as_deref(), Some("acme"));
    assert_eq!(slot.kind, "order.placed");
    assert_eq!(slot.routing_key, "eu.acme.placed");
    assert_eq!(slot.content_type, "application/json");
    assert_eq!(slot.body, Body::Text("{\"a\": 1}".to_owned()));
    assert_eq!(slot.correlation_id.as_deref(), Some("c-1"));
    assert_eq!(slot.causation_id.as_deref(), Some("cause"));
    assert_eq!(slot.traceparent.as_deref(), Some("00-1-2-01"));
    assert_eq!(slot.key, None, "nobody trusts the sender");
    assert_eq!(slot.refusal, None);
}

#[test]
fn what_is_not_given_is_empty_or_absent() {
    let slot = slot(&json!({}), with_id(), b"");
    assert_eq!((slot.kind.as_str(), slot.content_type.as_str()), ("", ""));
    assert_eq!(slot.body, Body::Text(String::new()));
    let absent = [
        &slot.stream,
        &slot.tenant,
        &slot.key,
        &slot.correlation_id,
        &slot.causation_id,
        &slot.traceparent,
    ];
    assert!(absent.iter().all(|field| field.is_none()), "{slot:?}");
    assert_eq!(
        slot.headers.as_deref(),
        Some(r#"{"x-postroom-amqp":{"exchange":"shop"}}"#)
    );
}

#[test]
fn only_types_that_are_listed_are_taken_and_those_without_a_type_are_not() {
    let rule = json!({"types": ["a", "b"]});
    for (kind, taken) in [
        (Some("a"), true),
        (Some("b"), true),
        (Some("c"), false),
        (None, false),
    ] {
        let properties = kind.map_or_else(with_id, |kind| with_id().with_type(kind.into()));
        let judgement = judge(delivery(properties, b""), &config(&rule));
        assert_eq!(matches!(judgement, Judgement::Store(_)), taken, "{kind:?}");
    }
}

#[test]
fn a_body_is_text_only_where_its_type_says_so_and_postgresql_takes_it() {
    for (content_type, encoding, body, is_text) in [
        (None, None, &b"{}"[..], true),
        (
            Some("text/plain; charset=utf-8"),
            None,
            "ä".as_bytes(),
            true,
        ),
        (Some("APPLICATION/JSON"), None, b"{}", true),
        (Some("application/vnd.shop+json"), None, b"{}", true),
        (Some("application/xml"), None, b"<a/>", true),
        (Some("application/json"), Some("utf-8"), b"{}", true),
        (Some("application/json"), Some("gzip"), b"{}", false),
        (Some("application/octet-stream"), None, b"{}", false),
        (Some("image/png"), None, b"{}", false),
        (Some("text/plain"), None, b"a\0b", false),
        (Some("text/plain"), None, b"\xff", false),
        (None, None, b"\xff", false),
    ] {
        let mut properties = with_id();
        if let Some(content_type) = content_type {
            properties = properties.with_content_type(content_type.into());
        }
        if let Some(encoding) = encoding {
            properties = properties.with_content_encoding(encoding.into());
        }
        let slot = slot(&json!({}), properties, body);
        assert_eq!(
            matches!(slot.body, Body::Text(_)),
            is_text,
            "{content_type:?} {encoding:?}"
        );
        assert_eq!(slot.body.as_bytes(), body);
    }
}

#[test]
fn a_missing_identity_is_refused_or_discarded_as_the_inbox_says_and_a_bad_one_always_refused() {
    let missing = BasicProperties::default();
    let refused = slot(&json!({}), missing.clone(), b"{}");
    assert_eq!(code(&refused), Some("MissingIdentity"));
    assert_eq!((refused.message_id, refused.foreign_id), (None, None));
    let discard = json!({"identity": {"onMissing": "Discard"}});
    let judgement = judge(delivery(missing, b"{}"), &config(&discard));
    assert!(matches!(judgement, Judgement::Discard));
    let bad = BasicProperties::default().with_message_id("a\0".into());
    assert_eq!(code(&slot(&discard, bad, b"{}")), Some("BadIdentity"));
}

#[test]
fn a_tenant_comes_from_where_the_inbox_says_and_where_it_is_needed_it_must_be_there() {
    let segment = |number: u32, required: bool| json!({"tenant": {"source": "RoutingKeySegment", "segment": number, "required": required}});
    let tenant = |rule: &Value| slot(rule, with_id(), b"").tenant;
    assert_eq!(tenant(&segment(1, true)).as_deref(), Some("acme"));
    assert_eq!(
        tenant(&json!({"tenant": {"source": "Static", "value": "one"}})).as_deref(),
        Some("one")
    );
    assert_eq!(tenant(&json!({"tenant": {"source": "None"}})), None);
    assert_eq!(tenant(&segment(9, false)), None);
    let refused = slot(&segment(9, true), with_id(), b"");
    assert_eq!(code(&refused), Some("MissingTenant"));
    assert_eq!(refused.foreign_id.as_deref(), Some("m-1"), "the id is kept");
    let mut rule = segment(9, true);
    rule["identity"] = json!({"onMissing": "Discard"});
    assert!(matches!(
        judge(delivery(with_id(), b""), &config(&rule)),
        Judgement::Discard
    ));
    let blank = with_id().with_headers(headers(&[("x-postroom-tenant", text("  "))]));
    let needed =
        json!({"tenant": {"source": "Header", "header": "x-postroom-tenant", "required": true}});
    assert_eq!(code(&slot(&needed, blank, b"")), Some("MissingTenant"));
}

/// Invariant of the module: no text that PostgreSQL refuses, none that is too long, whatever is refused for it.
#[test]
#[expect(clippy::too_many_lines, reason = "a table: one entry for each field")]
fn what_does_not_fit_is_refused_by_name_and_what_is_kept_of_it_fits() {
    let long = "ä".repeat(200);
    let one = |name: &str, value: AMQPValue| with_id().with_headers(headers(&[(name, value)]));
    let trust = json!({"identity": {"trustHeaders": true}});
    for (rule, properties, expected) in [
        (
            json!({}),
            one("x-postroom-stream", text(&long)),
            "BadStream",
        ),
        (
            json!({}),
            one("x-postroom-stream", text("a\0")),
            "BadStream",
        ),
        (
            json!({}),
            one("x-postroom-stream", AMQPValue::LongInt(7)),
            "BadStream",
        ),
        (
            json!({}),
            one("x-postroom-tenant", text(&long)),
            "BadTenant",
        ),
        (
            json!({}),
            one("x-postroom-tenant", AMQPValue::Boolean(true)),
            "BadTenant",
        ),
        (
            trust.clone(),
            one("x-postroom-idempotency-key", text(&long)),
            "BadKey",
        ),
        (json!({}), with_id().with_type("a\0b".into()), "BadProperty"),
        (
            json!({}),
            with_id().with_content_type("a\0b".into()),
            "BadProperty",
        ),
        (
            json!({}),
            with_id().with_correlation_id("a\0b".into()),
            "BadProperty",
        ),
        (json!({}), one("a\0b", AMQPValue::Void), "BadHeaders"),
        (
            json!({"consumer": {"maxMessageBytes": 2}}),
            with_id(),
            "Oversize",
        ),
    ] {
        let slot = slot(&rule, properties, b"abc");
        assert_eq!(code(&slot), Some(expected));
        let texts = [
            &slot.stream,
            &slot.tenant,
            &slot.key,
            &slot.correlation_id,
            &slot.headers,
        ];
        let texts = texts
            .into_iter()
            .flatten()
            .chain([&slot.kind, &slot.content_type]);
        for text in texts {
            assert!(
                !text.contains('\0') && text.len() <= 255 || slot.headers.as_ref() == Some(text),
                "{text:?}"
            );
        }
        assert_eq!(slot.body.as_bytes(), b"abc", "all of the body is kept");
    }
    let hints = with_id().with_headers(headers(&[
        ("x-postroom-causation-id", text(&long)),
        ("traceparent", AMQPValue::LongInt(1)),
    ]));
    let slot = slot(&json!({}), hints, b"");
    assert_eq!(
        (slot.refusal, slot.causation_id, slot.traceparent),
        (None, None, None)
    );
    assert!(
        slot.headers.unwrap().contains(&long),
        "it stays in the headers"
    );
}

#[test]
fn the_senders_key_counts_only_where_senders_are_trusted() {
    let properties =
        with_id().with_headers(headers(&[("x-postroom-idempotency-key", text("k-1"))]));
    let trust = json!({"identity": {"trustHeaders": true}});
    assert_eq!(
        slot(&trust, properties.clone(), b"").key.as_deref(),
        Some("k-1")
    );
    assert_eq!(slot(&json!({}), properties, b"").key, None);
}

#[test]
fn the_stream_may_be_the_routing_key() {
    let rule = json!({"stream": {"source": "RoutingKey"}});
    assert_eq!(
        slot(&rule, with_id(), b"").stream.as_deref(),
        Some("eu.acme.placed")
    );
    let none = json!({"stream": {"source": "None"}});
    let properties = with_id().with_headers(headers(&[("x-postroom-stream", text("s"))]));
    assert_eq!(slot(&none, properties, b"").stream, None);
}

#[test]
fn properties_that_no_column_holds_are_kept_under_one_name_that_nobody_can_forge() {
    let properties = with_id()
        .with_reply_to("answers".into())
        .with_expiration("1000".into())
        .with_priority(3)
        .with_timestamp(1_790_000_000)
        .with_user_id("shop".into())
        .with_app_id("web".into())
        .with_cluster_id("c".into())
        .with_content_encoding("identity".into())
        .with_delivery_mode(1)
        .with_headers(headers(&[
            ("x-postroom-amqp", text("forged")),
            ("own", text("1")),
        ]));
    let kept = slot(&json!({}), properties.clone(), b"").headers.unwrap();
    let expected = json!({"own": "1", "x-postroom-amqp": {
        "exchange": "shop", "reply_to": "answers", "expiration": "1000", "priority": 3, "timestamp": 1_790_000_000, "user_id": "shop",
        "app_id": "web", "cluster_id": "c", "content_encoding": "identity", "delivery_mode": 1}});
    assert_eq!(from_str::<Value>(&kept).unwrap(), expected);
    let rule = json!({"identity": {"source": "Header", "header": "own"}});
    let kept = slot(&rule, properties, b"").headers.unwrap();
    assert_eq!(
        from_str::<Value>(&kept).unwrap()["x-postroom-amqp"]["message_id"],
        "m-1"
    );
}
