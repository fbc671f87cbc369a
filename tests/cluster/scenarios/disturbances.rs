//! Workers that come, go and die under load: nothing is lost, nothing is out of order.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use postroom_tests::eventually::{eventually, when};
use postroom_tests::kubectl::{Kubectl, name};
use postroom_tests::setup::OUTBOX;
use serde_json::Value;

use crate::ground::{Ground, RESOURCE, WORKER, WORKERS};
use crate::load;
use crate::shared::{PATIENCE, alone, figure, shared};

/// Before and after a disturbance the load goes on for so long.
const STEADY: Duration = Duration::from_secs(2);

/// What a fault may leave in doubt: at most what was in flight.
const IN_DOUBT: usize = 200;

fn uids(pods: &[Value]) -> BTreeSet<String> {
    pods.iter()
        .map(|pod| pod["metadata"]["uid"].to_string())
        .collect()
}

/// Runs `disturb` in the middle of a load and judges what arrived.
async fn survives(
    ground: &Ground,
    disturb: impl AsyncFnOnce() -> Result<()>,
    most_repeats: usize,
) -> Result<()> {
    load::during(ground, async {
        tokio::time::sleep(STEADY).await;
        disturb().await?;
        tokio::time::sleep(STEADY).await;
        Ok(())
    })
    .await?;
    let verdict = ground.verdict().await?;
    figure(&format!(
        "{}: {} messages, {} repeats",
        ground.kubectl.namespace(),
        verdict.committed,
        verdict.repeats
    ))?;
    verdict.require(most_repeats)
}

#[tokio::test]
async fn a_changed_field_rolls_the_workers_without_loss() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("rolling").await?;
    let before = uids(&ground.ready_workers(2).await?);
    survives(
        &ground,
        async || {
            let changed = ground.resource().with("outboxes.0.delivery.batchSize", 100);
            ground.apply(&changed).await?;
            eventually("both workers are new", PATIENCE, || async {
                let now = uids(&ground.workers().await.map_err(|error| error.to_string())?);
                when(now.is_disjoint(&before), || format!("{before:?} {now:?}"))
            })
            .await?;
            ground.ready_workers(2).await?;
            ground.ready().await.map(drop)
        },
        IN_DOUBT,
    )
    .await
}

#[tokio::test]
async fn workers_are_scaled_up_and_down_under_load() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("scaling").await?;
    survives(
        &ground,
        async || {
            for replicas in [3, 1, 2] {
                let count = format!("--replicas={replicas}");
                ground.kubectl.run(&["scale", RESOURCE, &count]).await?;
                ground.ready_workers(replicas).await?;
            }
            Ok(())
        },
        IN_DOUBT,
    )
    .await
}

#[tokio::test]
async fn a_pod_that_is_deleted_is_replaced_and_loses_nothing() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("deleted").await?;
    let pods = ground.ready_workers(2).await?;
    survives(
        &ground,
        async || {
            let pod = name(&pods[0]);
            ground
                .kubectl
                .run(&["delete", "pod", pod, "--wait=false"])
                .await?;
            ground.ready_workers(2).await.map(drop)
        },
        IN_DOUBT,
    )
    .await
}

#[tokio::test]
async fn a_worker_killed_with_minus_9_comes_back_and_loses_nothing() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::started("killed").await?;
    let pods = ground.ready_workers(2).await?;
    survives(
        &ground,
        async || {
            let pod = name(&pods[0]);
            ground.kubectl.kill_9(pod).await?;
            let restarted = |pod: &Value| {
                let container = &pod["status"]["containerStatuses"][0];
                container["restartCount"] == 1 && container["ready"] == true
            };
            ground
                .kubectl
                .wait(&format!("pod/{pod}"), "runs again", PATIENCE, restarted)
                .await
                .map(drop)
        },
        IN_DOUBT,
    )
    .await
}

#[tokio::test]
async fn a_drain_of_the_node_leaves_the_last_worker_alone() -> Result<()> {
    let _guard = alone().await?;
    let ground = Ground::started("drain").await?;
    ground.ready_workers(2).await?;
    let node = Kubectl::new("default");
    let drained = survives(
        &ground,
        async || {
            let drain = [
                "drain",
                "node1",
                "--pod-selector",
                WORKERS,
                "--delete-emptydir-data",
                "--timeout=15s",
            ];
            let output = node.output(&drain, "").await?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(
                !output.status.success() && said.contains("disruption budget"),
                "the second eviction was not refused: {said}"
            );
            let available = |found: &Value| found["status"]["availableReplicas"] == 1;
            ground
                .kubectl
                .wait(WORKER, "has one worker left", PATIENCE, available)
                .await
                .map(drop)
        },
        IN_DOUBT,
    )
    .await;
    node.run(&["uncordon", "node1"]).await?;
    drained?;
    ground.ready_workers(2).await?;
    let depth =
        sqlx::query_scalar::<_, i64>("select count(*) from postroom.outbox where endpoint = $1")
            .bind(OUTBOX)
            .fetch_one(&mut ground.connect().await?)
            .await?;
    ensure!(depth == 0, "{depth} messages wait");
    ground.ready().await.map(drop)
}
