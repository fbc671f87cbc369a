//! A migrated database with inboxes and without a broker, and short ways to hand deliveries to it as a receiver does.

use anyhow::{Context as _, Result, ensure};
use postroom_tests::postgres::PostgresServer;
use postroom_tests::resource::{Inbox, Outbox, Resource};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::sql::{Schema, run, write};

/// Besides the outbox `orders`: the inbox `payments` with a SQL handler, and inboxes that applications take from. `tasks` and
/// `endless` keep the order of streams and wait for a failed head, `endless` for ever; `skips` goes past it; `loose` keeps no
/// order and `whole` one for all.
pub(crate) fn resource() -> Resource {
    let pulled = |name: &str| {
        Inbox::pulled(name, &format!("to-{name}"))
            .with("retry.initialDelaySeconds", 60)
            .with("retry.maxDelaySeconds", 100)
            .with("retry.jitter", "None")
            .with("retry.maxAttempts", 3)
    };
    Resource::new("shop")
        .outbox(Outbox::new("orders", "shop"))
        .inbox(Inbox::handled("payments", "to-payments", "app.handle"))
        .inbox(pulled("tasks"))
        .inbox(pulled("endless").with("retry.maxAttempts", 0))
        .inbox(
            pulled("skips")
                .with("ordering.onFailure", "Skip")
                .with("ordering.onScheduled", "Pass"),
        )
        .inbox(pulled("loose").with("ordering.mode", "None"))
        .inbox(pulled("whole").with("ordering.mode", "Total"))
}

pub(crate) async fn start(test: &str) -> Result<Schema> {
    Schema::of(PostgresServer::shared().await?, test, &resource()).await
}

/// What a receiver hands over of one delivery.
#[derive(Debug, Clone, Default)]
pub(crate) struct Delivery {
    pub(crate) id: Option<Uuid>,
    pub(crate) foreign: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) stream: Option<String>,
    pub(crate) kind: String,
    pub(crate) headers: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) bytes: Option<Vec<u8>>,
    pub(crate) refusal: Option<String>,
}

impl Delivery {
    /// A body that is text, under an id that is no uuid.
    pub(crate) fn new(id: &str, text: &str) -> Self {
        Self {
            foreign: Some(id.to_owned()),
            kind: "a".to_owned(),
            text: Some(text.to_owned()),
            ..Self::default()
        }
    }

    pub(crate) fn tenant(mut self, tenant: &str) -> Self {
        self.tenant = Some(tenant.to_owned());
        self
    }

    pub(crate) fn stream(mut self, stream: &str) -> Self {
        self.stream = Some(stream.to_owned());
        self
    }

    pub(crate) fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }
}

/// Who receives: a worker and the epoch of its right, 0 where none is needed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Right {
    pub(crate) worker: Uuid,
    pub(crate) epoch: i64,
}

/// Stores a batch of deliveries. The outcomes, or nothing where the right was lost.
pub(crate) async fn store(
    session: &mut PgConnection,
    right: Right,
    endpoint: &str,
    batch: &[Delivery],
) -> sqlx::Result<Option<Vec<String>>> {
    let text = |of: fn(&Delivery) -> Option<&str>| batch.iter().map(of).collect::<Vec<_>>();
    let nothing = || vec![None::<String>; batch.len()];
    let query = sqlx::query(
        "select lost, outcomes from postroom.store_inbox_messages($1, $2, $3, true, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $10, $10, $15, $16, $17)",
    )
    .bind(right.worker)
    .bind(endpoint)
    .bind(right.epoch)
    .bind(batch.iter().map(|one| one.id).collect::<Vec<_>>())
    .bind(text(|one| one.foreign.as_deref()))
    .bind(text(|one| one.key.as_deref()))
    .bind(text(|one| one.tenant.as_deref()))
    .bind(text(|one| one.stream.as_deref()))
    .bind(text(|one| Some(&one.kind)))
    .bind(text(|one| Some(&one.kind)))
    .bind(text(|_| Some("text/plain")))
    .bind(text(|one| one.headers.as_deref()))
    .bind(text(|one| one.text.as_deref()))
    .bind(batch.iter().map(|one| one.bytes.as_deref()).collect::<Vec<_>>())
    .bind(nothing())
    .bind(text(|one| one.refusal.as_deref()))
    .bind(text(|one| one.refusal.as_deref()));
    let row = query.fetch_one(session).await?;
    let lost: bool = row.try_get(0)?;
    Ok(if lost { None } else { row.try_get(1)? })
}

/// The same for one who may, in a schema where everything goes well.
pub(crate) async fn receive(
    session: &mut PgConnection,
    endpoint: &str,
    batch: &[Delivery],
) -> Result<Vec<String>> {
    let outcomes = store(session, Right::default(), endpoint, batch).await?;
    let outcomes = outcomes.context("nobody else has the right to receive")?;
    ensure!(outcomes.len() == batch.len(), "one for each: {outcomes:?}");
    Ok(outcomes)
}

/// A durable command: type `a` with a number as its body, in a stream.
pub(crate) fn command(stream: Option<&str>, number: usize) -> Value {
    serde_json::json!({"type": "a", "stream": stream, "payload": number.to_string(), "content_type": "text/plain"})
}

/// Accepts commands from an application.
pub(crate) async fn accept(
    session: &mut PgConnection,
    endpoint: &str,
    commands: &[Value],
) -> Result<()> {
    let commands = Value::from(commands.to_vec()).to_string();
    let commands = commands.replace('\'', "''");
    let call = format!("store_inbox_messages('{endpoint}', '{commands}')");
    let receipts = write(session, &call).await?;
    ensure!(
        receipts.iter().all(|receipt| receipt.outcome == "Accepted"),
        "{receipts:?}"
    );
    Ok(())
}

/// What an application is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) ticket: String,
    pub(crate) message_id: Uuid,
    pub(crate) stream: Option<String>,
    pub(crate) payload: String,
    pub(crate) attempts: i32,
}

impl Taken {
    pub(crate) fn number(&self) -> i64 {
        self.payload.parse().unwrap_or(-1)
    }
}

/// `take_inbox` with its arguments, for example `'tasks', 10`.
pub(crate) async fn take(session: &mut PgConnection, arguments: &str) -> sqlx::Result<Vec<Taken>> {
    let call = format!(
        "select ticket, message_id, stream, payload, attempts from postroom.take_inbox({arguments})"
    );
    let found = sqlx::query(sqlx::AssertSqlSafe(call))
        .fetch_all(session)
        .await?;
    let taken = |row: &PgRow| {
        Ok(Taken {
            ticket: row.try_get(0)?,
            message_id: row.try_get(1)?,
            stream: row.try_get(2)?,
            payload: row.try_get(3)?,
            attempts: row.try_get(4)?,
        })
    };
    found.iter().map(taken).collect()
}

/// The bodies of what can be taken now; nothing is kept.
pub(crate) async fn on_offer(session: &mut PgConnection, arguments: &str) -> Result<Vec<String>> {
    run(session, "begin").await?;
    let taken = take(session, arguments).await?;
    run(session, "rollback").await?;
    let mut bodies: Vec<String> = taken.into_iter().map(|one| one.payload).collect();
    bodies.sort();
    Ok(bodies)
}

/// `complete_inbox`; how many there were.
pub(crate) async fn complete(
    session: &mut PgConnection,
    endpoint: &str,
    taken: &[Taken],
) -> sqlx::Result<i64> {
    let tickets: Vec<&str> = taken.iter().map(|one| one.ticket.as_str()).collect();
    sqlx::query_scalar("select postroom.complete_inbox($1, $2)")
        .bind(endpoint)
        .bind(tickets)
        .fetch_one(session)
        .await
}

/// `fail_inbox`; what became of it.
pub(crate) async fn fail(
    session: &mut PgConnection,
    endpoint: &str,
    ticket: &str,
    retry_in: Option<&str>,
) -> sqlx::Result<String> {
    sqlx::query_scalar("select postroom.fail_inbox($1, $2, 'cannot', $3::text::interval)")
        .bind(endpoint)
        .bind(ticket)
        .bind(retry_in)
        .fetch_one(session)
        .await
}
