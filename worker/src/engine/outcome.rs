//! What the broker or the handler did with a message, and what follows from it.
//!
//! Pure: one function from outcome and policy to decision.

use std::time::Duration;

use postroom_crds::inbox_outbox::outbox::{
    Jitter, OnFailure, OnUnroutable, Ordering, OrderingMode, Retry,
};

use super::message::Message;

/// What became of one message that was run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Confirmed and not returned.
    Confirmed,
    /// Confirmed as unroutable: no queue took it.
    Returned(String),
    /// Refused, for example by a full queue.
    Nacked,
    /// Nothing is known: the channel or the connection went away, or the confirm took too long.
    Unknown,
    /// It cannot be published as it is.
    Unpublishable(String),
    /// It was alone when the broker closed the channel.
    ClosedChannel(String),
    /// The handler's effect is committed, and the row went with it.
    Handled,
    /// There was no such row any more.
    Gone,
    /// The handler raised an error.
    HandlerFailed(String),
    /// The handler said that it can never be handled (PR100).
    HandlerRefused(String),
    /// The handler asked for another try after so long (PR101).
    RetryIn(Duration, String),
    /// The handler does not know this kind of message (PR102).
    NotHandled(String),
    /// The lease of its partition, under this epoch, is not ours any more.
    Lost(i64),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Delete the row.
    Complete,
    /// Nothing is left to record.
    Nothing,
    /// Send it again, as soon as that is possible.
    SendAgain,
    /// Put it off.
    Defer {
        /// For so long.
        delay: Duration,
        /// Whether it counts against the limit of attempts.
        counted: bool,
        /// Whether its stream waits for it.
        blocking: bool,
        /// Reason code.
        reason: &'static str,
        /// What was seen.
        error: String,
    },
    /// Give it up.
    Bury {
        /// Whether the failure counts against the limit of attempts.
        counted: bool,
        /// Reason code.
        reason: &'static str,
        /// What was seen.
        error: String,
    },
}

/// Longest pause after a refusal that is not the message's fault.
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_secs(5);
/// Shortest one.
const SHORTEST_REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// The policies of an endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Order.
    pub ordering: Ordering,
    /// Repeats.
    pub retry: Retry,
    /// Returned messages.
    pub on_unroutable: OnUnroutable,
}

impl Policy {
    /// What follows from `outcome` for `message`; `chance` in 0..1 spreads the delays.
    pub fn decide(&self, message: &Message, outcome: Outcome, chance: f64) -> Decision {
        match outcome {
            Outcome::Confirmed => Decision::Complete,
            Outcome::Handled | Outcome::Gone => Decision::Nothing,
            Outcome::Unknown | Outcome::Lost(_) => Decision::SendAgain,
            Outcome::HandlerFailed(error) => self.failed(message, "HandlerFailed", error, chance),
            Outcome::HandlerRefused(error) => Decision::Bury {
                counted: true,
                reason: "HandlerRefused",
                error,
            },
            Outcome::RetryIn(asked, error) => {
                let mut decision = self.failed(message, "HandlerFailed", error, chance);
                if let Decision::Defer { delay, .. } = &mut decision {
                    *delay = asked;
                }
                decision
            }
            Outcome::NotHandled(error) => Decision::Defer {
                delay: refusal_pause(message.deferrals),
                counted: false,
                blocking: self.ordering.mode != OrderingMode::None,
                reason: "NoHandler",
                error,
            },
            Outcome::Returned(error) => match self.on_unroutable {
                OnUnroutable::Retry => self.failed(message, "Unroutable", error, chance),
                OnUnroutable::DeadLetter => Decision::Bury {
                    counted: true,
                    reason: "Unroutable",
                    error,
                },
                OnUnroutable::Drop => Decision::Complete,
            },
            Outcome::Nacked => Decision::Defer {
                delay: refusal_pause(message.deferrals),
                counted: false,
                blocking: self.ordering.mode != OrderingMode::None,
                reason: "Nacked",
                error: "the broker refused the message; a queue may be full".to_owned(),
            },
            Outcome::Unpublishable(error) => Decision::Bury {
                counted: false,
                reason: "Unpublishable",
                error,
            },
            Outcome::ClosedChannel(error) => self.failed(message, "ChannelClosed", error, chance),
        }
    }

    /// A failure that is the message's own.
    fn failed(
        &self,
        message: &Message,
        reason: &'static str,
        error: String,
        chance: f64,
    ) -> Decision {
        let attempts = message.attempts + 1;
        if self.gives_up_after(attempts) {
            return Decision::Bury {
                counted: true,
                reason,
                error,
            };
        }
        Decision::Defer {
            delay: self.delay(attempts, chance),
            counted: true,
            blocking: self.ordering.on_failure == OnFailure::BlockStream,
            reason,
            error,
        }
    }

    /// Whether so many failures are enough.
    pub fn gives_up_after(&self, attempts: u32) -> bool {
        self.retry.max_attempts > 0 && attempts >= self.retry.max_attempts
    }

    /// Back-off after the nth failure: doubled each time, at most the maximum, with full jitter any part of it.
    fn delay(&self, attempts: u32, chance: f64) -> Duration {
        let initial = Duration::from_secs(u64::from(self.retry.initial_delay_seconds));
        let longest = Duration::from_secs(u64::from(self.retry.max_delay_seconds));
        let doublings = attempts.saturating_sub(1).min(20);
        let whole = initial.saturating_mul(1 << doublings).min(longest);
        match self.retry.jitter {
            Jitter::Full => whole.mul_f64(chance.clamp(0.0, 1.0)),
            Jitter::None => whole,
        }
    }
}

fn refusal_pause(refusals: u32) -> Duration {
    SHORTEST_REFUSAL_PAUSE
        .saturating_mul(1 << refusals.min(10))
        .min(LONGEST_REFUSAL_PAUSE)
}

#[cfg(test)]
mod tests;
