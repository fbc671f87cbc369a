//! From AMQP headers to the JSON in which they are stored: the reverse of what `outbox::wire` reads, so that what was
//! received can be sent on as it was.
//!
//! Invariant: nothing is lost without a word, and PostgreSQL takes every text that comes out of here.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Map, Value, json};

use crate::outbox::wire::DEEPEST;

/// The members of a table, and what is wrong with the first that cannot be stored; those are left out.
pub fn members(table: &FieldTable) -> (Map<String, Value>, Option<String>) {
    let mut members = Map::new();
    let mut problem = None;
    for (name, value) in table.inner() {
        let name = name.as_str();
        match checked(name).and_then(|key| Ok((key, json_value(name, value, 0)?))) {
            Ok((key, value)) => drop(members.insert(key, value)),
            Err(error) => drop(problem.get_or_insert(error)),
        }
    }
    (members, problem)
}

/// jsonb has no NUL.
fn checked(name: &str) -> Result<String, String> {
    if name.contains('\0') {
        return Err(format!(
            "the name of header {name:?} contains NUL, or bytes that are no text"
        ));
    }
    Ok(name.to_owned())
}

fn json_value(name: &str, value: &AMQPValue, depth: usize) -> Result<Value, String> {
    if depth > DEEPEST {
        return Err(format!("header '{name}' nests deeper than {DEEPEST}"));
    }
    Ok(match value {
        AMQPValue::Void => Value::Null,
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(n) => json!({"$int8": n}),
        AMQPValue::ShortShortUInt(n) => json!({"$uint8": n}),
        AMQPValue::ShortInt(n) => json!({"$int16": n}),
        AMQPValue::ShortUInt(n) => json!({"$uint16": n}),
        AMQPValue::LongInt(n) => json!({"$int32": n}),
        AMQPValue::LongUInt(n) => json!({"$uint32": n}),
        AMQPValue::LongLongInt(n) => (*n).into(),
        AMQPValue::Float(n) => json!({"$float": single(*n)}),
        AMQPValue::Double(n) => plain(*n).unwrap_or_else(|| json!({"$double": n.to_string()})),
        // Those who write decimals write signed ones.
        AMQPValue::DecimalValue(n) => {
            json!({"$decimal": {"scale": n.scale, "value": n.value.cast_signed()}})
        }
        AMQPValue::Timestamp(seconds) => json!({"$timestamp": seconds}),
        AMQPValue::ShortString(text) => string(text.as_str().as_bytes()),
        AMQPValue::LongString(text) => string(text.as_bytes()),
        AMQPValue::ByteArray(bytes) => json!({"$bytes": STANDARD.encode(bytes.as_slice())}),
        AMQPValue::FieldArray(items) => {
            let items = items.as_slice().iter();
            let items = items.map(|item| json_value(name, item, depth + 1));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        AMQPValue::FieldTable(table) => nested(name, table, depth)?,
    })
}

fn nested(name: &str, table: &FieldTable, depth: usize) -> Result<Value, String> {
    let mut members = Map::new();
    for (key, item) in table.inner() {
        members.insert(checked(key.as_str())?, json_value(name, item, depth + 1)?);
    }
    let looks_typed = members.len() == 1 && members.keys().any(|key| key.starts_with('$'));
    Ok(if looks_typed {
        json!({"$table": members})
    } else {
        members.into()
    })
}

/// A text where it is one that jsonb takes.
pub fn string(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => text.into(),
        _ => json!({"$string": STANDARD.encode(bytes)}),
    }
}

/// As a number of JSON, where that is read again as the same number and not as an integer: jsonb writes 1e16 out in full,
/// and knows no negative zero.
fn plain(number: f64) -> Option<Value> {
    let json = Value::from(number);
    let survives = number.is_finite()
        && (number != 0.0 || number.is_sign_positive())
        && !json.to_string().contains(['e', 'E']);
    survives.then_some(json)
}

fn single(number: f32) -> Value {
    let short: f64 = number.to_string().parse().unwrap_or(f64::NAN);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "asks whether the short text is read as the same number"
    )]
    let exact = if short as f32 == number {
        short
    } else {
        number.into()
    };
    plain(exact).unwrap_or_else(|| number.to_string().into())
}

#[cfg(test)]
mod tests;
