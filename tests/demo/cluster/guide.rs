//! The last words: the table, what goes on running, and how to look at it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::Result;

use crate::cluster::ground::Ground;
use crate::cluster::is_own;
use crate::place;
use crate::report::Report;
use crate::servers::Servers;
use crate::steps::Steps;

/// How commands reach the cluster: through its namespaces, or as they are.
fn prefix() -> &'static str {
    if is_own() { "inside " } else { "" }
}

/// Shows everything; answers whether the report is right.
pub(crate) fn show(
    steps: &Steps,
    report: &Report,
    ground: &Ground,
    servers: Option<&Servers>,
) -> Result<bool> {
    let right = report.is_right();
    let verdict = if right {
        steps.green("All is right: everything committed arrived, nothing else did, each customer's orders in order, one invoice for each.")
    } else {
        steps.red(&format!(
            "Something is wrong: see the marked lines.{}\nEverything stays up, so that you can look.",
            report.samples()
        ))
    };
    steps.say(&format!("\n{}\n{verdict}\n", report.table(steps)))?;
    write_environment(ground)?;
    let inside = prefix();
    let worker = "kubectl --namespace shop exec deployment/shop-worker -- postroom-worker";
    steps.say(&format!(
        "{}\n  source .demo/env        # the commands below need it\n  \
         {inside}kubectl --namespace shop get inboxoutboxes,pods\n  \
         {inside}kubectl --namespace shop describe inboxoutbox shop\n  \
         {inside}kubectl --namespace shop logs deployment/shop-worker --follow\n  \
         {inside}{worker} stats --config /etc/postroom/config/config.json\n  \
         {inside}kubectl --namespace shop scale inboxoutbox shop --replicas 3\n  \
         {inside}psql \"$DATABASE_URL\"     # tables orders and postroom.outbox, view postroom.backlog",
        steps.bold("Look around")
    ))?;
    if let Some(servers) = servers {
        steps.say(&format!(
            "  {inside}curl --user postroom:{} http://127.0.0.1:{}/api/queues",
            servers.rabbit.password(),
            servers.rabbit.management_port()
        ))?;
    }
    steps.say(&format!(
        "\n{}  the cluster with operator, workers and servers, until you run {}; it also removes .demo.",
        steps.bold("Still running"),
        steps.bold("make demo-down")
    ))?;
    Ok(right)
}

/// Where to look when a step has failed.
pub(crate) fn after_failure() -> String {
    let inside = if is_own() {
        "POSTROOM_CLUSTER=demo tests/cluster/enter.sh "
    } else {
        ""
    };
    format!(
        "{inside}kubectl --namespace postroom-system logs deployment/postroom\n        \
         {inside}kubectl --namespace shop describe inboxoutboxes,jobs,pods\n        \
         the cluster stays up until you run 'make demo-down'"
    )
}

/// Writes what a shell needs to look around.
fn write_environment(ground: &Ground) -> Result<()> {
    let inside = if is_own() {
        let enter = std::path::absolute("tests/cluster/enter.sh")?;
        format!(
            "export POSTROOM_CLUSTER=demo\ninside() {{ '{}' \"$@\"; }}\n",
            enter.display()
        )
    } else {
        String::new()
    };
    let text = format!(
        "# For looking around by hand: source this.\n{inside}export DATABASE_URL='{}'\nexport AMQP_URL='{}'\n",
        ground.urls.database, ground.urls.amqp
    );
    let file = place::folder()?.join("env");
    fs::write(&file, text)?;
    // It holds passwords.
    Ok(fs::set_permissions(&file, Permissions::from_mode(0o600))?)
}
