//! A day of the shop, the same for both demos: it takes orders, something is killed in the middle, and what was
//! committed arrives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use postroom_tests::received::Received;
use postroom_tests::receiver::Receiver;
use sqlx::PgPool;

use crate::report::grouped;
use crate::shop::{self, Books};
use crate::steps::Steps;

/// After the shop has closed: a killed worker's share waits for its lease, then everything must come.
const ARRIVAL: Duration = Duration::from_secs(60);
/// Longer than a lease, so that what a take-over repeats is seen.
const QUIET: Duration = Duration::from_secs(6);

/// What the shop works with.
pub(crate) struct Day<'a> {
    pub(crate) books: &'a Arc<Books>,
    pub(crate) pool: PgPool,
    pub(crate) receiver: &'a Receiver,
    pub(crate) length: Duration,
}

impl Day<'_> {
    /// The shop is open; in the middle `disturb` is called. Answers what that returned, and when it was.
    pub(crate) async fn business<T>(
        &self,
        steps: &mut Steps,
        disturb: impl AsyncFnOnce(&Steps) -> Result<T>,
    ) -> Result<(T, Instant)> {
        let (books, receiver) = (self.books, self.receiver);
        let began = Instant::now();
        let middle = began + self.length / 2;
        let shop = shop::open(self.pool.clone(), Arc::clone(books), began + self.length);
        let mut shop = std::pin::pin!(shop);
        let mut ticks = tokio::time::interval(Duration::from_millis(500));
        let mut disturb = Some(disturb);
        let mut disturbed = None;
        loop {
            tokio::select! {
                ended = &mut shop => {
                    ended?;
                    break;
                }
                _ = ticks.tick() => steps.progress(&format!(
                    "{:>3} s: committed {}, rolled back {}, arrived {}",
                    began.elapsed().as_secs(),
                    grouped(books.ledger.committed()),
                    grouped(books.ledger.rolled_back()),
                    grouped(receiver.distinct())
                ))?,
            }
            if Instant::now() >= middle
                && let Some(disturb) = disturb.take()
            {
                let now = Instant::now();
                // The shop goes on meanwhile: the till is on tasks of its own.
                disturbed = Some((disturb(steps).await?, now));
            }
        }
        disturbed.context("the shop closed before a worker was killed")
    }

    /// Everything that arrives. What does not come in time is missing in the report.
    pub(crate) async fn arrivals(&self, steps: &Steps) -> Result<Vec<Received>> {
        let committed = self.books.ledger.committed();
        if let Err(error) = self.receiver.wait_for(committed, ARRIVAL).await {
            steps.note(&format!("{error:#}"))?;
        }
        self.receiver.wait_quiet(QUIET, ARRIVAL).await
    }

    /// What was committed and what rolled back so far, for the end of a step.
    pub(crate) fn summary(&self) -> String {
        let ledger = &self.books.ledger;
        format!(
            "{} messages committed, {} rolled back",
            grouped(ledger.committed()),
            grouped(ledger.rolled_back())
        )
    }
}
