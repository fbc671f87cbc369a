//! What is being done now, on standard error: one line that changes on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often something new is written where lines stay.
const PAUSE: Duration = Duration::from_secs(10);

/// The progress of the whole run.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What belongs before everything.
    part: String,
    last: Option<Instant>,
}

impl Progress {
    /// A new part begins.
    pub(crate) fn begin(&self, part: &str) {
        self.lock().part = format!("{part}: ");
    }

    /// Something new happens.
    pub(crate) fn say(&self, text: &str) {
        self.lock().last = None;
        self.update(text);
    }

    /// The same goes on.
    pub(crate) fn update(&self, text: &str) {
        let mut state = self.lock();
        let mut stderr = std::io::stderr();
        // Whether it can be seen does not matter to what is measured.
        if stderr.is_terminal() {
            write!(stderr, "\r\x1b[2K{}{text}", state.part).ok();
        } else if state.last.is_none_or(|last| last.elapsed() > PAUSE) {
            state.last = Some(Instant::now());
            writeln!(stderr, "{}{text}", state.part).ok();
        }
    }

    /// Clears the line.
    pub(crate) fn end(&self) {
        let mut stderr = std::io::stderr();
        if stderr.is_terminal() {
            write!(stderr, "\r\x1b[2K").ok();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("no panic while progress is written down")
    }
}
