//! What is measured, and how good it should be.

mod calls;
mod drains;
mod idle;
mod inbox;
mod latency;
mod scheduled;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use crate::Sizes;
use crate::bed::Servers;
use crate::progress::Progress;

/// A case. The help of the command line lists them with these lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Case {
    /// Waiting messages, against the bare loop
    Drain,
    /// The same with many streams in strict order
    Streams,
    /// A single stream has very many messages first in line: how fast the others drain
    HotStream,
    /// A snapshot is held since before the messages were written
    Snapshot,
    /// A writing transaction is open since before the messages were written
    Writer,
    /// Single calls of `claim_work` and of the poll while nothing happens
    Calls,
    /// A worker with nothing to do: processor time, memory, and the first message after that
    Idle,
    /// Very many messages that wait for their time
    Scheduled,
    /// From commit to arrival at a steady rate
    Latency,
    /// An inbox that accepts, against a bare consumer; and what it has accepted before
    Accept,
    /// An inbox that accepts and runs a SQL handler
    Handle,
    /// A memory of very many identities
    Memory,
}

impl Case {
    /// In the order in which they run.
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// As on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

/// How good a figure should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    /// Whether a value is good enough.
    pub(crate) fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

/// One measured value.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) target: Option<Target>,
}

impl Figure {
    /// One that is only shown.
    fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self {
            name,
            value,
            unit,
            target: None,
        }
    }

    fn at_least(self, least: f64) -> Self {
        Self {
            target: Some(Target::AtLeast(least)),
            ..self
        }
    }

    fn at_most(self, most: f64) -> Self {
        Self {
            target: Some(Target::AtMost(most)),
            ..self
        }
    }
}

/// Measures a case once.
pub(crate) async fn run(
    case: Case,
    servers: &Servers,
    sizes: &Sizes,
    progress: &Progress,
) -> Result<Vec<Figure>> {
    match case {
        Case::Drain => drains::plain(servers, sizes, progress).await,
        Case::Streams => drains::streams(servers, sizes, progress).await,
        Case::HotStream => drains::hot_stream(servers, sizes, progress).await,
        Case::Snapshot => drains::beside_snapshot(servers, sizes, progress).await,
        Case::Writer => drains::beside_writer(servers, sizes, progress).await,
        Case::Calls => calls::run(servers, progress).await,
        Case::Idle => idle::run(servers, sizes, progress).await,
        Case::Scheduled => scheduled::run(servers, sizes, progress).await,
        Case::Latency => latency::run(servers, sizes, progress).await,
        Case::Accept => inbox::accept(servers, sizes, progress).await,
        Case::Handle => inbox::handle(servers, sizes, progress).await,
        Case::Memory => inbox::memory(servers, sizes, progress).await,
    }
}

/// The value below which `share` of the sorted values lie.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list"
    )]
    let place = (sorted.len() as f64 * share) as usize;
    sorted
        .get(place.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values = sorted(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        for (share, expected) in [(0.0, 1.0), (0.5, 3.0), (0.99, 5.0), (1.0, 5.0)] {
            assert!((percentile(&values, share) - expected).abs() < f64::EPSILON);
        }
        assert!(percentile(&[], 0.5).is_nan(), "nothing was measured");
    }

    #[test]
    fn a_target_is_met_at_its_bound_and_not_beyond() {
        assert!(Target::AtLeast(0.75).is_met_by(0.75) && !Target::AtLeast(0.75).is_met_by(0.74));
        assert!(Target::AtMost(1.0).is_met_by(1.0) && !Target::AtMost(1.0).is_met_by(1.01));
        assert!(
            !Target::AtMost(1.0).is_met_by(f64::NAN),
            "unknown is not good"
        );
    }
}
