//! What the operator does when there is nothing to do, and what it needs for that.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use postroom_tests::kubectl::Kubectl;
use postroom_tests::resource::{Outbox, Resource};
use postroom_tests::setup::{EXCHANGE, OUTBOX};
use serde_json::Value;

use crate::ground::Ground;
use crate::shared::{RELEASE, SYSTEM, alone, figure};

const RESOURCES: usize = 20;
const MOST_MEMORY: u64 = 64 << 20;

/// Starting twenty fleets takes a while on two cores.
const ALL_READY: Duration = Duration::from_secs(300);
/// Status of what just started may still settle.
const SETTLING: Duration = Duration::from_secs(40);
/// Longer than the least time between two writes of a status.
const WATCHED: Duration = Duration::from_secs(70);

#[tokio::test]
async fn at_rest_the_operator_writes_nothing_and_stays_small() -> Result<()> {
    let _guard = alone().await?;
    let ground = Ground::new("rest").await?;
    for number in 0..RESOURCES {
        let resource = Resource::new(&format!("shop-{number}"))
            .outbox(Outbox::new(OUTBOX, EXCHANGE))
            .schema(&format!("postroom_{number}"))
            .with("workers.resources.requests.cpu", "1m")
            .with("workers.resources.requests.memory", "1Mi");
        ground.apply(&resource).await?;
    }
    let names: Vec<String> = (0..RESOURCES)
        .map(|number| format!("inboxoutbox/shop-{number}"))
        .collect();
    let ready = names.iter().map(|name| {
        ground
            .kubectl
            .wait_condition(name, "Ready", "True", ALL_READY)
    });
    try_join_all(ready).await?;

    tokio::time::sleep(SETTLING).await;
    let before = writes()?.len();
    tokio::time::sleep(WATCHED).await;
    let since = writes()?.split_off(before);
    let memory = memory().await?;
    figure(&format!(
        "the operator with {RESOURCES} resources: {} MiB, {} writes in {WATCHED:?} of rest",
        memory >> 20,
        since.len()
    ))?;
    ensure!(since.is_empty(), "written at rest: {since:#?}");
    ensure!(memory <= MOST_MEMORY, "{} MiB are too much", memory >> 20);
    Ok(())
}

/// What the operator has written so far, without the lease by which its instances agree who leads.
fn writes() -> Result<Vec<String>> {
    let user = format!("system:serviceaccount:{SYSTEM}:{RELEASE}");
    let log = std::fs::read_to_string("/var/log/audit.log").context("read the audit log")?;
    let entries = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let written: Vec<String> = entries
        .filter(|entry| entry["user"]["username"] == *user)
        .filter(|entry| entry["objectRef"]["resource"] != "leases")
        .map(|entry| format!("{} {}", entry["verb"], entry["requestURI"]))
        .collect();
    ensure!(
        !written.is_empty(),
        "the audit log knows nothing of {user}, who has made all this"
    );
    Ok(written)
}

/// What the operator's pods use, the largest of them.
async fn memory() -> Result<u64> {
    let stats = Kubectl::new(SYSTEM)
        .run(&["get", "--raw", "/api/v1/nodes/node1/proxy/stats/summary"])
        .await?;
    let stats: Value = serde_json::from_str(&stats)?;
    let pods = stats["pods"].as_array().context("pods in the summary")?;
    pods.iter()
        .filter(|pod| pod["podRef"]["namespace"] == SYSTEM)
        .filter_map(|pod| pod["memory"]["workingSetBytes"].as_u64())
        .max()
        .context("the summary knows no pod of the operator")
}
