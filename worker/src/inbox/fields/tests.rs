//! Headers become JSON and headers again, and nothing is lost on the way.

use lapin::types::{ByteArray, DecimalValue, FieldArray, LongString};

use super::*;
use crate::outbox::wire;

fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn long(text: &[u8]) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}

/// All of a table, of which nothing may be left out.
fn all(table: &FieldTable) -> Map<String, Value> {
    let (members, problem) = members(table);
    assert_eq!(problem, None);
    members
}

/// One of every type, at its limits.
#[expect(clippy::too_many_lines, reason = "a table: one entry for each value")]
fn samples() -> Vec<(AMQPValue, Value)> {
    let nested = table(&[("a", AMQPValue::ShortInt(-7)), ("b", long(b"x"))]);
    let mut array = FieldArray::default();
    array.push(AMQPValue::Void);
    array.push(AMQPValue::FieldTable(nested.clone()));
    let decimal = |scale, value: i32| {
        AMQPValue::DecimalValue(DecimalValue {
            scale,
            value: value.cast_unsigned(),
        })
    };
    vec![
        (AMQPValue::Void, Value::Null),
        (AMQPValue::Boolean(true), json!(true)),
        (AMQPValue::ShortShortInt(i8::MIN), json!({"$int8": -128})),
        (AMQPValue::ShortShortUInt(u8::MAX), json!({"$uint8": 255})),
        (AMQPValue::ShortInt(i16::MIN), json!({"$int16": -32768})),
        (AMQPValue::ShortUInt(u16::MAX), json!({"$uint16": 65535})),
        (AMQPValue::LongInt(i32::MIN), json!({"$int32": i32::MIN})),
        (AMQPValue::LongUInt(u32::MAX), json!({"$uint32": u32::MAX})),
        (AMQPValue::LongLongInt(i64::MIN), json!(i64::MIN)),
        (AMQPValue::LongLongInt(i64::MAX), json!(i64::MAX)),
        (AMQPValue::Float(0.1), json!({"$float": 0.1})),
        (
            AMQPValue::Float(f32::MAX),
            json!({"$float": f32::MAX.to_string()}),
        ),
        (AMQPValue::Double(1.5), json!(1.5)),
        (AMQPValue::Double(3.0), json!(3.0)),
        (AMQPValue::Double(-0.0), json!({"$double": "-0"})),
        (
            AMQPValue::Double(1e16),
            json!({"$double": "10000000000000000"}),
        ),
        (AMQPValue::Double(1e-7), json!({"$double": "0.0000001"})),
        (
            decimal(2, 1_999),
            json!({"$decimal": {"scale": 2, "value": 1999}}),
        ),
        (
            decimal(255, -5),
            json!({"$decimal": {"scale": 255, "value": -5}}),
        ),
        (AMQPValue::Timestamp(0), json!({"$timestamp": 0})),
        (
            AMQPValue::Timestamp(u64::MAX),
            json!({"$timestamp": u64::MAX}),
        ),
        (long("ä\u{fffd}\n".as_bytes()), json!("ä\u{fffd}\n")),
        (long(b""), json!("")),
        (long(b"a\0b"), json!({"$string": "YQBi"})),
        (long(&[0xff]), json!({"$string": "/w=="})),
        (
            AMQPValue::ByteArray(ByteArray::from(vec![0, 255])),
            json!({"$bytes": "AP8="}),
        ),
        (
            AMQPValue::FieldTable(nested),
            json!({"a": {"$int16": -7}, "b": "x"}),
        ),
        (
            AMQPValue::FieldArray(array),
            json!([null, {"a": {"$int16": -7}, "b": "x"}]),
        ),
        (
            AMQPValue::FieldTable(table(&[("$int8", long(b"no number"))])),
            json!({"$table": {"$int8": "no number"}}),
        ),
        (
            AMQPValue::FieldTable(table(&[("$int8", AMQPValue::Void), ("b", AMQPValue::Void)])),
            json!({"$int8": null, "b": null}),
        ),
        (AMQPValue::FieldTable(FieldTable::default()), json!({})),
        (AMQPValue::FieldArray(FieldArray::default()), json!([])),
    ]
}

/// F22.
#[test]
fn every_type_has_its_form_and_is_read_again_as_what_it_was() {
    for (value, expected) in samples() {
        let json = all(&table(&[("h", value.clone())]));
        assert_eq!(json["h"], expected, "{value:?}");
        let read = wire::header("h", &json["h"]).unwrap();
        assert_eq!(read, value, "{expected}");
        assert_eq!(
            read.as_double().map(f64::is_sign_negative),
            value.as_double().map(f64::is_sign_negative)
        );
    }
}

/// The broker reads none of these, so the worker never sends one; should one come, it is kept.
#[test]
fn numbers_that_are_none_are_kept_by_name() {
    for (value, expected) in [
        (AMQPValue::Double(f64::NAN), json!({"$double": "NaN"})),
        (AMQPValue::Double(f64::INFINITY), json!({"$double": "inf"})),
        (
            AMQPValue::Float(f32::NEG_INFINITY),
            json!({"$float": "-inf"}),
        ),
        (AMQPValue::Float(f32::NAN), json!({"$float": "NaN"})),
    ] {
        let json = all(&table(&[("h", value)]));
        assert_eq!(json["h"], expected);
        assert!(wire::header("h", &json["h"]).is_err(), "{expected}");
    }
}

/// A sequence of numbers that is the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn value(&mut self, depth: usize) -> AMQPValue {
        let bits = self.roll();
        match self.roll() % if depth > 4 { 15 } else { 17 } {
            0 => AMQPValue::Void,
            1 => AMQPValue::Boolean(bits.is_multiple_of(2)),
            2 => AMQPValue::ShortShortInt(bits as i8),
            3 => AMQPValue::ShortShortUInt(bits as u8),
            4 => AMQPValue::ShortInt(bits as i16),
            5 => AMQPValue::ShortUInt(bits as u16),
            6 => AMQPValue::LongInt(bits as i32),
            7 => AMQPValue::LongUInt(bits as u32),
            8 => AMQPValue::LongLongInt(bits.cast_signed()),
            9 => AMQPValue::Float(
                Some(f32::from_bits(bits as u32))
                    .filter(|f| f.is_finite())
                    .unwrap_or(0.5),
            ),
            10 => AMQPValue::Double(
                Some(f64::from_bits(bits))
                    .filter(|f| f.is_finite())
                    .unwrap_or(0.5),
            ),
            11 => AMQPValue::DecimalValue(DecimalValue {
                scale: bits as u8,
                value: (bits >> 8) as u32,
            }),
            12 => AMQPValue::Timestamp(bits),
            13 => long(&bits.to_le_bytes()[..(bits % 9) as usize]),
            14 => AMQPValue::ByteArray(ByteArray::from(bits.to_le_bytes().to_vec())),
            15 => {
                let mut array = FieldArray::default();
                (0..bits % 4).for_each(|_| array.push(self.value(depth + 1)));
                AMQPValue::FieldArray(array)
            }
            _ => AMQPValue::FieldTable(self.table(bits % 4, depth + 1)),
        }
    }

    fn table(&mut self, size: u64, depth: usize) -> FieldTable {
        const NAMES: [&str; 6] = ["a", "$int8", "$table", "$string", "ä", ""];
        let mut table = FieldTable::default();
        for _ in 0..size {
            let name = NAMES[usize::try_from(self.roll() % 6).unwrap()];
            table.insert(name.into(), self.value(depth));
        }
        table
    }
}

#[test]
fn any_table_is_read_again_as_it_was_also_after_a_round_through_text() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..20_000 {
        let table = dice.table(3, 0);
        let json = all(&table);
        let text = Value::from(json).to_string();
        let Value::Object(json) = serde_json::from_str(&text).unwrap() else {
            panic!("{text} is no object");
        };
        for (name, value) in table.inner() {
            let read = wire::header("h", &json[name.as_str()]).unwrap();
            assert_eq!(&read, value, "round {round}: {text}");
        }
    }
}

/// What an application gives to an outbox arrives at another's inbox as it was written, save that a decimal is signed.
#[test]
fn what_an_outbox_was_given_is_what_an_inbox_stores() {
    for text in [
        "null",
        "true",
        "7",
        "-1.5",
        "\"text\"",
        "[]",
        "{}",
        "[1, {\"a\": [null]}]",
        r#"{"$int8": 1}"#,
        r#"{"$uint8": 1}"#,
        r#"{"$int16": 1}"#,
        r#"{"$uint16": 1}"#,
        r#"{"$int32": 1}"#,
        r#"{"$uint32": 1}"#,
        r#"{"$timestamp": 18446744073709551615}"#,
        r#"{"$float": 1.5}"#,
        r#"{"$bytes": "AAH/"}"#,
        r#"{"$string": "AGE="}"#,
        r#"{"$decimal": {"scale": 2, "value": -995}}"#,
        r#"{"$table": {"$int8": 1}}"#,
    ] {
        let json: Value = serde_json::from_str(text).unwrap();
        let value = wire::header("h", &json).unwrap();
        assert_eq!(all(&table(&[("h", value)]))["h"], json, "{text}");
    }
}

#[test]
fn what_jsonb_cannot_hold_is_refused_by_name() {
    let (kept, error) = members(&table(&[("a\0b", AMQPValue::Void), ("fits", long(b"x"))]));
    let error = error.unwrap();
    assert_eq!(
        Value::from(kept),
        json!({"fits": "x"}),
        "the others are kept"
    );
    assert!(error.contains("a\\0b") && error.contains("NUL"), "{error}");
    let inner = AMQPValue::FieldTable(table(&[("c\0", AMQPValue::Void)]));
    assert!(members(&table(&[("a", inner)])).1.is_some());
    let mut deep = AMQPValue::Void;
    for _ in 0..=DEEPEST {
        let mut array = FieldArray::default();
        array.push(deep);
        deep = AMQPValue::FieldArray(array);
    }
    let error = members(&table(&[("deep", deep)])).1.unwrap();
    assert!(
        error.contains("'deep'") && error.contains("deeper"),
        "{error}"
    );
}
