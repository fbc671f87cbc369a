//! What goes out for a message, and what cannot.

use uuid::Uuid;

use super::*;
use crate::engine::message::samples::message;

const NO_LIMIT: u32 = 0;

fn sample() -> Message {
    message(0, 7, Some("cart-1"))
}

fn with_headers(json: &str) -> Message {
    Message {
        headers: Some(json.to_owned()),
        ..sample()
    }
}

fn packed(message: &Message, template: &str) -> Result<Parcel, String> {
    let template = Template::parse(template).unwrap();
    pack(message, "orders", &template, &BTreeMap::new(), NO_LIMIT)
}

fn header(json: &str) -> Result<AMQPValue, String> {
    let parcel = packed(&with_headers(&format!("{{\"h\": {json}}}")), "{type}")?;
    let headers = parcel.properties.headers().clone().unwrap();
    Ok(headers.inner().get("h").cloned().unwrap())
}

fn headers_of(parcel: &Parcel) -> FieldTable {
    parcel.properties.headers().clone().unwrap()
}

/// Everything that identifies a message comes from its row alone, so a repeat is the same to the last bit.
#[test]
fn a_repeat_of_a_message_is_the_same_to_the_last_bit() {
    let first = Message {
        correlation_id: Some("c-1".to_owned()),
        ..with_headers(r#"{"b": 1, "a": {"$int16": 2}}"#)
    };
    let again = Message {
        attempts: 3,
        deferrals: 5,
        ..first.clone()
    };
    let (first, again) = (packed(&first, "{type}"), packed(&again, "{type}"));
    assert_eq!(format!("{first:?}"), format!("{again:?}"));
}

#[test]
fn the_properties_are_those_of_the_row() {
    let message = Message {
        correlation_id: Some("c-1".to_owned()),
        ..sample()
    };
    let properties = packed(&message, "{type}").unwrap().properties;
    let text = |value: &Option<ShortString>| value.as_ref().map(|v| v.as_str().to_owned());
    let id = Uuid::from_u128(7).to_string();
    assert_eq!(text(properties.message_id()), Some(id));
    assert_eq!(text(properties.kind()).as_deref(), Some("order.created"));
    assert_eq!(
        text(properties.content_type()).as_deref(),
        Some("application/json")
    );
    assert_eq!(text(properties.correlation_id()).as_deref(), Some("c-1"));
    assert_eq!(*properties.timestamp(), Some(1_790_000_000));
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    assert_eq!(properties.expiration(), &None);
}

#[test]
fn the_own_headers_are_there_and_those_without_a_value_are_not() {
    let message = Message {
        tenant: "acme".to_owned(),
        traceparent: Some("00-1-2-01".to_owned()),
        ..sample()
    };
    let table = headers_of(&packed(&message, "{type}").unwrap());
    let names: Vec<&str> = table.inner().keys().map(ShortString::as_str).collect();
    assert_eq!(
        names,
        [
            "traceparent",
            "x-postroom-endpoint",
            "x-postroom-position",
            "x-postroom-stream",
            "x-postroom-tenant"
        ]
    );
    assert_eq!(
        table.inner().get("x-postroom-position"),
        Some(&AMQPValue::LongLongInt(7))
    );
    let bare = Message {
        stream: None,
        ..sample()
    };
    let table = headers_of(&packed(&bare, "{type}").unwrap());
    assert_eq!(table.inner().len(), 2, "{table:?}");
}

#[test]
fn the_rows_header_wins_over_the_endpoints_and_nobody_can_forge_ours() {
    let fixed = BTreeMap::from([
        ("team".to_owned(), "shop".to_owned()),
        ("zone".to_owned(), "eu".to_owned()),
    ]);
    let message = with_headers(r#"{"team": "mail", "x-postroom-endpoint": "forged"}"#);
    let template = Template::parse("{type}").unwrap();
    let parcel = pack(&message, "orders", &template, &fixed, NO_LIMIT).unwrap();
    let table = headers_of(&parcel);
    for (name, expected) in [
        ("team", "mail"),
        ("zone", "eu"),
        ("x-postroom-endpoint", "orders"),
    ] {
        assert_eq!(
            table.inner().get(name),
            Some(&text(expected)),
            "header {name}"
        );
    }
}

#[test]
fn the_routing_key_of_the_row_wins_over_the_template() {
    let message = Message {
        routing_key: Some("own.{type}".to_owned()),
        ..sample()
    };
    let parcel = packed(&message, "template").unwrap();
    assert_eq!(parcel.routing_key.as_str(), "own.{type}");
}

#[test]
fn a_template_is_filled_from_the_message_and_what_is_not_there_is_empty() {
    let message = Message {
        tenant: "acme".to_owned(),
        ..with_headers(r#"{"n": 7, "t": true, "s": "x", "list": [1], "none": null}"#)
    };
    for (template, expected) in [
        ("all", "all"),
        ("{tenant}.{type}", "acme.order.created"),
        ("a-{stream}-z", "a-cart-1-z"),
        ("{header.s}{header.n}{header.t}", "x7true"),
        ("[{header.list}{header.none}{header.absent}]", "[]"),
    ] {
        let parcel = packed(&message, template).unwrap();
        assert_eq!(parcel.routing_key.as_str(), expected, "{template}");
    }
    let bare = Message {
        stream: None,
        ..sample()
    };
    assert_eq!(
        packed(&bare, "s.{stream}").unwrap().routing_key.as_str(),
        "s."
    );
}

#[test]
fn json_becomes_the_amqp_type_that_holds_it() {
    for (json, expected) in [
        ("null", AMQPValue::Void),
        ("true", AMQPValue::Boolean(true)),
        ("-3", AMQPValue::LongLongInt(-3)),
        ("1.5", AMQPValue::Double(1.5)),
        ("\"ä\"", text("ä")),
        (r#"{"$int8": -1}"#, AMQPValue::ShortShortInt(-1)),
        (r#"{"$uint8": 255}"#, AMQPValue::ShortShortUInt(255)),
        (r#"{"$int16": "-7"}"#, AMQPValue::ShortInt(-7)),
        (r#"{"$uint16": 65535}"#, AMQPValue::ShortUInt(65_535)),
        (r#"{"$int32": 1}"#, AMQPValue::LongInt(1)),
        (r#"{"$uint32": 4294967295}"#, AMQPValue::LongUInt(u32::MAX)),
        (
            r#"{"$int64": "9007199254740993"}"#,
            AMQPValue::LongLongInt(9_007_199_254_740_993),
        ),
        (r#"{"$float": 0.5}"#, AMQPValue::Float(0.5)),
        (r#"{"$double": "2.25"}"#, AMQPValue::Double(2.25)),
        (
            r#"{"$timestamp": 1790000000}"#,
            AMQPValue::Timestamp(1_790_000_000),
        ),
        (
            r#"{"$timestamp": 18446744073709551615}"#,
            AMQPValue::Timestamp(u64::MAX),
        ),
        (
            r#"{"$bytes": "AAE="}"#,
            AMQPValue::ByteArray(ByteArray::from(vec![0, 1])),
        ),
        (
            r#"{"$string": "/wA="}"#,
            AMQPValue::LongString(LongString::from(vec![255, 0])),
        ),
        (
            r#"{"$decimal": {"scale": 2, "value": 1999}}"#,
            AMQPValue::DecimalValue(DecimalValue {
                scale: 2,
                value: 1_999,
            }),
        ),
        (
            r#"{"$decimal": {"scale": 2, "value": -1}}"#,
            AMQPValue::DecimalValue(DecimalValue {
                scale: 2,
                value: u32::MAX,
            }),
        ),
    ] {
        assert_eq!(header(json), Ok(expected), "{json}");
    }
}

#[test]
fn lists_and_objects_nest_and_an_object_with_more_than_one_member_is_no_type() {
    let AMQPValue::FieldArray(list) = header(r#"[1, {"$int8": 2}]"#).unwrap() else {
        panic!("not a list");
    };
    assert_eq!(
        list.as_slice(),
        [AMQPValue::LongLongInt(1), AMQPValue::ShortShortInt(2)]
    );
    let AMQPValue::FieldTable(table) = header(r#"{"$int8": 1, "other": 2}"#).unwrap() else {
        panic!("not a table");
    };
    assert_eq!(table.inner().get("$int8"), Some(&AMQPValue::LongLongInt(1)));
    let AMQPValue::FieldTable(table) = header(r#"{"$table": {"$int8": "x"}}"#).unwrap() else {
        panic!("not a table");
    };
    assert_eq!(table.inner().get("$int8"), Some(&text("x")));
}

/// What no broker would take never goes out, and the sentence names what is wrong.
#[test]
fn what_amqp_cannot_hold_is_refused_with_its_name_and_the_rule() {
    for (json, part) in [
        (r#"{"$int8": 128}"#, "128 cannot be read as int8"),
        (r#"{"$uint16": -1}"#, "-1 cannot be read as uint16"),
        (r#"{"$bytes": "not base64!"}"#, "cannot be read as bytes"),
        (r#"{"$decimal": {"scale": 256, "value": 1}}"#, "decimal"),
        (
            r#"{"$decimal": {"scale": 0, "value": -2147483649}}"#,
            "decimal",
        ),
        (r#"{"$table": 1}"#, "1 cannot be read as table"),
        (r#"{"$colour": 1}"#, "$colour is not a known type"),
    ] {
        let problem = header(json).unwrap_err();
        assert!(
            problem.contains("'h'") && problem.contains(part),
            "{problem}"
        );
    }
    let long = "x".repeat(256);
    for (message, part) in [
        (
            Message {
                kind: long.clone(),
                ..sample()
            },
            "type has 256 bytes",
        ),
        (
            Message {
                content_type: long.clone(),
                ..sample()
            },
            "content_type has 256 bytes",
        ),
        (
            Message {
                correlation_id: Some(long.clone()),
                ..sample()
            },
            "correlation_id has 256 bytes",
        ),
        (
            Message {
                routing_key: Some(long.clone()),
                ..sample()
            },
            "routing key has 256 bytes",
        ),
        (
            with_headers(&format!("{{\"{long}\": 1}}")),
            "header name has 256 bytes",
        ),
        (with_headers("[1]"), "headers"),
    ] {
        let problem = packed(&message, "{type}").unwrap_err();
        assert!(problem.contains(part), "{problem}");
    }
    assert!(
        packed(
            &Message {
                kind: "x".repeat(255),
                ..sample()
            },
            "k"
        )
        .is_ok()
    );
}

#[test]
fn a_filled_template_that_grows_too_long_is_refused() {
    let message = Message {
        stream: Some(Stream::new("", &"s".repeat(250))),
        ..sample()
    };
    assert!(packed(&message, "12345{stream}").is_ok());
    let problem = packed(&message, "123456{stream}").unwrap_err();
    assert!(problem.contains("routing key has 256 bytes"), "{problem}");
}

#[test]
fn headers_nest_only_so_deep() {
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert!(header(&nested(DEEPEST)).is_ok());
    let problem = header(&nested(DEEPEST + 1)).unwrap_err();
    assert!(problem.contains("deeper than"), "{problem}");
}

#[test]
fn headers_that_do_not_fit_into_a_frame_are_refused_with_the_numbers() {
    let message = with_headers(&format!("{{\"big\": \"{}\"}}", "x".repeat(4_000)));
    let template = Template::parse("{type}").unwrap();
    let packed = |frame| pack(&message, "orders", &template, &BTreeMap::new(), frame);
    assert!(packed(0).is_ok() && packed(131_072).is_ok());
    let problem = packed(4_096).unwrap_err();
    assert!(
        problem.contains("frame_max is 4096") && problem.contains("takes 3072"),
        "{problem}"
    );
}
