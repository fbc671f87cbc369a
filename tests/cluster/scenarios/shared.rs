//! The operator that all tests share, and who may disturb it.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::address;
use postroom_tests::kubectl::{Kubectl, helm};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Where the operator is.
pub(crate) const SYSTEM: &str = "postroom-system";
/// Its release, and the name of its Deployment.
pub(crate) const RELEASE: &str = "postroom";

/// Tests read; those that stop something that others need write.
static CLUSTER: RwLock<()> = RwLock::const_new(());
static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// Held by a test that needs the operator and hurts nobody.
pub(crate) async fn shared() -> Result<RwLockReadGuard<'static, ()>> {
    INSTALLED.get_or_try_init(first_install).await?;
    Ok(CLUSTER.read().await)
}

/// Held by a test that stops or changes what others need; it runs alone, and puts everything back.
pub(crate) async fn alone() -> Result<RwLockWriteGuard<'static, ()>> {
    INSTALLED.get_or_try_init(first_install).await?;
    Ok(CLUSTER.write().await)
}

async fn first_install() -> Result<()> {
    ensure!(
        !address::servers().is_loopback(),
        "this is not inside a cluster: run it with 'make cluster', or under tests/cluster/enter.sh"
    );
    Kubectl::new("default")
        .run(&["get", "nodes"])
        .await
        .context("no cluster answers: start one with tests/cluster/up.sh")?;
    install(&[]).await
}

/// Installs or upgrades the chart with these values, and waits until the operator is ready.
pub(crate) async fn install(values: &[&str]) -> Result<()> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/postroom");
    let mut arguments = vec![
        "upgrade",
        "--install",
        RELEASE,
        chart,
        "--namespace",
        SYSTEM,
        "--wait",
        "--timeout",
        "2m",
    ];
    for value in values {
        arguments.extend(["--set", value]);
    }
    restricted(SYSTEM).await?;
    helm(&arguments).await.map(drop)
}

/// A namespace that refuses pods which ask for more than they need.
pub(crate) async fn restricted(namespace: &str) -> Result<()> {
    let labels = serde_json::json!({"pod-security.kubernetes.io/enforce": "restricted"});
    Kubectl::new(namespace)
        .apply(&serde_json::json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels},
        }))
        .await
}

/// The operator's commands.
pub(crate) fn system() -> Kubectl {
    Kubectl::new(SYSTEM)
}

/// Notes something that was measured, in the file that the variable names; the test runner shows it at the end.
pub(crate) fn figure(text: &str) -> Result<()> {
    eprintln!("{text}");
    let Some(file) = std::env::var_os("POSTROOM_FIGURES") else {
        return Ok(());
    };
    let mut file = File::options().create(true).append(true).open(file)?;
    Ok(writeln!(file, "{text}")?)
}

/// How long a change may take to show on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
