//! What makes a delivery the same as another: by the rule of the inbox, an id of the sender or the digest of the body.

use std::borrow::Cow;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use postroom_crds::inbox_outbox::inbox::{Identity as Rule, IdentitySource};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Longest id, in bytes.
const LONGEST: usize = 255;
/// Names of the header with the id of a `CloudEvent` whose attributes are headers.
const CLOUD_EVENT_ID: [&str; 3] = ["cloudEvents:id", "cloudEvents_id", "ce-id"];
/// Content type of a `CloudEvent` that is all in the body.
const CLOUD_EVENT: &str = "application/cloudevents+json";

/// An id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// In the form of a uuid.
    Uuid(Uuid),
    /// Any other text.
    Foreign(String),
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoIdentity {
    /// The sender gave none.
    Missing(String),
    /// What the sender gave cannot be one.
    Bad(String),
}

/// The id of a delivery.
pub fn identify(
    rule: &Rule,
    properties: &BasicProperties,
    body: &[u8],
) -> Result<Identity, NoIdentity> {
    let headers = properties.headers().as_ref();
    match rule.source {
        IdentitySource::MessageId => {
            let id = properties.message_id().as_ref();
            from_text("message_id", id.map(|id| id.as_str()))
        }
        IdentitySource::Header => {
            let name = rule.header.as_deref().unwrap_or_default();
            from_header(name, headers)
        }
        IdentitySource::CloudEventId => cloud_event(properties, headers, body),
        IdentitySource::PayloadSha256 => Ok(Identity::Foreign(digest(body))),
    }
}

fn cloud_event(
    properties: &BasicProperties,
    headers: Option<&FieldTable>,
    body: &[u8],
) -> Result<Identity, NoIdentity> {
    let structured = properties
        .content_type()
        .as_ref()
        .is_some_and(|content_type| media_type(content_type.as_str()) == CLOUD_EVENT);
    if structured {
        #[derive(Deserialize)]
        struct Event<'a> {
            #[serde(borrow)]
            id: Option<Cow<'a, str>>,
        }
        let event: Event<'_> = serde_json::from_slice(body)
            .map_err(|error| NoIdentity::Bad(format!("the CloudEvent cannot be read: {error}")))?;
        return from_text("member 'id' of the CloudEvent", event.id.as_deref());
    }
    let name = CLOUD_EVENT_ID
        .into_iter()
        .find(|name| headers.is_some_and(|headers| headers.contains_key(name)));
    match name {
        Some(name) => from_header(name, headers),
        None => Err(NoIdentity::Missing(
            "the message is no CloudEvent: it has none of the headers cloudEvents:id, cloudEvents_id and ce-id".to_owned(),
        )),
    }
}

fn from_header(name: &str, headers: Option<&FieldTable>) -> Result<Identity, NoIdentity> {
    let what = format!("header '{name}'");
    match text_header(headers, name) {
        Header::Absent => from_text(&what, None),
        Header::Text(id) => from_text(&what, Some(id)),
        Header::NotText => Err(NoIdentity::Bad(format!("{what} is not text"))),
    }
}

fn from_text(what: &str, id: Option<&str>) -> Result<Identity, NoIdentity> {
    let Some(id) = id else {
        return Err(NoIdentity::Missing(format!("{what} is missing")));
    };
    if id.trim().is_empty() {
        return Err(NoIdentity::Missing(format!("{what} is blank")));
    }
    // As the database does with an id that an application gives: spaces, and nothing else.
    let id = id.trim_matches(' ');
    if id.len() > LONGEST {
        let size = id.len();
        return Err(NoIdentity::Bad(format!(
            "{what} has {size} bytes, at most {LONGEST} are allowed"
        )));
    }
    if id.contains('\0') {
        return Err(NoIdentity::Bad(format!(
            "{what} contains NUL, or bytes that are no text"
        )));
    }
    // Only the form with hyphens: the database takes any other for a text of the sender's own.
    let uuid = Uuid::try_parse(id).ok().filter(|_| id.len() == 36);
    Ok(uuid.map_or_else(|| Identity::Foreign(id.to_owned()), Identity::Uuid))
}

/// SHA-256 in hexadecimal digits.
fn digest(body: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(body) {
        write!(text, "{byte:02x}").expect("a string takes everything");
    }
    text
}

/// What a header is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header<'a> {
    /// There is none.
    Absent,
    /// A text.
    Text(&'a str),
    /// Anything else.
    NotText,
}

/// A header that should be text.
pub fn text_header<'a>(headers: Option<&'a FieldTable>, name: &str) -> Header<'a> {
    match headers.and_then(|headers| headers.inner().get(name)) {
        None | Some(AMQPValue::Void) => Header::Absent,
        Some(value) => value
            .as_long_string()
            .and_then(|text| std::str::from_utf8(text.as_bytes()).ok())
            .map_or(Header::NotText, Header::Text),
    }
}

/// A content type without its parameters, in lower case.
pub fn media_type(content_type: &str) -> String {
    let bare = content_type.split(';').next().unwrap_or_default();
    bare.trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
