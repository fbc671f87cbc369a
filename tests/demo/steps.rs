//! What is shown while the demo goes on: numbered steps with their times, colours only on a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::Result;

/// How often progress is written where it cannot replace itself.
const PAUSE: Duration = Duration::from_secs(4);

/// The steps of a demo, and the one that is going on.
#[derive(Debug)]
pub(crate) struct Steps {
    number: usize,
    total: usize,
    terminal: bool,
    name: &'static str,
    next: &'static str,
    began: Instant,
    shown: Instant,
}

impl Steps {
    /// `before` steps were taken by somebody else, `own` are to come.
    pub(crate) fn new(before: usize, own: usize) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let now = Instant::now();
        Self {
            number: before,
            total: before + own,
            terminal: std::io::stdout().is_terminal() && !plain,
            name: "Begin",
            next: "",
            began: now,
            shown: now,
        }
    }

    /// Begins a step; `next` is what to do when it fails.
    pub(crate) fn begin(&mut self, name: &'static str, next: &'static str) -> Result<()> {
        self.number += 1;
        (self.name, self.next, self.began) = (name, next, Instant::now());
        let line = format!("[{}/{}] {name}", self.number, self.total);
        self.say(&self.bold(&line))
    }

    /// Ends it, with what there is now.
    pub(crate) fn done(&self, found: &str) -> Result<()> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.say(&format!(
            "{}      done in {seconds:.1} s{}{found}",
            self.line_start(),
            if found.is_empty() { "" } else { ": " }
        ))
    }

    /// Shows how far the step is: in place on a terminal, else a line now and then.
    pub(crate) fn progress(&mut self, text: &str) -> Result<()> {
        if self.terminal {
            write!(std::io::stdout(), "{}      {text}", self.line_start())?;
            return Ok(std::io::stdout().flush()?);
        }
        if self.shown.elapsed() < PAUSE {
            return Ok(());
        }
        self.shown = Instant::now();
        self.say(&format!("      {text}"))
    }

    /// Something that happened in the middle of a step.
    pub(crate) fn note(&self, text: &str) -> Result<()> {
        self.say(&format!("{}      {text}", self.line_start()))
    }

    /// What a command printed, set in.
    pub(crate) fn show(&self, text: &str) -> Result<()> {
        let lines: Vec<String> = text
            .trim_end()
            .lines()
            .map(|line| format!("      {line}").trim_end().to_owned())
            .collect();
        self.say(&format!("{}\n", lines.join("\n")))
    }

    /// Any line.
    pub(crate) fn say(&self, text: &str) -> Result<()> {
        Ok(writeln!(std::io::stdout(), "{text}")?)
    }

    /// What is said when the step that goes on has failed.
    pub(crate) fn failure(&self, why: &str, logs: &str) -> String {
        let head = format!("Step {} failed: {}", self.number, self.name);
        format!(
            "{}{}\n  why:  {}\n  logs: {logs}\n  next: {}",
            self.line_start(),
            self.red(&head),
            why.trim_end().replace('\n', "\n        "),
            self.next
        )
    }

    pub(crate) fn bold(&self, text: &str) -> String {
        self.styled("1", text)
    }

    pub(crate) fn red(&self, text: &str) -> String {
        self.styled("31", text)
    }

    pub(crate) fn green(&self, text: &str) -> String {
        self.styled("32", text)
    }

    fn styled(&self, style: &str, text: &str) -> String {
        if self.terminal {
            format!("\x1b[{style}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Goes over what [`Self::progress`] has written.
    fn line_start(&self) -> &'static str {
        if self.terminal { "\r\x1b[K" } else { "" }
    }
}
