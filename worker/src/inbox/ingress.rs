//! Receives for one inbox: consumes, gathers, stores, acknowledges.
//!
//! ```text
//! transport up -> right to receive (heart) -> consumer -> gather a batch | store the one before -> acknowledge
//! ```
//!
//! Invariants: one store at a time, in the order of delivery; an acknowledgement covers only what is committed; whoever
//! does not have the right any more forgets what it received and closes the channel, so that the broker delivers it again.

mod receiving;

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use postroom_crds::worker_config::InboxConfig;
use tokio::sync::{Mutex, Notify, watch};
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::broker::{Transport, Up};
use crate::database::Session;
use crate::heart::{Claims, Receivers};
use crate::lease::Trust;
use crate::metrics::IngressMetrics;
use crate::reason::Reason;
use crate::status::{Scope, Status};

use super::consumer;
use receiving::{End, Receiving};

/// What receives for one inbox.
#[derive(Debug)]
pub struct Ingress {
    /// Settings.
    pub config: Arc<InboxConfig>,
    /// Whether the resource pauses everything.
    pub paused: bool,
    /// This process.
    pub worker: Uuid,
    /// Session for storing.
    pub session: Arc<Mutex<Session>>,
    /// Trusted time of the lease.
    pub trust: Trust,
    /// What is held.
    pub claims: watch::Receiver<Arc<Claims>>,
    /// Where the heart finds that this inbox wants to receive.
    pub receivers: Receivers,
    /// Asks for a claim before its time.
    pub claim_now: Arc<Notify>,
    /// Broker.
    pub transport: watch::Receiver<Transport>,
    /// Whether nobody else tells of the state of this connection.
    pub apart: bool,
    /// Set when the process drains.
    pub draining: watch::Receiver<bool>,
    /// Status.
    pub status: Status,
    /// Metrics.
    pub metrics: IngressMetrics,
}

/// Receives until the process has drained.
pub async fn serve(mut ingress: Ingress) {
    let mut backoff = Backoff::default();
    // Claims sent before this do not count.
    let mut wanted: Option<Instant> = None;
    while let Some(up) = ingress.until_up(&mut wanted).await {
        let since = *wanted.get_or_insert_with(|| ingress.want());
        let Some(epoch) = ingress.until_entitled(since).await else {
            continue;
        };
        let opened = consumer::open(&up, &ingress.config).await;
        let end = match opened {
            Err(reason) => End::Failed(reason),
            Ok(opened) => {
                let mut receiving = Receiving::new(&mut ingress, opened, epoch, since);
                let end = receiving.receive().await;
                if receiving.acknowledged {
                    backoff = Backoff::default();
                }
                end
            }
        };
        match end {
            End::Drained => {}
            End::Lost => {
                ingress.status.clear(&ingress.scope());
                wanted = Some(ingress.want());
            }
            End::Failed(reason) => {
                ingress.raise(reason);
                ingress.pause(&mut backoff).await;
            }
        }
    }
    ingress.give_up();
}

impl Ingress {
    fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    fn is_paused(&self) -> bool {
        self.paused || self.config.paused
    }

    fn up(&self) -> Option<Up> {
        match &*self.transport.borrow() {
            Transport::Up(up) => Some(up.clone()),
            Transport::Down { .. } => None,
        }
    }

    /// The connection to consume over; none when the process drains. Gives up the right while there is no connection.
    async fn until_up(&mut self, wanted: &mut Option<Instant>) -> Option<Up> {
        loop {
            if self.is_draining() {
                return None;
            }
            if let Some(up) = self.up().filter(|_| !self.is_paused()) {
                return Some(up);
            }
            if wanted.take().is_some() {
                self.give_up();
            }
            if let Transport::Down {
                reason: Some(reason),
                ..
            } = &*self.transport.borrow()
                && self.apart
            {
                self.status.raise(self.scope(), reason.clone());
            }
            tokio::select! {
                Ok(()) = self.transport.changed() => {}
                Ok(()) = self.draining.changed() => {}
                else => return None,
            }
        }
    }

    /// Asks for the right to receive; answers since when.
    fn want(&self) -> Instant {
        self.lock().insert(self.config.name.clone());
        let since = Instant::now();
        self.claim_now.notify_one();
        since
    }

    /// Everything that was received is stored or forgotten: the right goes with the next claim.
    fn give_up(&self) {
        self.lock().remove(&self.config.name);
        self.claim_now.notify_one();
        self.status.clear(&self.scope());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeSet<String>> {
        self.receivers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch of the right to receive, as far as it can be trusted now.
    fn right(&self, since: Instant) -> Option<i64> {
        let claims = self.claims.borrow();
        let holding = claims.holdings.get(&self.config.name)?;
        let known = claims.sent >= since && self.trust.holds();
        holding.ingress_epoch.filter(|_| known)
    }

    /// Waits for the right; none when the transport is lost or the process drains meanwhile.
    async fn until_entitled(&mut self, since: Instant) -> Option<i64> {
        loop {
            if self.is_draining() || self.up().is_none() {
                return None;
            }
            if let Some(epoch) = self.right(since) {
                return Some(epoch);
            }
            tokio::select! {
                Ok(()) = self.claims.changed() => {}
                Ok(()) = self.transport.changed() => {}
                Ok(()) = self.draining.changed() => {}
                else => return None,
            }
        }
    }

    /// Pauses before the next attempt, unless the process drains.
    async fn pause(&mut self, backoff: &mut Backoff) {
        let pause = backoff.next_pause();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(()) = self.draining.changed() => {}
        }
    }

    fn scope(&self) -> Scope {
        Scope::Receiving(self.config.name.clone())
    }

    /// Receiving does not go on at present.
    fn raise(&self, reason: Reason) {
        let code = reason.code;
        self.status.count(&self.config.name, |counts| {
            *counts.errors.entry(code).or_default() += 1;
        });
        self.status.raise(self.scope(), reason);
    }
}
