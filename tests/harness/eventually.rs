//! Waiting for a condition instead of for time.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Asks `probe` again and again until it answers `Ok`, at most for `deadline`.
///
/// # Errors
/// When the deadline passes; the message names `what` and shows the last answer.
pub async fn eventually<T, E, P, F>(what: &str, deadline: Duration, mut probe: P) -> Result<T>
where
    E: Display,
    P: FnMut() -> F,
    F: Future<Output = Result<T, E>>,
{
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    let mut last = "no answer at all".to_owned();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => last = format!("{seen:#}"),
            Err(_) => bail!("{what}: not within {deadline:?}; last seen: {last}"),
        }
        if Instant::now() + pause >= end {
            bail!("{what}: not within {deadline:?}; last seen: {last}");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Turns a yes-or-no question into an answer for [`eventually`].
///
/// # Errors
/// When `holds` is false, with what `seen` says.
pub fn when(holds: bool, seen: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(seen()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_that_comes_true_is_returned() {
        let mut asked = 0;
        let answer = eventually("third time", Duration::from_secs(5), || {
            asked += 1;
            let now = asked;
            async move {
                if now < 3 {
                    Err(format!("asked {now} times"))
                } else {
                    Ok(now)
                }
            }
        })
        .await
        .unwrap();
        assert_eq!(answer, 3);
    }

    #[tokio::test]
    async fn a_condition_that_never_comes_true_fails_with_what_was_seen_last() {
        let error = eventually("the moon is green", Duration::from_millis(30), || async {
            Err::<(), _>("it is grey")
        })
        .await
        .unwrap_err();
        assert!(error.to_string().contains("the moon is green"), "{error}");
        assert!(error.to_string().contains("it is grey"), "{error}");
    }

    #[tokio::test]
    async fn a_probe_that_hangs_does_not_outlive_the_deadline() {
        let began = Instant::now();
        let hang = || std::future::pending::<Result<(), String>>();
        eventually("never", Duration::from_millis(50), hang)
            .await
            .unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(2));
    }
}
