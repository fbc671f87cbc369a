//! One child process whose end is always known.
//!
//! Invariant: a signal goes only to a child that has not been waited for, so its number cannot belong to anybody else.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

const POLL: Duration = Duration::from_millis(10);

/// How long a child may take to end by itself before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A signal by the name that `kill` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ends it now; nothing is written any more.
    Kill,
    /// Asks it to end in good order.
    Term,
    /// PostgreSQL: fast shutdown.
    Int,
    /// PostgreSQL: immediate shutdown; most others: end now.
    Quit,
    /// Freezes it.
    Stop,
    /// Lets it go on.
    Cont,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "KILL",
            Self::Term => "TERM",
            Self::Int => "INT",
            Self::Quit => "QUIT",
            Self::Stop => "STOP",
            Self::Cont => "CONT",
        }
    }
}

/// A child process with its log. Dropped, it is ended.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Mutex<Child>,
    pid: u32,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it prints is added to the file `log`.
    ///
    /// # Errors
    /// When the log cannot be opened or the program cannot be started.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        let child = command
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {name}: {}", command.get_program().display()))?;
        let pid = child.id();
        Ok(Self {
            name: name.to_owned(),
            child: Mutex::new(child),
            pid,
            log: log.to_owned(),
        })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends `signal`; nothing happens when the process has ended.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = self
            .child
            .lock()
            .expect("no panic while a child is looked at");
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        let status = Command::new("sh")
            .args([
                "-c",
                "kill -s \"$0\" \"$1\"",
                signal.name(),
                &self.pid.to_string(),
            ])
            .status()
            .context("run kill")?;
        if !status.success() {
            bail!(
                "cannot send {} to {} (pid {})",
                signal.name(),
                self.name,
                self.pid
            );
        }
        Ok(())
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn exited(&self) -> Result<Option<ExitStatus>> {
        Ok(self
            .child
            .lock()
            .expect("no panic while a child is looked at")
            .try_wait()?)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When it is still there after `deadline`; the message shows the end of its log.
    pub async fn wait_exit(&self, deadline: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() >= end {
                bail!(
                    "{} (pid {}) still runs after {deadline:?}; its log ends:\n{}",
                    self.name,
                    self.pid,
                    self.log_tail(30)
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// All it has printed so far.
    pub fn log(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The last lines of it.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log(), lines)
    }

    /// Ends it without ceremony and waits for that; used when it goes out of scope.
    pub fn end(&self) {
        for (signal, patience) in [(Signal::Quit, PATIENCE), (Signal::Kill, PATIENCE)] {
            if self
                .signal(signal)
                .and_then(|()| self.signal(Signal::Cont))
                .is_err()
            {
                return;
            }
            let end = Instant::now() + patience;
            while Instant::now() < end {
                if !matches!(self.exited(), Ok(None)) {
                    return;
                }
                std::thread::sleep(POLL);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
