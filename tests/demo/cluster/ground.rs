//! What the shop stands on in a cluster: a database, a virtual host, a namespace, two Secrets and the resource.
//!
//! Invariant: the login of the database owns it and may create no roles, as managed databases give it out; pods learn
//! both URLs from Secrets alone.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::database::Database;
use postroom_tests::kubectl::{self, Kubectl};
use postroom_tests::received::Received;
use postroom_tests::receiver::Receiver;
use postroom_tests::vhost::{self, QueueArguments, Vhost};
use postroom_tests::{postgres, run};
use serde_json::json;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _};

use crate::billing::{self, Invoices};
use crate::servers::{Kept, QUEUE, SHOP, Servers};
use crate::steps::Steps;

/// Labels of the pods that work for the shop.
const WORKERS: &str = "app.kubernetes.io/name=postroom-worker,app.kubernetes.io/instance=shop,app.kubernetes.io/component=worker";

/// Where database and broker are, with the logins of the shop, for us and for pods alike.
#[derive(Debug)]
pub(crate) struct Urls {
    pub(crate) database: String,
    pub(crate) amqp: String,
}

impl Urls {
    /// Makes database, virtual host and logins on servers of our own.
    pub(crate) async fn on(servers: &Servers) -> Result<Self> {
        let (database, vhost) = tokio::try_join!(
            Database::named(&servers.postgres, SHOP.to_owned()),
            Vhost::named(&servers.rabbit, SHOP.to_owned())
        )?;
        // Both would be removed at the end of this scope.
        let (database, vhost) = (Kept::new(database), Kept::new(vhost));
        let password = run::random_word();
        let sql = format!(
            "create role {SHOP} login password '{password}'; alter database {SHOP} owner to {SHOP}"
        );
        let mut session = database.connect().await?;
        session
            .execute(AssertSqlSafe(sql))
            .await
            .context("create the shop's login")?;
        let port = servers.postgres.port();
        Ok(Self {
            database: servers.postgres.url_as(SHOP, &password, port, SHOP),
            amqp: vhost.amqp_url(),
        })
    }
}

/// The shop's part of servers and cluster.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) kubectl: Kubectl,
    pub(crate) urls: Urls,
}

impl Ground {
    /// Makes everything, and applies the resource.
    pub(crate) async fn prepare(urls: Urls) -> Result<Self> {
        vhost::declare(&urls.amqp, SHOP, QUEUE, &QueueArguments::quorum(), "#").await?;
        billing::declare(&urls.amqp).await?;
        let table = "create table orders (order_id uuid primary key, customer text not null, total int not null)";
        let mut session = postgres::connect(&urls.database).await?;
        session
            .execute(table)
            .await
            .context("create the shop's table; the database must be empty")?;
        let ground = Self {
            kubectl: Kubectl::new(SHOP),
            urls,
        };
        ground.apply().await?;
        Ok(ground)
    }

    async fn apply(&self) -> Result<()> {
        let kubectl = &self.kubectl;
        // The strictest level that Kubernetes knows: a pod that asks for more than it needs is refused.
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        kubectl
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP, "labels": labels}}))
            .await?;
        for (name, url) in [
            ("shop-database", &self.urls.database),
            ("shop-rabbitmq", &self.urls.amqp),
        ] {
            kubectl
                .apply(&json!({
                    "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": SHOP},
                    "stringData": {"uri": url},
                }))
                .await?;
        }
        kubectl
            .run(&["apply", "--filename", "tests/demo/shop.yaml"])
            .await
            .map(drop)
    }

    /// The other service's part. Its login is the shop's, so the handler needs no grant.
    pub(crate) async fn install_billing(&self) -> Result<()> {
        let mut session = postgres::connect(&self.urls.database).await?;
        billing::install(&mut session).await
    }

    /// What the other service has once everything is through.
    pub(crate) async fn invoices(
        &self,
        steps: &mut Steps,
        received: &[Received],
    ) -> Result<Invoices> {
        billing::settle(steps, &self.urls.database, &self.urls.amqp, received).await
    }

    /// Sessions for the shop.
    pub(crate) async fn pool(&self, size: u32) -> Result<PgPool> {
        PgPoolOptions::new()
            .max_connections(size)
            .connect(&self.urls.database)
            .await
            .context("log in as the shop")
    }

    pub(crate) async fn receiver(&self) -> Result<Receiver> {
        Receiver::start(&self.urls.amqp, &[QUEUE], Duration::from_secs(30)).await
    }

    /// Rows in the shop's own table, and messages that wait.
    pub(crate) async fn counts(&self) -> Result<(i64, i64)> {
        let mut session = postgres::connect(&self.urls.database).await?;
        let sql =
            "select (select count(*) from public.orders), (select count(*) from postroom.outbox)";
        sqlx::query_as(sql)
            .fetch_one(&mut session)
            .await
            .context("count orders and waiting messages")
    }

    /// Kills a worker without a warning, and says which.
    pub(crate) async fn kill_a_worker(&self, on_its_node: bool) -> Result<String> {
        let pods = self.kubectl.list("pods", WORKERS).await?;
        ensure!(!pods.is_empty(), "no pod has the labels {WORKERS}");
        let pod = kubectl::name(&pods[0]);
        if on_its_node {
            self.kubectl.kill_9(pod).await?;
            return Ok(format!("killed the process of pod {pod} with -9"));
        }
        let now = ["delete", "pod", pod, "--grace-period=0", "--force"];
        self.kubectl.run(&now).await?;
        Ok(format!("deleted pod {pod} without grace"))
    }

    /// What a person would look at.
    pub(crate) async fn look(&self) -> Result<String> {
        let mut text = String::new();
        for what in ["inboxoutboxes", "jobs,deployments,pods"] {
            text += &format!("\n$ kubectl get {what} --namespace {SHOP}\n");
            text += &self.kubectl.run(&["get", what]).await?;
        }
        Ok(text)
    }
}
