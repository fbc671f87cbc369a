//! What the shop stands on: two servers, a database with three logins, a virtual host, and workers.
//!
//! Invariant: the shop and the workers log in as members of the roles that the migration made, with no other rights
//! than an application and a worker need.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postroom_tests::broker::{RabbitOptions, RabbitServer};
use postroom_tests::database::Database;
use postroom_tests::launch::{self, Launch};
use postroom_tests::postgres::{PostgresOptions, PostgresServer};
use postroom_tests::received::Received;
use postroom_tests::receiver::Receiver;
use postroom_tests::run;
use postroom_tests::vhost::{QueueArguments, Vhost};
use postroom_tests::worker::Worker;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _};

use crate::billing::{self, Invoices};
use crate::place;
use crate::steps::Steps;

/// The name of everything: database, virtual host, exchange, logins begin with it.
pub(crate) const SHOP: &str = "shop";
/// The queue that gets everything the shop publishes.
pub(crate) const QUEUE: &str = "arrivals";

/// What goes on after the demo. In tests the end of its scope ends a server or a worker; here only `place` does that.
pub(crate) type Kept<T> = std::mem::ManuallyDrop<T>;

const READY: Duration = Duration::from_secs(60);

/// The two servers.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) postgres: PostgresServer,
    pub(crate) rabbit: RabbitServer,
}

impl Servers {
    pub(crate) async fn start() -> Result<Kept<Self>> {
        let (postgres, rabbit) = tokio::try_join!(
            PostgresServer::start(PostgresOptions::default()),
            RabbitServer::start(RabbitOptions::default())
        )?;
        Ok(Kept::new(Self { postgres, rabbit }))
    }
}

/// The shop's part of the servers.
#[derive(Debug)]
pub(crate) struct Ground {
    database: Database,
    vhost: Vhost,
    /// The login of the shop itself.
    app_url: String,
    worker_url: String,
    resource: PathBuf,
}

impl Ground {
    /// Makes database, tables, logins, virtual host, exchange and queue.
    pub(crate) async fn prepare(servers: &Servers) -> Result<Kept<Self>> {
        let (database, vhost) = tokio::try_join!(
            Database::named(&servers.postgres, SHOP.to_owned()),
            Vhost::named(&servers.rabbit, SHOP.to_owned())
        )?;
        vhost
            .declare(SHOP, QUEUE, &QueueArguments::quorum(), "#")
            .await?;
        billing::declare(&vhost.amqp_url()).await?;
        let resource = std::path::absolute("tests/demo/shop.yaml")?;
        Launch::new(&["migrate", "--resource", &resource.to_string_lossy()])
            .database_url(database.url())
            .succeed()
            .await?;
        let password = run::random_word();
        let url = |login: &str| {
            let port = servers.postgres.port();
            servers.postgres.url_as(login, &password, port, SHOP)
        };
        let ground = Self {
            app_url: url("shop_app"),
            worker_url: url("shop_worker"),
            database,
            vhost,
            resource,
        };
        let ground = Kept::new(ground);
        ground.create_logins(&password).await?;
        ground.install_billing().await?;
        Ok(ground)
    }

    /// The roles are the migration's, the logins and the business table are ours.
    async fn create_logins(&self, password: &str) -> Result<()> {
        let sql = format!(
            "create role shop_app login password '{password}' in role shop_postroom_app;
             create role shop_worker login password '{password}' in role shop_postroom_worker;
             create table orders (order_id uuid primary key, customer text not null, total int not null);
             alter table orders owner to shop_app"
        );
        let mut session = self.database.connect().await?;
        session
            .execute(AssertSqlSafe(sql))
            .await
            .context("create the shop's logins and its table")?;
        Ok(())
    }

    /// The other service's part, and the right to call its handler.
    async fn install_billing(&self) -> Result<()> {
        let mut session = self.database.connect().await?;
        billing::install(&mut session).await?;
        let grants = "grant usage on schema billing to shop_worker; grant execute on function billing.book(postroom.inbox_message) to shop_worker";
        session.execute(grants).await.context("grant the handler")?;
        Ok(())
    }

    /// What the other service has once everything is through.
    pub(crate) async fn invoices(
        &self,
        steps: &mut Steps,
        received: &[Received],
    ) -> Result<Invoices> {
        billing::settle(steps, self.database.url(), &self.vhost.amqp_url(), received).await
    }

    /// Sessions for the shop.
    pub(crate) async fn pool(&self, size: u32) -> Result<PgPool> {
        PgPoolOptions::new()
            .max_connections(size)
            .connect(&self.app_url)
            .await
            .context("log in as the shop")
    }

    /// `postroom-worker run --resource tests/demo/shop.yaml`, once it is ready.
    pub(crate) async fn worker(&self) -> Result<Kept<Worker>> {
        let worker = Launch::run_resource(&self.resource)
            .database_url(self.worker_url.clone())
            .amqp_url(self.vhost.amqp_url())
            .start()?;
        let worker = Kept::new(worker);
        worker.ready(READY).await?;
        Ok(worker)
    }

    pub(crate) async fn receiver(&self) -> Result<Receiver> {
        self.vhost.receive(&[QUEUE]).await
    }

    /// Rows in the shop's own table, and messages that wait.
    pub(crate) async fn counts(&self) -> Result<(i64, i64)> {
        let mut session = self.database.connect().await?;
        let sql =
            "select (select count(*) from public.orders), (select count(*) from postroom.outbox)";
        sqlx::query_as(sql)
            .fetch_one(&mut session)
            .await
            .context("count orders and waiting messages")
    }

    /// Writes what a shell needs to look around; returns the file.
    pub(crate) fn write_environment(&self) -> Result<PathBuf> {
        let programs = launch::neighbour("")?;
        let text = format!(
            "# For looking around by hand: source this. DATABASE_URL is the superuser's.\n\
             export DATABASE_URL='{}'\nexport AMQP_URL='{}'\nexport POSTROOM_RESOURCE='{}'\nexport PATH='{}':\"$PATH\"\n",
            self.database.url(),
            self.vhost.amqp_url(),
            self.resource.display(),
            programs.display().to_string().trim_end_matches('/')
        );
        let file = place::folder()?.join("env");
        fs::write(&file, text)?;
        // It holds passwords.
        fs::set_permissions(&file, Permissions::from_mode(0o600))?;
        Ok(file)
    }
}
