//! The real worker as a child process: asked, frozen, killed. [`crate::launch`] starts it.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::eventually::{eventually, when};
use crate::http::{Client, Response};
use crate::process::{Process, Signal};

/// How much of a worker's log a failing test shows.
const SHOWN_LINES: usize = 60;

/// A running worker. Dropped, it is ended, and a failing test shows the end of its log.
#[derive(Debug)]
pub struct Worker {
    process: Process,
    http: Client,
    quiet: bool,
}

impl Worker {
    pub(crate) fn new(process: Process, port: u16) -> Self {
        Self {
            process,
            http: Client::new(port),
            quiet: false,
        }
    }

    /// The same, but nobody will want to see its log.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its HTTP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.http.port()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Asks it to drain and end.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn sigterm(&self) -> Result<()> {
        self.signal(Signal::Term)
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    /// When it is still there after ten seconds.
    pub async fn kill_9(&self) -> Result<()> {
        self.signal(Signal::Kill)?;
        self.wait_exit(Duration::from_secs(10)).await.map(drop)
    }

    /// Freezes it.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn sigstop(&self) -> Result<()> {
        self.signal(Signal::Stop)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn sigcont(&self) -> Result<()> {
        self.signal(Signal::Cont)
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn exited(&self) -> Result<Option<ExitStatus>> {
        self.process.exited()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it is still there after `deadline`.
    pub async fn wait_exit(&self, deadline: Duration) -> Result<ExitStatus> {
        self.process.wait_exit(deadline).await
    }

    /// Any page of its HTTP port.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn get(&self, path: &str) -> Result<Response> {
        self.http.get(path).await
    }

    /// Waits until `/readyz` says yes.
    ///
    /// # Errors
    /// When it does not by `deadline`, or has ended.
    pub async fn ready(&self, deadline: Duration) -> Result<()> {
        let ready = eventually("the worker is ready", deadline, async || {
            self.get("/readyz").await?.success().map(drop)
        });
        // Both have the same deadline; the one that knows more is asked first.
        let answer = tokio::select! {
            biased;
            ready = ready => ready,
            ended = self.wait_exit(deadline) => ended.and_then(|status| bail!("the worker ended with {status}")),
        };
        answer.with_context(|| format!("its log ends:\n{}", self.process.log_tail(SHOWN_LINES)))
    }

    /// The status and body of `/stats`.
    ///
    /// # Errors
    /// When it does not answer or not in JSON.
    pub async fn stats(&self) -> Result<(u16, Value)> {
        let answer = self.get("/stats").await?;
        Ok((answer.status, answer.json()?))
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metrics(&self) -> Result<String> {
        Ok(self.get("/metrics").await?.success()?.body)
    }

    /// The sum of all samples of a metric that have these labels; none if there is no such sample.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<Option<f64>> {
        Ok(sum_of_samples(&self.metrics().await?, name, labels))
    }

    /// Waits until `/stats` satisfies a condition.
    ///
    /// # Errors
    /// When it does not by `deadline`; the message shows the last answer.
    pub async fn wait_stats(
        &self,
        what: &str,
        deadline: Duration,
        holds: impl Fn(u16, &Value) -> bool,
    ) -> Result<Value> {
        eventually(what, deadline, || async {
            let (status, stats) = self.stats().await.map_err(|error| format!("{error:#}"))?;
            when(holds(status, &stats), || format!("{status} {stats}"))?;
            Ok::<_, String>(stats)
        })
        .await
    }

    /// Waits until its log contains a text.
    ///
    /// # Errors
    /// When it does not by `deadline`.
    pub async fn wait_log(&self, text: &str, deadline: Duration) -> Result<()> {
        let what = format!("'{text}' in the worker's log");
        eventually(&what, deadline, || async {
            when(self.log().contains(text), || {
                self.process.log_tail(SHOWN_LINES)
            })
        })
        .await
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.process.end();
        if self.quiet {
            return;
        }
        // The test runner shows this only if the test fails.
        eprintln!(
            "--- log of worker {} ends:\n{}",
            self.pid(),
            self.process.log_tail(SHOWN_LINES)
        );
    }
}

fn sum_of_samples(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let samples = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (given, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let wanted = labels.iter().all(|(label, value)| {
            given
                .split(',')
                .any(|pair| pair.trim() == format!("{label}=\"{value}\""))
        });
        wanted.then(|| value.trim().parse::<f64>().ok()).flatten()
    });
    samples.reduce(|sum, sample| sum + sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 4\nab 9\nplain 5\n";

    #[test]
    fn samples_are_found_by_name_and_labels_and_added_up() {
        assert_eq!(sum_of_samples(TEXT, "a", &[("x", "1")]), Some(7.0));
        assert_eq!(
            sum_of_samples(TEXT, "a", &[("x", "1"), ("y", "3")]),
            Some(4.0)
        );
        assert_eq!(sum_of_samples(TEXT, "plain", &[]), Some(5.0));
    }

    #[test]
    fn no_sample_is_not_zero() {
        assert_eq!(sum_of_samples(TEXT, "a", &[("x", "2")]), None);
        assert_eq!(sum_of_samples(TEXT, "b", &[]), None);
    }
}
