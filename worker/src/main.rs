//! `postroom-worker`: reads the command line, runs one command, answers with its exit code.
//!
//! Invariant: the cryptography of all connections is chosen before anything connects.

use std::process::ExitCode;

use clap::Parser;
use postroom_worker::cli::failure::Failure;
use postroom_worker::cli::{Cli, Command, Switch, logging};
use postroom_worker::reason::Reason;
use postroom_worker::{commands, config, migrate, run};

/// A message is allocated on one thread and freed on another, which costs the C library's allocator a fifth of all time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // It fails only where a provider is already chosen; none is, this early.
    drop(rustls::crypto::ring::default_provider().install_default());
    let cli = Cli::parse();
    logging::start(&cli.log);
    let output = cli.command.output();
    match in_runtime(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(output);
            if let Some(file) = &cli.failure_file {
                failure.leave(file);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// One thread: a worker waits for servers, and must not be moved between threads while it keeps its books.
fn in_runtime(command: Command) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| {
        Reason::new(
            "StartFailed",
            format!("no event loop: {error}"),
            "Check the limits of the process.",
        )
    })?;
    runtime.block_on(execute(command))
}

async fn execute(command: Command) -> Result<(), Failure> {
    let output = command.output();
    match command {
        Command::Run(flags) => {
            let config = config::load(&flags.origin)?;
            run::run(config, flags.http_address, flags.sweep == Switch::On).await?;
        }
        Command::Migrate(flags) => {
            let config = config::load(&flags.origin)?;
            if flags.print {
                migrate::print(&config)?;
            } else {
                migrate::migrate(&config, flags.dry_run, output).await?;
            }
        }
        Command::Stats(flags) => {
            let config = config::load(&flags.origin)?;
            commands::stats(&config, output, flags.watch).await?;
        }
        Command::Explain(flags) => {
            let config = config::load(&flags.origin)?;
            commands::explain(&config, &flags.message_id, flags.tenant.as_deref(), output).await?;
        }
    }
    Ok(())
}
