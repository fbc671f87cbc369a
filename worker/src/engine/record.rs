//! From outcomes to settles, and from the answers of settles back into memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::Message;
use super::outcome::{Decision, Outcome};
use super::runners::Report;
use super::settling::Act;
use super::{CALL_PAUSE, Endpoint, GATHER};
use crate::backoff::chance;
use crate::clock;
use crate::hooks;
use crate::reason::Reason;
use crate::settle::{Burial, Claim, Deferral, Settled};
use crate::status::Scope;

/// A condition about single messages is shown for at least this long after the last one.
const CONDITION: Duration = Duration::from_secs(60);
/// A refusal is shown for so long after the last one. Refused messages are tried again sooner than that.
const REFUSAL: Duration = Duration::from_secs(10);

/// Whether no message of the endpoint can be run, until somebody mends it.
fn concerns_endpoint(code: &str) -> bool {
    matches!(code, "TopologyMissing" | "AccessRefused" | "HandlerMissing")
}

impl Endpoint {
    pub(super) fn on_report(&mut self, report: Report) {
        match report {
            Report::Ready(runner) => {
                self.runners.opened(runner);
                self.reconnected();
            }
            Report::Outcomes {
                outcomes,
                freed,
                incarnation,
            } => {
                // Messages that went with their effect.
                let mut gone = Vec::new();
                for (message, outcome) in outcomes {
                    if matches!(outcome, Outcome::Handled | Outcome::Gone) {
                        gone.push(message.clone());
                    }
                    self.on_outcome(message, outcome);
                }
                if !gone.is_empty() {
                    self.memory.settled(gone.iter(), &freed);
                }
                if incarnation.is_some() {
                    self.is_same_incarnation(incarnation);
                }
            }
            Report::Closed {
                runner,
                reason,
                by_message,
                suspects,
            } => self.on_closed(runner, reason, by_message, suspects),
        }
    }

    fn on_closed(
        &mut self,
        runner: usize,
        reason: Reason,
        by_message: bool,
        mut suspects: Vec<Arc<Message>>,
    ) {
        self.runners.closed(runner, by_message, suspects.len());
        self.shared
            .status
            .count(&self.shared.config.name, |counts| {
                *counts.errors.entry(reason.code).or_default() += 1
            });
        let alone = if by_message && suspects.len() == 1 {
            suspects.pop()
        } else {
            None
        };
        // A missing exchange, handler or right is nobody's fault but the endpoint's.
        if by_message && concerns_endpoint(reason.code) {
            if let Some(message) = alone {
                self.on_outcome(message, Outcome::Unknown);
            }
            self.on_endpoint_failure(runner, reason);
        } else if let Some(message) = alone {
            self.on_outcome(message, Outcome::ClosedChannel(reason.message));
        } else if !by_message {
            self.shared.metrics.timed_out.inc_by(suspects.len() as u64);
            self.raise(reason);
        }
    }

    /// The claim a message is settled under. Without one any more, epoch 0: a completion is right all the same, everything else changes nothing.
    pub(super) fn claim_of(&self, message: &Message) -> Claim {
        let epoch = self
            .held
            .get(&message.identity.key.partition)
            .map_or(0, |held| held.epoch);
        Claim {
            identity: message.identity,
            epoch,
        }
    }

    fn on_outcome(&mut self, message: Arc<Message>, outcome: Outcome) {
        let confirmed = matches!(outcome, Outcome::Confirmed | Outcome::Handled);
        let key = message.identity.key;
        self.runners.returned(key.partition, confirmed);
        self.count(&message, &outcome);
        let lost = outcome.clone();
        let decision = self.policy.decide(&message, outcome, chance());
        match decision {
            Decision::Complete => {
                // A message with a deferral of its own may have parked others: its stream goes on when they can be read.
                self.memory.lanes.settling(&message, message.deferrals == 0);
                if hooks::broken("forget-early") {
                    self.memory.lanes.remove(key);
                }
                if !hooks::broken("early-settle") {
                    self.settling.complete(self.claim_of(&message), message);
                }
            }
            Decision::Nothing => self.memory.lanes.settling(&message, false),
            Decision::SendAgain => {
                if let Outcome::Lost(epoch) = lost
                    && self.held.get(&key.partition).map(|held| held.epoch) == Some(epoch)
                {
                    self.lose(key.partition);
                    self.shared.claim_now.notify_one();
                }
                let held = self.held.get(&key.partition);
                self.memory
                    .send_again(message, held.is_some_and(|held| held.quiet));
            }
            Decision::Defer {
                delay,
                counted,
                blocking,
                reason,
                error,
            } => {
                let recorded = self.memory.suspects.runs(key);
                self.memory.lanes.settling(&message, false);
                let deferral = Deferral {
                    claim: self.claim_of(&message),
                    delay,
                    counted: counted && !recorded,
                    blocking,
                    reason: reason.to_owned(),
                    error,
                };
                self.settling.defer(deferral, message);
            }
            Decision::Bury {
                counted,
                reason,
                error,
            } => {
                let recorded = self.memory.suspects.runs(key);
                self.memory.lanes.settling(&message, false);
                let burial = Burial {
                    claim: self.claim_of(&message),
                    counted: counted && !recorded,
                    reason: reason.to_owned(),
                    error,
                };
                self.settling.bury(burial, message);
            }
        }
    }

    fn count(&mut self, message: &Message, outcome: &Outcome) {
        let metrics = &self.shared.metrics;
        let code = match outcome {
            Outcome::Confirmed | Outcome::Handled => {
                metrics.done.inc();
                #[expect(clippy::cast_precision_loss, reason = "a delay in seconds")]
                metrics
                    .end_to_end
                    .observe(clock::now().saturating_sub(message.created_at) as f64);
                self.shared
                    .status
                    .count(&self.shared.config.name, |counts| {
                        counts.last_delivery = Some(clock::now())
                    });
                self.recover(message.deferrals > 0);
                return;
            }
            Outcome::Unknown | Outcome::Gone | Outcome::Lost(_) => return,
            Outcome::Returned(_) => {
                metrics.unroutable.inc();
                "Unroutable"
            }
            Outcome::Nacked => {
                metrics.nacked.inc();
                "Nacked"
            }
            Outcome::Unpublishable(_) => "Unpublishable",
            Outcome::ClosedChannel(_) => "ChannelClosed",
            Outcome::HandlerFailed(_) | Outcome::RetryIn(..) => "HandlerFailed",
            Outcome::HandlerRefused(_) => "HandlerRefused",
            Outcome::NotHandled(_) => "NoHandler",
        };
        self.shared
            .status
            .count(&self.shared.config.name, |counts| {
                *counts.errors.entry(code).or_default() += 1
            });
        if let Some(reason) = Self::condition(outcome) {
            self.raise(reason);
        }
    }

    pub(super) fn raise(&mut self, reason: Reason) {
        self.unwell = Some((reason.code, Instant::now()));
        self.shared.status.raise(self.scope(), reason);
    }

    /// A confirm clears the condition of the endpoint; one about single messages only when such a message went out, or after a while.
    fn recover(&mut self, had_failed: bool) {
        let Some((code, at)) = self.unwell else {
            return;
        };
        let is_over = match code {
            // While a full queue drains, messages are taken and refused in turn.
            "Nacked" => false,
            "Unroutable" | "NoHandler" => had_failed || at.elapsed() > CONDITION,
            _ => true,
        };
        if is_over {
            self.unwell = None;
            self.shared.status.clear(&self.scope());
        }
    }

    /// Refusals are over when there has been none for a while.
    pub(super) fn forget_refusals(&mut self) {
        if self
            .unwell
            .is_some_and(|(code, at)| code == "Nacked" && at.elapsed() > REFUSAL)
        {
            self.unwell = None;
            self.shared.status.clear(&self.scope());
        }
    }

    /// An open channel clears a condition about the connection, so that an idle endpoint does not show it for ever. The
    /// others are about what is published: only a confirm tells that they are over.
    fn reconnected(&mut self) {
        let about_messages = |code| {
            matches!(
                code,
                "Unroutable"
                    | "Nacked"
                    | "TopologyMissing"
                    | "AccessRefused"
                    | "ConfirmTimeout"
                    | "NoHandler"
                    | "HandlerMissing"
            )
        };
        if self.unwell.is_some_and(|(code, _)| !about_messages(code)) {
            self.unwell = None;
            self.shared.status.clear(&self.scope());
        }
    }

    /// What people should know of an outcome.
    fn condition(outcome: &Outcome) -> Option<Reason> {
        match outcome {
            Outcome::Returned(text) => Some(Reason::new(
                "Unroutable",
                format!("the broker returned a message: {text}"),
                "Bind a queue for its routing key; messages are tried again by themselves. The view blocked_stream shows which ones wait.",
            )),
            Outcome::Nacked => Some(Reason::new(
                "Nacked",
                "the broker refused a message",
                "Look for a full queue behind the exchange; messages are tried again by themselves.",
            )),
            Outcome::NotHandled(text) => Some(Reason::new(
                "NoHandler",
                format!("the handler does not know a message: {text}"),
                "Deploy a handler that knows its type; the message waits and is tried again by itself. The view blocked_stream shows which ones wait.",
            )),
            Outcome::Confirmed
            | Outcome::Handled
            | Outcome::Gone
            | Outcome::Lost(_)
            | Outcome::Unknown
            | Outcome::Unpublishable(_)
            | Outcome::HandlerFailed(_)
            | Outcome::HandlerRefused(_)
            | Outcome::RetryIn(..)
            | Outcome::ClosedChannel(_) => None,
        }
    }

    pub(super) fn record_attempt(&mut self, message: Arc<Message>) {
        let deferral = Deferral {
            claim: self.claim_of(&message),
            delay: Duration::ZERO,
            counted: true,
            blocking: true,
            reason: "WorkerVanished".to_owned(),
            error: "run alone after a worker vanished".to_owned(),
        };
        self.settling.attempt(deferral, message);
    }

    /// What the database said to a settle.
    pub(super) async fn on_settled(&mut self, act: Act, answer: Result<Settled, Reason>) {
        let settled = match answer {
            Ok(settled) => settled,
            Err(reason) => {
                self.shared.status.raise(Scope::Database, reason);
                self.settle_after = Instant::now() + CALL_PAUSE;
                self.settling.again(act);
                return;
            }
        };
        self.shared.status.clear(&Scope::Database);
        self.take_account(act, settled).await;
        self.memory.settle_ends();
        self.gather_until = Instant::now() + GATHER;
    }

    async fn take_account(&mut self, act: Act, settled: Settled) {
        if let Act::Release(releases) = act {
            for (partition, epoch, ..) in releases {
                self.held.remove(&partition);
                self.note_dropped(partition, epoch);
                self.forget_partition(partition);
            }
            self.shared.claim_now.notify_one();
            return;
        }
        let same = self.is_same_incarnation(settled.incarnation);
        for &partition in &settled.lost {
            // An answer to an older claim says nothing about the one that is held now.
            let held = self.held.get(&partition).map(|held| held.epoch);
            if held.is_some() && held == act.epoch_of(partition) {
                self.lose(partition);
                self.shared.claim_now.notify_one();
            }
        }
        let is_lost = |message: &Message| settled.lost.contains(&message.identity.key.partition);
        match act {
            Act::Complete(messages) => {
                let messages = messages.iter().map(|(_, message)| message);
                self.memory.settled(messages, &settled.freed);
            }
            Act::Bury(mut messages) => {
                messages.retain(|(_, message)| !is_lost(message));
                let buried = messages.len() as u64;
                self.shared.metrics.dead_lettered.inc_by(buried);
                let messages = messages.iter().map(|(_, message)| message);
                self.memory.settled(messages, &settled.freed);
            }
            Act::Defer(mut messages) => {
                messages.retain(|(_, message)| !is_lost(message));
                self.shared.metrics.retried.inc_by(settled.deferred as u64);
                let all = settled.deferred == messages.len();
                for (deferral, message) in messages {
                    let due = Instant::now() + deferral.delay;
                    self.memory.deferred(&message, deferral.blocking, due, all);
                }
            }
            Act::Attempt(_, message) => {
                let runs = self.memory.suspects.is_run(&message);
                if same && runs && settled.deferred > 0 {
                    self.run_suspect(&message).await;
                } else {
                    let partition = message.identity.key.partition;
                    self.memory.lanes.settling(&message, false);
                    self.runners.returned(partition, false);
                    if settled.deferred == 0 && !is_lost(&message) {
                        self.memory.settled(std::iter::once(&message), &[]); // its row is gone
                    }
                }
            }
            // One of them may have blocked a stream.
            Act::Clear(_) => self.memory.hungry = true,
            Act::Release(_) => {}
        }
    }
}
