//! The folder of this test process, and the guard that removes it.
//!
//! Invariant: when the test process is gone, for whatever reason, everything it started is stopped and its folder is
//! removed. The guard is a small shell process that waits for the end of its standard input, whose other end only the
//! test process holds; then it stops exactly the processes that carry this run's marker in their environment.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, os::unix::process::CommandExt as _};

use anyhow::{Context as _, Result, ensure};

/// Environment variable that every process of a run carries; the guard stops only processes that have it.
pub const MARKER: &str = "POSTROOM_TEST_RUN";

/// Processes get a chance to remove their shared memory (QUIT), then are killed. The folder goes last, so that an
/// interrupted guard leaves a trace that can be found.
const GUARD: &str = r#"
folder=$1
mine() {
  for entry in /proc/[0-9]*; do
    if grep -qzxF "POSTROOM_TEST_RUN=$folder" "$entry/environ" 2>/dev/null; then echo "${entry#/proc/}"; fi
  done
}
while read -r _; do :; done
signal=QUIT
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  pids=$(mine)
  [ -z "$pids" ] && break
  [ "$round" -gt 12 ] && signal=KILL
  for pid in $pids; do kill -s "$signal" "$pid" 2>/dev/null; kill -s CONT "$pid" 2>/dev/null; done
  sleep 0.25
done
rm -rf -- "$folder"
"#;

struct Run {
    folder: PathBuf,
    /// Never waited for: it ends after this process does.
    _guard: Option<Child>,
}

static RUN: OnceLock<Run> = OnceLock::new();
static NEXT: AtomicU32 = AtomicU32::new(1);

fn begin() -> Result<Run> {
    let name = format!("postroom-{}-{}", std::process::id(), random_word());
    let folder = std::env::temp_dir().join(&name[..name.len().min(30)]);
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let guard = guard(&folder).stdin(Stdio::piped()).spawn();
    let guard = guard.context("start the guard of this test run")?;
    Ok(Run {
        folder,
        _guard: Some(guard),
    })
}

fn guard(folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", GUARD, "postroom-test-guard"])
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A Ctrl-C at the terminal must not end the guard before it has done its work.
        .process_group(0);
    command
}

/// For what should outlive this process, as a demonstration does: everything goes to `folder`, and nothing ends before
/// [`end`] is called for it.
///
/// # Errors
/// When the folder exists or cannot be created, or something has been started already.
pub fn keep_in(folder: &Path) -> Result<()> {
    fs::create_dir(folder).with_context(|| format!("create {}", folder.display()))?;
    let kept = RUN.set(Run {
        folder: folder.to_owned(),
        _guard: None,
    });
    ensure!(kept.is_ok(), "the folder of this run is already in use");
    Ok(())
}

/// Stops everything that was started with `folder` as the folder of its run, and removes that.
///
/// # Errors
/// When the folder is still there afterwards.
pub fn end(folder: &Path) -> Result<()> {
    guard(folder)
        .stdin(Stdio::null())
        .status()
        .context("run the guard")?;
    ensure!(!folder.exists(), "{} is still there", folder.display());
    Ok(())
}

/// The folder of this test process.
pub fn folder() -> &'static Path {
    &RUN.get_or_init(|| begin().expect("a folder and a guard for this test run"))
        .folder
}

/// A new folder inside it.
///
/// # Errors
/// When it cannot be created.
pub fn new_folder(name: &str) -> Result<PathBuf> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder().join(format!("{name}-{number}"));
    fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(path)
}

/// A name that no other test of any run on this machine uses: for databases, virtual hosts and users.
pub fn unique_name(prefix: &str) -> String {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}_{}_{number}", std::process::id())
}

/// A random word for passwords: hard to guess, and easy to search for in logs that must not contain it.
pub fn random_word() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// A command that belongs to this run: marked for the guard, in a process group of its own, reading nothing.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env(MARKER, folder())
        .stdin(Stdio::null())
        .process_group(0);
    command
}
