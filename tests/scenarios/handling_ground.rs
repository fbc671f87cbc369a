//! The ground of the scenarios of SQL handlers: an inbox, a handler that does what a message says, and its effects.
//!
//! The messages are accepted from applications (durable commands), so that no broker has a part in it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::PostgresServer;
use postroom_tests::resource::{Inbox, Outbox, Resource};
use postroom_tests::worker::Worker;
use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{count, rows, run, until};

/// What the handler of [`Handling`] does, by the type of a message. Nothing keeps it from having an effect twice.
const APP: &str = "
    create schema app;
    create table app.effect (number bigint generated always as identity, message_id uuid, stream text, payload text, attempts int);
    create table app.known (type text);
    create table app.parent (id int primary key);
    create table app.child (id int references app.parent deferrable initially deferred);
    create table app.begun (message_id uuid, at timestamptz);
    create table app.gate (open boolean);
    insert into app.gate values (false);
    create function app.handle(m postroom.inbox_message) returns void language plpgsql set search_path = app, pg_temp as $$
    begin
        insert into effect (message_id, stream, payload, attempts) values (m.message_id, m.stream, m.payload, m.attempts);
        case m.type
            when 'plain' then null;
            when 'fails' then raise exception 'cannot do %', m.payload;
            when 'fails twice' then if m.attempts < 2 then raise exception 'not yet'; end if;
            when 'never' then raise exception using errcode = 'PR100', message = 'this can never be done';
            when 'later' then if m.attempts < 1 then raise exception using errcode = 'PR101', message = 'not open', detail = '1 s'; end if;
            when 'new' then if not exists (select from known where type = m.type) then raise exception using errcode = 'PR102', message = 'what is that'; end if;
            when 'slow' then perform pg_sleep(m.payload::float8);
            when 'dangling' then insert into child values (4711);
            when 'long words' then raise exception '%', repeat('word ', 200000) || chr(65533);
            when 'chain' then
                perform postroom.enqueue('orders', 'order.done', m.payload, stream => m.stream);
                insert into postroom.outbox (endpoint, type, payload) values ('orders', 'order.seen', m.payload);
            when 'chain fails' then
                perform postroom.enqueue('orders', 'order.done', m.payload);
                raise exception 'after all';
        end case;
    end $$;";

/// A database with the inbox `payments`, its handler `app.handle`, and the outbox `orders`.
pub(crate) struct Handling {
    pub(crate) database: Database,
    file: std::path::PathBuf,
}

impl Handling {
    pub(crate) async fn start(test: &str, adjust: impl FnOnce(Inbox) -> Inbox) -> Result<Self> {
        let server = PostgresServer::shared().await?;
        Self::start_on(server, test, adjust).await
    }

    pub(crate) async fn start_on(
        server: &PostgresServer,
        test: &str,
        adjust: impl FnOnce(Inbox) -> Inbox,
    ) -> Result<Self> {
        let inbox = Inbox::handled("payments", "payments", "app.handle")
            .with("retry.initialDelaySeconds", 1)
            .with("retry.maxDelaySeconds", 1)
            .with("retry.jitter", "None");
        let resource = Resource::new("shop")
            .outbox(Outbox::new("orders", "shop"))
            .inbox(adjust(inbox))
            .lease_seconds(5);
        let handling = Self {
            database: Database::create(server, test).await?,
            file: resource.write()?,
        };
        handling.launch("migrate").succeed().await?;
        run(&mut handling.connect().await?, APP).await?;
        Ok(handling)
    }

    /// `postroom-worker COMMAND` with the resource; the broker it names does not exist.
    pub(crate) fn launch(&self, command: &str) -> Launch {
        Launch::new(&[command, "--resource", &self.file.to_string_lossy()])
            .database_url(self.database.url())
            .amqp_url("amqp://nobody:nothing@127.0.0.1:1/")
    }

    pub(crate) async fn worker(&self) -> Result<Worker> {
        let worker = self.launch("run").start()?;
        worker.ready(Duration::from_secs(30)).await?;
        Ok(worker)
    }

    /// A session of the superuser with the schema in its search path.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        let mut session = self.database.connect().await?;
        run(&mut session, "set search_path = postroom").await?;
        Ok(session)
    }
}

/// One message: type, stream and payload.
pub(crate) fn message(kind: &str, stream: Option<&str>, payload: impl ToString) -> Value {
    json!({"type": kind, "stream": stream, "payload": payload.to_string(), "content_type": "text/plain"})
}

/// Accepts messages; answers their ids.
pub(crate) async fn accept(session: &mut PgConnection, messages: &[Value]) -> Result<Vec<Uuid>> {
    let ids = sqlx::query_scalar(
        "select message_id from postroom.store_inbox_messages('payments', $1) order by slot",
    );
    let ids = ids.bind(Value::from(messages.to_vec()));
    ids.fetch_all(session).await.context("store_inbox_messages")
}

/// Waits until nothing waits or is deferred.
pub(crate) async fn all_settled(session: &mut PgConnection) -> Result<()> {
    until(session, "select not exists (select from postroom.inbox) and not exists (select from postroom.deferral)").await
}

/// The effects of each message: how many, and in what order those of one stream came.
pub(crate) async fn effects(session: &mut PgConnection) -> Result<BTreeMap<Uuid, usize>> {
    let found: Vec<(Uuid,)> = rows(session, "select message_id from app.effect").await?;
    let mut effects = BTreeMap::new();
    for (id,) in found {
        *effects.entry(id).or_default() += 1;
    }
    Ok(effects)
}

/// Each message has one effect, and each stream its effects in the order of acceptance.
pub(crate) async fn require_once_and_in_order(
    session: &mut PgConnection,
    ids: &[Uuid],
) -> Result<()> {
    let effects = effects(session).await?;
    let wrong: Vec<_> = ids
        .iter()
        .filter(|id| effects.get(id) != Some(&1))
        .collect();
    ensure!(
        wrong.is_empty() && effects.len() == ids.len(),
        "{} effects of {} messages; not once: {wrong:?}",
        effects.len(),
        ids.len()
    );
    let disorder = count(session, "(select payload::bigint < lag(payload::bigint) over (partition by stream order by number) as wrong from app.effect where stream is not null) e where wrong").await?;
    ensure!(
        disorder == 0,
        "{disorder} effects out of the order of their stream"
    );
    Ok(())
}

/// Messages of many streams, numbered.
pub(crate) fn numbered(kind: &str, numbers: std::ops::Range<usize>, streams: usize) -> Vec<Value> {
    numbers
        .map(|n| message(kind, Some(&format!("s{}", n % streams)), n))
        .collect()
}
