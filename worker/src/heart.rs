//! The heart of the process: one call that renews the lease and answers what is held.
//!
//! Invariant: trusted time is counted from when the call was sent. An outbox whose transport has been
//! down for long is not served, so that another worker can take it; an inbox is, since handling what was
//! accepted needs no broker. A draining process serves none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::broker::Transport;
use crate::database::Session;
use crate::hooks;
use crate::lease::Trust;
use crate::metrics::METRICS;
use crate::status::{Scope, Status};
use crate::store::{self, Claimant, Holding, LowMarks};

/// An outbox is given up when its transport has been down for this long.
const TRANSPORT_PATIENCE: Duration = Duration::from_secs(15);
/// Shortest time between two claims.
const SHORTEST: Duration = Duration::from_millis(50);
/// Longest deadline of a claim while nothing is held: the first one on a restored server rewrites the backlog.
const LONGEST_CLAIM: Duration = Duration::from_secs(300);

/// What is held, by endpoint.
#[derive(Debug)]
pub struct Claims {
    /// When the claim was sent: what was given up after that is not to be taken from it.
    pub sent: Instant,
    /// By endpoint; one that is missing holds nothing.
    pub holdings: BTreeMap<String, Holding>,
    /// Incarnation of the server.
    pub incarnation: Option<Uuid>,
}

impl Default for Claims {
    fn default() -> Self {
        Self {
            sent: Instant::now(),
            holdings: BTreeMap::new(),
            incarnation: None,
        }
    }
}

/// The inboxes that can receive now, or have not yet stored what they received. Each one's own task keeps its name in here;
/// the right to receive is given up by the claim after it is gone.
pub type Receivers = Arc<Mutex<BTreeSet<String>>>;

/// Everything the heart needs.
#[derive(Debug)]
pub struct Heart {
    /// This process.
    pub claimant: Claimant,
    /// Length of the lease.
    pub lease: Duration,
    /// Endpoints with the state of the transport without which they cannot be served.
    pub endpoints: Vec<(String, Option<watch::Receiver<Transport>>)>,
    /// The inboxes that want to receive.
    pub receivers: Receivers,
    /// Own session.
    pub session: Session,
    /// Trusted time.
    pub trust: Trust,
    /// Where the claims go.
    pub claims: watch::Sender<Arc<Claims>>,
    /// Asks for a claim before its time.
    pub claim_now: Arc<Notify>,
    /// Low marks to report.
    pub low_marks: Arc<Mutex<LowMarks>>,
    /// Set when the process drains.
    pub draining: watch::Receiver<bool>,
    /// Status.
    pub status: Status,
}

impl Heart {
    /// Beats until the task is ended.
    pub async fn beat(mut self) {
        let mut backoff = Backoff::default();
        // A dead connection is found out soon; a server that has much to do first is given more time with every attempt.
        let mut patience = self.lease / 2;
        loop {
            let began = Instant::now();
            let deadline = if self.trust.holds() {
                self.lease / 2
            } else {
                patience
            };
            let claimed = self.claim(deadline).await;
            if began.elapsed() >= deadline {
                patience = (patience * 2).min(LONGEST_CLAIM);
            }
            let pause = match claimed {
                Ok(()) => {
                    backoff = Backoff::default();
                    patience = self.lease / 2;
                    self.lease / 3
                }
                Err(()) => backoff.next_pause(),
            };
            let pause = pause.saturating_sub(began.elapsed()).max(SHORTEST);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.claim_now.notified() => tokio::time::sleep(SHORTEST).await,
                Ok(()) = self.draining.changed() => {}
            }
        }
    }

    async fn claim(&mut self, deadline: Duration) -> Result<(), ()> {
        let endpoints = self.served();
        let consumes: Vec<String> = self
            .receivers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect();
        let in_flight = self.status.in_flight();
        let low_marks = std::mem::take(
            &mut *self
                .low_marks
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        if self.trust.holds() {
            hooks::abort_at("renewing");
        }
        let sent = Instant::now();
        let (claimant, lease) = (&self.claimant, self.lease);
        let answer = self
            .session
            .call(deadline, async |link| {
                store::claim_work(
                    link, claimant, lease, &endpoints, &consumes, &in_flight, &low_marks,
                )
                .await
            })
            .await;
        METRICS.claim.observe(sent.elapsed().as_secs_f64());
        match answer {
            Ok(claimed) => {
                self.trust.renew(sent, self.lease);
                hooks::abort_at("claimed");
                self.claims.send_replace(Arc::new(Claims {
                    sent,
                    holdings: claimed.holdings,
                    incarnation: claimed.incarnation,
                }));
                self.status.database_is(true);
                self.status.clear(&Scope::Database);
                Ok(())
            }
            Err(reason) => {
                self.status.database_is(false);
                self.status.raise(Scope::Database, reason);
                Err(())
            }
        }
    }

    /// The endpoints that can be served now.
    fn served(&self) -> Vec<String> {
        if *self.draining.borrow() {
            return Vec::new();
        }
        let patient = |state: &watch::Receiver<Transport>| {
            state
                .borrow()
                .down_since()
                .is_none_or(|since| since.elapsed() < TRANSPORT_PATIENCE)
        };
        self.endpoints
            .iter()
            .filter(|(_, transport)| transport.as_ref().is_none_or(patient))
            .map(|(name, _)| name.clone())
            .collect()
    }
}
