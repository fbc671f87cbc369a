//! A message for unit tests.

use uuid::Uuid;

use super::{Identity, Key, Message, Place, Stream};

/// The only message of its transaction, ten bytes long; tests change what matters to them.
pub(crate) fn message(partition: i16, xact: u64, stream: Option<&str>) -> Message {
    let id = i64::try_from(xact).unwrap();
    Message {
        identity: Identity {
            key: Key {
                partition,
                place: Place { xact, id },
            },
            message_id: Uuid::from_u128(xact.into()),
        },
        tenant: String::new(),
        stream: stream.map(|name| Stream::new("", name)),
        kind: "order.created".to_owned(),
        routing_key: None,
        content_type: "application/json".to_owned(),
        headers: None,
        body: b"0123456789".to_vec(),
        correlation_id: None,
        causation_id: None,
        traceparent: None,
        idempotency_key: None,
        created_at: 1_790_000_000,
        expired: false,
        attempts: 0,
        deferrals: 0,
    }
}
