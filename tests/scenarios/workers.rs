//! The fleet of workers that has to cope with what happens.

use anyhow::{Result, ensure};
use postroom_tests::eventually::{eventually, when};
use postroom_tests::setup::Postroom;
use postroom_tests::worker::Worker;

use crate::ground::PATIENCE;
use crate::workload::Chance;

/// Workers that come and go.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    postroom: &'a Postroom,
    environment: Vec<(&'static str, String)>,
    /// Those that run.
    pub(crate) workers: Vec<Worker>,
    /// How many were killed.
    pub(crate) kills: usize,
}

impl<'a> Fleet<'a> {
    /// Nobody yet; all will have this environment.
    pub(crate) fn new(postroom: &'a Postroom, environment: &[(&'static str, &str)]) -> Self {
        Self {
            postroom,
            environment: environment
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
            workers: Vec::new(),
            kills: 0,
        }
    }

    /// A worker more, without waiting for it.
    pub(crate) fn start(&mut self) -> Result<()> {
        let launch = self
            .environment
            .iter()
            .fold(self.postroom.launch("run"), |launch, (name, value)| {
                launch.env(name, value)
            });
        self.workers.push(launch.start()?);
        Ok(())
    }

    /// So many workers, all ready.
    pub(crate) async fn grow_to(&mut self, size: usize) -> Result<()> {
        while self.workers.len() < size {
            self.start()?;
        }
        for worker in &self.workers {
            worker.ready(PATIENCE).await?;
        }
        Ok(())
    }

    /// Kills one by chance.
    pub(crate) async fn kill(&mut self, chance: &Chance) -> Result<()> {
        let worker = self.pick(chance);
        self.kills += 1;
        worker.kill_9().await
    }

    /// Sends one by chance home, which it must do in good order.
    pub(crate) async fn retire(&mut self, chance: &Chance) -> Result<()> {
        let worker = self.pick(chance);
        worker.sigterm()?;
        let status = worker.wait_exit(PATIENCE).await?;
        ensure!(status.success(), "the drained worker ended with {status}");
        Ok(())
    }

    fn pick(&mut self, chance: &Chance) -> Worker {
        let number = chance.below(self.workers.len() as u64);
        self.workers
            .swap_remove(usize::try_from(number).unwrap_or_default())
    }

    /// Nobody's sweep has found what reading should have found.
    pub(crate) async fn require_nothing_swept(&self) -> Result<()> {
        for worker in &self.workers {
            let found = worker.metric("postroom_sweep_found_total", &[]).await?;
            ensure!(found == Some(0.0), "the sweep found {found:?}");
        }
        Ok(())
    }

    /// Waits until the living workers hold all partitions, in shares that differ by one at most.
    pub(crate) async fn wait_fair_shares(&self) -> Result<()> {
        let size = self.workers.len();
        eventually("fair shares", PATIENCE, || async {
            let mut session = self
                .postroom
                .connect()
                .await
                .map_err(|error| error.to_string())?;
            let shares: Vec<i64> = sqlx::query_scalar(
                "select count(*) from postroom.lease_holder where alive group by owner order by 1",
            )
            .fetch_all(&mut session)
            .await
            .map_err(|error| error.to_string())?;
            let fair = shares.len() == size
                && shares.iter().sum::<i64>() == 64
                && shares
                    .last()
                    .zip(shares.first())
                    .is_some_and(|(most, least)| most - least <= 1);
            when(fair, || format!("{size} workers hold {shares:?}"))
        })
        .await
    }
}
