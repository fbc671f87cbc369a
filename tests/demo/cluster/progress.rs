//! What happens between `kubectl apply` and Ready, as it happens.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use postroom_tests::kubectl::{Kubectl, condition, is_current};
use serde_json::Value;

use crate::servers::SHOP;
use crate::steps::Steps;

const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(300);

/// Shows how migration and workers come on until the resource is ready.
pub(crate) async fn until_ready(steps: &mut Steps, kubectl: &Kubectl) -> Result<()> {
    let began = Instant::now();
    let mut said = Vec::new();
    loop {
        let resource = kubectl.get(&format!("inboxoutbox/{SHOP}")).await?;
        let resource = resource.unwrap_or(Value::Null);
        let now = began.elapsed().as_secs_f64();
        for milestone in milestones(&resource) {
            if !said.contains(&milestone) {
                steps.note(&format!("{now:>5.1} s: {milestone}"))?;
                said.push(milestone);
            }
        }
        let ready = condition(&resource, "Ready");
        if is_current(&resource) && ready["status"] == "True" {
            return Ok(());
        }
        let state = format!(
            "Ready={} {}: {}",
            text(&ready["status"]),
            text(&ready["reason"]),
            text(&ready["message"])
        );
        if began.elapsed() > PATIENCE {
            bail!("not ready within {PATIENCE:?}; {state}");
        }
        steps.progress(&state)?;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the resource is ready and knows that nothing waits.
pub(crate) async fn until_settled(kubectl: &Kubectl) -> Result<()> {
    let settled = |resource: &Value| {
        condition(resource, "Ready")["status"] == "True"
            && resource["status"]["summary"]["pending"] == 0
    };
    let object = format!("inboxoutbox/{SHOP}");
    kubectl
        .wait(&object, "shows that nothing waits", PATIENCE, settled)
        .await
        .map(drop)
}

/// What has been reached, in the order in which it is.
fn milestones(resource: &Value) -> Vec<&'static str> {
    [
        (
            "SchemaUpToDate",
            "the migration Job has completed, the schema is current",
        ),
        ("DatabaseReachable", "the workers reach the database"),
        ("TransportsReachable", "the workers reach the broker"),
        ("WorkersAvailable", "the Deployment of the workers is ready"),
        ("Ready", "the resource is Ready"),
    ]
    .into_iter()
    .filter(|(kind, _)| condition(resource, kind)["status"] == "True")
    .map(|(_, milestone)| milestone)
    .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("Unknown")
}
