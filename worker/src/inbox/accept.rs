//! The Rust face of the SQL function that stores deliveries.

use std::str::FromStr;

use sqlx::{Executor, Row as _};
use uuid::Uuid;

use super::delivery::{Body, Slot};
use crate::database::Link;

/// Who stores for which inbox.
#[derive(Debug, Clone)]
pub struct Right {
    /// This process.
    pub worker: Uuid,
    /// The inbox.
    pub endpoint: String,
    /// Epoch of the right to receive; 0 where everybody may.
    pub epoch: i64,
    /// Whether conflicts become dead letters.
    pub keep_conflicts: bool,
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is a message of the inbox now.
    Accepted,
    /// It was accepted before.
    AlreadyAccepted,
    /// Its identity was accepted before with another meaning.
    Conflict,
    /// It cannot become a message; it is kept as a dead letter.
    Refused,
}

impl FromStr for Outcome {
    type Err = sqlx::Error;

    fn from_str(text: &str) -> Result<Self, sqlx::Error> {
        Ok(match text {
            "Accepted" => Self::Accepted,
            "AlreadyAccepted" => Self::AlreadyAccepted,
            "Conflict" => Self::Conflict,
            "Refused" => Self::Refused,
            _ => {
                return Err(sqlx::Error::Decode(
                    format!("'{text}' is no outcome").into(),
                ));
            }
        })
    }
}

/// What the database answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// One outcome for each slot, in their order.
    Committed(Vec<Outcome>),
    /// The right to receive belongs to somebody else now; nothing was stored.
    Lost,
    /// The database will not have something of it, for what it contains; nothing was stored.
    Unstorable(String),
}

/// Stores deliveries in their order, in one transaction. That the database takes none of them for what one contains is an
/// answer, not an error.
pub async fn store(
    link: &mut Link<'_>,
    right: &Right,
    slots: &[Slot],
) -> Result<Stored, sqlx::Error> {
    match store_inbox_messages(link, right, slots).await {
        Err(sqlx::Error::Database(error)) if is_about_content(error.code().as_deref()) => {
            let code = error.code().unwrap_or_default();
            Ok(Stored::Unstorable(format!("{code}: {}", error.message())))
        }
        answer => answer,
    }
}

/// Data exceptions, violated constraints, limits of the program.
fn is_about_content(code: Option<&str>) -> bool {
    code.is_some_and(|code| {
        ["22", "23", "54"]
            .iter()
            .any(|class| code.starts_with(class))
    })
}

async fn store_inbox_messages(
    link: &mut Link<'_>,
    right: &Right,
    slots: &[Slot],
) -> Result<Stored, sqlx::Error> {
    let text = |of: fn(&Slot) -> Option<&str>| slots.iter().map(of).collect::<Vec<_>>();
    let bodies: Vec<Option<&[u8]>> = slots
        .iter()
        .map(|slot| match &slot.body {
            Body::Text(_) => None,
            Body::Bytes(bytes) => Some(bytes.as_slice()),
        })
        .collect();
    let query = link
        .query(
            "select lost, outcomes from @schema@.store_inbox_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
        )
        .bind(right.worker)
        .bind(&right.endpoint)
        .bind(right.epoch)
        .bind(right.keep_conflicts)
        .bind(slots.iter().map(|slot| slot.message_id).collect::<Vec<_>>())
        .bind(text(|slot| slot.foreign_id.as_deref()))
        .bind(text(|slot| slot.key.as_deref()))
        .bind(text(|slot| slot.tenant.as_deref()))
        .bind(text(|slot| slot.stream.as_deref()))
        .bind(text(|slot| Some(&slot.kind)))
        .bind(text(|slot| Some(&slot.routing_key)))
        .bind(text(|slot| Some(&slot.content_type)))
        .bind(text(|slot| slot.headers.as_deref()))
        .bind(text(|slot| match &slot.body {
            Body::Text(text) => Some(text),
            Body::Bytes(_) => None,
        }))
        .bind(bodies)
        .bind(text(|slot| slot.correlation_id.as_deref()))
        .bind(text(|slot| slot.causation_id.as_deref()))
        .bind(text(|slot| slot.traceparent.as_deref()))
        .bind(text(|slot| slot.refusal.as_ref().map(|refusal| refusal.code)))
        .bind(text(|slot| slot.refusal.as_ref().map(|refusal| refusal.error.as_str())));
    let row = link.connection.fetch_one(query).await?;
    if row.try_get(0)? {
        return Ok(Stored::Lost);
    }
    let outcomes: Vec<String> = row.try_get(1)?;
    let outcomes = outcomes.iter().map(|outcome| outcome.parse());
    Ok(Stored::Committed(outcomes.collect::<Result<_, _>>()?))
}
