//! The Rust face of the SQL functions for workers: one function for each, nothing else.
//!
//! Invariant: every settle names the whole key and the message id, in key order.

pub mod types;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{Executor, Row as _, postgres::PgRow};
use uuid::Uuid;

use crate::database::Link;
use crate::engine::message::{Batch, Identity, Key, Mark, Message, Place, Row, Snapshot, Stream};
use types::{Seconds, xact, xacts, xacts_of};

/// Who claims.
#[derive(Debug, Clone)]
pub struct Claimant {
    /// Fresh for every process.
    pub id: Uuid,
    /// Host name, for people.
    pub host: String,
    /// Version, for people.
    pub version: String,
}

/// What a worker holds of one endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holding {
    /// The held partitions.
    pub partitions: BTreeMap<i16, HeldPartition>,
    /// Epoch of the right to receive for an inbox, 0 where everybody may; none for who does not have it.
    pub ingress_epoch: Option<i64>,
}

/// One held partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldPartition {
    /// Number of the claim; the fencing token.
    pub epoch: i64,
    /// Where a new owner starts to read.
    pub low_mark: u64,
    /// Counter of removed blocking deferrals.
    pub removals: i64,
    /// Should be handed over to others.
    pub hand_over: bool,
    /// The owner before vanished without a release.
    pub suspect: bool,
}

/// What `claim_work` answers.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    /// By endpoint.
    pub holdings: BTreeMap<String, Holding>,
    /// Incarnation of the server.
    pub incarnation: Option<Uuid>,
}

/// Low marks to move, by endpoint and partition.
pub type LowMarks = BTreeMap<String, Vec<(i16, Mark)>>;

pub(crate) fn interval(duration: Duration) -> PgInterval {
    PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX),
    }
}

/// Renews the lease, takes a fair share, answers what is held. `consumes` names the inboxes that can receive now.
pub async fn claim_work(
    link: &mut Link<'_>,
    claimant: &Claimant,
    lease: Duration,
    endpoints: &[String],
    consumes: &[String],
    in_flight: &BTreeMap<String, usize>,
    low_marks: &LowMarks,
) -> Result<Claimed, sqlx::Error> {
    let low_marks: BTreeMap<_, Vec<_>> = low_marks
        .iter()
        .map(|(endpoint, marks)| {
            let marks = marks.iter().map(|(p, mark)| {
                (
                    p,
                    mark.seen.to_string(),
                    mark.new.to_string(),
                    mark.removals,
                )
            });
            (endpoint, marks.collect())
        })
        .collect();
    let query = link
        .query(
            "select endpoint, partitions, epochs, low_marks_now::text[]::bigint[], removals, hand_over, suspects, incarnation, ingress_epoch \
             from @schema@.claim_work($1, $2, $3, $4, $5, null, $6, $7, $8)",
        )
        .bind(claimant.id)
        .bind(&claimant.host)
        .bind(&claimant.version)
        .bind(interval(lease))
        .bind(endpoints)
        .bind(sqlx::types::Json(in_flight))
        .bind(sqlx::types::Json(low_marks))
        .bind(consumes);
    let mut claimed = Claimed::default();
    for row in link.connection.fetch_all(query).await? {
        let (partitions, epochs): (Vec<i16>, Vec<i64>) = (row.try_get(1)?, row.try_get(2)?);
        let (low_marks, removals): (_, Vec<i64>) = (xacts_of(&row, 3)?, row.try_get(4)?);
        let (hand_over, suspects): (Vec<i16>, Vec<i16>) = (row.try_get(5)?, row.try_get(6)?);
        claimed.incarnation = row.try_get(7)?;
        let held = partitions.iter().enumerate().map(|(i, &partition)| {
            let held = HeldPartition {
                epoch: epochs[i],
                low_mark: low_marks[i],
                removals: removals[i],
                hand_over: hand_over.contains(&partition),
                suspect: suspects.contains(&partition),
            };
            (partition, held)
        });
        let holding = Holding {
            partitions: held.collect(),
            ingress_epoch: row.try_get(8)?,
        };
        claimed.holdings.insert(row.try_get(0)?, holding);
    }
    Ok(claimed)
}

/// What the idle poll sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signal {
    /// Last position given out.
    pub position: i64,
    /// Running transactions.
    pub snapshot: Snapshot,
    /// Incarnation of the server.
    pub incarnation: Option<Uuid>,
}

/// One tiny read: has anything moved?
pub async fn poll(link: &mut Link<'_>) -> Result<Signal, sqlx::Error> {
    let query =
        link.query("select position, snapshot::text, incarnation from @schema@.poll_outbox()");
    let row = link.connection.fetch_one(query).await?;
    Ok(Signal {
        position: row.try_get(0)?,
        snapshot: snapshot(row.try_get(1)?)?,
        incarnation: row.try_get(2)?,
    })
}

fn snapshot(text: &str) -> Result<Snapshot, sqlx::Error> {
    Snapshot::parse(text)
        .ok_or_else(|| sqlx::Error::Decode(format!("'{text}' is no snapshot").into()))
}

/// What a fetch asks for.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// Endpoint.
    pub endpoint: String,
    /// Held partitions.
    pub partitions: Vec<i16>,
    /// Cursor of each.
    pub places: Vec<Place>,
    /// Remembered transactions.
    pub running: Vec<u64>,
    /// Most rows.
    pub max_rows: i32,
    /// Most bytes of bodies.
    pub max_bytes: i64,
}

/// Which way messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the database to the broker.
    Outbox,
    /// From the broker to a handler.
    Inbox,
}

impl Direction {
    /// As the database and the metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Outbox => "Outbox",
            Self::Inbox => "Inbox",
        }
    }

    const fn fetch(self) -> &'static str {
        match self {
            Self::Outbox => "fetch_outbox_batch",
            Self::Inbox => "fetch_inbox_batch",
        }
    }
}

/// The next rows, all in one snapshot; `bodies` says whether with their bodies.
pub async fn fetch_batch(
    link: &mut Link<'_>,
    direction: Direction,
    fetch: &Fetch,
    bodies: bool,
) -> Result<Batch, sqlx::Error> {
    let ids: Vec<i64> = fetch.places.iter().map(|p| p.id).collect();
    let query = link
        .query(&format!(
            "select kind, partition, xid8send(xact), id, message_id, tenant, stream, type, routing_key, content_type, headers, body, correlation_id, causation_id, \
             traceparent, idempotency_key, created_at, expired, attempts, deferrals, snapshot::text, next_due_in, incarnation, low_marks::text[]::bigint[], removals \
             from @schema@.{}($1, $2, $3::text[]::xid8[], $4, $5::text[]::xid8[], $6, $7, $8)",
            direction.fetch()
        ))
        .bind(&fetch.endpoint)
        .bind(&fetch.partitions)
        .bind(xacts(fetch.places.iter().map(|p| p.xact)))
        .bind(ids)
        .bind(xacts(fetch.running.iter().copied()))
        .bind(fetch.max_rows)
        .bind(fetch.max_bytes)
        .bind(bodies);
    let rows = link.connection.fetch_all(query).await?;
    let mut batch = Batch::default();
    batch.rows.reserve(rows.len());
    for row in &rows {
        match row.try_get::<i16, _>(0)? {
            0 => {
                batch.snapshot = snapshot(row.try_get(20)?)?;
                let due: Option<f64> = row.try_get(21)?;
                batch.next_due = due.map(|s| Duration::try_from_secs_f64(s).unwrap_or_default());
                batch.incarnation = row.try_get(22)?;
                batch.low_marks = xacts_of(row, 23)?;
                batch.removals = row.try_get(24)?;
            }
            1 => batch.rows.push(Row::Late(message(row)?)),
            2 => batch.rows.push(Row::Next(message(row)?)),
            3 => batch.rows.push(Row::Due(message(row)?)),
            4 => batch.rows.push(Row::Skipped(identity(row)?.key)),
            5 => batch.rows.push(Row::Orphan(identity(row)?)),
            _ => batch.too_many_late = true,
        }
    }
    Ok(batch)
}

fn identity(row: &PgRow) -> Result<Identity, sqlx::Error> {
    Ok(Identity {
        key: Key {
            partition: row.try_get(1)?,
            place: Place {
                xact: xact(row, 2)?,
                id: row.try_get(3)?,
            },
        },
        message_id: row.try_get(4)?,
    })
}

fn message(row: &PgRow) -> Result<Arc<Message>, sqlx::Error> {
    let (tenant, stream): (String, Option<&str>) = (row.try_get(5)?, row.try_get(6)?);
    Ok(Arc::new(Message {
        identity: identity(row)?,
        stream: stream.map(|stream| Stream::new(&tenant, stream)),
        tenant,
        kind: row.try_get(7)?,
        routing_key: row.try_get(8)?,
        content_type: row.try_get(9)?,
        headers: row.try_get(10)?,
        body: row.try_get::<Option<_>, _>(11)?.unwrap_or_default(),
        correlation_id: row.try_get(12)?,
        causation_id: row.try_get(13)?,
        traceparent: row.try_get(14)?,
        idempotency_key: row.try_get(15)?,
        created_at: row.try_get::<Seconds, _>(16)?.0,
        expired: row.try_get(17)?,
        attempts: row.try_get::<i32, _>(18)?.try_into().unwrap_or_default(),
        deferrals: row.try_get::<i32, _>(19)?.try_into().unwrap_or_default(),
    }))
}

/// Takes the worker off the list.
pub async fn deregister_worker(link: &mut Link<'_>, worker: Uuid) -> Result<(), sqlx::Error> {
    let query = link
        .query("select @schema@.deregister_worker($1)")
        .bind(worker);
    link.connection.execute(query).await.map(drop)
}

/// One pass of upkeep: rows by task.
pub async fn perform_maintenance(link: &mut Link<'_>) -> Result<Vec<(String, i64)>, sqlx::Error> {
    let query = link.query("select task, rows from @schema@.perform_maintenance()");
    let rows = link.connection.fetch_all(query).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

/// A memory by which repeats are recognised, as the view `deduplication_memory` or `request_memory` shows it.
#[derive(Debug, Clone, Copy)]
pub struct RepeatMemory {
    /// What is remembered, as the server estimated it last.
    pub rows: i64,
    /// Disk space with indexes.
    pub bytes: i64,
    /// For so long a repeat is recognised.
    pub horizon_seconds: f64,
}

/// Measures the memories of identities and of requests.
pub async fn memories(link: &mut Link<'_>) -> Result<[RepeatMemory; 2], sqlx::Error> {
    let identities =
        link.query("select rows, bytes, horizon_seconds from @schema@.deduplication_memory");
    let identities = link.connection.fetch_one(identities).await?;
    let requests = link.query("select rows, bytes, horizon_seconds from @schema@.request_memory");
    let requests = link.connection.fetch_one(requests).await?;
    Ok([memory(&identities)?, memory(&requests)?])
}

fn memory(row: &PgRow) -> Result<RepeatMemory, sqlx::Error> {
    Ok(RepeatMemory {
        rows: row.try_get(0)?,
        bytes: row.try_get(1)?,
        horizon_seconds: row.try_get(2)?,
    })
}

/// The backlog of one endpoint, as the view shows it.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backlog {
    /// Endpoint.
    pub endpoint: String,
    /// `Outbox` or `Inbox`.
    pub direction: String,
    /// Committed, not settled, neither deferred nor parked; includes what is in flight.
    pub pending: i64,
    /// In flight, as all workers reported last.
    pub in_flight: i64,
    /// Waiting for a time.
    pub deferred: i64,
    /// Held back by an earlier message of their stream.
    pub parked: i64,
    /// Given up.
    pub dead: i64,
    /// When the oldest pending one was written; RFC 3339.
    pub oldest_pending_time: Option<String>,
    /// Its age in seconds at the time of measuring.
    pub oldest_pending_age_seconds: Option<f64>,
    /// Whether the endpoint is paused.
    pub paused: bool,
}

/// Measures the backlog of all endpoints.
pub async fn backlog(link: &mut Link<'_>) -> Result<Vec<Backlog>, sqlx::Error> {
    let query = link.query(
        "select endpoint, direction, pending, in_flight, deferred, parked, dead, to_char(oldest_pending_time at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
         extract(epoch from clock_timestamp() - oldest_pending_time)::float8, paused from @schema@.backlog order by endpoint",
    );
    let rows = link.connection.fetch_all(query).await?;
    rows.iter()
        .map(|row| {
            Ok(Backlog {
                endpoint: row.try_get(0)?,
                direction: row.try_get(1)?,
                pending: row.try_get(2)?,
                in_flight: row.try_get(3)?,
                deferred: row.try_get(4)?,
                parked: row.try_get(5)?,
                dead: row.try_get(6)?,
                oldest_pending_time: row.try_get(7)?,
                oldest_pending_age_seconds: row.try_get(8)?,
                paused: row.try_get(9)?,
            })
        })
        .collect()
}

/// Where a message is, one sentence for each place.
pub async fn explain_message(
    link: &mut Link<'_>,
    message_id: &str,
    tenant: Option<&str>,
) -> Result<Vec<String>, sqlx::Error> {
    let query = link
        .query("select * from @schema@.explain_message($1, $2)")
        .bind(message_id.to_owned())
        .bind(tenant.map(str::to_owned));
    let rows = link.connection.fetch_all(query).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}
