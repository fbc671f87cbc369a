//! How long this process may act on its lease.
//!
//! Invariant: trusted time ends before the database would let the lease run out, because it is
//! counted from when the claim was sent, and is shorter than what was granted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::hooks;

/// Share of the granted time that is trusted.
const TRUSTED: f64 = 0.85;

/// The trusted time, shared by all who act on the lease.
#[derive(Debug, Clone)]
pub struct Trust {
    until: Arc<Mutex<Instant>>,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            until: Arc::new(Mutex::new(Instant::now())),
        }
    }
}

impl Trust {
    /// A claim that was sent at `sent` has been granted for `lease`.
    pub fn renew(&self, sent: Instant, lease: Duration) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = sent + lease.mul_f64(TRUSTED);
    }

    /// Until when the lease is trusted.
    pub fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the lease is trusted now.
    pub fn holds(&self) -> bool {
        Instant::now() < self.until() || hooks::broken("trust")
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Trust;

    #[test]
    fn a_lease_is_trusted_for_less_than_it_was_granted_counted_from_when_it_was_asked_for() {
        let trust = Trust::default();
        assert!(!trust.holds());
        let sent = Instant::now();
        trust.renew(sent, Duration::from_secs(10));
        assert!(trust.holds() && trust.until() < sent + Duration::from_secs(10));
        trust.renew(sent - Duration::from_secs(9), Duration::from_secs(10));
        assert!(!trust.holds());
    }
}
