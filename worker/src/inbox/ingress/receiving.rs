//! One consumer of a queue, from its first delivery to its end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicCancelOptions};
use postroom_crds::inbox_outbox::inbox::Refusal;
use postroom_crds::inbox_outbox::outbox::OrderingMode;
use tokio::time::timeout;

use super::super::accept::{self, Outcome, Right, Stored};
use super::super::batch::Batch;
use super::super::consumer::{self, CHANNEL, Opened};
use super::super::delivery;
use super::Ingress;
use crate::backoff::Backoff;
use crate::broker::Transport;
use crate::hooks;
use crate::reason::Reason;

/// Deadline of a store.
const STORE: Duration = Duration::from_secs(30);
/// Longest time between two looks at the timers.
const LONGEST: Duration = Duration::from_secs(1);

/// Why a consumer ended.
#[derive(Debug)]
pub(super) enum End {
    /// The process drains, and everything received is stored and acknowledged.
    Drained,
    /// The right to receive is gone.
    Lost,
    /// It does not go on for this reason.
    Failed(Reason),
}

/// Whether a queue may be a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    None,
    Raised,
    Answered,
}

type Answer = (Batch, Result<Stored, Reason>);

/// One consumer with what it has received and not acknowledged.
pub(super) struct Receiving<'a> {
    ingress: &'a mut Ingress,
    opened: Opened,
    right: Right,
    since: Instant,
    gathering: Batch,
    storing: Option<BoxFuture<'static, Answer>>,
    /// Batches whose store failed, and when the first is tried again.
    again: VecDeque<Batch>,
    again_at: Instant,
    backoff: Backoff,
    /// Whether the last store failed.
    failing: bool,
    /// The process drains: no new delivery is waited for.
    leaving: bool,
    /// No delivery is taken any more.
    ended: bool,
    /// The batch that a broken variant stores after the one behind it, and until when it waits for that.
    aside: Option<(Batch, Instant)>,
    /// A delivery seems to come from a stream; once per consumer it is asked whether it does.
    stream: Suspicion,
    /// Whether anything was acknowledged.
    pub(super) acknowledged: bool,
}

impl<'a> Receiving<'a> {
    pub(super) fn new(
        ingress: &'a mut Ingress,
        opened: Opened,
        epoch: i64,
        since: Instant,
    ) -> Self {
        let right = Right {
            worker: ingress.worker,
            endpoint: ingress.config.name.clone(),
            epoch,
            keep_conflicts: ingress.config.identity.on_conflict == Refusal::DeadLetter,
        };
        ingress.status.clear(&ingress.scope());
        ingress.metrics.consumer_starts.inc();
        ingress.metrics.consumers.set(1);
        Self {
            ingress,
            opened,
            right,
            since,
            gathering: Batch::default(),
            storing: None,
            again: VecDeque::new(),
            again_at: Instant::now(),
            backoff: Backoff::default(),
            failing: false,
            leaving: false,
            ended: false,
            aside: None,
            stream: Suspicion::None,
            acknowledged: false,
        }
    }

    /// Receives until the consumer ends, then closes the channel. What is not acknowledged is delivered again.
    pub(super) async fn receive(&mut self) -> End {
        let end = self.until_end().await;
        self.ingress.metrics.consumers.set(0);
        let channel = &self.opened.channel;
        if channel.status().connected() {
            // One that does not answer is closed with its connection.
            drop(timeout(CHANNEL, channel.close(200, "done".into())).await);
        }
        // Nothing may be stored behind the back of the next consumer.
        if let Some(storing) = self.storing.take()
            && let (batch, Ok(Stored::Committed(outcomes))) = storing.await
        {
            self.count(&batch, &outcomes);
            self.ingress.metrics.ack_failed.inc();
        }
        end
    }

    async fn until_end(&mut self) -> End {
        loop {
            // A draining process is granted nothing new; the store finds out what it may still do.
            if self.ingress.right(self.since) != Some(self.right.epoch) && !self.leaving {
                return End::Lost;
            }
            if self.ingress.is_draining() && !self.leaving {
                self.leave().await;
            }
            if let Some(end) = self.look_for_stream().await {
                return end;
            }
            if let Some(end) = self.settle_or_store().await {
                return end;
            }
            if self.ended && self.is_idle() {
                return if self.leaving {
                    End::Drained
                } else {
                    End::Failed(cancelled_by_broker(&self.ingress.config.queue))
                };
            }
            let timer = self.next_timer();
            let takes = self.takes();
            tokio::select! {
                biased;
                (batch, answer) = ready(&mut self.storing), if self.storing.is_some() => {
                    self.storing = None;
                    if let Some(end) = self.on_stored(batch, answer).await {
                        return end;
                    }
                }
                Ok(()) = self.ingress.draining.changed() => {}
                Ok(()) = self.ingress.claims.changed() => {}
                Ok(()) = self.ingress.transport.changed() => {
                    if let Some(reason) = self.connection_lost() {
                        return End::Failed(reason);
                    }
                }
                delivery = self.opened.consumer.next(), if takes => {
                    if let Some(end) = self.on_delivery(delivery) {
                        return end;
                    }
                }
                () = tokio::time::sleep_until(timer.into()) => {}
            }
        }
    }

    /// Why the connection is not this consumer's any more, if so.
    fn connection_lost(&self) -> Option<Reason> {
        let lost = || {
            Reason::new(
                "ConnectionLost",
                "the connection to the broker was lost",
                "The worker connects again by itself.",
            )
        };
        match &*self.ingress.transport.borrow() {
            Transport::Up(up) if Arc::ptr_eq(&up.connection, &self.opened.connection) => None,
            Transport::Up(_) => Some(lost()),
            Transport::Down { reason, .. } => Some(reason.clone().unwrap_or_else(lost)),
        }
    }

    fn takes(&self) -> bool {
        !self.ended
            && !self
                .gathering
                .is_full(self.ingress.config.consumer.batch_size)
    }

    fn is_idle(&self) -> bool {
        self.gathering.is_empty()
            && self.storing.is_none()
            && self.again.is_empty()
            && self.aside.is_none()
    }

    /// Takes a delivery, and every other that is there already.
    fn on_delivery(&mut self, first: Option<lapin::Result<Delivery>>) -> Option<End> {
        let mut next = first;
        loop {
            match next {
                None => {
                    self.ended = true;
                    return None;
                }
                Some(Err(error)) => {
                    return Some(End::Failed(consumer::why(
                        &error,
                        &self.ingress.config.queue,
                    )));
                }
                Some(Ok(delivery)) => {
                    if self.stream == Suspicion::None && consumer::seems_stream(&delivery) {
                        self.stream = Suspicion::Raised;
                    }
                    let tag = delivery.delivery_tag;
                    let judgement = delivery::judge(delivery, &self.ingress.config);
                    self.gathering.push(tag, judgement);
                }
            }
            if !self.takes() {
                return None;
            }
            next = self.opened.consumer.next().now_or_never()?;
        }
    }

    /// Nothing of a stream is stored: an inbox has no place to remember how far it read.
    async fn look_for_stream(&mut self) -> Option<End> {
        if self.stream != Suspicion::Raised {
            return None;
        }
        self.stream = Suspicion::Answered;
        let queue = &self.ingress.config.queue;
        let refusal = consumer::refuse_stream(&self.opened.connection, queue).await;
        refusal.map(End::Failed)
    }

    /// No new deliveries. Without an order the consumer is cancelled, and what the broker sends until it agrees is still taken.
    ///
    /// Where messages keep an order it is not: a quorum queue agrees before it has cancelled, what it sends after that
    /// reaches nobody and comes back only some time after the channel is closed, and the next consumer may have begun
    /// meanwhile. Closing the channel takes the consumer away and gives everything back in one step.
    async fn leave(&mut self) {
        self.leaving = true;
        if self.ingress.config.ordering.mode != OrderingMode::None {
            self.ended = true;
            return;
        }
        let tag = self.opened.consumer.tag();
        let channel = &self.opened.channel;
        let cancel = channel.basic_cancel(tag, BasicCancelOptions::default());
        // Where it fails, the channel is lost, and with it the consumer.
        drop(timeout(CHANNEL, cancel).await);
    }

    /// Starts to store what is ready, or acknowledges it where nothing of it has to be stored.
    async fn settle_or_store(&mut self) -> Option<End> {
        while self.storing.is_none() {
            let batch = self.next_batch()?;
            if !batch.slots.is_empty() {
                self.store(batch).await;
                return None;
            }
            if let Some(end) = self.settle(&batch, &[]).await {
                return Some(end);
            }
        }
        None
    }

    fn next_batch(&mut self) -> Option<Batch> {
        if !self.again.is_empty() {
            if Instant::now() < self.again_at {
                return None;
            }
            return self.again.pop_front();
        }
        let consumer = &self.ingress.config.consumer;
        let delay = Duration::from_millis(u64::from(consumer.max_batch_delay_milliseconds));
        let Some(due) = self.gathering.due(delay) else {
            return self
                .aside
                .take_if(|(_, until)| Instant::now() > *until)
                .map(|(batch, _)| batch);
        };
        let waits = !self.gathering.is_full(consumer.batch_size)
            && !self.ended
            && !self.leaving
            && Instant::now() < due;
        if waits {
            return None;
        }
        let batch = std::mem::take(&mut self.gathering);
        if hooks::broken("accept-out-of-order") {
            return self.after_the_next(batch);
        }
        Some(batch)
    }

    /// The broken variant: every second batch is stored before the one in front of it.
    fn after_the_next(&mut self, batch: Batch) -> Option<Batch> {
        match self.aside.take() {
            None => {
                self.aside = Some((batch, Instant::now() + LONGEST));
                None
            }
            Some((first, _)) => {
                self.again.push_back(first);
                Some(batch)
            }
        }
    }

    async fn store(&mut self, batch: Batch) {
        if hooks::broken("ack-before-store") {
            drop(self.acknowledge(batch.last_tag()).await);
        }
        hooks::abort_at("delivered");
        let (session, right) = (self.ingress.session.clone(), self.right.clone());
        self.storing = Some(Box::pin(async move {
            let mut session = session.lock().await;
            let answer = session
                .call(STORE, async |link| {
                    accept::store(link, &right, &batch.slots).await
                })
                .await;
            (batch, answer)
        }));
    }

    async fn on_stored(&mut self, batch: Batch, answer: Result<Stored, Reason>) -> Option<End> {
        match answer {
            Ok(Stored::Lost) => Some(End::Lost),
            Ok(Stored::Unstorable(error)) => {
                self.split(batch, error);
                None
            }
            Ok(Stored::Committed(outcomes)) => {
                hooks::abort_at("accepted");
                if std::mem::take(&mut self.failing) {
                    self.backoff = Backoff::default();
                    self.ingress.status.clear(&self.ingress.scope());
                }
                let end = self.settle(&batch, &outcomes).await;
                hooks::abort_at("acknowledged");
                end
            }
            Err(reason) => {
                self.failing = true;
                self.ingress.raise(reason);
                self.again.push_front(batch);
                self.again_at = Instant::now() + self.backoff.next_pause();
                None
            }
        }
    }

    /// Looks for what the database will not have: in halves, down to the one message, of which less is kept then.
    fn split(&mut self, batch: Batch, error: String) {
        match batch.halves() {
            Ok((first, rest)) => {
                self.again.push_front(rest);
                self.again.push_front(first);
            }
            Err(mut batch) => {
                let stripped = batch.slots.iter().any(|slot| slot.is_unstorable());
                if stripped {
                    // It is not to blame, and nothing is given up: a person has to look.
                    self.failing = true;
                    self.ingress.raise(unstorable(&error));
                    self.again_at = Instant::now() + self.backoff.next_pause();
                }
                let slots = std::mem::take(&mut batch.slots).into_iter();
                batch.slots = slots.map(|slot| slot.unstorable(error.clone())).collect();
                self.again.push_front(batch);
            }
        }
    }

    /// The batch is settled: counts it and acknowledges everything up to its end.
    async fn settle(&mut self, batch: &Batch, outcomes: &[Outcome]) -> Option<End> {
        self.count(batch, outcomes);
        if hooks::broken("ack-before-store") {
            return None;
        }
        let Err(reason) = self.acknowledge(batch.last_tag()).await else {
            self.acknowledged = true;
            return None;
        };
        if !outcomes.is_empty() {
            self.ingress.metrics.ack_failed.inc();
        }
        Some(End::Failed(reason))
    }

    async fn acknowledge(&mut self, tag: u64) -> Result<(), Reason> {
        let all_until_here = BasicAckOptions { multiple: true };
        let ack = self.opened.channel.basic_ack(tag, all_until_here);
        match timeout(CHANNEL, ack).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(consumer::why(&error, &self.ingress.config.queue)),
            Err(_) => Err(Reason::timeout("the broker", CHANNEL)),
        }
    }

    fn count(&self, batch: &Batch, outcomes: &[Outcome]) {
        let metrics = &self.ingress.metrics;
        for outcome in outcomes {
            match outcome {
                Outcome::Accepted => metrics.accepted.inc(),
                Outcome::AlreadyAccepted => metrics.duplicate.inc(),
                Outcome::Conflict => metrics.conflict.inc(),
                Outcome::Refused => metrics.refused.inc(),
            }
        }
        metrics.discarded.inc_by(batch.discarded);
    }

    fn next_timer(&self) -> Instant {
        let now = Instant::now();
        let consumer = &self.ingress.config.consumer;
        let delay = Duration::from_millis(u64::from(consumer.max_batch_delay_milliseconds));
        let due = self.gathering.due(delay).filter(|_| self.storing.is_none());
        let again = (!self.again.is_empty()).then_some(self.again_at);
        let trust = (!self.leaving).then(|| self.ingress.trust.until());
        // With a batch waiting for its next attempt, the one behind it waits too.
        let due = due.filter(|_| again.is_none());
        [due, again, trust]
            .into_iter()
            .flatten()
            .filter(|at| *at > now)
            .fold(now + LONGEST, Instant::min)
    }
}

fn cancelled_by_broker(queue: &str) -> Reason {
    Reason::new(
        "ConsumerCancelled",
        format!(
            "the broker ended the consumer of queue '{queue}', as it does when a queue is deleted or moves"
        ),
        "Check that the queue exists; receiving goes on by itself.",
    )
}

fn unstorable(error: &str) -> Reason {
    Reason::new(
        "StoreRefused",
        format!("the database does not even take a refused message: {error}"),
        "Look at constraints and triggers that were added to the tables of the schema.",
    )
}

/// Waits for a future that may not be there; callers check that it is.
async fn ready<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
