//! Which of several operators works: the one that holds a Lease.
//!
//! Invariants: another's lease is over when it has not changed for its whole length, by our own clock, so clocks need not
//! agree; we stop trusting our own lease well before others may take it; every write names the version it has read, so of
//! two that write at once one loses.

use std::future::Future;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

/// Name of the Lease.
pub const LEASE: &str = "postroom-operator";
/// How long a lease lasts without a renewal.
const LENGTH: Duration = Duration::from_secs(15);
/// How long we trust ours without one.
const TRUST: Duration = Duration::from_secs(10);
/// Time between two looks, and between two renewals.
const BEAT: Duration = Duration::from_secs(4);
/// Longest wait for an answer.
const CALL: Duration = Duration::from_secs(5);

/// One of those that want the lease.
pub struct Candidate {
    leases: Api<Lease>,
    identity: String,
    /// What we last saw of the lease, and since when it is so.
    seen: Option<(Lease, Instant)>,
}

/// What to do about the lease.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    Create,
    Take,
    Renew,
    Wait,
}

impl Candidate {
    /// A candidate with a name that no other has.
    pub fn new(client: Client, namespace: &str, identity: String) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            identity,
            seen: None,
        }
    }

    /// Waits until the lease is ours.
    pub async fn win(&mut self) {
        loop {
            match self.try_once().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!("The lease {LEASE} cannot be had: {error}"),
            }
            sleep(BEAT).await;
        }
    }

    /// Renews the lease; returns when it is lost, or may be.
    pub async fn hold(&mut self) {
        let mut trusted_until = Instant::now() + TRUST;
        loop {
            sleep(BEAT).await;
            let asked = Instant::now();
            match self.try_once().await {
                Ok(true) => trusted_until = asked + TRUST,
                Ok(false) => return tracing::warn!("Another operator has taken the lease {LEASE}"),
                Err(error) => tracing::warn!("The lease {LEASE} was not renewed: {error}"),
            }
            if Instant::now() >= trusted_until {
                return tracing::warn!("The lease {LEASE} was not renewed in time");
            }
        }
    }

    /// Gives the lease back, so that another need not wait for its end.
    pub async fn release(&mut self) {
        let Some((lease, _)) = self
            .seen
            .take()
            .filter(|(lease, _)| holder(lease) == Some(self.identity.as_str()))
        else {
            return;
        };
        let spec = lease.spec.map(|spec| LeaseSpec {
            holder_identity: None,
            lease_duration_seconds: Some(1),
            ..spec
        });
        // A courtesy: the lease ends by itself.
        drop(self.write(Lease { spec, ..lease }).await);
    }

    /// Looks and acts once. True if the lease is ours.
    async fn try_once(&mut self) -> Result<bool, kube::Error> {
        let lease = answered(self.leases.get_opt(LEASE)).await?;
        let unchanged = |old: &Lease| lease.as_ref().is_some_and(|lease| lease.spec == old.spec);
        let since = self
            .seen
            .take()
            .filter(|(old, _)| unchanged(old))
            .map_or_else(Instant::now, |(_, since)| since);
        let act = decide(lease.as_ref(), &self.identity, since.elapsed());
        let written = match (act, lease) {
            (Act::Create, _) | (_, None) => {
                answered(self.leases.create(&PostParams::default(), &self.first())).await
            }
            (Act::Wait, Some(lease)) => {
                self.seen = Some((lease, since));
                return Ok(false);
            }
            (Act::Renew, Some(lease)) => self.write(self.renewed(lease)).await,
            (Act::Take, Some(lease)) => self.write(self.taken(lease)).await,
        };
        match written {
            Ok(lease) => {
                self.seen = Some((lease, Instant::now()));
                Ok(true)
            }
            // Another was quicker.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, lease: Lease) -> Result<Lease, kube::Error> {
        answered(self.leases.replace(LEASE, &PostParams::default(), &lease)).await
    }

    fn first(&self) -> Lease {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(LEASE.to_owned()),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        self.taken(lease)
    }

    fn renewed(&self, mut lease: Lease) -> Lease {
        let spec = lease.spec.get_or_insert_default();
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        lease
    }

    fn taken(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        *spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LENGTH.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(spec.lease_transitions.unwrap_or_default() + 1),
            ..LeaseSpec::default()
        };
        lease
    }
}

async fn answered<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    match timeout(CALL, call).await {
        Ok(answer) => answer,
        Err(_) => Err(kube::Error::Service(
            format!("the API server did not answer within {CALL:?}").into(),
        )),
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease
        .spec
        .as_ref()?
        .holder_identity
        .as_deref()
        .filter(|holder| !holder.is_empty())
}

/// `unchanged`: for how long the lease has been as it is.
fn decide(lease: Option<&Lease>, identity: &str, unchanged: Duration) -> Act {
    let Some(lease) = lease else {
        return Act::Create;
    };
    let seconds = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds);
    let length = seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(LENGTH, Duration::from_secs);
    match holder(lease) {
        None => Act::Take,
        Some(holder) if holder == identity => Act::Renew,
        Some(_) if unchanged >= length => Act::Take,
        Some(_) => Act::Wait,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};

    use super::{Act, LENGTH, TRUST, decide};

    fn held_by(holder: &str) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        Lease {
            spec: Some(spec),
            ..Lease::default()
        }
    }

    #[test]
    fn a_lease_of_another_is_taken_only_after_its_whole_length() {
        let lease = held_by("other");
        assert_eq!(
            decide(Some(&lease), "me", Duration::from_secs(14)),
            Act::Wait
        );
        assert_eq!(
            decide(Some(&lease), "me", Duration::from_secs(15)),
            Act::Take
        );
    }

    #[test]
    fn a_lease_of_nobody_is_taken_and_ours_renewed() {
        assert_eq!(decide(None, "me", Duration::ZERO), Act::Create);
        assert_eq!(
            decide(Some(&Lease::default()), "me", Duration::ZERO),
            Act::Take
        );
        assert_eq!(decide(Some(&held_by("")), "me", Duration::ZERO), Act::Take);
        assert_eq!(
            decide(Some(&held_by("me")), "me", Duration::from_secs(60)),
            Act::Renew
        );
    }

    #[test]
    fn we_stop_before_others_start() {
        assert!(TRUST < LENGTH);
    }
}
