//! Commands that only look: `stats` and `explain`.
//!
//! Invariant: unknown is an error, never a zero.

mod table;

use std::io::{self, IsTerminal, Write, stdout};
use std::time::Duration;

use postroom_crds::worker_config::WorkerConfig;
use serde_json::json;

use crate::cli::Output;
use crate::clock;
use crate::database::{Database, Session};
use crate::reason::Reason;
use crate::store::{self, Backlog};

/// Deadline of one look.
const LOOK: Duration = Duration::from_secs(30);
/// Pause between two looks of `stats --watch`.
const PAUSE: Duration = Duration::from_secs(2);
/// Goes to the upper left corner and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the backlog, once or until Ctrl-C.
pub async fn stats(config: &WorkerConfig, output: Output, watch: bool) -> Result<(), Reason> {
    let mut session = Database::new(&config.database, &config.schema).session("stats");
    let backlog = session.call(LOOK, store::backlog).await?;
    if !watch {
        return show(config, &backlog, output, false).or_else(unprinted);
    }
    tokio::select! {
        watched = watch_backlog(config, &mut session, backlog, output) => watched.or_else(unprinted),
        stopped = tokio::signal::ctrl_c() => stopped.map_err(|error| Reason::new("StartFailed", format!("no signals: {error}"), "Run it without --watch.")),
    }
}

/// Ends only when nobody reads it any more.
async fn watch_backlog(
    config: &WorkerConfig,
    session: &mut Session,
    first: Vec<Backlog>,
    output: Output,
) -> io::Result<()> {
    show(config, &first, output, true)?;
    loop {
        tokio::time::sleep(PAUSE).await;
        match session.call(LOOK, store::backlog).await {
            Ok(backlog) => show(config, &backlog, output, true)?,
            Err(reason) => tracing::warn!(code = reason.code, "{reason}"),
        }
    }
}

fn show(
    config: &WorkerConfig,
    backlog: &[Backlog],
    output: Output,
    watched: bool,
) -> io::Result<()> {
    let time = clock::rfc3339(clock::now());
    let mut stdout = stdout();
    match output {
        Output::Json => writeln!(
            stdout,
            "{}",
            json!({"schema": config.schema, "measuredTime": time, "endpoints": backlog})
        ),
        Output::Table if watched && stdout.is_terminal() => {
            writeln!(
                stdout,
                "{CLEAR}Schema {} at {time}; Ctrl-C ends this\n\n{}",
                config.schema,
                table::of(backlog)
            )
        }
        Output::Table if watched => backlog
            .iter()
            .try_for_each(|row| writeln!(stdout, "{time} {}", table::line(row))),
        Output::Table => writeln!(stdout, "{}", table::of(backlog)),
    }
}

/// Says where a message is.
pub async fn explain(
    config: &WorkerConfig,
    message_id: &str,
    tenant: Option<&str>,
    output: Output,
) -> Result<(), Reason> {
    let mut session = Database::new(&config.database, &config.schema).session("explain");
    let sentences = session
        .call(LOOK, async |link| {
            store::explain_message(link, message_id, tenant).await
        })
        .await?;
    session.close().await;
    let mut stdout = stdout();
    match output {
        Output::Json => writeln!(
            stdout,
            "{}",
            json!({"messageId": message_id, "sentences": sentences})
        ),
        Output::Table => sentences
            .iter()
            .try_for_each(|sentence| writeln!(stdout, "{sentence}")),
    }
    .or_else(unprinted)
}

/// A reader that has seen enough is no failure.
fn unprinted(error: io::Error) -> Result<(), Reason> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Ok(());
    }
    Err(Reason::new(
        "OutputFailed",
        format!("the answer was not printed: {error}"),
        "Check what reads the output.",
    ))
}
