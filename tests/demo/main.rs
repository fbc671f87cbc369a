//! The demo: a small shop on real servers, with a worker killed in the middle, judged from outside.
//!
//! ```text
//! place    the folder .demo, and how everything in it is ended
//! session  one run, from its first step to its exit code
//! up       the steps of `make quickstart`: servers and workers as processes of this machine
//! cluster  the steps of `make demo`: the operator and its workers on Kubernetes
//! servers  PostgreSQL, RabbitMQ, database, virtual host, logins, workers
//! day      the shop is open, a worker is killed, everything arrives
//! shop     transactions that commit, roll back, take their time, and send twice
//! billing  the service that receives: an inbox, a handler, an invoice for each order
//! report   the table at the end, and whether it is right
//! guide    how to look around
//! ```
//!
//! Invariants: what is started stays until `down`, or is ended at once when a step fails or Ctrl-C is pressed; the
//! exit code is 0 only if everything committed arrived, nothing else did, each customer's orders came in order, and each
//! had one invoice however often it was delivered.

mod billing;
mod cluster;
mod day;
mod guide;
mod place;
mod report;
mod servers;
mod session;
mod shop;
mod steps;
mod up;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Shows Postroom at work on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "postroom-demo",
    version,
    after_help = "Run it in the repository; `make demo` and `make quickstart` install and build first."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start everything on this machine, let the shop work, show what came of it, and leave the servers running
    Up(Up),
    /// The same with the workers on Kubernetes: install the chart, apply a resource, watch it work
    Cluster(cluster::Cluster),
    /// End what `up` left running, and remove it
    Down,
}

#[derive(Debug, clap::Args)]
struct Up {
    /// How many steps have been taken already, for the numbers that are shown
    #[arg(long, env = "POSTROOM_STEPS_BEFORE", default_value_t = 0)]
    steps_before: usize,
    /// How long the shop takes orders
    #[arg(long, env = "POSTROOM_DEMO_SECONDS", default_value_t = 16, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(4..=3600))]
    seconds: u64,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Up(flags) => up::up(&flags),
        Command::Cluster(flags) => cluster::cluster(&flags),
        Command::Down => down(),
    };
    done.unwrap_or_else(|error| {
        writeln!(std::io::stderr(), "{error:#}").ok();
        ExitCode::FAILURE
    })
}

fn down() -> Result<ExitCode> {
    let text = if place::remove()? {
        "Removed: servers and workers have ended, the folder .demo is gone."
    } else {
        "Nothing to remove: there is no .demo here."
    };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}
