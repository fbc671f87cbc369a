//! The idle poll: one tiny read for all endpoints of the process, only while one of them waits for it.
//!
//! Pauses grow from 2 ms to the ceiling while nothing moves, and start over when something does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};

use crate::database::Session;
use crate::status::{Scope, Status};
use crate::store::{self, Signal};

/// Shortest pause.
const SHORTEST: Duration = Duration::from_millis(2);
/// Deadline of a poll.
const CALL: Duration = Duration::from_secs(10);
/// Pause after a failed poll.
const FAILED: Duration = Duration::from_millis(250);

/// How many endpoints wait for the poll.
#[derive(Debug, Clone, Default)]
pub struct Waiters {
    count: Arc<AtomicUsize>,
    first: Arc<Notify>,
}

impl Waiters {
    /// One more, or one less.
    pub fn change(&self, waits: bool) {
        if waits {
            if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
                self.first.notify_one();
            }
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    async fn any(&self) {
        while self.count.load(Ordering::Relaxed) == 0 {
            self.first.notified().await;
        }
    }
}

/// Polls until the receivers are gone.
pub async fn poll(
    reader: Arc<Mutex<Session>>,
    waiters: Waiters,
    ceiling: Duration,
    signal: watch::Sender<Signal>,
    status: Status,
) {
    let mut pause = SHORTEST;
    while !signal.is_closed() {
        waiters.any().await;
        let answer = reader
            .lock()
            .await
            .call(CALL, async |link| store::poll(link).await)
            .await;
        match answer {
            Ok(seen) => {
                let moved = signal.send_if_modified(|known| {
                    let moved =
                        known.position != seen.position || known.incarnation != seen.incarnation;
                    let changed = *known != seen;
                    *known = seen;
                    // A changed snapshot matters to those who remember a running transaction.
                    moved || changed
                });
                pause = if moved {
                    SHORTEST
                } else {
                    (pause * 2).min(ceiling)
                };
            }
            Err(reason) => {
                status.raise(Scope::Database, reason);
                pause = FAILED;
            }
        }
        tokio::time::sleep(pause).await;
    }
}
