//! The chart is installed, changed and removed while messages flow.

use anyhow::{Result, ensure};
use postroom_tests::kubectl::{Kubectl, helm};

use crate::ground::{Ground, RESOURCE};
use crate::load;
use crate::shared::{RELEASE, SYSTEM, alone, install, system};

#[tokio::test]
async fn the_chart_is_upgraded_removed_and_installed_again_and_no_worker_notices() -> Result<()> {
    let _guard = alone().await?;
    let ground = Ground::started("chart").await?;
    let before = ground.ready_workers(2).await?;
    load::during(&ground, async {
        install(&["podAnnotations.example=changed"]).await?;
        let operator = system().get(&format!("deployment/{RELEASE}")).await?;
        let annotations =
            operator.unwrap_or_default()["spec"]["template"]["metadata"]["annotations"].clone();
        ensure!(annotations["example"] == "changed", "{annotations}");

        helm(&["uninstall", RELEASE, "--namespace", SYSTEM, "--wait"]).await?;
        let resource = ground.kubectl.get(RESOURCE).await?;
        ensure!(resource.is_some(), "the resource went with the chart");
        install(&[]).await
    })
    .await?;
    ground.ready().await?;
    let after = ground.ready_workers(2).await?;
    ensure!(
        before
            .iter()
            .map(|pod| &pod["metadata"]["uid"])
            .eq(after.iter().map(|pod| &pod["metadata"]["uid"])),
        "workers were replaced"
    );
    ground.verdict().await?.require(0)
}

#[tokio::test]
async fn the_operator_may_read_no_secret() -> Result<()> {
    let _guard = crate::shared::shared().await?;
    let operator = format!("--as=system:serviceaccount:{SYSTEM}:{RELEASE}");
    for verb in ["get", "list", "watch", "create", "update", "delete"] {
        let output = Kubectl::new(SYSTEM)
            .output(
                &[
                    "auth",
                    "can-i",
                    verb,
                    "secrets",
                    "--all-namespaces",
                    &operator,
                ],
                "",
            )
            .await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            said.trim() == "no",
            "the operator may {verb} Secrets: {said}"
        );
    }
    Ok(())
}
