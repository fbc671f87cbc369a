//! The API server away, the operator killed: messages go on, and what was begun is finished.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::kubectl;
use serde_json::Value;

use crate::ground::{Ground, RESOURCE};
use crate::load;
use crate::shared::{PATIENCE, RELEASE, alone, system};

/// How long the API server answers nobody.
const AWAY: Duration = Duration::from_secs(120);

/// Sends a signal to a part of the cluster, by the number that it was started with.
async fn signal(part: &str, signal: &str) -> Result<()> {
    let pid = std::fs::read_to_string(format!("/run/{part}.pid")).context("find the part")?;
    let status = tokio::process::Command::new("sh")
        .args(["-c", "kill -s \"$0\" \"$1\"", signal, pid.trim()])
        .status()
        .await?;
    ensure!(status.success(), "cannot send {signal} to {part}");
    Ok(())
}

fn restarts(pods: &[Value]) -> i64 {
    pods.iter()
        .filter_map(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_i64())
        .sum()
}

#[tokio::test]
async fn messages_go_on_while_the_api_server_is_away() -> Result<()> {
    let _guard = alone().await?;
    let ground = Ground::started("noapi").await?;
    ground.ready_workers(2).await?;
    load::during(&ground, async {
        signal("kube-apiserver", "STOP").await?;
        tokio::time::sleep(AWAY).await;
        let (committed, arrived) = (ground.ledger.committed(), ground.receiver.distinct());
        signal("kube-apiserver", "CONT").await?;
        ensure!(
            arrived > committed / 2 && arrived > 100,
            "{arrived} of {committed} messages arrived meanwhile"
        );
        Ok(())
    })
    .await?;
    ground.verdict().await?.require(0)?;
    ground.ready().await?;
    let pods = ground.ready_workers(2).await?;
    ensure!(restarts(&pods) == 0, "workers were started again");
    Ok(())
}

/// Kills all operators that run; some may be on their way up, which is as good.
async fn kill_operators() -> Result<usize> {
    let pods = system()
        .list("pods", "app.kubernetes.io/name=postroom-operator")
        .await?;
    let mut killed = 0;
    for pod in &pods {
        if system().kill_9(kubectl::name(pod)).await.is_ok() {
            killed += 1;
        }
    }
    Ok(killed)
}

#[tokio::test]
async fn an_operator_that_is_killed_again_and_again_finishes_what_was_begun() -> Result<()> {
    let _guard = alone().await?;
    let ground = Ground::new("headless").await?;
    ground.apply(&ground.resource()).await?;
    let mut killed = 0;
    for _ in 0..4 {
        killed += kill_operators().await?;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    ensure!(killed > 0, "no operator was there to be killed");
    ground.ready().await?;

    let changed = ground
        .resource()
        .with("workers.replicas", 1)
        .with("outboxes.0.delivery.batchSize", 50);
    load::during(&ground, async {
        ground.apply(&changed).await?;
        kill_operators().await?;
        ground.ready_workers(1).await.map(drop)
    })
    .await?;
    ground
        .kubectl
        .wait_condition(RESOURCE, "Ready", "True", PATIENCE)
        .await?;
    system()
        .run(&[
            "rollout",
            "status",
            &format!("deployment/{RELEASE}"),
            "--timeout=60s",
        ])
        .await?;
    ground.verdict().await?.require(200)
}
