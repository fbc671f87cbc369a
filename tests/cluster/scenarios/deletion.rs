//! What goes with a resource, and what stays.

use anyhow::{Result, ensure};
use postroom_tests::eventually::{eventually, when};

use crate::ground::{Ground, RESOURCE, WORKERS};
use crate::load;
use crate::shared::{PATIENCE, shared};

#[tokio::test]
async fn deleting_the_resource_ends_the_workers_and_leaves_the_data() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("deletion").await?;
    ground.kubectl.run(&["delete", RESOURCE]).await?;
    eventually("no worker is left", PATIENCE, || async {
        let pods = ground
            .kubectl
            .list("pods", WORKERS)
            .await
            .map_err(|error| error.to_string())?;
        when(pods.is_empty(), || format!("{} pods", pods.len()))
    })
    .await?;
    for children in ["deployments", "jobs", "poddisruptionbudgets"] {
        eventually(&format!("no {children} are left"), PATIENCE, || async {
            let left = ground
                .kubectl
                .run(&["get", children, "--output", "name"])
                .await
                .map_err(|error| error.to_string())?;
            when(left.trim().is_empty(), || left.clone())
        })
        .await?;
    }

    // The tables are still there, and take what applications go on writing.
    let pool = ground.pool().await?;
    load::write(&ground, &pool, "afterwards", 10).await?;
    let waiting: i64 = sqlx::query_scalar("select count(*) from postroom.outbox")
        .fetch_one(&pool)
        .await?;
    ensure!(waiting == 10, "{waiting} messages wait");

    ground.apply(&ground.resource()).await?;
    ground.ready().await?;
    ground.verdict().await?.require(0)
}
