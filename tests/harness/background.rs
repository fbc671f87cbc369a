//! Work that goes on beside a test, on a thread of its own.
//!
//! Why: a test that blocks its runtime must not hold up what observes it (arrival times would lie), and a proxy must
//! not stop because the test that uses it waits.

use std::future::Future;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use tokio::sync::watch;

/// Becomes ready when the owner is dropped.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Waits for the end.
    pub async fn requested(&mut self) {
        // An error means that the owner is gone, which is the end as well.
        self.0.wait_for(|stop| *stop).await.ok();
    }

    /// Whether the end has come.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }
}

/// A thread with a small runtime; dropped, it is told to stop and waited for.
#[derive(Debug)]
pub struct Background {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Runs the future that `work` makes until it returns or the owner is dropped.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be started.
    pub fn start<W, F>(name: &str, work: W) -> Result<Self>
    where
        W: FnOnce(Stop) -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut owner = Stop(stopped.clone());
                runtime.block_on(async {
                    tokio::select! {
                        () = work(Stop(stopped)) => {}
                        () = owner.requested() => {}
                    }
                });
                // Connections in the middle of something are not worth waiting for.
                runtime.shutdown_background();
            })
            .with_context(|| format!("start the thread {name}"))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic in there was printed there.
            thread.join().ok();
        }
    }
}

/// Runs a clean-up from a destructor, where no runtime can be entered; its failure does not matter.
pub fn best_effort<F>(work: F)
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        if let Ok(runtime) = runtime {
            runtime.block_on(async {
                tokio::time::timeout(std::time::Duration::from_secs(5), work)
                    .await
                    .ok();
            });
            runtime.shutdown_background();
        }
    });
    thread.join().ok();
}
