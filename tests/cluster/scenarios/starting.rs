//! From a resource to messages in the queue.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postroom_tests::eventually::eventually;
use postroom_tests::kubectl::Kubectl;
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::setup::{EXCHANGE, OUTBOX};
use sqlx::AssertSqlSafe;

use crate::ground::{DATABASE_SECRET, Ground, RESOURCE};
use crate::load;
use crate::shared::{PATIENCE, alone, figure, shared};

/// The aim is 20 s on a machine of two idle cores; a loaded one gets twice that.
const FIRST_MESSAGE: Duration = Duration::from_secs(40);

#[tokio::test]
async fn from_a_resource_to_ready_and_to_the_first_message_in_the_queue() -> Result<()> {
    let _guard = alone().await?;
    let ground = Ground::new("starting").await?;
    let pool = ground.pool().await?;

    let began = Instant::now();
    ground.apply(&ground.resource()).await?;
    // An application may write as soon as the migration has made the table; no worker needs to be there.
    eventually("the first message is committed", PATIENCE, || {
        load::write(&ground, &pool, "first", 1)
    })
    .await?;
    let written = began.elapsed();
    ground.receiver.wait_for(1, PATIENCE).await?;
    let arrived = began.elapsed();
    ground.ready().await?;
    let ready = began.elapsed();
    figure(&format!(
        "applied to first commit {written:.1?}, to first message in the queue {arrived:.1?}, to Ready {ready:.1?}"
    ))?;
    ensure!(
        arrived < FIRST_MESSAGE,
        "the first message took {arrived:?}"
    );
    ground.verdict().await?.require(0)
}

#[tokio::test]
async fn the_columns_say_what_a_person_wants_to_know() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("columns").await?;
    let text = ground.kubectl.run(&["get", "iob"]).await?;
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    for column in [
        "NAME", "READY", "REASON", "WORKERS", "PENDING", "OLDEST", "DEAD", "AGE",
    ] {
        ensure!(
            head.split_whitespace().any(|word| word == column),
            "no column {column}: {text}"
        );
    }
    let line = lines.next().unwrap_or_default();
    ensure!(
        line.starts_with("shop ") && line.contains(" True "),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn two_resources_in_two_namespaces_share_a_database_with_two_schemas() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("two").await?;
    let other = Neighbour::of(&ground).await?;
    let pool = ground.pool().await?;

    load::write(&ground, &pool, "a", 10).await?;
    let sql = format!(
        "insert into {SCHEMA}.outbox (endpoint, type, payload) select '{OUTBOX}', 'other', n::text from generate_series(1, 10) n"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await?;
    let received = ground.receiver.wait_for(20, PATIENCE).await?;
    let others = received
        .iter()
        .filter(|message| {
            message
                .properties
                .kind()
                .as_ref()
                .is_some_and(|kind| kind.as_str() == "other")
        })
        .count();
    ensure!(others == 10, "each schema has its own: {others}");
    other.remove().await
}

/// The schema of the second resource.
const SCHEMA: &str = "postroom_other";

/// A second namespace with a resource of the same name, on the same database and virtual host.
struct Neighbour(Kubectl);

impl Neighbour {
    async fn of(ground: &Ground) -> Result<Self> {
        let kubectl = Kubectl::new(&format!("{}-b", ground.kubectl.namespace()));
        crate::shared::restricted(kubectl.namespace()).await?;
        for (name, url) in [
            (DATABASE_SECRET, ground.database_url().to_owned()),
            (crate::ground::BROKER_SECRET, ground.vhost.amqp_url()),
        ] {
            let secret = serde_json::json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"uri": url},
            });
            kubectl.apply(&secret).await?;
        }
        let resource = Resource::new(crate::ground::NAME)
            .outbox(Outbox::new(OUTBOX, EXCHANGE))
            .schema(SCHEMA);
        let mut manifest = ground.manifest(&resource);
        manifest["metadata"]["namespace"] = kubectl.namespace().into();
        kubectl.apply(&manifest).await?;
        kubectl
            .wait_condition(RESOURCE, "Ready", "True", PATIENCE)
            .await?;
        Ok(Self(kubectl))
    }

    async fn remove(&self) -> Result<()> {
        let namespace = format!("namespace/{}", self.0.namespace());
        self.0
            .run(&["delete", &namespace, "--wait=false"])
            .await
            .map(drop)
    }
}
