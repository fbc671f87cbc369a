//! Where to read: one cursor for each held partition, and the transactions that were running.
//!
//! Pure. The invariant is the whole point of the relay: every committed row of a held partition is
//! at any moment after the cursor, or in a range to be read again, or written by a remembered
//! transaction, or known to [`super::lanes`], or deferred or parked in the database, or settled.
//! `migrations/README.md` ("How a message is read") has the argument.

use std::collections::{BTreeMap, BTreeSet};

use super::lanes::Lane;
use super::message::{Mark, Place, Snapshot};
use crate::hooks;

/// A part of a partition that is read a second time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Again {
    from: Place,
    /// Set when only the rows of this lane are wanted: its earlier rows found no room.
    lane: Option<Lane>,
}

/// The cursor of one partition.
#[derive(Debug, Clone)]
pub struct Cursor {
    /// Everything up to here was read once.
    main: Place,
    again: Option<Again>,
    /// First row that found no room, for each lane that was full.
    skipped: BTreeMap<Lane, Place>,
    /// Low mark as the database has it, for the compare-and-set.
    stored_low_mark: u64,
    /// Counter of removed blocking deferrals that this cursor has taken account of.
    removals: i64,
}

/// What the dispatcher should do with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Offer it to its lane.
    Offer,
    /// Not now: it will be read again, or is accounted for already.
    Ignore,
}

/// Which rows of a partition the answer to a fetch is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scan {
    /// The cursor was moved after the fetch was sent; what comes after it is read again.
    Outdated,
    /// All rows after the cursor.
    Whole,
    /// The rows of one lane.
    Lane(Lane),
}

impl Cursor {
    fn new(low_mark: u64, removals: i64) -> Self {
        Self {
            main: Place::before(low_mark),
            again: None,
            skipped: BTreeMap::new(),
            stored_low_mark: low_mark,
            removals,
        }
    }

    /// The place after which the next fetch reads.
    fn read_after(&self) -> Place {
        self.again.as_ref().map_or(self.main, |again| again.from)
    }

    fn lower(&mut self, to: Place) {
        let from = to.step_back();
        if from >= self.main {
            return;
        }
        // A full range replaces one that was read for a single lane; that lane is skipped from where it stood.
        let from = match self.again.take() {
            Some(Again {
                from: old,
                lane: Some(lane),
            }) => {
                let next = Place {
                    xact: old.xact,
                    id: old.id + 1,
                };
                self.skip(lane, next);
                from
            }
            Some(Again {
                from: old,
                lane: None,
            }) => old.min(from),
            None => from,
        };
        self.again = Some(Again { from, lane: None });
    }

    fn skip(&mut self, lane: Lane, place: Place) {
        self.skipped
            .entry(lane)
            .and_modify(|first| *first = place.min(*first))
            .or_insert(place);
    }
}

/// The cursors of all held partitions of one endpoint.
#[derive(Debug, Default)]
pub struct Reading {
    cursors: BTreeMap<i16, Cursor>,
    /// Transactions that a snapshot listed as running, one set for all partitions: it belongs to one
    /// series of snapshots.
    remembered: BTreeSet<u64>,
}

impl Reading {
    /// Starts to read a partition at its low mark.
    pub fn gain(&mut self, partition: i16, low_mark: u64, removals: i64) {
        self.cursors
            .insert(partition, Cursor::new(low_mark, removals));
    }

    /// Stops reading a partition.
    pub fn lose(&mut self, partition: i16) {
        self.cursors.remove(&partition);
        if self.cursors.is_empty() {
            self.remembered.clear();
        }
    }

    /// Forgets everything: transaction numbers may be given out again.
    pub fn forget(&mut self) {
        self.cursors.clear();
        self.remembered.clear();
    }

    /// Whether a partition is read.
    pub fn holds(&self, partition: i16) -> bool {
        self.cursors.contains_key(&partition)
    }

    /// A held partition that is not in `done`.
    pub fn next_not_in(&self, done: &BTreeSet<i16>) -> Option<i16> {
        self.cursors
            .keys()
            .copied()
            .find(|partition| !done.contains(partition))
    }

    /// Whether this is the counter of removals that the cursor has taken account of.
    pub fn has_removals(&self, partition: i16, removals: i64) -> bool {
        self.cursors
            .get(&partition)
            .is_some_and(|cursor| cursor.removals == removals)
    }

    /// The counters of removals that the cursors have taken account of.
    pub fn counters(&self) -> BTreeMap<i16, i64> {
        self.cursors
            .iter()
            .map(|(&partition, cursor)| (partition, cursor.removals))
            .collect()
    }

    /// Whether no partition is read.
    pub fn is_empty(&self) -> bool {
        self.cursors.is_empty()
    }

    /// What the next fetch asks for: partitions, beginning with the one after `first`, and where each is read from.
    pub fn plan(&self, first: i16) -> (Vec<i16>, Vec<Place>) {
        let (before, from): (Vec<_>, Vec<_>) = self
            .cursors
            .iter()
            .map(|(&partition, cursor)| (partition, cursor.read_after()))
            .partition(|(partition, _)| *partition <= first);
        from.into_iter().chain(before).unzip()
    }

    /// The remembered transactions.
    pub fn remembered(&self) -> Vec<u64> {
        self.remembered.iter().copied().collect()
    }

    /// Whether one of the remembered transactions has ended by `snapshot`.
    pub fn something_ended(&self, snapshot: &Snapshot) -> bool {
        self.remembered.iter().any(|&x| snapshot.has_ended(x))
    }

    /// Whether some range waits to be read again, in a partition that is `open`.
    pub fn has_again(&self, open: impl Fn(i16) -> bool) -> bool {
        self.cursors
            .iter()
            .any(|(&partition, cursor)| cursor.again.is_some() && open(partition))
    }

    /// Which of the remembered transactions have ended by `snapshot`, the oldest first.
    pub fn ended(&self, snapshot: &Snapshot) -> Vec<u64> {
        self.remembered
            .iter()
            .copied()
            .filter(|&x| snapshot.has_ended(x))
            .collect()
    }

    /// Takes account of the snapshot of a fetch: what ran and has ended was answered by it; what runs now is remembered.
    pub fn saw(&mut self, snapshot: &Snapshot) {
        self.remembered.retain(|&x| !snapshot.has_ended(x));
        self.remembered.extend(&snapshot.running);
        if hooks::broken("cursor") {
            self.remembered.clear();
        }
    }

    /// Too many late rows for a batch: everything from the oldest transaction that has ended on is read again.
    pub fn read_again_from_ended(&mut self, snapshot: &Snapshot) {
        if let Some(&xact) = self.ended(snapshot).first() {
            for cursor in self.cursors.values_mut() {
                cursor.lower(Place { xact, id: 0 });
            }
        }
    }

    /// A fetch that was sent at `asked` answers as late only what is before that place. Where it did not stand for all rows
    /// after it, what an `ended` transaction wrote in between has not been seen.
    pub fn read_again_ended_after(&mut self, partition: i16, asked: Place, ended: &[u64]) {
        if let Some(cursor) = self.cursors.get_mut(&partition)
            && let Some(&xact) = ended.iter().find(|&&xact| xact >= asked.xact)
        {
            cursor.lower(Place { xact, id: 0 });
        }
    }

    /// Whether the rows of a partition can be used: false if, by the snapshot they were read in, a stream was freed
    /// behind the cursor meanwhile. The partition is then read again from its low mark.
    pub fn accept_removals(&mut self, partition: i16, low_mark: u64, removals: i64) -> bool {
        let Some(cursor) = self.cursors.get_mut(&partition) else {
            return false;
        };
        if low_mark < cursor.stored_low_mark {
            cursor.stored_low_mark = low_mark;
        }
        if cursor.removals == removals {
            return true;
        }
        // The snapshot may also be older than a removal of ours.
        cursor.removals = cursor.removals.max(removals);
        cursor.lower(Place {
            xact: low_mark,
            id: 0,
        });
        false
    }

    /// A settle of ours removed blocking deferrals: what was parked behind `place` is read again.
    pub fn freed(&mut self, partition: i16, place: Place, removals: i64) {
        if let Some(cursor) = self.cursors.get_mut(&partition) {
            // A larger step means that somebody else removed one too; the next fetch goes back to the low mark for that.
            if removals == cursor.removals + 1 {
                cursor.removals = removals;
            }
            cursor.stored_low_mark = cursor.stored_low_mark.min(place.xact);
            cursor.lower(place);
        }
    }

    /// The low mark in the database was lowered by somebody: read again from there.
    pub fn low_mark_is(&mut self, partition: i16, low_mark: u64) {
        if let Some(cursor) = self.cursors.get_mut(&partition)
            && low_mark < cursor.stored_low_mark
        {
            cursor.stored_low_mark = low_mark;
            cursor.lower(Place {
                xact: low_mark,
                id: 0,
            });
        }
    }

    /// A row that must be read again, whatever the reason.
    pub fn read_again(&mut self, partition: i16, place: Place) {
        if let Some(cursor) = self.cursors.get_mut(&partition) {
            cursor.lower(place);
        }
    }

    /// What the answer to a fetch that was sent at `asked` is good for.
    pub fn scan(&self, partition: i16, asked: Place) -> Scan {
        match self.cursors.get(&partition) {
            Some(cursor) if cursor.read_after() == asked => match &cursor.again {
                Some(Again {
                    lane: Some(lane), ..
                }) => Scan::Lane(lane.clone()),
                Some(Again { lane: None, .. }) | None => Scan::Whole,
            },
            Some(_) | None => Scan::Outdated,
        }
    }

    /// Whether a row that was read at the cursor may be offered.
    pub fn admit_next(
        &self,
        partition: i16,
        scan: &Scan,
        lane: Option<&Lane>,
        place: Place,
    ) -> Admission {
        let Some(cursor) = self.cursors.get(&partition) else {
            return Admission::Ignore;
        };
        let wanted = match scan {
            Scan::Outdated => false,
            Scan::Whole => true,
            // The rows of the others between here and the cursor are accounted for already.
            Scan::Lane(wanted) => lane == Some(wanted) && place <= cursor.main,
        };
        match lane.and_then(|lane| cursor.skipped.get(lane)) {
            Some(&first) if place > first => Admission::Ignore,
            Some(_) | None if wanted => Admission::Offer,
            Some(_) | None => Admission::Ignore,
        }
    }

    /// Whether a late or due row may be offered: it is behind the cursor, and not in a part that is read again anyway, where
    /// it comes after what stands before it.
    pub fn admit_behind(&self, partition: i16, lane: Option<&Lane>, place: Place) -> Admission {
        let Some(cursor) = self.cursors.get(&partition) else {
            return Admission::Ignore;
        };
        let comes_again = place > cursor.main
            || cursor.again.as_ref().is_some_and(|again| {
                place > again.from && (again.lane.is_none() || again.lane.as_ref() == lane)
            })
            || lane
                .and_then(|lane| cursor.skipped.get(lane))
                .is_some_and(|&first| place >= first);
        if comes_again {
            Admission::Ignore
        } else {
            Admission::Offer
        }
    }

    /// A row read at the cursor found its lane full: its lane goes on from here when there is room. True if the cursor stood
    /// for this lane alone, so that nothing more of the answer is good for anything.
    pub fn skip(&mut self, partition: i16, lane: &Lane, place: Place) -> bool {
        let Some(cursor) = self.cursors.get_mut(&partition) else {
            return true;
        };
        cursor.skip(lane.clone(), place);
        let alone = cursor
            .again
            .as_ref()
            .is_some_and(|again| again.lane.as_ref() == Some(lane));
        if alone {
            cursor.again = None;
        }
        alone
    }

    /// A row that was skipped was read at the cursor again and has found room: the rest of its lane follows.
    pub fn taken(&mut self, partition: i16, lane: &Lane, place: Place) {
        if let Some(cursor) = self.cursors.get_mut(&partition)
            && cursor.skipped.get(lane) == Some(&place)
        {
            cursor.skipped.remove(lane);
        }
    }

    /// The cursor of a partition has read up to `last`; `more` says that the partition gave all that was asked for.
    pub fn advance(&mut self, partition: i16, read_after: Place, last: Option<Place>, more: bool) {
        let Some(cursor) = self.cursors.get_mut(&partition) else {
            return;
        };
        if cursor.read_after() != read_after {
            return; // moved meanwhile: this answer belongs to an older cursor
        }
        let last = last.unwrap_or(read_after);
        match &mut cursor.again {
            None => cursor.main = cursor.main.max(last),
            Some(again) if more && last < cursor.main => again.from = last,
            Some(Again { lane: None, .. }) => {
                cursor.main = cursor.main.max(last);
                cursor.again = None;
            }
            Some(_) => cursor.again = None,
        }
    }

    /// Reads again for a lane that was full and has room; one lane of a partition at a time.
    pub fn resume_skipped(&mut self, mut has_room: impl FnMut(&Lane) -> bool) {
        for cursor in self.cursors.values_mut() {
            if cursor.again.is_some() {
                continue;
            }
            let Some(lane) = cursor.skipped.keys().find(|lane| has_room(lane)).cloned() else {
                continue;
            };
            if let Some(first) = cursor.skipped.remove(&lane) {
                cursor.again = Some(Again {
                    from: first.step_back(),
                    lane: Some(lane),
                });
            }
        }
    }

    /// Low mark to store: below it everything is settled or deferred. `known` is the lowest transaction of a message in memory.
    pub fn mark(&self, partition: i16, known: Option<u64>) -> Option<Mark> {
        let cursor = self.cursors.get(&partition)?;
        let remembered = if hooks::broken("forgetful") {
            None
        } else {
            self.remembered.first().copied()
        };
        let waiting = [
            known,
            remembered,
            cursor.again.as_ref().map(|again| again.from.xact),
            cursor.skipped.values().map(|place| place.xact).min(),
        ];
        let new = waiting
            .into_iter()
            .flatten()
            .fold(cursor.main.xact, u64::min);
        Some(Mark {
            seen: cursor.stored_low_mark,
            new: new.max(cursor.stored_low_mark),
            removals: cursor.removals,
        })
    }

    /// The database has taken over a new low mark.
    pub fn low_mark_stored(&mut self, partition: i16, low_mark: u64) {
        if let Some(cursor) = self.cursors.get_mut(&partition) {
            cursor.stored_low_mark = low_mark;
        }
    }

    /// Place up to which a partition was read once; the sweep looks behind it.
    pub fn main(&self, partition: i16) -> Option<Place> {
        self.cursors.get(&partition).map(|cursor| cursor.main)
    }

    /// Whether a row that nobody knows is expected to come up by itself: it is after the cursor or in a range to be
    /// read again, its lane is skipped, or its transaction is remembered.
    pub fn expects(&self, partition: i16, lane: Option<&Lane>, place: Place) -> bool {
        self.cursors.get(&partition).is_none_or(|cursor| {
            place > cursor.main
                || cursor
                    .again
                    .as_ref()
                    .is_some_and(|again| place > again.from)
                || lane
                    .and_then(|lane| cursor.skipped.get(lane))
                    .is_some_and(|&first| place >= first)
                || self.remembered.contains(&place.xact)
        })
    }
}

#[cfg(test)]
mod tests;
