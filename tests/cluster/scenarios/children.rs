//! What the operator made stays as it made it.

use anyhow::{Context as _, Result, ensure};
use postroom_tests::eventually::{eventually, when};
use serde_json::Value;

use crate::ground::{Ground, WORKER};
use crate::shared::{PATIENCE, shared};

const CHILDREN: [&str; 4] = [
    WORKER,
    "configmap/shop-worker",
    "poddisruptionbudget/shop-worker",
    "serviceaccount/shop-worker",
];

async fn child(ground: &Ground, name: &str) -> Result<Value> {
    ground
        .kubectl
        .get(name)
        .await?
        .with_context(|| format!("there is no {name}"))
}

#[tokio::test]
async fn a_child_that_is_deleted_comes_back() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("orphans").await?;
    for name in CHILDREN {
        let before = child(&ground, name).await?["metadata"]["uid"].clone();
        let owner = &child(&ground, name).await?["metadata"]["ownerReferences"][0];
        ensure!(
            owner["kind"] == "InboxOutbox" && owner["controller"] == true,
            "{name} belongs to {owner}"
        );
        ground.kubectl.run(&["delete", name]).await?;
        ground
            .kubectl
            .wait(name, "is there again", PATIENCE, |found| {
                found["metadata"]["uid"] != before
            })
            .await?;
    }
    ground.ready_workers(2).await?;
    ground.ready().await.map(drop)
}

#[tokio::test]
async fn a_child_that_is_edited_is_put_right_again() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("edits").await?;
    let spoiled = r#"{"data": {"config.json": "{}"}}"#;
    let config = child(&ground, CHILDREN[1]).await?["data"].clone();
    ground
        .kubectl
        .run(&["patch", CHILDREN[1], "--patch", spoiled])
        .await?;
    ground
        .kubectl
        .wait(CHILDREN[1], "is right again", PATIENCE, |found| {
            found["data"] == config
        })
        .await?;

    let budget = r#"{"spec": {"maxUnavailable": 2}}"#;
    ground
        .kubectl
        .run(&["patch", CHILDREN[2], "--type=merge", "--patch", budget])
        .await?;
    ground
        .kubectl
        .wait(CHILDREN[2], "is right again", PATIENCE, |found| {
            found["spec"]["maxUnavailable"] == 1
        })
        .await?;

    ground
        .kubectl
        .run(&["scale", WORKER, "--replicas=4"])
        .await?;
    eventually(
        "the Deployment has two replicas again",
        PATIENCE,
        || async {
            let found = child(&ground, WORKER)
                .await
                .map_err(|error| error.to_string())?;
            when(found["spec"]["replicas"] == 2, || {
                found["spec"]["replicas"].to_string()
            })
        },
    )
    .await?;
    ground.ready_workers(2).await.map(drop)
}

#[tokio::test]
async fn what_others_add_to_a_child_stays() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("additions").await?;
    ground
        .kubectl
        .run(&["annotate", WORKER, "example.com/by=somebody"])
        .await?;
    // A change of the resource makes the operator write the Deployment.
    let changed = ground.resource().with("outboxes.0.delivery.batchSize", 100);
    let before = child(&ground, WORKER).await?["metadata"]["generation"].clone();
    ground.apply(&changed).await?;
    let after = ground
        .kubectl
        .wait(WORKER, "is written", PATIENCE, |found| {
            found["metadata"]["generation"] != before
        })
        .await?;
    ensure!(after["metadata"]["annotations"]["example.com/by"] == "somebody");
    Ok(())
}
