//! The commands and their exit codes.
//!
//! Invariant: 0 is done, 1 is something wrong with what was looked at, 2 is a wrong use of the
//! command line. What a command found goes to the writer it is given, failures to the caller.

use std::io::{self, Write};
use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::definitions;
use crate::logging::{self, LogFormat};
use crate::plan::Settings;
use crate::run::{self, Run};
use crate::validation;

/// Runs Postroom in a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(
    name = "postroom-operator",
    version,
    after_help = "Examples:\n  postroom-operator run --worker-image registry.example.com/postroom:0.1.0\n  postroom-operator crds | kubectl apply --server-side -f -\n  postroom-operator validate orders.yaml"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Work on the resources of a cluster until SIGTERM or SIGINT
    #[command(
        after_help = "Examples:\n  postroom-operator run --worker-image registry.example.com/postroom:0.1.0\n  KUBECONFIG=~/.kube/config postroom-operator run --worker-image postroom:dev --watch-namespaces shop,billing --http-address 127.0.0.1:8080\n\nIn a pod it uses the service account; elsewhere the current context of the kubeconfig. Of several, one works and the others stand by."
    )]
    Run(RunArguments),
    /// Print the resource definitions
    #[command(
        after_help = "Examples:\n  postroom-operator crds | kubectl apply --server-side -f -\n  postroom-operator crds --chart > charts/postroom/templates/crd-inboxoutboxes.yaml"
    )]
    Crds(CrdsArguments),
    /// Check an InboxOutbox manifest without a cluster
    #[command(
        after_help = "Examples:\n  postroom-operator validate orders.yaml\n  postroom-operator validate --output json orders.yaml\n  kubectl get iob orders -o yaml | postroom-operator validate -\n\nExit codes: 0 the manifest is valid, 1 it is not, 2 the file cannot be read."
    )]
    Validate(ValidateArguments),
}

#[derive(Debug, Args)]
struct RunArguments {
    /// Image of workers and migrations: of the same release as this operator
    #[arg(long, env = "POSTROOM_WORKER_IMAGE", value_name = "IMAGE")]
    worker_image: String,
    /// When the image is pulled
    #[arg(
        long,
        env = "POSTROOM_WORKER_IMAGE_PULL_POLICY",
        value_enum,
        default_value_t
    )]
    worker_image_pull_policy: PullPolicy,
    /// Namespaces to work in; all if left out
    #[arg(
        long,
        env = "POSTROOM_WATCH_NAMESPACES",
        value_delimiter = ',',
        value_name = "NAMESPACES"
    )]
    watch_namespaces: Vec<String>,
    /// Namespace of the Lease that says which of several operators works
    #[arg(
        long,
        env = "POSTROOM_NAMESPACE",
        default_value = "default",
        value_name = "NAMESPACE"
    )]
    namespace: String,
    /// Name of this operator among several
    #[arg(long, env = "POSTROOM_IDENTITY", value_name = "NAME")]
    identity: Option<String>,
    /// Address for probes and metrics
    #[arg(
        long,
        env = "POSTROOM_HTTP_ADDRESS",
        default_value = "127.0.0.1:8080",
        value_name = "HOST:PORT"
    )]
    http_address: SocketAddr,
    /// What to log: a level, or levels by module
    #[arg(long = "log", env = "POSTROOM_LOG", default_value = "info", value_name = "FILTER", value_parser = logging::parse_filter)]
    log: String,
    /// Form of the log on standard error
    #[arg(long, env = "POSTROOM_LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum PullPolicy {
    /// Every time a container starts
    Always,
    /// Where the node does not have it
    #[default]
    IfNotPresent,
    /// Never
    Never,
}

#[derive(Debug, Args)]
struct CrdsArguments {
    /// Print the template of the Helm chart instead of plain YAML
    #[arg(long, env = "POSTROOM_CHART")]
    chart: bool,
}

#[derive(Debug, Args)]
struct ValidateArguments {
    /// Manifest to check; `-` reads standard input
    file: String,
    /// How to say what was found
    #[arg(long, value_enum, default_value_t, env = "POSTROOM_OUTPUT")]
    output: Output,
}

/// How to say what was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One sentence a line
    #[default]
    Text,
    /// One JSON object
    Json,
}

/// What a command came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Done,
    /// What was looked at is wrong; the output says how.
    FoundWrong,
}

impl Outcome {
    /// The exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::FoundWrong => 1,
        }
    }
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The file named on the command line cannot be read.
    #[error("cannot read {file}: {reason}")]
    Read {
        /// As named on the command line.
        file: String,
        /// What stood in the way.
        reason: String,
    },
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[source] io::Error),
    /// The definitions of this build cannot be rendered.
    #[error("cannot render the resource definitions: {0}")]
    Render(String),
    /// The operator cannot begin, or cannot go on.
    #[error("{0}")]
    Run(String),
}

impl Failure {
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Read { .. } => 2,
            Self::Write(_) | Self::Render(_) => 1,
            Self::Run(_) => 3,
        }
    }
}

impl Cli {
    /// Runs the command.
    pub fn run(&self, out: &mut impl Write) -> Result<Outcome, Failure> {
        match &self.command {
            Command::Run(arguments) => arguments.run().map(|()| Outcome::Done),
            Command::Crds(arguments) => {
                let text = if arguments.chart {
                    definitions::chart_template()?
                } else {
                    definitions::yaml()?
                };
                out.write_all(text.as_bytes()).map_err(Failure::Write)?;
                Ok(Outcome::Done)
            }
            Command::Validate(arguments) => {
                validation::validate(&arguments.file, arguments.output, out)
            }
        }
    }
}

impl RunArguments {
    /// One thread: the operator waits for others nearly all the time.
    fn run(&self) -> Result<(), Failure> {
        logging::start(&self.log, self.log_format);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| Failure::Run(format!("no event loop: {error}")))?;
        runtime
            .block_on(run::run(self.settled()))
            .map_err(Failure::Run)
    }

    fn settled(&self) -> Run {
        let pull_policy = match self.worker_image_pull_policy {
            PullPolicy::Always => "Always",
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Never => "Never",
        };
        let named = |namespace: &&String| !namespace.is_empty();
        Run {
            settings: Settings {
                worker_image: self.worker_image.clone(),
                image_pull_policy: pull_policy.to_owned(),
            },
            namespaces: self
                .watch_namespaces
                .iter()
                .filter(named)
                .cloned()
                .collect(),
            own_namespace: self.namespace.clone(),
            identity: self.identity.clone().unwrap_or_else(own_identity),
            http_address: self.http_address,
        }
    }
}

/// The host's name is the pod's; the number tells processes of one host apart.
fn own_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}

#[cfg(test)]
mod tests;
