//! Deliveries gathered for one store, in the order in which they came.

use std::time::{Duration, Instant};

use super::delivery::{Judgement, Slot};

/// Most bytes of bodies and headers in one store. A larger delivery goes alone.
const MOST_BYTES: usize = 8 << 20;

/// Consecutive deliveries. What is discarded by rule counts at its place, so that one acknowledgement covers all.
#[derive(Debug, Default)]
pub struct Batch {
    /// What goes to the database.
    pub slots: Vec<Slot>,
    /// How many are settled without it.
    pub discarded: u64,
    tags: Vec<u64>,
    last_tag: u64,
    bytes: usize,
    began: Option<Instant>,
}

impl Batch {
    /// Takes the next delivery.
    pub fn push(&mut self, tag: u64, judgement: Judgement) {
        self.began.get_or_insert_with(Instant::now);
        self.last_tag = tag;
        match judgement {
            Judgement::Store(slot) => {
                self.bytes += slot.size();
                self.slots.push(*slot);
                self.tags.push(tag);
            }
            Judgement::Discard => self.discarded += 1,
        }
    }

    /// The first half of what goes to the database, and the rest; none where there is only one.
    pub fn halves(mut self) -> Result<(Self, Self), Self> {
        let middle = self.slots.len() / 2;
        if middle == 0 {
            return Err(self);
        }
        let rest = Self {
            slots: self.slots.split_off(middle),
            tags: self.tags.split_off(middle),
            discarded: std::mem::take(&mut self.discarded),
            ..self
        };
        let last_tag = self.tags[middle - 1];
        Ok((Self { last_tag, ..self }, rest))
    }

    /// How many deliveries it holds.
    pub fn len(&self) -> u64 {
        self.slots.len() as u64 + self.discarded
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.began.is_none()
    }

    /// Whether it takes no more.
    pub fn is_full(&self, most: u32) -> bool {
        self.len() >= u64::from(most) || self.bytes >= MOST_BYTES
    }

    /// When it has waited long enough for more; none while it holds nothing.
    pub fn due(&self, delay: Duration) -> Option<Instant> {
        Some(self.began? + delay)
    }

    /// Number of its last delivery.
    pub fn last_tag(&self) -> u64 {
        self.last_tag
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Batch, MOST_BYTES};
    use crate::inbox::delivery::{Body, Judgement, Slot};

    fn slot(size: usize) -> Judgement {
        Judgement::Store(Box::new(Slot {
            body: Body::Bytes(vec![1; size]),
            ..Slot::default()
        }))
    }

    #[test]
    fn a_batch_is_full_by_count_and_what_is_discarded_counts_at_its_place() {
        let mut batch = Batch::default();
        assert!(batch.is_empty() && batch.due(Duration::ZERO).is_none());
        batch.push(7, slot(1));
        batch.push(8, Judgement::Discard);
        assert_eq!(
            (batch.len(), batch.last_tag(), batch.slots.len()),
            (2, 8, 1)
        );
        assert!(batch.is_full(2) && !batch.is_full(3));
    }

    #[test]
    fn halves_keep_the_order_and_each_is_acknowledged_up_to_its_own_end() {
        let mut batch = Batch::default();
        for tag in 3..8 {
            batch.push(tag, slot(1));
        }
        batch.push(8, Judgement::Discard);
        let (first, rest) = batch.halves().unwrap();
        assert_eq!((first.len(), first.last_tag()), (2, 4));
        assert_eq!((rest.len(), rest.last_tag()), (4, 8));
        let (first, _) = first.halves().unwrap();
        assert_eq!((first.len(), first.last_tag()), (1, 3));
        assert!(first.halves().is_err());
    }

    #[test]
    fn a_batch_is_full_by_bytes_and_the_first_delivery_starts_its_clock() {
        let mut batch = Batch::default();
        batch.push(1, slot(MOST_BYTES - 1));
        assert!(!batch.is_full(100));
        let due = batch.due(Duration::from_secs(1)).unwrap();
        batch.push(2, slot(1));
        assert!(batch.is_full(100));
        assert_eq!(batch.due(Duration::from_secs(1)), Some(due));
        assert!(due > Instant::now());
    }
}
