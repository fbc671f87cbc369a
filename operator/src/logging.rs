//! The log on standard error; standard output carries answers only.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// What the filter of the command line is added to: refusals that are answers to us are told by us, with what they mean.
const QUIET: &str = "kube_client::client::builder=off";

/// Form of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Starts logging. A second call has no effect.
pub fn start(filter: &str, format: LogFormat) {
    let filter = EnvFilter::new(format!("{QUIET},{filter}"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr);
    let started = match format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_ansi(false)
            .try_init(),
        LogFormat::Text => {
            let coloured = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(coloured).with_target(false).try_init()
        }
    };
    // It fails only where a log is already set up; that one stays.
    drop(started);
}

/// Refuses a filter that cannot be read, while the command line is read.
///
/// # Errors
/// When the filter cannot be read.
pub fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text)
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}
