//! From a delivery of the broker to what the database stores, or why it is not accepted. Pure.
//!
//! Invariant: whatever a sender writes, the slot that comes out of here can be stored. What cannot be is refused, and
//! a refusal can be stored too: the broker would deliver it again for ever.

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{FieldTable, ShortString};
use postroom_crds::inbox_outbox::inbox::{Refusal, StreamSource, TenantSource};
use postroom_crds::worker_config::InboxConfig;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::fields;
use super::identity::{self, Header, Identity, NoIdentity, media_type, text_header};

/// Longest text beside the body, in bytes: the database takes no more.
const LONGEST: usize = 255;
/// The header that holds what AMQP says beside the headers. A sender's own header of that name is dropped.
const PROPERTIES: &str = "x-postroom-amqp";
/// Delivery mode of what the broker writes to disk.
const PERSISTENT: u8 = 2;

/// Why a delivery is refused that the database would not have.
const UNSTORABLE: &str = "Unstorable";

/// What to do with a delivery.
#[derive(Debug)]
pub enum Judgement {
    /// It goes to the database: as a message, or as one that is refused.
    Store(Box<Slot>),
    /// It is settled as it is: nobody here handles its type, or it is discarded by rule.
    Discard,
}

/// One delivery, as the database takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slot {
    /// An id in the form of a uuid.
    pub message_id: Option<Uuid>,
    /// Any other id.
    pub foreign_id: Option<String>,
    /// The sender's key.
    pub key: Option<String>,
    /// Tenant.
    pub tenant: Option<String>,
    /// Stream.
    pub stream: Option<String>,
    /// Type; empty where the sender gave none.
    pub kind: String,
    /// Routing key.
    pub routing_key: String,
    /// Content type; empty where the sender gave none.
    pub content_type: String,
    /// Headers and properties as JSON.
    pub headers: Option<String>,
    /// The body.
    pub body: Body,
    /// Correlation id.
    pub correlation_id: Option<String>,
    /// What caused it.
    pub causation_id: Option<String>,
    /// Trace context.
    pub traceparent: Option<String>,
    /// Why it cannot become a message.
    pub refusal: Option<Refused>,
}

impl Slot {
    /// What is left of it when the database would not have it for what it contains: the body, and what no database minds.
    #[must_use]
    pub fn unstorable(self, error: String) -> Self {
        let plain = |text: String| text.replace(|c: char| !c.is_ascii_graphic() && c != ' ', "?");
        Self {
            message_id: self.message_id,
            foreign_id: self.foreign_id.map(plain),
            kind: plain(self.kind),
            routing_key: plain(self.routing_key),
            content_type: plain(self.content_type),
            body: Body::Bytes(match self.body {
                Body::Text(text) => text.into_bytes(),
                Body::Bytes(bytes) => bytes,
            }),
            refusal: Some(Refused {
                code: UNSTORABLE,
                error: plain(error),
            }),
            ..Self::default()
        }
    }

    /// Whether this is what was left of a delivery.
    pub fn is_unstorable(&self) -> bool {
        self.refusal
            .as_ref()
            .is_some_and(|refusal| refusal.code == UNSTORABLE)
    }

    /// Size in memory, about.
    pub fn size(&self) -> usize {
        self.body.as_bytes().len() + self.headers.as_ref().map_or(0, String::len)
    }
}

/// The body, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A text that PostgreSQL takes.
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl Default for Body {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl Body {
    fn of(bytes: Vec<u8>, content_type: &str, encoding: Option<&str>) -> Self {
        if !is_textual(content_type) || !encoding.is_none_or(is_no_encoding) || bytes.contains(&0) {
            return Self::Bytes(bytes);
        }
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }

    /// All of it.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Why a delivery cannot become a message. It is kept as a dead letter, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Stable code.
    pub code: &'static str,
    /// What was seen.
    pub error: String,
}

/// What the rules of `config` make of a delivery.
pub fn judge(delivery: Delivery, config: &InboxConfig) -> Judgement {
    let properties = delivery.properties;
    let kind = properties.kind().as_ref().map_or("", ShortString::as_str);
    if !config.types.is_empty() && !config.types.iter().any(|known| known == kind) {
        return Judgement::Discard;
    }
    let mut reader = Reader {
        config,
        properties: &properties,
        headers: properties.headers().as_ref(),
        refusal: None,
        missing: false,
    };
    reader.check_size(delivery.data.len());
    let (message_id, foreign_id) = reader.identity(&delivery.data);
    let routing_key = reader.text("routing key", Some(&delivery.routing_key));
    let slot = Slot {
        message_id,
        foreign_id,
        tenant: reader.tenant(delivery.routing_key.as_str()),
        stream: reader.stream(delivery.routing_key.as_str()),
        key: reader.key(),
        kind: reader.text("type", properties.kind().as_ref()),
        content_type: reader.text("content_type", properties.content_type().as_ref()),
        correlation_id: Some(reader.text("correlation_id", properties.correlation_id().as_ref()))
            .filter(|id| !id.is_empty()),
        causation_id: reader.hint("x-postroom-causation-id"),
        traceparent: reader.hint("traceparent"),
        headers: reader.stored_headers(delivery.exchange.as_str()),
        routing_key,
        body: Body::default(),
        refusal: reader.refusal.take(),
    };
    if reader.missing && config.identity.on_missing == Refusal::Discard {
        return Judgement::Discard;
    }
    let encoding = properties.content_encoding().as_ref();
    let body = Body::of(
        delivery.data,
        &slot.content_type,
        encoding.map(ShortString::as_str),
    );
    Judgement::Store(Box::new(Slot { body, ..slot }))
}

/// Reads one delivery; the first thing that is wrong with it is what it is refused for.
struct Reader<'a> {
    config: &'a InboxConfig,
    properties: &'a BasicProperties,
    headers: Option<&'a FieldTable>,
    refusal: Option<Refused>,
    /// Whether it is refused because the sender left something out.
    missing: bool,
}

impl Reader<'_> {
    fn refuse(&mut self, code: &'static str, error: String) {
        if self.refusal.is_none() {
            self.refusal = Some(Refused { code, error });
        }
    }

    /// Refused because something is left out, which an inbox may discard; what was wrong before that counts more.
    fn refuse_missing(&mut self, code: &'static str, error: String) {
        self.missing |= self.refusal.is_none();
        self.refuse(code, error);
    }

    fn check_size(&mut self, size: usize) {
        let most = self.config.consumer.max_message_bytes;
        if size as u64 > most {
            let error = format!("the body has {size} bytes, the inbox allows {most}");
            self.refuse("Oversize", error);
        }
    }

    fn identity(&mut self, body: &[u8]) -> (Option<Uuid>, Option<String>) {
        match identity::identify(&self.config.identity, self.properties, body) {
            Ok(Identity::Uuid(id)) => (Some(id), None),
            Ok(Identity::Foreign(id)) => (None, Some(id)),
            Err(NoIdentity::Missing(error)) => {
                self.refuse_missing("MissingIdentity", error);
                (None, None)
            }
            Err(NoIdentity::Bad(error)) => {
                self.refuse("BadIdentity", error);
                (None, None)
            }
        }
    }

    /// A text of the sender's that has to fit; what does not is refused, and kept as far as it does.
    fn fitting(&mut self, code: &'static str, what: &str, text: &str) -> String {
        let size = text.len();
        if size > LONGEST {
            self.refuse(
                code,
                format!("{what} has {size} bytes, at most {LONGEST} are allowed"),
            );
        }
        if text.contains('\0') {
            self.refuse(
                code,
                format!("{what} contains NUL, or bytes that are no text"),
            );
        }
        let end = (0..=LONGEST.min(size)).rfind(|&end| text.is_char_boundary(end));
        text[..end.unwrap_or_default()].replace('\0', "")
    }

    fn text(&mut self, what: &str, text: Option<&ShortString>) -> String {
        text.map(|text| self.fitting("BadProperty", what, text.as_str()))
            .unwrap_or_default()
    }

    /// A header that has to be text where it is given; none where it is not, or blank.
    fn text_header(&mut self, code: &'static str, name: &str) -> Option<String> {
        match text_header(self.headers, name) {
            Header::Absent => None,
            Header::Text(text) => Some(self.fitting(code, &format!("header '{name}'"), text)),
            Header::NotText => {
                self.refuse(code, format!("header '{name}' is not text"));
                None
            }
        }
        .filter(|text| !text.trim().is_empty())
    }

    fn tenant(&mut self, routing_key: &str) -> Option<String> {
        let rule = &self.config.tenant;
        let (what, tenant) = match rule.source {
            TenantSource::None => return None,
            TenantSource::Static => return rule.value.clone(),
            TenantSource::Header => {
                let name = rule.header.as_deref().unwrap_or_default();
                (
                    format!("header '{name}'"),
                    self.text_header("BadTenant", name),
                )
            }
            TenantSource::RoutingKeySegment => {
                let segment = rule.segment.unwrap_or_default();
                let word = routing_key.split('.').nth(segment as usize);
                let word = word.filter(|word| !word.trim().is_empty());
                let what = format!("word {segment} of routing key {routing_key:?}");
                let tenant = word.map(|word| self.fitting("BadTenant", &what, word));
                (what, tenant)
            }
        };
        if tenant.is_none() && rule.required {
            let error = format!("{what} is missing or blank, and the inbox needs a tenant");
            self.refuse_missing("MissingTenant", error);
        }
        tenant
    }

    fn stream(&mut self, routing_key: &str) -> Option<String> {
        let rule = &self.config.stream;
        match rule.source {
            StreamSource::None => None,
            StreamSource::Header => {
                let name = rule.header.as_deref().unwrap_or_default();
                self.text_header("BadStream", name)
            }
            StreamSource::RoutingKey => Some(self.fitting("BadStream", "routing key", routing_key))
                .filter(|stream| !stream.is_empty()),
        }
    }

    /// The sender's key, where the inbox trusts senders.
    fn key(&mut self) -> Option<String> {
        if !self.config.identity.trust_headers {
            return None;
        }
        self.text_header("BadKey", "x-postroom-idempotency-key")
    }

    /// A header that helps people to understand, and nothing rests on: left out where it does not fit. It stays in the headers.
    fn hint(&self, name: &str) -> Option<String> {
        match text_header(self.headers, name) {
            Header::Text(text) if text.len() <= LONGEST && !text.contains('\0') => {
                Some(text.to_owned()).filter(|text| !text.is_empty())
            }
            Header::Text(_) | Header::Absent | Header::NotText => None,
        }
    }

    fn stored_headers(&mut self, exchange: &str) -> Option<String> {
        let (mut all, problem) = self.headers.map(fields::members).unwrap_or_default();
        if let Some(problem) = problem {
            self.refuse("BadHeaders", problem);
        }
        all.remove(PROPERTIES);
        let properties = self.other_properties(exchange);
        if !properties.is_empty() {
            all.insert(PROPERTIES.to_owned(), properties.into());
        }
        (!all.is_empty()).then(|| Value::from(all).to_string())
    }

    /// What a handler may want to know and no column holds.
    fn other_properties(&self, exchange: &str) -> Map<String, Value> {
        let from = self.properties;
        let texts = [
            ("message_id", from.message_id()),
            ("reply_to", from.reply_to()),
            ("expiration", from.expiration()),
            ("user_id", from.user_id()),
            ("app_id", from.app_id()),
            ("cluster_id", from.cluster_id()),
            ("content_encoding", from.content_encoding()),
        ];
        let by_message_id = self.config.identity.source
            == postroom_crds::inbox_outbox::inbox::IdentitySource::MessageId;
        let mut all: Map<_, _> = texts
            .into_iter()
            .filter(|(name, _)| !(by_message_id && *name == "message_id"))
            .filter_map(|(name, text)| Some((name, text.as_ref()?.as_str())))
            .chain(
                [("exchange", exchange)]
                    .into_iter()
                    .filter(|e| !e.1.is_empty()),
            )
            .map(|(name, text)| (name.to_owned(), fields::string(text.as_bytes())))
            .collect();
        if let Some(priority) = from.priority() {
            all.insert("priority".to_owned(), json!(priority));
        }
        if let Some(timestamp) = from.timestamp() {
            all.insert("timestamp".to_owned(), json!(timestamp));
        }
        if let Some(mode) = from.delivery_mode().filter(|mode| *mode != PERSISTENT) {
            all.insert("delivery_mode".to_owned(), json!(mode));
        }
        all
    }
}

/// Whether bodies of this type are text, going by the type alone; one that is not given may be.
fn is_textual(content_type: &str) -> bool {
    const KNOWN: [&str; 12] = [
        "application/graphql",
        "application/javascript",
        "application/json",
        "application/json5",
        "application/jsonlines",
        "application/sql",
        "application/toml",
        "application/x-ndjson",
        "application/x-www-form-urlencoded",
        "application/x-yaml",
        "application/xml",
        "application/yaml",
    ];
    let kind = media_type(content_type);
    kind.is_empty()
        || kind.starts_with("text/")
        || KNOWN.contains(&kind.as_str())
        || ["+json", "+xml", "+yaml"]
            .iter()
            .any(|end| kind.ends_with(end))
}

/// Some libraries give the character set as the encoding.
fn is_no_encoding(encoding: &str) -> bool {
    ["", "identity", "utf-8", "utf8"].contains(&encoding.trim().to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests;
