//! The log on standard error.
//!
//! Invariant: standard output carries answers only, so that it can be piped.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

use super::{Log, LogFormat};

/// What the filter of the command line is added to. The AMQP library logs every returned message with its body; what
/// matters of that is logged by the worker itself. A directive for `lapin` on the command line wins.
const QUIET: &str = "lapin=off";

/// Starts logging. A second call has no effect.
pub fn start(log: &Log) {
    let filter = EnvFilter::new(format!("{QUIET},{}", log.filter));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr);
    let started = match log.format {
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
pub(super) fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text)
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}
