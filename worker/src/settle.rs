//! The Rust face of the SQL functions that record outcomes.
//!
//! Invariant: every settle names the whole key and the message id, in key order.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Executor, Row as _};
use uuid::Uuid;

use crate::database::Link;
use crate::engine::message::{Identity, Mark};
use crate::hooks;
use crate::store::types::xacts;
use crate::store::{Direction, interval};

/// What a settle answers.
#[derive(Debug, Clone, Default)]
pub struct Settled {
    /// Partitions whose lease is not the worker's any more.
    pub lost: Vec<i16>,
    /// Partitions in which a blocking deferral was removed, with the counter after that.
    pub freed: Vec<(i16, i64)>,
    /// How many messages were put off; less than asked for where rows are gone or partitions lost.
    pub deferred: usize,
    /// Incarnation of the server.
    pub incarnation: Option<Uuid>,
}

/// A message with the claim it was handed out under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The message.
    pub identity: Identity,
    /// Epoch of its partition.
    pub epoch: i64,
}

/// A deferral to write.
#[derive(Debug, Clone)]
pub struct Deferral {
    /// The message.
    pub claim: Claim,
    /// For so long.
    pub delay: Duration,
    /// Counts against the limit.
    pub counted: bool,
    /// Its stream waits.
    pub blocking: bool,
    /// Reason code.
    pub reason: String,
    /// What was seen.
    pub error: String,
}

/// A message to give up.
#[derive(Debug, Clone)]
pub struct Burial {
    /// The message.
    pub claim: Claim,
    /// A failure that is not in its deferral yet counts against the limit.
    pub counted: bool,
    /// Reason code.
    pub reason: String,
    /// What was seen.
    pub error: String,
}

/// The parallel arrays that name messages in a settle.
struct Keys {
    partitions: Vec<i16>,
    epochs: Vec<i64>,
    xacts: Vec<String>,
    ids: Vec<i64>,
    message_ids: Vec<Uuid>,
}

impl Keys {
    fn of<'a>(claims: impl Iterator<Item = &'a Claim>) -> Self {
        let mut keys = Self {
            partitions: Vec::new(),
            epochs: Vec::new(),
            xacts: Vec::new(),
            ids: Vec::new(),
            message_ids: Vec::new(),
        };
        for claim in claims {
            keys.partitions.push(claim.identity.key.partition);
            keys.epochs.push(claim.epoch);
            keys.xacts.push(claim.identity.key.place.xact.to_string());
            keys.ids.push(claim.identity.key.place.id);
            keys.message_ids.push(claim.identity.message_id);
        }
        keys
    }
}

/// Deletes what was published and confirmed, or handled.
pub async fn complete_messages(
    link: &mut Link<'_>,
    worker: Uuid,
    direction: Direction,
    endpoint: &str,
    claims: &mut [Claim],
) -> Result<Settled, sqlx::Error> {
    claims.sort_unstable_by_key(|claim| claim.identity.key);
    let keys = Keys::of(claims.iter());
    let text = if hooks::broken("anonymous-settle") {
        "select '{}'::smallint[], '{}'::smallint[], '{}'::bigint[], incarnation from @schema@.complete_outbox_published($1, $2, $3, $4, $5::text[]::xid8[], $6, \
         array(select coalesce(o.message_id, k.m) from unnest($3, $5::text[]::xid8[], $6, $7) k(p, x, i, m) left join @schema@.outbox o \
         on o.endpoint = $2 and o.partition = k.p and o.xact = k.x and o.id = k.i))"
    } else if direction == Direction::Inbox {
        "select lost_partitions, freed_partitions, freed_removals, incarnation from @schema@.complete_inbox_handled($1, $2, $3, $4, $5::text[]::xid8[], $6, $7)"
    } else {
        "select lost_partitions, freed_partitions, freed_removals, incarnation from @schema@.complete_outbox_published($1, $2, $3, $4, $5::text[]::xid8[], $6, $7)"
    };
    let query = link
        .query(text)
        .bind(worker)
        .bind(endpoint)
        .bind(keys.partitions)
        .bind(keys.epochs)
        .bind(keys.xacts)
        .bind(keys.ids)
        .bind(keys.message_ids);
    settled(&link.connection.fetch_one(query).await?)
}

fn settled(row: &PgRow) -> Result<Settled, sqlx::Error> {
    let (partitions, removals): (Vec<i16>, Vec<i64>) = (row.try_get(1)?, row.try_get(2)?);
    Ok(Settled {
        lost: row.try_get(0)?,
        freed: partitions.into_iter().zip(removals).collect(),
        deferred: 0,
        incarnation: row.try_get(3)?,
    })
}

/// Puts messages off.
pub async fn defer_messages(
    link: &mut Link<'_>,
    worker: Uuid,
    endpoint: &str,
    deferrals: &mut [Deferral],
) -> Result<Settled, sqlx::Error> {
    deferrals.sort_unstable_by_key(|d| d.claim.identity.key);
    let keys = Keys::of(deferrals.iter().map(|d| &d.claim));
    let query = link
        .query(
            "select lost_partitions, '{}'::smallint[], '{}'::bigint[], incarnation, deferred from @schema@.defer_messages($1, $2, $3, $4, $5::text[]::xid8[], $6, $7, $8, $9, $10, $11, $12)",
        )
        .bind(worker)
        .bind(endpoint)
        .bind(keys.partitions)
        .bind(keys.epochs)
        .bind(keys.xacts)
        .bind(keys.ids)
        .bind(keys.message_ids)
        .bind(deferrals.iter().map(|d| interval(d.delay)).collect::<Vec<_>>())
        .bind(deferrals.iter().map(|d| d.counted).collect::<Vec<_>>())
        .bind(deferrals.iter().map(|d| d.blocking).collect::<Vec<_>>())
        .bind(deferrals.iter().map(|d| d.reason.clone()).collect::<Vec<_>>())
        .bind(deferrals.iter().map(|d| d.error.clone()).collect::<Vec<_>>());
    let row = link.connection.fetch_one(query).await?;
    let deferred: i64 = row.try_get(4)?;
    Ok(Settled {
        deferred: usize::try_from(deferred).unwrap_or_default(),
        ..settled(&row)?
    })
}

/// Gives messages up.
pub async fn bury_messages(
    link: &mut Link<'_>,
    worker: Uuid,
    endpoint: &str,
    burials: &mut [Burial],
) -> Result<Settled, sqlx::Error> {
    burials.sort_unstable_by_key(|b| b.claim.identity.key);
    let keys = Keys::of(burials.iter().map(|b| &b.claim));
    let query = link
        .query(
            "select lost_partitions, freed_partitions, freed_removals, incarnation from @schema@.bury_messages($1, $2, $3, $4, $5::text[]::xid8[], $6, $7, $8, $9, $10)",
        )
        .bind(worker)
        .bind(endpoint)
        .bind(keys.partitions)
        .bind(keys.epochs)
        .bind(keys.xacts)
        .bind(keys.ids)
        .bind(keys.message_ids)
        .bind(burials.iter().map(|b| b.counted).collect::<Vec<_>>())
        .bind(burials.iter().map(|b| b.reason.clone()).collect::<Vec<_>>())
        .bind(burials.iter().map(|b| b.error.clone()).collect::<Vec<_>>());
    settled(&link.connection.fetch_one(query).await?)
}

/// A partition to give back: number, epoch, low mark.
pub type Release = (i16, i64, Mark);

/// Gives partitions back.
pub async fn release_work(
    link: &mut Link<'_>,
    worker: Uuid,
    endpoint: &str,
    releases: &[Release],
) -> Result<(), sqlx::Error> {
    let query = link
        .query("select @schema@.release_work($1, $2, $3, $4, $5::text[]::xid8[], $6::text[]::xid8[], $7)")
        .bind(worker)
        .bind(endpoint)
        .bind(releases.iter().map(|r| r.0).collect::<Vec<_>>())
        .bind(releases.iter().map(|r| r.1).collect::<Vec<_>>())
        .bind(xacts(releases.iter().map(|r| r.2.seen)))
        .bind(xacts(releases.iter().map(|r| r.2.new)))
        .bind(releases.iter().map(|r| r.2.removals).collect::<Vec<_>>());
    link.connection.execute(query).await.map(drop)
}
