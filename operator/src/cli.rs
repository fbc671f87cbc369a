//! The commands and their exit codes.
//!
//! Invariant: 0 is done, 1 is something wrong with what was looked at, 2 is a wrong use of the
//! command line. What a command found goes to the writer it is given, failures to the caller.

use std::io::{self, Write};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::definitions;
use crate::validation;

/// Runs Postroom in a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(
    name = "postroom-operator",
    version,
    after_help = "Examples:\n  postroom-operator crds | kubectl apply --server-side -f -\n  postroom-operator validate orders.yaml"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
}

impl Failure {
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Read { .. } => 2,
            Self::Write(_) | Self::Render(_) => 1,
        }
    }
}

impl Cli {
    /// Runs the command.
    pub fn run(&self, out: &mut impl Write) -> Result<Outcome, Failure> {
        match &self.command {
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

#[cfg(test)]
mod tests;
