//! From a message to what goes out: routing key, properties, headers.
//!
//! Pure, and the same on every repeat: nothing here depends on the attempt, the worker or the time.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lapin::BasicProperties;
use lapin::types::{
    AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString,
};
use postroom_crds::routing_key::{Part, Template};
use serde_json::Value;

use crate::engine::message::{Message, Stream};

mod size;

/// AMQP's limit of a short string, in bytes.
const SHORT_STRING: usize = 255;
/// Bytes that everything but the table of headers may take of the one frame that properties and headers share.
const BESIDE_HEADERS: usize = 1_024;
/// Headers nest at most so deep; deeper ones are not accepted either.
pub const DEEPEST: usize = 16;

/// What is published.
#[derive(Debug)]
pub struct Parcel {
    /// Where to, within the exchange.
    pub routing_key: ShortString,
    /// Everything but the body.
    pub properties: BasicProperties,
}

/// Packs a message, or says why it cannot be published. `frame_max` is what the broker takes as one frame; 0 is no limit.
pub fn pack(
    message: &Message,
    endpoint: &str,
    template: &Template,
    fixed_headers: &BTreeMap<String, String>,
    frame_max: u32,
) -> Result<Parcel, String> {
    let own = match &message.headers {
        None => serde_json::Map::new(),
        Some(text) => serde_json::from_str(text).map_err(|e| format!("headers: {e}"))?,
    };
    let routing_key = match &message.routing_key {
        Some(key) => key.clone(),
        None => fill(template, message, &own),
    };
    let mut table = FieldTable::default();
    for (name, value) in fixed_headers {
        table.insert(short("header name", name)?, text(value));
    }
    for (name, value) in &own {
        table.insert(short("header name", name)?, amqp_value(name, value, 0)?);
    }
    add_own_headers(&mut table, message, endpoint);
    check_size(&table, frame_max)?;
    let mut properties = BasicProperties::default()
        .with_message_id(message.identity.message_id.to_string().into())
        .with_type(short("type", &message.kind)?)
        .with_content_type(short("content_type", &message.content_type)?)
        .with_timestamp(message.created_at)
        .with_delivery_mode(2)
        .with_headers(table);
    if let Some(id) = &message.correlation_id {
        properties = properties.with_correlation_id(short("correlation_id", id)?);
    }
    Ok(Parcel {
        routing_key: short("routing key", &routing_key)?,
        properties,
    })
}

fn add_own_headers(table: &mut FieldTable, message: &Message, endpoint: &str) {
    let mut add = |name: &'static str, value: Option<&str>| {
        if let Some(value) = value {
            table.insert(name.into(), text(value));
        }
    };
    add("x-postroom-endpoint", Some(endpoint));
    add(
        "x-postroom-stream",
        message.stream.as_ref().map(Stream::name),
    );
    add(
        "x-postroom-tenant",
        Some(message.tenant.as_str()).filter(|t| !t.is_empty()),
    );
    add("x-postroom-causation-id", message.causation_id.as_deref());
    add(
        "x-postroom-idempotency-key",
        message.idempotency_key.as_deref(),
    );
    add("traceparent", message.traceparent.as_deref());
    table.insert(
        "x-postroom-position".into(),
        AMQPValue::LongLongInt(message.identity.key.place.id),
    );
}

/// Headers cannot be split over frames; a frame that is too long ends the connection, for every message on it.
fn check_size(table: &FieldTable, frame_max: u32) -> Result<(), String> {
    let (size, frame) = (size::of_table(table), frame_max as usize);
    if frame > 0 && size + BESIDE_HEADERS > frame {
        let most = frame.saturating_sub(BESIDE_HEADERS);
        return Err(format!(
            "headers have {size} bytes, the broker takes {most} (its frame_max is {frame})"
        ));
    }
    Ok(())
}

fn fill(template: &Template, message: &Message, own: &serde_json::Map<String, Value>) -> String {
    let mut key = String::new();
    for part in &template.parts {
        match part {
            Part::Text(text) => key.push_str(text),
            Part::Type => key.push_str(&message.kind),
            Part::Stream => key.push_str(message.stream.as_ref().map_or("", Stream::name)),
            Part::Tenant => key.push_str(&message.tenant),
            Part::Header(name) => match own.get(name) {
                Some(Value::String(text)) => key.push_str(text),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => {
                    key.push_str(&value.to_string())
                }
                Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => {}
            },
        }
    }
    key
}

fn short(what: &str, text: &str) -> Result<ShortString, String> {
    if text.len() > SHORT_STRING {
        return Err(format!(
            "{what} has {} bytes, AMQP allows {SHORT_STRING}",
            text.len()
        ));
    }
    Ok(text.to_owned().into())
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text.as_bytes()))
}

/// One header, from the JSON in which it is stored.
#[cfg(test)]
pub(crate) fn header(name: &str, value: &Value) -> Result<AMQPValue, String> {
    amqp_value(name, value, 0)
}

/// JSON to AMQP. What JSON has no type for is an object with one member that starts with `$`; `migrations/README.md` lists them.
fn amqp_value(name: &str, value: &Value, depth: usize) -> Result<AMQPValue, String> {
    if depth > DEEPEST {
        return Err(format!("header '{name}' nests deeper than {DEEPEST}"));
    }
    Ok(match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(b) => AMQPValue::Boolean(*b),
        Value::String(s) => text(s),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => AMQPValue::LongLongInt(i),
            (None, Some(f)) => AMQPValue::Double(f),
            (None, None) => return Err(format!("header '{name}': number {n} has no AMQP type")),
        },
        Value::Array(items) => {
            let mut array = FieldArray::default();
            for item in items {
                array.push(amqp_value(name, item, depth + 1)?);
            }
            AMQPValue::FieldArray(array)
        }
        Value::Object(members) => match typed(name, members, depth)? {
            Some(value) => value,
            None => table(name, members, depth)?,
        },
    })
}

fn table(
    name: &str,
    members: &serde_json::Map<String, Value>,
    depth: usize,
) -> Result<AMQPValue, String> {
    let mut table = FieldTable::default();
    for (key, item) in members {
        table.insert(
            short("header name", key)?,
            amqp_value(name, item, depth + 1)?,
        );
    }
    Ok(AMQPValue::FieldTable(table))
}

/// `{"$int16": 7}` and its like; none for an ordinary object.
fn typed(
    name: &str,
    members: &serde_json::Map<String, Value>,
    depth: usize,
) -> Result<Option<AMQPValue>, String> {
    let mut entries = members.iter();
    let (Some((kind, value)), None) = (entries.next(), entries.next()) else {
        return Ok(None);
    };
    let Some(kind) = kind.strip_prefix('$') else {
        return Ok(None);
    };
    let wrong = || format!("header '{name}': {value} cannot be read as {kind}");
    let integer = || -> Result<i64, String> {
        value
            .as_i64()
            .or_else(|| value.as_str().and_then(|s| s.parse().ok()))
            .ok_or_else(wrong)
    };
    // The broker cannot read a number that is none, and ends the connection over it.
    let float = || -> Result<f64, String> {
        value
            .as_f64()
            .or_else(|| value.as_str().and_then(|s| s.parse().ok()))
            .filter(|number| number.is_finite())
            .ok_or_else(wrong)
    };
    let bytes = || -> Result<Vec<u8>, String> {
        value
            .as_str()
            .and_then(|s| STANDARD.decode(s).ok())
            .ok_or_else(wrong)
    };
    Ok(Some(match kind {
        "int8" => AMQPValue::ShortShortInt(integer()?.try_into().map_err(|_| wrong())?),
        "uint8" => AMQPValue::ShortShortUInt(integer()?.try_into().map_err(|_| wrong())?),
        "int16" => AMQPValue::ShortInt(integer()?.try_into().map_err(|_| wrong())?),
        "uint16" => AMQPValue::ShortUInt(integer()?.try_into().map_err(|_| wrong())?),
        "int32" => AMQPValue::LongInt(integer()?.try_into().map_err(|_| wrong())?),
        "uint32" => AMQPValue::LongUInt(integer()?.try_into().map_err(|_| wrong())?),
        "int64" => AMQPValue::LongLongInt(integer()?),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the sender asked for single precision"
        )]
        "float" => AMQPValue::Float(
            Some(float()? as f32)
                .filter(|number| number.is_finite())
                .ok_or_else(wrong)?,
        ),
        "double" => AMQPValue::Double(float()?),
        "timestamp" => AMQPValue::Timestamp(match value.as_u64() {
            Some(seconds) => seconds,
            None => integer()?.try_into().map_err(|_| wrong())?,
        }),
        "bytes" => AMQPValue::ByteArray(ByteArray::from(bytes()?)),
        "string" => AMQPValue::LongString(LongString::from(bytes()?)),
        "decimal" => {
            let member = |key: &str| value.get(key).and_then(Value::as_i64).ok_or_else(wrong);
            let number = member("value")?;
            AMQPValue::DecimalValue(DecimalValue {
                scale: member("scale")?.try_into().map_err(|_| wrong())?,
                // The same four bytes, whether the reader takes them as signed or not.
                value: u32::try_from(number)
                    .or_else(|_| i32::try_from(number).map(i32::cast_unsigned))
                    .map_err(|_| wrong())?,
            })
        }
        // A table whose only member looks like one of these.
        "table" => table(name, value.as_object().ok_or_else(wrong)?, depth)?,
        _ => return Err(format!("header '{name}': ${kind} is not a known type")),
    }))
}

#[cfg(test)]
mod tests;
