//! Everything a scenario of receiving needs: a queue, an inbox whose messages nobody takes, and a sender.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::types::{Json, Uuid};
use sqlx::{FromRow, Row as _};

use crate::broker::RabbitServer;
use crate::database::Database;
use crate::eventually::{eventually, when};
use crate::launch::Launch;
use crate::postgres::PostgresServer;
use crate::resource::{Inbox, Resource};
use crate::sender::{Parcel, Sender};
use crate::vhost::{QueueArguments, Vhost};
use crate::worker::Worker;

/// The inbox that every scenario of receiving has.
pub const INBOX: &str = "orders-in";
/// The queue it consumes.
pub const INTO: &str = "to-orders";

/// A migrated database and a virtual host with the queue [`INTO`]. Workers are started by the test.
#[derive(Debug)]
pub struct Intake {
    /// The virtual host, with its user.
    pub vhost: Vhost,
    /// The database.
    pub database: Database,
    file: PathBuf,
}

/// A message of the inbox, as the table has it.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its id.
    pub message_id: Uuid,
    /// The sender's id, where that is no uuid.
    pub foreign_id: Option<String>,
    /// Tenant.
    pub tenant: String,
    /// Stream.
    pub stream: Option<String>,
    /// Type.
    pub kind: String,
    /// Routing key.
    pub routing_key: Option<String>,
    /// Content type.
    pub content_type: String,
    /// Headers.
    pub headers: Option<Json<Value>>,
    /// A body that is text.
    pub payload: Option<String>,
    /// Any other body.
    pub payload_bytes: Option<Vec<u8>>,
    /// Correlation id.
    pub correlation_id: Option<String>,
    /// Causation id.
    pub causation_id: Option<String>,
    /// Trace context.
    pub traceparent: Option<String>,
    /// The sender's key.
    pub idempotency_key: Option<String>,
}

/// A dead letter of the inbox.
#[derive(Debug, Clone)]
pub struct Dead {
    /// Why.
    pub reason: String,
    /// What was seen.
    pub error: String,
    /// The sender's id, where that is no uuid.
    pub foreign_id: Option<String>,
    /// A body that is text.
    pub payload: Option<String>,
    /// Any other body.
    pub payload_bytes: Option<Vec<u8>>,
}

impl FromRow<'_, PgRow> for Row {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            message_id: row.try_get("message_id")?,
            foreign_id: row.try_get("foreign_id")?,
            tenant: row.try_get("tenant")?,
            stream: row.try_get("stream")?,
            kind: row.try_get("type")?,
            routing_key: row.try_get("routing_key")?,
            content_type: row.try_get("content_type")?,
            headers: row.try_get("headers")?,
            payload: row.try_get("payload")?,
            payload_bytes: row.try_get("payload_bytes")?,
            correlation_id: row.try_get("correlation_id")?,
            causation_id: row.try_get("causation_id")?,
            traceparent: row.try_get("traceparent")?,
            idempotency_key: row.try_get("idempotency_key")?,
        })
    }
}

impl FromRow<'_, PgRow> for Dead {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            reason: row.try_get("reason")?,
            error: row.try_get("error")?,
            foreign_id: row.try_get("foreign_id")?,
            payload: row.try_get("payload")?,
            payload_bytes: row.try_get("payload_bytes")?,
        })
    }
}

impl Intake {
    /// On the servers that tests share. `adjust` gets a resource with the inbox [`INBOX`].
    ///
    /// # Errors
    /// When any part cannot be had.
    pub async fn start(
        test: &str,
        queue: &QueueArguments,
        adjust: impl FnOnce(Resource) -> Resource,
    ) -> Result<Self> {
        let (postgres, rabbit) =
            tokio::try_join!(PostgresServer::shared(), RabbitServer::shared())?;
        Self::start_on(postgres, rabbit, test, queue, adjust).await
    }

    /// On servers that the test owns, because it will stop or kill them.
    ///
    /// # Errors
    /// When any part cannot be had.
    pub async fn start_on(
        postgres: &PostgresServer,
        rabbit: &RabbitServer,
        test: &str,
        queue: &QueueArguments,
        adjust: impl FnOnce(Resource) -> Resource,
    ) -> Result<Self> {
        let (database, vhost) = tokio::try_join!(
            Database::create(postgres, test),
            Vhost::create(rabbit, test)
        )?;
        vhost.declare_queue(INTO, queue).await?;
        let resource = Resource::new("shop").inbox(Inbox::pulled(INBOX, INTO));
        let file = adjust(resource).write()?;
        let intake = Self {
            vhost,
            database,
            file,
        };
        intake.launch("migrate").succeed().await?;
        Ok(intake)
    }

    /// `postroom-worker COMMAND --resource FILE` with both connection strings; a test may change or add to it.
    pub fn launch(&self, command: &str) -> Launch {
        Launch::new(&[command, "--resource", &self.file.to_string_lossy()])
            .database_url(self.database.url())
            .amqp_url(self.vhost.amqp_url())
    }

    /// A worker that is ready.
    ///
    /// # Errors
    /// When it is not within 30 seconds.
    pub async fn worker(&self) -> Result<Worker> {
        let worker = self.launch("run").start()?;
        worker.ready(Duration::from_secs(30)).await?;
        Ok(worker)
    }

    /// A session of the superuser.
    ///
    /// # Errors
    /// When there is none within ten seconds.
    pub async fn connect(&self) -> Result<PgConnection> {
        self.database.connect().await
    }

    /// Somebody who sends.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn sender(&self) -> Result<Sender> {
        Sender::connect(&self.vhost.amqp_url()).await
    }

    /// Sends to [`INTO`] and waits until the broker has everything.
    ///
    /// # Errors
    /// When it refuses any of it.
    pub async fn send(&self, parcels: impl IntoIterator<Item = Parcel>) -> Result<()> {
        self.sender().await?.send(INTO, parcels).await
    }

    /// The messages of [`INBOX`], in the order in which they were accepted.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn rows(&self) -> Result<Vec<Row>> {
        self.rows_of(INBOX).await
    }

    /// The same of another inbox.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn rows_of(&self, inbox: &str) -> Result<Vec<Row>> {
        sqlx::query_as("select * from postroom.inbox where endpoint = $1 order by xact, id")
            .bind(inbox)
            .fetch_all(&mut self.connect().await?)
            .await
            .context("read the inbox")
    }

    /// Waits until the inbox holds so many messages; not more.
    ///
    /// # Errors
    /// When it does not by `deadline`.
    pub async fn wait_rows(&self, count: usize, deadline: Duration) -> Result<Vec<Row>> {
        let mut session = self.connect().await?;
        let query = "select count(*) from postroom.inbox where endpoint = $1";
        let end = std::time::Instant::now() + deadline;
        loop {
            let found: i64 = sqlx::query_scalar(query)
                .bind(INBOX)
                .fetch_one(&mut session)
                .await?;
            if usize::try_from(found)? >= count {
                break;
            }
            ensure!(
                std::time::Instant::now() < end,
                "{found} of {count} messages in the inbox within {deadline:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let rows = self.rows().await?;
        ensure!(rows.len() == count, "{} rows, not {count}", rows.len());
        Ok(rows)
    }

    /// Waits until the worker has counted so many messages with this result.
    ///
    /// # Errors
    /// When it has not by `deadline`.
    pub async fn wait_count(
        &self,
        worker: &Worker,
        result: &str,
        count: f64,
        deadline: Duration,
    ) -> Result<()> {
        let what = format!("{count} messages are counted as {result}");
        eventually(&what, deadline, || async {
            let labels = [("endpoint", INBOX), ("result", result)];
            let seen = worker.metric("postroom_messages_total", &labels).await;
            let seen = seen.map_err(|error| format!("{error:#}"))?;
            when(seen == Some(count), || format!("{seen:?}"))
        })
        .await
    }

    /// The dead letters of [`INBOX`].
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn dead(&self) -> Result<Vec<Dead>> {
        sqlx::query_as(
            "select * from postroom.dead_letter where endpoint = $1 order by dead_letter_id",
        )
        .bind(INBOX)
        .fetch_all(&mut self.connect().await?)
        .await
        .context("read the dead letters")
    }

    /// Ends a worker in good order; then nothing that was delivered may be left in the queue.
    ///
    /// # Errors
    /// When it takes more than 30 seconds, fails, or leaves something unacknowledged.
    pub async fn drain(&self, worker: &Worker) -> Result<()> {
        worker.sigterm()?;
        let status = worker.wait_exit(Duration::from_secs(30)).await?;
        ensure!(status.success(), "the worker ended with {status}");
        let left = self.vhost.depth(INTO).await?;
        ensure!(left == 0, "{left} messages were not acknowledged");
        Ok(())
    }
}
