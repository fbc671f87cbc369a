//! The benchmark: what a worker does on this machine, against what the machine itself can do in the same minute.
//!
//! ```text
//! bed      servers of its own; a fresh database, virtual host and queue for each measurement
//! fill     what waits in the outbox, and the same bodies in memory
//! bare     a loop that publishes bodies from memory with confirms: what everything is compared with
//! drain    how long a worker takes for what waits
//! cases    what is measured
//! machine  processor time, of whom; versions and settings
//! report   median, range, target; a table for people, JSON for programs
//! ```
//!
//! Invariants: a ratio compares two measurements of the same minute; repetitions are interleaved; what others on the
//! machine used meanwhile is said; a missed target is shown, and is no failure.

mod bare;
mod bed;
mod cases;
mod drain;
mod fill;
mod machine;
mod progress;
mod report;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;

use bed::Servers;
use cases::Case;
use progress::Progress;
use report::Report;

const EXAMPLES: &str = "\
Examples:
  make bench                                            everything, as the figures of the project are measured
  postroom-bench --case drain --messages 50000          one case, with less to do
  postroom-bench --case latency --rate 200 --seconds 60
  postroom-bench --repetitions 1 --json /tmp/one.json   a quick look
  POSTROOM_TEST_SERVERS=trixie postroom-bench           with PostgreSQL 17 and RabbitMQ 4.0

The exit code is 0 when everything could be measured, whether or not the targets are met.";

/// Measures Postroom against a bare publishing loop on this machine, with servers of its own.
#[derive(Debug, Parser)]
#[command(name = "postroom-bench", version, after_help = EXAMPLES)]
struct Cli {
    /// Run only this case; may be given more than once
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<Case>,
    /// Interleaved repetitions
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    repetitions: u32,
    /// Where the results go as JSON
    #[arg(long, default_value = "bench-results.json", value_name = "PATH")]
    json: PathBuf,
    #[command(flatten)]
    sizes: Sizes,
}

/// How much there is to do.
#[derive(Debug, Clone, Copy, clap::Args, serde::Serialize)]
struct Sizes {
    /// Messages that wait when a drain begins
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    messages: u32,
    /// Streams in the case `streams`
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    streams: u32,
    /// Messages of one stream that are first in line in the case `hot-stream`
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    hot: u32,
    /// Messages that wait for their time in the case `scheduled`
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    scheduled: u32,
    /// Identities in the case `memory`
    #[arg(long, default_value_t = 20_000_000, value_parser = clap::value_parser!(u32).range(1_000..=200_000_000))]
    remembered: u32,
    /// Messages a second in the case `latency`
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// How long the cases `latency` and `idle` measure
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let measured = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(measure(&cli)));
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(std::io::stderr(), "{error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

async fn measure(cli: &Cli) -> Result<()> {
    let progress = Progress::default();
    progress.say("starting PostgreSQL and RabbitMQ");
    let servers = Servers::start().await?;
    let about = machine::about(&servers).await?;
    writeln!(std::io::stdout(), "{}", about.text())?;
    let mut cases: Vec<Case> = Case::all().to_vec();
    if !cli.cases.is_empty() {
        cases.retain(|case| cli.cases.contains(case));
    }
    let mut report = Report::new(about, cli.sizes);
    for repetition in 1..=cli.repetitions {
        for &case in &cases {
            progress.begin(&format!(
                "[{repetition}/{}] {}",
                cli.repetitions,
                case.name()
            ));
            let before = machine::Used::now()?;
            let figures = cases::run(case, &servers, &cli.sizes, &progress)
                .await
                .with_context(|| format!("case {}", case.name()))?;
            let others = machine::Used::now()?.share_of_others_since(&before);
            report.add(case, &figures, others);
            // What is known so far stays known, should a later case fail.
            report.write(&cli.json)?;
        }
    }
    progress.end();
    writeln!(std::io::stdout(), "{}", report.table())?;
    let path = cli.json.display();
    writeln!(std::io::stdout(), "Written to {path}.")?;
    Ok(())
}
