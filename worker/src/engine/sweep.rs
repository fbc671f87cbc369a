//! The slow look for what everything else missed: a circle over all held partitions, one slice a second.
//!
//! It should never find anything. What it finds is counted and read again: late, not lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Endpoint;
use super::intake::Asked;
use super::message::{Batch, Place, Row};
use super::reading::Reading;
use crate::store::Fetch;

/// Pause between two slices.
const PERIOD: Duration = Duration::from_secs(1);
/// Rows of a slice.
const ROWS: i32 = 500;
/// Bytes of bodies of a slice.
const BYTES: i64 = 1 << 20;

/// Where the circle stands.
#[derive(Debug)]
pub(super) struct Sweep {
    at: Option<(i16, Place)>,
    done: BTreeSet<i16>,
    next: Instant,
    began: Instant,
}

impl Sweep {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            at: None,
            done: BTreeSet::new(),
            next: now + PERIOD,
            began: now,
        }
    }

    /// The next slice, when it is time.
    pub(super) fn plan(&mut self, reading: &Reading, endpoint: &str) -> Option<Asked> {
        if Instant::now() < self.next || reading.is_empty() {
            return None;
        }
        self.next = Instant::now() + PERIOD;
        let (partition, place) = match self.at {
            Some(at) if reading.holds(at.0) => at,
            _ => (reading.next_not_in(&self.done)?, Place::before(0)),
        };
        self.at = Some((partition, place));
        let fetch = Fetch {
            endpoint: endpoint.to_owned(),
            partitions: vec![partition],
            places: vec![place],
            running: Vec::new(),
            max_rows: ROWS,
            max_bytes: BYTES,
        };
        Some(Asked { fetch, sweep: true })
    }

    /// A slice was looked at up to `last`; none when the partition is through.
    fn advance(&mut self, partition: i16, last: Option<Place>) {
        if let Some(last) = last {
            self.at = Some((partition, last));
        } else {
            self.at = None;
            self.done.insert(partition);
        }
    }

    /// The duration of the circle, when it is closed.
    fn close(&mut self, reading: &Reading) -> Option<Duration> {
        if reading.next_not_in(&self.done).is_some() {
            return None;
        }
        self.done.clear();
        let circle = self.began.elapsed();
        self.began = Instant::now();
        Some(circle)
    }

    pub(super) fn forget(&mut self, partition: i16) {
        self.done.remove(&partition);
        if self.at.is_some_and(|(at, _)| at == partition) {
            self.at = None;
        }
    }
}

impl Endpoint {
    pub(super) fn on_swept(&mut self, fetch: &Fetch, batch: &Batch) {
        let partition = fetch.partitions[0];
        let Some(main) = self.memory.reading.main(partition) else {
            return;
        };
        if !self
            .memory
            .reading
            .has_removals(partition, batch.removals[0])
        {
            return; // a stream was freed meanwhile; the next fetch sees to it
        }
        let mut last = None;
        let mut found = Vec::new();
        for row in &batch.rows {
            match row {
                Row::Next(message) => {
                    let key = message.identity.key;
                    last = Some(key.place);
                    let lane = self.memory.lanes.lane_of(message);
                    let expected = message.deferrals > 0
                        || self.memory.lanes.knows(key)
                        || self.memory.suspects.is_gated(partition)
                        || self.memory.is_parked(lane.as_ref(), key.place)
                        || self
                            .memory
                            .reading
                            .expects(partition, lane.as_ref(), key.place);
                    if !expected {
                        found.push(key.place);
                    }
                }
                Row::Skipped(key) => last = Some(key.place),
                Row::Late(_) | Row::Due(_) | Row::Orphan(_) => {}
            }
        }
        for place in found {
            tracing::warn!(endpoint = %self.shared.config.name, partition, position = place.id, "The sweep found a message that reading had missed");
            self.shared.metrics.sweep_found.inc();
            self.memory.reading.read_again(partition, place);
        }
        self.sweep
            .advance(partition, last.filter(|last| *last < main));
        if let Some(circle) = self.sweep.close(&self.memory.reading) {
            self.shared.metrics.sweep_circle.set(circle.as_secs_f64());
        }
    }
}
