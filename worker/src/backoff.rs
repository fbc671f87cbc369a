//! Pauses between attempts: doubled each time, spread by chance, with a ceiling.

use std::time::Duration;

/// Shortest pause.
const FIRST: Duration = Duration::from_millis(200);
/// Longest pause; short enough that what was mended shows within 30 s.
const LONGEST: Duration = Duration::from_secs(8);

/// A growing pause.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// The next pause: between half and all of the doubled one, so that a fleet does not come back as one.
    pub fn next_pause(&mut self) -> Duration {
        let whole = FIRST
            .saturating_mul(1 << self.attempts.min(10))
            .min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        whole.mul_f64(0.5 + 0.5 * chance())
    }
}

/// A random number in 0..1.
pub fn chance() -> f64 {
    let [high, low, ..] = *uuid::Uuid::new_v4().as_bytes();
    f64::from(u16::from_be_bytes([high, low])) / 65_536.0
}

#[cfg(test)]
mod tests {
    use super::{Backoff, LONGEST};

    #[test]
    fn pauses_grow_and_stay_below_the_ceiling() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..20).map(|_| backoff.next_pause()).collect();
        assert!(pauses[0] <= super::FIRST && pauses[0] >= super::FIRST / 2);
        assert!(pauses[19] >= LONGEST / 2 && pauses.iter().all(|p| *p <= LONGEST));
    }
}
