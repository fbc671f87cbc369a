//! Outcomes that wait to be recorded, and what the database said to them.
//!
//! One call at a time for each endpoint; what comes in meanwhile goes with the next one. A call that
//! fails is made again: completing twice is a no-op.

use std::sync::Arc;

use uuid::Uuid;

use super::message::{Identity, Message};
use crate::database::Link;
use crate::settle::{self, Burial, Claim, Deferral, Release, Settled};
use crate::store::Direction;

/// Most messages of one call.
const BATCH: usize = 2_000;
/// So many confirmed messages do not wait for more.
const ENOUGH: usize = 500;

/// One call to the database.
#[derive(Debug, Clone)]
pub enum Act {
    /// Delete confirmed messages, and deferrals whose message is gone.
    Complete(Vec<(Claim, Arc<Message>)>),
    /// Delete deferrals whose message is gone.
    Clear(Vec<Identity>),
    /// Put messages off.
    Defer(Vec<(Deferral, Arc<Message>)>),
    /// Record an attempt before the message is run alone.
    Attempt(Deferral, Arc<Message>),
    /// Give messages up.
    Bury(Vec<(Burial, Arc<Message>)>),
    /// Give partitions back.
    Release(Vec<Release>),
}

impl Act {
    /// Name of the point just before it, where tests stop the process.
    pub fn abort_point(&self) -> &'static str {
        match self {
            Self::Complete(_) | Self::Clear(_) => "confirmed",
            Self::Defer(_) | Self::Attempt(..) => "parking",
            Self::Bury(_) => "burying",
            Self::Release(_) => "handing-over",
        }
    }

    /// Brings the epochs up to date before the call. Without a claim any more a completion is right all the same; anything
    /// else would change nothing and is dropped.
    pub fn renew_epochs(&mut self, epoch_of: impl Fn(i16) -> Option<i64>) {
        let renew = |claim: &mut Claim| {
            let epoch = epoch_of(claim.identity.key.partition);
            claim.epoch = epoch.unwrap_or_default();
            epoch.is_some()
        };
        match self {
            Self::Complete(messages) => {
                for (claim, _) in messages {
                    renew(claim);
                }
            }
            // After a loss and another take-over a message may have come to its end twice; the database wants it once.
            Self::Defer(messages) => {
                messages.retain_mut(|(deferral, _)| renew(&mut deferral.claim));
                messages.sort_by_key(|(deferral, _)| deferral.claim.identity.key);
                messages.dedup_by_key(|(deferral, _)| deferral.claim.identity.key);
            }
            Self::Bury(messages) => {
                messages.retain_mut(|(burial, _)| renew(&mut burial.claim));
                messages.sort_by_key(|(burial, _)| burial.claim.identity.key);
                messages.dedup_by_key(|(burial, _)| burial.claim.identity.key);
            }
            Self::Clear(_) | Self::Attempt(..) | Self::Release(_) => {}
        }
    }

    /// The epoch under which something of a partition is settled.
    pub fn epoch_of(&self, partition: i16) -> Option<i64> {
        let claims: Vec<&Claim> = match self {
            Self::Complete(messages) => messages.iter().map(|(claim, _)| claim).collect(),
            Self::Defer(messages) => messages.iter().map(|(d, _)| &d.claim).collect(),
            Self::Bury(messages) => messages.iter().map(|(b, _)| &b.claim).collect(),
            Self::Attempt(deferral, _) => vec![&deferral.claim],
            Self::Clear(_) | Self::Release(_) => Vec::new(),
        };
        claims
            .into_iter()
            .find(|claim| claim.identity.key.partition == partition)
            .map(|claim| claim.epoch)
    }

    /// Does it.
    pub async fn run(
        &self,
        link: &mut Link<'_>,
        worker: Uuid,
        direction: Direction,
        endpoint: &str,
    ) -> Result<Settled, sqlx::Error> {
        match self {
            Self::Complete(messages) => {
                let mut claims: Vec<_> = messages.iter().map(|(claim, _)| *claim).collect();
                settle::complete_messages(link, worker, direction, endpoint, &mut claims).await
            }
            Self::Clear(identities) => {
                let mut claims: Vec<_> = identities
                    .iter()
                    .map(|&identity| Claim { identity, epoch: 0 })
                    .collect();
                let settled =
                    settle::complete_messages(link, worker, direction, endpoint, &mut claims)
                        .await?;
                Ok(Settled {
                    lost: Vec::new(),
                    ..settled
                })
            }
            Self::Defer(messages) => {
                let mut deferrals: Vec<_> = messages
                    .iter()
                    .map(|(deferral, _)| deferral.clone())
                    .collect();
                settle::defer_messages(link, worker, endpoint, &mut deferrals).await
            }
            Self::Attempt(deferral, _) => {
                settle::defer_messages(link, worker, endpoint, &mut [deferral.clone()]).await
            }
            Self::Bury(messages) => {
                let mut burials: Vec<_> =
                    messages.iter().map(|(burial, _)| burial.clone()).collect();
                settle::bury_messages(link, worker, endpoint, &mut burials).await
            }
            Self::Release(releases) => {
                settle::release_work(link, worker, endpoint, releases).await?;
                Ok(Settled::default())
            }
        }
    }
}

/// What waits to be recorded.
#[derive(Debug, Default)]
pub struct Settling {
    confirmed: Vec<(Claim, Arc<Message>)>,
    /// One of the confirmed messages holds its stream back until it is settled.
    urgent: bool,
    orphans: Vec<Identity>,
    deferred: Vec<(Deferral, Arc<Message>)>,
    attempts: Vec<(Deferral, Arc<Message>)>,
    buried: Vec<(Burial, Arc<Message>)>,
    releases: Vec<Release>,
    failed: Option<Act>,
}

impl Settling {
    /// A message was confirmed.
    pub fn complete(&mut self, claim: Claim, message: Arc<Message>) {
        self.urgent |= message.deferrals > 0;
        self.confirmed.push((claim, message));
    }

    /// A deferral without a message.
    pub fn clear(&mut self, identity: Identity) {
        if !self.orphans.contains(&identity) {
            self.orphans.push(identity);
        }
    }

    /// A message is put off.
    pub fn defer(&mut self, deferral: Deferral, message: Arc<Message>) {
        self.deferred.push((deferral, message));
    }

    /// An attempt is recorded before it is made.
    pub fn attempt(&mut self, deferral: Deferral, message: Arc<Message>) {
        self.attempts.push((deferral, message));
    }

    /// A message is given up.
    pub fn bury(&mut self, burial: Burial, message: Arc<Message>) {
        self.buried.push((burial, message));
    }

    /// A partition is given back.
    pub fn release(&mut self, release: Release) {
        self.releases.push(release);
    }

    /// The call that has failed comes first again.
    pub fn again(&mut self, act: Act) {
        self.failed = Some(act);
    }

    /// The next call to make, if there is one.
    pub fn next_act(&mut self) -> Option<Act> {
        if let Some(act) = self.failed.take() {
            return Some(act);
        }
        if let Some((deferral, message)) = self.attempts.pop() {
            return Some(Act::Attempt(deferral, message));
        }
        if !self.deferred.is_empty() {
            return Some(Act::Defer(take(&mut self.deferred)));
        }
        if !self.buried.is_empty() {
            return Some(Act::Bury(take(&mut self.buried)));
        }
        if !self.confirmed.is_empty() {
            self.urgent = false;
            return Some(Act::Complete(take(&mut self.confirmed)));
        }
        if !self.orphans.is_empty() {
            return Some(Act::Clear(take(&mut self.orphans)));
        }
        (!self.releases.is_empty()).then(|| Act::Release(take(&mut self.releases)))
    }

    /// Whether there is nothing but a few confirmed messages that nobody waits for.
    pub fn can_wait(&self) -> bool {
        !self.urgent && self.confirmed.len() < ENOUGH && self.has_only_confirmed()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.confirmed.is_empty() && self.has_only_confirmed()
    }

    fn has_only_confirmed(&self) -> bool {
        self.orphans.is_empty()
            && self.deferred.is_empty()
            && self.attempts.is_empty()
            && self.buried.is_empty()
            && self.releases.is_empty()
            && self.failed.is_none()
    }
}

fn take<T>(items: &mut Vec<T>) -> Vec<T> {
    let rest = items.split_off(items.len().min(BATCH));
    std::mem::replace(items, rest)
}
