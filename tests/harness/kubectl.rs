//! A Kubernetes cluster as people use it: through kubectl and helm, with the cluster that `KUBECONFIG` names.

use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use crate::eventually::{eventually, when};
use crate::run;

/// How long one command may take; those that wait say how long themselves.
const PATIENCE: Duration = Duration::from_secs(120);

/// The commands of one namespace.
#[derive(Debug, Clone)]
pub struct Kubectl {
    namespace: String,
}

impl Kubectl {
    /// Whatever names no namespace is in this one.
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
        }
    }

    /// Its name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Runs a command that must succeed; returns what it printed.
    ///
    /// # Errors
    /// When it fails; the message shows what it said.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        succeeded(&self.output(arguments, "").await?, "kubectl", arguments)
    }

    /// Runs a command with this on its standard input.
    ///
    /// # Errors
    /// When it cannot be started or does not end; its own failure is in the output.
    pub async fn output(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let namespace = ["--namespace", self.namespace.as_str()];
        program("kubectl", &[&namespace, arguments].concat(), input).await
    }

    /// Applies an object.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn apply(&self, object: &Value) -> Result<()> {
        let arguments = ["apply", "--filename", "-"];
        let output = self.output(&arguments, &object.to_string()).await?;
        succeeded(&output, "kubectl", &arguments).map(drop)
    }

    /// Applies an object that must be refused; returns what the API server said.
    ///
    /// # Errors
    /// When it is taken.
    pub async fn refused(&self, object: &Value) -> Result<String> {
        let output = self
            .output(&["apply", "--filename", "-"], &object.to_string())
            .await?;
        ensure!(!output.status.success(), "it was taken: {object}");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// An object, for example `deployment/orders-worker`; none if there is none.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn get(&self, object: &str) -> Result<Option<Value>> {
        let text = self
            .run(&["get", object, "--ignore-not-found", "--output", "json"])
            .await?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text)
            .map(Some)
            .context("kubectl prints JSON")
    }

    /// All objects of a kind with these labels.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn list(&self, kind: &str, labels: &str) -> Result<Vec<Value>> {
        let text = self
            .run(&["get", kind, "--selector", labels, "--output", "json"])
            .await?;
        let list: Value = serde_json::from_str(&text).context("kubectl prints JSON")?;
        let items = list["items"].as_array();
        items
            .cloned()
            .with_context(|| format!("a list without items: {list}"))
    }

    /// Waits until an object satisfies a condition and returns it.
    ///
    /// # Errors
    /// When it does not by `deadline`; the message shows its last status.
    pub async fn wait(
        &self,
        object: &str,
        what: &str,
        deadline: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        eventually(&format!("{object} {what}"), deadline, || async {
            let found = self
                .get(object)
                .await
                .map_err(|error| format!("{error:#}"))?;
            let found = found.ok_or_else(|| "it is not there".to_owned())?;
            when(holds(&found), || found["status"].to_string())?;
            Ok::<_, String>(found)
        })
        .await
    }

    /// Waits until a condition of an object has this status and returns the condition.
    ///
    /// # Errors
    /// When it has not by `deadline`; the message shows its last status.
    pub async fn wait_condition(
        &self,
        object: &str,
        kind: &str,
        status: &str,
        deadline: Duration,
    ) -> Result<Value> {
        let holds = |found: &Value| is_current(found) && condition(found, kind)["status"] == status;
        let found = self
            .wait(object, &format!("is {kind}={status}"), deadline, holds)
            .await?;
        Ok(condition(&found, kind).clone())
    }

    /// Kills the processes of a pod's container with -9, from the node, as its memory killer would.
    ///
    /// # Errors
    /// When there is no such container, or this is not the node.
    pub async fn kill_9(&self, pod: &str) -> Result<()> {
        let found = self
            .get(&format!("pod/{pod}"))
            .await?
            .with_context(|| format!("no pod {pod}"))?;
        let id = found["status"]["containerStatuses"][0]["containerID"]
            .as_str()
            .and_then(|id| id.strip_prefix("containerd://"))
            .with_context(|| format!("pod {pod} has no container of containerd"))?;
        let arguments = [
            "--namespace",
            "k8s.io",
            "tasks",
            "kill",
            "--signal",
            "SIGKILL",
            id,
        ];
        succeeded(&program("ctr", &arguments, "").await?, "ctr", &arguments).map(drop)
    }
}

/// Runs helm; it must succeed. Returns what it printed.
///
/// # Errors
/// When it fails; the message shows what it said.
pub async fn helm(arguments: &[&str]) -> Result<String> {
    succeeded(&program("helm", arguments, "").await?, "helm", arguments)
}

/// A condition in the status of an object; null if it is not there.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

/// Whether the status speaks of the present specification, as far as the object says.
pub fn is_current(object: &Value) -> bool {
    let observed = &object["status"]["observedGeneration"];
    observed.is_null() || *observed == object["metadata"]["generation"]
}

/// The name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

async fn program(name: &str, arguments: &[&str], input: &str) -> Result<Output> {
    let mut command = run::command(name);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {name}"))?;
    let mut stdin = child.stdin.take().context("its standard input")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    tokio::time::timeout(PATIENCE, child.wait_with_output())
        .await
        .with_context(|| format!("{name} {arguments:?} takes more than {PATIENCE:?}"))?
        .with_context(|| format!("wait for {name}"))
}

fn succeeded(output: &Output, name: &str, arguments: &[&str]) -> Result<String> {
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{name} {} ended with {}: {printed}{said}",
            arguments.join(" "),
            output.status
        );
    }
    Ok(printed.into_owned())
}
