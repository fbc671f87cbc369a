//! What a test in the cluster stands on: a namespace, a database with a login that owns it, a virtual host, two Secrets.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postroom_tests::background::best_effort;
use postroom_tests::broker::RabbitServer;
use postroom_tests::database::Database;
use postroom_tests::eventually::{eventually, when};
use postroom_tests::kubectl::{self, Kubectl};
use postroom_tests::ledger::Ledger;
use postroom_tests::postgres::PostgresServer;
use postroom_tests::receiver::Receiver;
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::run;
use postroom_tests::setup::{EXCHANGE, OUTBOX, QUEUE};
use postroom_tests::verdict::{Verdict, check};
use postroom_tests::vhost::{QueueArguments, Vhost};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Executor as _};

use crate::shared::{self, PATIENCE};

/// The resource of a test, and what its children are named after.
pub(crate) const NAME: &str = "shop";
/// Its Deployment.
pub(crate) const WORKER: &str = "deployment/shop-worker";
/// The resource, as kubectl names it.
pub(crate) const RESOURCE: &str = "inboxoutbox/shop";
/// Secrets that the resource names.
pub(crate) const DATABASE_SECRET: &str = "database";
pub(crate) const BROKER_SECRET: &str = "broker";

/// Labels of its workers.
pub(crate) const WORKERS: &str = "app.kubernetes.io/name=postroom-worker,app.kubernetes.io/instance=shop,app.kubernetes.io/component=worker";

/// A lease that ends soon, so that what a killed worker held is taken over soon.
const LEASE_SECONDS: u64 = 5;

/// Longer than a lease and what follows it, so that repeats are seen.
const QUIET: Duration = Duration::from_secs(8);

/// A namespace with everything that a resource needs.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) kubectl: Kubectl,
    pub(crate) database: Database,
    pub(crate) vhost: Vhost,
    pub(crate) receiver: Receiver,
    pub(crate) ledger: Ledger,
    /// The login that owns the database.
    login: String,
    password: String,
    database_url: String,
}

impl Ground {
    /// Everything, with right Secrets; nothing is applied yet.
    pub(crate) async fn new(test: &str) -> Result<Self> {
        let (postgres, rabbit) =
            tokio::try_join!(PostgresServer::shared(), RabbitServer::shared())?;
        let (database, vhost) = tokio::try_join!(
            Database::create(postgres, test),
            Vhost::create(rabbit, test)
        )?;
        vhost
            .declare(EXCHANGE, QUEUE, &QueueArguments::quorum(), "#")
            .await?;
        let receiver = vhost.receive(&[QUEUE]).await?;
        // Kubernetes takes no underscores in names.
        let namespace = database.name().replace('_', "-");
        let login = format!("{}_owner_login", database.name());
        let password = run::random_word();
        let url = postgres.url_as(&login, &password, postgres.port(), database.name());
        let ground = Self {
            kubectl: Kubectl::new(&namespace),
            receiver,
            ledger: Ledger::default(),
            login,
            password,
            database_url: url,
            database,
            vhost,
        };
        ground.create_login().await?;
        shared::restricted(&namespace).await?;
        ground.right_secrets().await?;
        Ok(ground)
    }

    /// Owns its database and may create no roles, as the logins that managed databases give out.
    async fn create_login(&self) -> Result<()> {
        let (login, password) = (&self.login, &self.password);
        let database = self.database.name();
        let sql = format!(
            "create role {login} login password '{password}'; alter database {database} owner to {login}"
        );
        let mut session = self.database.connect().await?;
        session
            .execute(AssertSqlSafe(sql))
            .await
            .context("create a login")
            .map(drop)
    }

    /// The connection string of the login.
    pub(crate) fn database_url(&self) -> &str {
        &self.database_url
    }

    /// Both Secrets as they should be.
    pub(crate) async fn right_secrets(&self) -> Result<()> {
        self.secret(DATABASE_SECRET, "uri", &self.database_url)
            .await?;
        self.secret(BROKER_SECRET, "uri", &self.vhost.amqp_url())
            .await
    }

    /// A Secret with one key.
    pub(crate) async fn secret(&self, name: &str, key: &str, value: &str) -> Result<()> {
        // Replaced as a whole, so that no key of an earlier one stays.
        self.kubectl
            .run(&["delete", "secret", name, "--ignore-not-found"])
            .await?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: value},
        });
        self.kubectl.apply(&secret).await
    }

    /// The usual resource: one outbox, two workers, a short lease.
    pub(crate) fn resource(&self) -> Resource {
        Resource::new(NAME)
            .outbox(Outbox::new(OUTBOX, EXCHANGE))
            .lease_seconds(LEASE_SECONDS)
            .with("workers.replicas", 2)
    }

    /// Applies a resource in this namespace.
    pub(crate) async fn apply(&self, resource: &Resource) -> Result<()> {
        self.kubectl.apply(&self.manifest(resource)).await
    }

    /// The resource as an object of this namespace.
    pub(crate) fn manifest(&self, resource: &Resource) -> Value {
        let mut object = resource.clone().document().clone();
        object["metadata"]["namespace"] = json!(self.kubectl.namespace());
        object
    }

    /// The usual resource, applied and ready.
    pub(crate) async fn started(test: &str) -> Result<Self> {
        let ground = Self::new(test).await?;
        ground.apply(&ground.resource()).await?;
        ground.ready().await?;
        Ok(ground)
    }

    /// Waits until the resource is ready.
    pub(crate) async fn ready(&self) -> Result<Value> {
        self.kubectl
            .wait_condition(RESOURCE, "Ready", "True", PATIENCE)
            .await
    }

    /// A session of the superuser.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        self.database.connect().await
    }

    /// Sessions of the login.
    pub(crate) async fn pool(&self) -> Result<PgPool> {
        PgPool::connect(&self.database_url)
            .await
            .context("log in as the application")
    }

    /// The pods of the workers that are not about to end.
    pub(crate) async fn workers(&self) -> Result<Vec<Value>> {
        let mut pods = self.kubectl.list("pods", WORKERS).await?;
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        Ok(pods)
    }

    /// Waits until exactly so many workers are ready.
    pub(crate) async fn ready_workers(&self, count: usize) -> Result<Vec<Value>> {
        let what = format!("{count} workers are ready");
        eventually(&what, PATIENCE, || async {
            let pods = self.workers().await.map_err(|error| format!("{error:#}"))?;
            let ready = pods
                .iter()
                .filter(|pod| kubectl::condition(pod, "Ready")["status"] == "True")
                .count();
            when(ready == count && pods.len() == count, || {
                format!("{ready} of {} are", pods.len())
            })?;
            Ok::<_, String>(pods)
        })
        .await
    }

    /// Waits until all that was committed has arrived and nothing more comes, and judges it.
    pub(crate) async fn verdict(&self) -> Result<Verdict> {
        let committed = self.ledger.committed();
        ensure!(committed > 0, "nothing was committed: nothing is shown");
        if let Err(error) = self.receiver.wait_for(committed, PATIENCE).await {
            eprintln!("{error:#}");
        }
        let received = self.receiver.wait_quiet(QUIET, PATIENCE).await?;
        Ok(check(&self.ledger, &received))
    }

    /// Waits until a condition of the resource is not True for this reason; answers its message and how long it took.
    pub(crate) async fn wrong(&self, kind: &str, reason: &str) -> Result<(String, Duration)> {
        let began = Instant::now();
        let what = format!("has {kind} with reason {reason}");
        let found = self
            .kubectl
            .wait(RESOURCE, &what, PATIENCE, |found| {
                let condition = kubectl::condition(found, kind);
                condition["status"] != "True" && condition["reason"] == reason
            })
            .await?;
        let message = kubectl::condition(&found, kind)["message"]
            .as_str()
            .unwrap_or_default();
        Ok((message.to_owned(), began.elapsed()))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let kubectl = self.kubectl.clone();
        best_effort(async move {
            let namespace = format!("namespace/{}", kubectl.namespace());
            kubectl
                .run(&["delete", &namespace, "--wait=false"])
                .await
                .map(drop)
        });
    }
}
