//! Everything a scenario usually needs, made in one call.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use sqlx::PgPool;
use sqlx::postgres::PgConnection;

use crate::broker::RabbitServer;
use crate::database::Database;
use crate::launch::Launch;
use crate::ledger::Ledger;
use crate::postgres::PostgresServer;
use crate::received::Received;
use crate::receiver::Receiver;
use crate::resource::{Outbox, Resource};
use crate::verdict::{Verdict, check};
use crate::vhost::{QueueArguments, Vhost};
use crate::worker::Worker;

/// The outbox that every scenario has.
pub const OUTBOX: &str = "orders";
/// The exchange it publishes to.
pub const EXCHANGE: &str = "shop";
/// The queue that gets everything published there.
pub const QUEUE: &str = "arrivals";

/// A migrated database, a virtual host with an exchange and a queue, and somebody who takes what arrives. Workers are
/// started by the test.
#[derive(Debug)]
pub struct Postroom {
    /// What arrives.
    pub receiver: Receiver,
    /// What should arrive.
    pub ledger: Ledger,
    /// The virtual host, with its user.
    pub vhost: Vhost,
    /// The database.
    pub database: Database,
    /// The resource the workers are started with.
    pub resource: Resource,
    file: PathBuf,
}

impl Postroom {
    /// On the servers that tests share. `adjust` gets a resource with the outbox [`OUTBOX`].
    ///
    /// # Errors
    /// When any part cannot be had.
    pub async fn start(test: &str, adjust: impl FnOnce(Resource) -> Resource) -> Result<Self> {
        let (postgres, rabbit) =
            tokio::try_join!(PostgresServer::shared(), RabbitServer::shared())?;
        Self::start_on(postgres, rabbit, test, adjust).await
    }

    /// On servers that the test owns, because it will stop or kill them.
    ///
    /// # Errors
    /// When any part cannot be had.
    pub async fn start_on(
        postgres: &PostgresServer,
        rabbit: &RabbitServer,
        test: &str,
        adjust: impl FnOnce(Resource) -> Resource,
    ) -> Result<Self> {
        let (database, vhost) = tokio::try_join!(
            Database::create(postgres, test),
            Vhost::create(rabbit, test)
        )?;
        vhost
            .declare(EXCHANGE, QUEUE, &QueueArguments::quorum(), "#")
            .await?;
        let receiver = vhost.receive(&[QUEUE]).await?;
        let resource = adjust(Resource::new("shop").outbox(Outbox::new(OUTBOX, EXCHANGE)));
        let file = resource.write()?;
        let postroom = Self {
            receiver,
            ledger: Ledger::default(),
            vhost,
            database,
            resource,
            file,
        };
        postroom.launch("migrate").succeed().await?;
        Ok(postroom)
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

    /// A pool of sessions of the superuser, for producers.
    ///
    /// # Errors
    /// When the first session cannot be had.
    pub async fn pool(&self) -> Result<PgPool> {
        self.database.pool(20).await
    }

    /// Where the resource is.
    pub fn resource_file(&self) -> &PathBuf {
        &self.file
    }

    /// Waits until as many different messages have arrived as were committed, and then until nothing more comes.
    ///
    /// # Errors
    /// When they have not arrived by `deadline`.
    pub async fn drained(&self, deadline: Duration) -> Result<Vec<Received>> {
        self.receiver
            .wait_for(self.ledger.committed(), deadline)
            .await?;
        self.receiver
            .wait_quiet(Duration::from_millis(500), deadline)
            .await
    }

    /// [`Self::drained`], and the verdict on it. What has not arrived shows as missing there.
    ///
    /// # Errors
    /// When messages still arrive after `deadline`.
    pub async fn verdict(&self, deadline: Duration) -> Result<Verdict> {
        if let Err(error) = self
            .receiver
            .wait_for(self.ledger.committed(), deadline)
            .await
        {
            eprintln!("{error:#}");
        }
        let received = self
            .receiver
            .wait_quiet(Duration::from_millis(500), deadline)
            .await?;
        Ok(check(&self.ledger, &received))
    }
}
