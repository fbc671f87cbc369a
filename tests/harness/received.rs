//! One message as it arrived, with everything that came with it.

use std::collections::BTreeMap;
use std::time::Instant;

use base64::Engine as _;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Value, json};
use uuid::Uuid;

/// One delivery.
#[derive(Debug, Clone)]
pub struct Received {
    /// The queue it came from.
    pub queue: String,
    /// The exchange it was published to.
    pub exchange: String,
    /// The routing key it was published with.
    pub routing_key: String,
    /// The message id, as text; empty when there was none.
    pub message_id: String,
    /// All headers, with their types.
    pub headers: BTreeMap<String, AMQPValue>,
    /// All properties.
    pub properties: BasicProperties,
    /// The body.
    pub body: Vec<u8>,
    /// When it was here.
    pub arrived: Instant,
    /// The broker had delivered it before, over a connection that ended before it was acknowledged.
    pub redelivered: bool,
}

impl Received {
    pub(crate) fn new(queue: &str, delivery: Delivery) -> Self {
        let properties = delivery.properties;
        let headers = properties.headers().iter().flat_map(FieldTable::inner);
        Self {
            queue: queue.to_owned(),
            exchange: delivery.exchange.as_str().to_owned(),
            routing_key: delivery.routing_key.as_str().to_owned(),
            message_id: properties
                .message_id()
                .as_ref()
                .map(|id| id.as_str().to_owned())
                .unwrap_or_default(),
            headers: headers
                .map(|(name, value)| (name.as_str().to_owned(), value.clone()))
                .collect(),
            body: delivery.data,
            arrived: Instant::now(),
            redelivered: delivery.redelivered,
            properties,
        }
    }

    /// The message id, if it is a UUID.
    pub fn id(&self) -> Option<Uuid> {
        self.message_id.parse().ok()
    }

    /// A header that holds text.
    pub fn header(&self, name: &str) -> Option<String> {
        let value = to_json(self.headers.get(name)?);
        value.as_str().map(str::to_owned)
    }

    /// All headers as JSON: text, numbers and truth values as themselves, the rest as an object that names its type.
    pub fn headers_json(&self) -> Value {
        self.headers
            .iter()
            .map(|(name, value)| (name.clone(), to_json(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// The body as text; what is not UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "numbers of all widths are the same in JSON, and the list is the library's"
)]
fn to_json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(truth) => json!(truth),
        AMQPValue::ShortShortInt(number) => json!(number),
        AMQPValue::ShortInt(number) => json!(number),
        AMQPValue::LongInt(number) => json!(number),
        AMQPValue::LongLongInt(number) => json!(number),
        AMQPValue::LongUInt(number) => json!(number),
        AMQPValue::Double(number) if number.is_finite() => json!(number),
        AMQPValue::ShortString(text) => json!(text.as_str()),
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => json!(text),
            Err(_) => {
                json!({"bytes": base64::engine::general_purpose::STANDARD.encode(text.as_bytes())})
            }
        },
        AMQPValue::ByteArray(bytes) => {
            json!({"bytes": base64::engine::general_purpose::STANDARD.encode(bytes.as_slice())})
        }
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(to_json).collect(),
        AMQPValue::FieldTable(table) => table
            .inner()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), to_json(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        AMQPValue::Void => Value::Null,
        other => json!({"type": format!("{:?}", other.get_type()), "value": format!("{other:?}")}),
    }
}
