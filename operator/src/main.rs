//! Starts the operator's command line.
//!
//! Invariant: the cryptography of all connections is chosen before anything connects.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use postroom_operator::cli::{Cli, Failure};

fn main() -> ExitCode {
    // It fails only where a provider is already chosen; none is, this early.
    drop(rustls::crypto::ring::default_provider().install_default());
    let cli = Cli::parse();
    let mut out = io::stdout().lock();
    let outcome = cli.run(&mut out).and_then(|outcome| {
        out.flush().map_err(Failure::Write)?;
        Ok(outcome)
    });
    match outcome {
        Ok(outcome) => ExitCode::from(outcome.exit_code()),
        // Whoever reads the output has seen enough.
        Err(Failure::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
