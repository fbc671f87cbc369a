//! One run of a demo, from its first step to its exit code, also when a step fails or somebody wants it to end.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use tokio::signal::unix::{SignalKind, signal};

use crate::place;
use crate::steps::Steps;

/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Runs the steps of `demo`; false means that it came to its end and something is not as it must be. `after_failure`
/// says where to look when a step has failed.
pub(crate) fn run(
    steps: &mut Steps,
    demo: impl AsyncFnOnce(&mut Steps) -> Result<bool>,
    after_failure: impl FnOnce() -> String,
) -> Result<ExitCode> {
    ensure!(
        Path::new("tests/demo/shop.yaml").is_file(),
        "tests/demo/shop.yaml is not here: run this in the repository"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        let interrupted = interrupted()?;
        tokio::select! {
            ended = demo(steps) => Ok(Some(ended)),
            () = interrupted => Ok::<_, anyhow::Error>(None),
        }
    })?;
    runtime.shutdown_background();
    match ended {
        Some(Ok(true)) => Ok(ExitCode::SUCCESS),
        Some(Ok(false)) => Ok(ExitCode::FAILURE),
        Some(Err(error)) => {
            let text = steps.failure(&format!("{error:#}"), &after_failure());
            writeln!(std::io::stderr(), "\n{text}")?;
            Ok(ExitCode::FAILURE)
        }
        None => {
            steps.note("Interrupted: ending what was started")?;
            place::remove()?;
            steps.say("Removed: no server and no worker of the demo is left running.")?;
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

/// Ready when somebody wants the demo to end.
fn interrupted() -> Result<impl Future<Output = ()>> {
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = quit.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}
