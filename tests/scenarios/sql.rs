//! A migrated database without a broker, and short ways to ask it.
//!
//! Statements are put together from values that the tests themselves make, so they are written out in full.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::{self, PostgresServer};
use postroom_tests::resource::{Outbox, Resource};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, FromRow, Row as _};
use uuid::Uuid;

/// How long anything may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A database with the outboxes `orders` (order per stream), `loose` (none) and `whole` (one order for all).
pub(crate) struct Schema {
    pub(crate) database: Database,
    pub(crate) file: PathBuf,
}

impl Schema {
    /// On the server that tests share.
    pub(crate) async fn start(test: &str) -> Result<Self> {
        Self::start_on(PostgresServer::shared().await?, test).await
    }

    pub(crate) async fn start_on(server: &PostgresServer, test: &str) -> Result<Self> {
        Self::of(server, test, &resource()).await
    }

    /// With the endpoints of a resource.
    pub(crate) async fn of(
        server: &PostgresServer,
        test: &str,
        resource: &Resource,
    ) -> Result<Self> {
        let schema = Self {
            database: Database::create(server, test).await?,
            file: resource.write()?,
        };
        schema.launch("migrate").succeed().await?;
        Ok(schema)
    }

    /// `postroom-worker COMMAND` with the resource; the broker it names does not exist.
    pub(crate) fn launch(&self, command: &str) -> Launch {
        Launch::new(&[command, "--resource", &self.file.to_string_lossy()])
            .database_url(self.database.url())
            .amqp_url("amqp://nobody:nothing@127.0.0.1:1/")
    }

    /// A session of the superuser with the schema in its search path.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        let mut session = self.database.connect().await?;
        session.execute("set search_path = postroom").await?;
        Ok(session)
    }

    /// A role of the schema: `owner`, `worker`, `app` or `reader`.
    pub(crate) fn role(&self, ending: &str) -> String {
        format!("{}_postroom_{ending}", self.database.name())
    }
}

/// The outboxes of [`Schema`].
pub(crate) fn resource() -> Resource {
    Resource::new("shop")
        .outbox(Outbox::new("orders", "shop"))
        .outbox(Outbox::new("loose", "shop").with("ordering.mode", "None"))
        .outbox(Outbox::new("whole", "shop").with("ordering.mode", "Total"))
}

/// Runs statements.
pub(crate) async fn run(session: &mut PgConnection, sql: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(session)
        .await
        .with_context(|| sql.to_owned())?;
    Ok(())
}

/// The rows that a statement answers.
pub(crate) async fn rows<T>(session: &mut PgConnection, sql: &str) -> Result<Vec<T>>
where
    T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    let query = sqlx::query_as(AssertSqlSafe(sql));
    query
        .fetch_all(session)
        .await
        .with_context(|| sql.to_owned())
}

/// The first column of the only row.
pub(crate) async fn one<T>(session: &mut PgConnection, sql: &str) -> Result<T>
where
    (T,): for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    let mut found: Vec<(T,)> = rows(session, sql).await?;
    ensure!(found.len() == 1, "{} rows from {sql}", found.len());
    Ok(found.remove(0).0)
}

/// How many rows a table or query has.
pub(crate) async fn count(session: &mut PgConnection, from: &str) -> Result<i64> {
    one(session, &format!("select count(*) from {from}")).await
}

/// Waits until a query answers true.
pub(crate) async fn until(session: &mut PgConnection, query: &str) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !one::<bool>(session, query).await? {
        ensure!(
            Instant::now() < end,
            "not true within {PATIENCE:?}: {query}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Waits until the process of a session waits for a lock.
pub(crate) async fn until_waiting(observer: &mut PgConnection, pid: i32) -> Result<()> {
    let query = format!(
        "select exists (select from pg_stat_activity where pid = {pid} and wait_event_type = 'Lock')"
    );
    until(observer, &query).await
}

/// What the server said when it refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Runs statements that must be refused.
pub(crate) async fn refused(session: &mut PgConnection, sql: &str) -> Result<Refusal> {
    match sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await {
        Ok(_) => bail!("not refused: {sql}"),
        Err(error) => refusal(error).with_context(|| sql.to_owned()),
    }
}

/// What the server said in an error.
pub(crate) fn refusal(error: sqlx::Error) -> Result<Refusal> {
    let Some(answer) = error.as_database_error() else {
        return Err(error.into());
    };
    Ok(Refusal {
        code: answer.code().unwrap_or_default().into_owned(),
        message: answer.message().to_owned(),
    })
}

/// What a writer gets back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) slot: i32,
    pub(crate) id: Uuid,
    pub(crate) outcome: String,
    pub(crate) position: i64,
    pub(crate) first_seen: String,
}

impl Receipt {
    pub(crate) fn is_new(&self) -> bool {
        self.outcome == "Enqueued"
    }

    /// The same message, whatever slot and outcome say.
    pub(crate) fn names_the_same(&self, other: &Self) -> bool {
        (self.id, self.position, &self.first_seen) == (other.id, other.position, &other.first_seen)
    }
}

/// Calls a writer function: `enqueue('orders', ...)`, `store_outbox_messages(...)`.
pub(crate) async fn write(session: &mut PgConnection, call: &str) -> Result<Vec<Receipt>> {
    let sql = format!(
        "select slot, message_id, outcome, position, first_seen_at::text from postroom.{call}"
    );
    let found: Vec<(i32, Uuid, String, i64, String)> = rows(session, &sql).await?;
    let receipt = |(slot, id, outcome, position, first_seen)| Receipt {
        slot,
        id,
        outcome,
        position,
        first_seen,
    };
    Ok(found.into_iter().map(receipt).collect())
}

/// The only receipt of a call.
pub(crate) async fn write_one(session: &mut PgConnection, call: &str) -> Result<Receipt> {
    let mut receipts = write(session, call).await?;
    ensure!(receipts.len() == 1, "{receipts:?}");
    Ok(receipts.remove(0))
}

/// The whole key of a message, with its id: what a settle names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) partition: i16,
    pub(crate) xact: i64,
    pub(crate) id: i64,
    pub(crate) message_id: Uuid,
}

/// The waiting messages of an endpoint in the order of their keys.
pub(crate) async fn keys(session: &mut PgConnection, endpoint: &str) -> Result<Vec<Key>> {
    let sql = format!(
        "select partition, xact::text::bigint, id, message_id from postroom.outbox where endpoint = '{endpoint}' order by partition, outbox.xact, id"
    );
    let found: Vec<(i16, i64, i64, Uuid)> = rows(session, &sql).await?;
    let key = |(partition, xact, id, message_id)| Key {
        partition,
        xact,
        id,
        message_id,
    };
    Ok(found.into_iter().map(key).collect())
}

/// `'{1,2}'::type[]`
pub(crate) fn array<T: ToString>(kind: &str, values: impl IntoIterator<Item = T>) -> String {
    let list: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("'{{{}}}'::{kind}[]", list.join(","))
}

/// Partitions, epochs, transactions, ids and message ids, as the settling functions take them.
pub(crate) fn arrays(keys: &[Key], epoch: impl Fn(i16) -> i64) -> String {
    [
        array("smallint", keys.iter().map(|key| key.partition)),
        array("bigint", keys.iter().map(|key| epoch(key.partition))),
        array("pg_catalog.xid8", keys.iter().map(|key| key.xact)),
        array("bigint", keys.iter().map(|key| key.id)),
        array("uuid", keys.iter().map(|key| key.message_id)),
    ]
    .join(", ")
}

/// What a worker holds of an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) partitions: Vec<i16>,
    pub(crate) epochs: Vec<i64>,
    pub(crate) low_marks: Vec<i64>,
    pub(crate) removals: Vec<i64>,
    pub(crate) hand_over: Vec<i16>,
    pub(crate) suspects: Vec<i16>,
}

impl Holding {
    /// The epoch of a partition; 0 where it is not held.
    pub(crate) fn epoch(&self, partition: i16) -> i64 {
        let place = self.partitions.iter().position(|&held| held == partition);
        place.map_or(0, |place| self.epochs[place])
    }
}

/// `claim_work` with a lease and a list of endpoints such as `{orders,loose}`.
pub(crate) async fn claim(
    session: &mut PgConnection,
    worker: Uuid,
    lease: &str,
    endpoints: &str,
) -> Result<BTreeMap<String, Holding>> {
    let sql = format!(
        "select endpoint, partitions, epochs, low_marks_now::text[]::bigint[], removals, hand_over, suspects \
         from postroom.claim_work('{worker}', 'host', '0', '{lease}', '{endpoints}')"
    );
    let found = session
        .fetch_all(AssertSqlSafe(sql.as_str()))
        .await
        .with_context(|| sql.clone())?;
    let holding = |row: &PgRow| {
        let holding = Holding {
            partitions: row.try_get(1)?,
            epochs: row.try_get(2)?,
            low_marks: row.try_get(3)?,
            removals: row.try_get(4)?,
            hand_over: row.try_get(5)?,
            suspects: row.try_get(6)?,
        };
        Ok((row.try_get(0)?, holding))
    };
    found.iter().map(holding).collect()
}

/// The same for one endpoint.
pub(crate) async fn claim_one(
    session: &mut PgConnection,
    worker: Uuid,
    lease: &str,
    endpoint: &str,
) -> Result<Holding> {
    let mut held = claim(session, worker, lease, &format!("{{{endpoint}}}")).await?;
    held.remove(endpoint).context("an answer for the endpoint")
}

/// Logs in as a new role that is a member of `role` of the schema `postroom` and of nothing else.
pub(crate) async fn login(
    server: &PostgresServer,
    database: &Database,
    role: &str,
) -> Result<(String, PgConnection)> {
    let group = format!("{}_postroom_{role}", database.name());
    let name = format!("{group}_login");
    let mut admin = database.connect().await?;
    run(
        &mut admin,
        &format!("create role {name} login password 'secret' in role {group}"),
    )
    .await?;
    admin.close().await?;
    let url = server.url_as(&name, "secret", server.port(), database.name());
    let session = postgres::connect(&url).await?;
    Ok((url, session))
}
