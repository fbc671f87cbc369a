//! Servers that belong to the run, and for each measurement a database, a virtual host and a queue that nothing has
//! happened in yet.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use postroom_tests::broker::{RabbitOptions, RabbitServer};
use postroom_tests::database::Database;
use postroom_tests::launch::Launch;
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::vhost::{QueueArguments, Vhost};
use postroom_tests::worker::Worker;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

/// The outbox.
pub(crate) const OUTBOX: &str = "orders";
/// How it is set, for people.
pub(crate) const OUTBOX_TEXT: &str = "default settings: order per stream, batches of 500, 1000 in flight, 1 channel; bodies of 430 bytes";
/// Where it publishes to.
pub(crate) const EXCHANGE: &str = "shop";
/// Gets messages of the type [`ORDINARY`].
pub(crate) const QUEUE: &str = "arrivals";
/// Gets messages of the type [`HOT`].
const HOT_QUEUE: &str = "hot";
/// Most messages.
pub(crate) const ORDINARY: &str = "made";
/// Those of a stream that has far too many.
pub(crate) const HOT: &str = "hot";

const PATIENCE: Duration = Duration::from_secs(60);

/// The servers of a run.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) postgres: PostgresServer,
    pub(crate) rabbit: RabbitServer,
}

impl Servers {
    /// Starts them. Durable, and roomy enough that no checkpoint falls into a measurement by accident.
    pub(crate) async fn start() -> Result<Self> {
        let options = PostgresOptions::default()
            .setting("shared_buffers", "256MB")
            .setting("max_wal_size", "8GB")
            .setting("checkpoint_timeout", "1h");
        let (postgres, rabbit) = tokio::try_join!(
            PostgresServer::start(options),
            RabbitServer::start(RabbitOptions::default())
        )?;
        Ok(Self { postgres, rabbit })
    }
}

/// A place for one measurement.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) database: Database,
    pub(crate) vhost: Vhost,
    resource: PathBuf,
}

impl Bed {
    /// Makes it, with the tables in place.
    pub(crate) async fn make(servers: &Servers) -> Result<Self> {
        let (database, vhost) = tokio::try_join!(
            Database::create(&servers.postgres, "bench"),
            queues(&servers.rabbit)
        )?;
        let resource = Resource::new("bench").outbox(Outbox::new(OUTBOX, EXCHANGE));
        let bed = Self {
            database,
            vhost,
            resource: resource.write()?,
        };
        bed.launch("migrate").succeed().await?;
        Ok(bed)
    }

    fn launch(&self, command: &str) -> Launch {
        Launch::new(&[command, "--resource", &self.resource.to_string_lossy()])
            .database_url(self.database.url())
            .amqp_url(self.vhost.amqp_url())
    }

    /// A worker that has been started and need not be ready yet.
    pub(crate) fn start_worker(&self) -> Result<Worker> {
        Ok(self.launch("run").start()?.quiet())
    }

    /// A worker that is ready and holds all partitions.
    pub(crate) async fn ready_worker(&self) -> Result<Worker> {
        let worker = self.start_worker()?;
        worker.ready(PATIENCE).await?;
        Ok(worker)
    }

    /// A session of the superuser.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        self.database.connect().await
    }
}

/// A virtual host with both queues.
pub(crate) async fn queues(rabbit: &RabbitServer) -> Result<Vhost> {
    let vhost = Vhost::create(rabbit, "bench").await?;
    let quorum = QueueArguments::quorum();
    vhost.declare(EXCHANGE, QUEUE, &quorum, ORDINARY).await?;
    vhost.declare_queue(HOT_QUEUE, &quorum).await?;
    vhost.bind(HOT_QUEUE, EXCHANGE, HOT).await?;
    Ok(vhost)
}

/// Runs a statement that has no parameters.
pub(crate) async fn execute(session: &mut PgConnection, sql: &str) -> Result<u64> {
    let done = sqlx::query(AssertSqlSafe(sql.to_owned()))
        .execute(session)
        .await?;
    Ok(done.rows_affected())
}
