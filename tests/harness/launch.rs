//! How the real worker is started: its executable, arguments and environment.
//!
//! Invariant: a worker gets nothing of the test's own environment, so a scenario means the same on every machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::{Process, tail};
use crate::worker::Worker;
use crate::{ports, run};

/// Names the worker's executable; without it the one beside the test's own is used.
pub const BINARY_VARIABLE: &str = "POSTROOM_WORKER_BIN";

const COMMAND_PATIENCE: Duration = Duration::from_secs(120);

/// How much of what a command said a failing test shows.
const SHOWN_LINES: usize = 60;

/// The worker's executable.
///
/// # Errors
/// When there is none.
pub fn binary() -> Result<PathBuf> {
    let chosen = match std::env::var_os(BINARY_VARIABLE) {
        Some(path) => std::path::absolute(path)?,
        None => neighbour("postroom-worker")?,
    };
    if !chosen.is_file() {
        bail!(
            "{} is missing: build it with 'cargo build --workspace --features postroom-worker/test-hooks'",
            chosen.display()
        );
    }
    warn_if_stale(&chosen);
    Ok(chosen)
}

/// Another program of the same build: tests lie in a folder below the programs, programs side by side.
///
/// # Errors
/// When our own place cannot be told.
pub fn neighbour(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the path of this program")?;
    let folder = own.parent().context("this program lies in no folder")?;
    let folder = match folder.parent() {
        Some(above) if folder.ends_with("deps") => above,
        Some(_) | None => folder,
    };
    Ok(folder.join(name))
}

/// `cargo test` does not build another package's program, so it is easily forgotten. Only a warning, because a source
/// file may just be under work.
fn warn_if_stale(binary: &Path) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = run::command("find")
        .args(["worker", "crds", "migrations"])
        // Neither texts nor unit tests are part of it.
        .args(["-name", "*.md", "-o", "-path", "*/tests*", "-o"])
        .args(["-type", "f", "-newer"])
        .arg(binary)
        .arg("-print")
        .current_dir(workspace)
        .output();
    let newer = sources
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    if !newer.is_empty() {
        eprintln!(
            "{} is older than:\n{newer}build it, or use 'make scenarios ONLY=...'",
            binary.display()
        );
    }
}

/// What a worker is started with. Nothing of the test's own environment gets through.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
}

impl Launch {
    /// `postroom-worker` with these arguments.
    pub fn new(arguments: &[&str]) -> Self {
        Self::default().arguments(arguments)
    }

    /// `postroom-worker run --resource FILE`.
    pub fn run_resource(file: &Path) -> Self {
        Self::new(&["run", "--resource", &file.to_string_lossy()])
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// The connection string of the database.
    #[must_use]
    pub fn database_url(self, url: impl Into<String>) -> Self {
        self.env("DATABASE_URL", url)
    }

    /// The connection string of the broker.
    #[must_use]
    pub fn amqp_url(self, url: impl Into<String>) -> Self {
        self.env("AMQP_URL", url)
    }

    fn command(&self) -> Result<Command> {
        let mut command = run::command(binary()?);
        command
            .args(&self.arguments)
            .env_clear()
            // Should it dump core, the folder goes with the run.
            .current_dir(run::folder())
            .env(run::MARKER, run::folder())
            .envs(&self.environment);
        Ok(command)
    }

    /// Starts a worker that stays.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self) -> Result<Worker> {
        let port = ports::free()?;
        let log = run::new_folder("worker")?.join("log");
        let mut command = self.command()?;
        command.env("POSTROOM_HTTP_ADDRESS", format!("127.0.0.1:{port}"));
        let process = Process::spawn("postroom-worker", &mut command, &log)?;
        Ok(Worker::new(process, port))
    }

    /// Runs a command that ends by itself, for example `migrate`.
    ///
    /// # Errors
    /// When it cannot be started or takes more than two minutes; its own failure is in the output.
    pub async fn output(&self) -> Result<Output> {
        let output = tokio::process::Command::from(self.command()?)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(COMMAND_PATIENCE, output).await;
        output
            .with_context(|| format!("{:?} takes more than {COMMAND_PATIENCE:?}", self.arguments))?
            .context("run postroom-worker")
    }

    /// The same, and it must succeed; returns what it printed.
    ///
    /// # Errors
    /// When it fails; the message shows what it said.
    pub async fn succeed(&self) -> Result<String> {
        let output = self.output().await?;
        let (printed, said) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        if !output.status.success() {
            bail!(
                "postroom-worker {:?} ended with {}:\n{}\n{}",
                self.arguments,
                output.status,
                tail(&said, SHOWN_LINES),
                tail(&printed, SHOWN_LINES)
            );
        }
        Ok(printed.into_owned())
    }
}

/// Runs `postroom-worker` with arguments and environment until it ends.
///
/// # Errors
/// When it cannot be started or takes more than two minutes.
pub async fn run_worker_command(
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Output> {
    environment
        .iter()
        .fold(Launch::new(arguments), |launch, (name, value)| {
            launch.env(name, *value)
        })
        .output()
        .await
}
