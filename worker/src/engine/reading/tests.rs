//! Cursors, ranges that are read again, skipped lanes and low marks. What all of it is for is in `memory/tests.rs`.

use super::*;
use crate::engine::message::Stream;

const P: i16 = 3;

fn at(xact: u64, id: i64) -> Place {
    Place { xact, id }
}

fn lane(name: &str) -> Lane {
    Lane::Stream(Stream::new("", name))
}

fn snapshot(text: &str) -> Snapshot {
    Snapshot::parse(text).unwrap()
}

/// A cursor that has read up to (200, 9).
fn reading() -> Reading {
    let mut reading = Reading::default();
    reading.gain(P, 100, 0);
    read_to(&mut reading, at(200, 9));
    reading
}

fn place_of(reading: &Reading) -> Place {
    reading.plan(-1).1[0]
}

fn read_to(reading: &mut Reading, last: Place) {
    let asked = place_of(reading);
    reading.advance(P, asked, Some(last), false);
}

fn low_mark(reading: &Reading) -> u64 {
    reading.mark(P, None).unwrap().new
}

#[test]
fn a_gained_partition_is_read_from_before_the_first_row_of_its_low_mark() {
    let mut reading = Reading::default();
    reading.gain(P, 100, 0);
    assert_eq!(place_of(&reading), at(100, -1));
    assert_eq!(low_mark(&reading), 100);
}

#[test]
fn a_fetch_begins_with_the_partition_after_the_one_at_which_the_last_was_cut() {
    let mut reading = Reading::default();
    for partition in [1, 5, 9] {
        reading.gain(partition, 100, 0);
    }
    for (after, expected) in [
        (-1, [1, 5, 9]),
        (1, [5, 9, 1]),
        (5, [9, 1, 5]),
        (9, [1, 5, 9]),
    ] {
        assert_eq!(reading.plan(after).0, expected, "after {after}");
    }
}

/// G1: the answer to a fetch that was sent before the cursor moved is good for nothing after it.
#[test]
fn an_answer_for_an_older_cursor_is_outdated_and_moves_nothing() {
    let mut reading = reading();
    let asked = place_of(&reading);
    assert_eq!(reading.scan(P, asked), Scan::Whole);
    reading.read_again(P, at(150, 1));
    assert_eq!(reading.scan(P, asked), Scan::Outdated);
    reading.advance(P, asked, Some(at(300, 1)), false);
    assert_eq!(place_of(&reading), at(150, 0));
    assert_eq!(reading.main(P), Some(at(200, 9)));
    let admission = reading.admit_next(P, &Scan::Outdated, None, at(300, 1));
    assert_eq!(admission, Admission::Ignore);
}

#[test]
fn reading_again_ends_when_the_partition_has_no_more_or_the_old_place_is_reached() {
    for (last, more, expected) in [
        (Some(at(160, 1)), true, at(160, 1)),
        (Some(at(160, 1)), false, at(200, 9)),
        (Some(at(210, 1)), true, at(210, 1)),
        (None, false, at(200, 9)),
    ] {
        let mut reading = reading();
        reading.read_again(P, at(150, 1));
        let asked = place_of(&reading);
        reading.advance(P, asked, last, more);
        assert_eq!(place_of(&reading), expected, "{last:?} {more}");
    }
}

#[test]
fn what_lies_after_the_cursor_needs_no_reading_again() {
    let mut reading = reading();
    reading.read_again(P, at(200, 10));
    assert!(!reading.has_again(|_| true));
    reading.read_again(P, at(200, 9));
    assert!(reading.has_again(|_| true) && !reading.has_again(|_| false));
}

/// G1: a transaction that a snapshot lists as running is remembered, and holds the low mark, until a fetch has answered it.
#[test]
fn a_running_transaction_is_remembered_until_a_fetch_sees_its_end() {
    let mut reading = reading();
    reading.saw(&snapshot("120:210:120,150"));
    assert_eq!(reading.remembered(), [120, 150]);
    assert_eq!(low_mark(&reading), 120);
    assert!(!reading.something_ended(&snapshot("120:211:120,150")));
    assert!(reading.something_ended(&snapshot("120:211:120")));
    assert_eq!(reading.ended(&snapshot("120:211:120")), [150]);
    reading.saw(&snapshot("120:211:120"));
    assert_eq!(reading.remembered(), [120]);
    reading.saw(&snapshot("211:211:"));
    assert_eq!(low_mark(&reading), 200);
}

#[test]
fn too_many_late_rows_are_read_from_the_oldest_transaction_that_has_ended() {
    let mut reading = reading();
    reading.saw(&snapshot("120:210:120,150,160"));
    reading.read_again_from_ended(&snapshot("120:211:120"));
    assert_eq!(place_of(&reading), at(150, -1));
}

/// While a single lane is read again, what ended in between was answered neither as late nor for its own lane.
#[test]
fn what_a_late_transaction_wrote_behind_the_place_asked_for_is_read_again() {
    let mut reading = reading();
    assert!(!reading.skip(P, &lane("a"), at(110, 1)));
    reading.resume_skipped(|_| true);
    let asked = place_of(&reading);
    assert_eq!(reading.scan(P, asked), Scan::Lane(lane("a")));
    reading.advance(P, asked, Some(at(130, 1)), true);
    reading.read_again_ended_after(P, asked, &[105, 150]);
    assert_eq!(place_of(&reading), at(150, -1), "all lanes, from 150 on");
    let whole = reading.scan(P, at(150, -1));
    let offered = |name: &str, place| reading.admit_next(P, &whole, Some(&lane(name)), place);
    assert_eq!(offered("b", at(150, 1)), Admission::Offer);
    assert_eq!(offered("a", at(150, 2)), Admission::Ignore, "waits for 130");
    assert_eq!(low_mark(&reading), 130);
}

#[test]
fn a_skipped_lane_ignores_what_follows_and_goes_on_where_it_stopped() {
    let mut reading = reading();
    reading.skip(P, &lane("a"), at(150, 4));
    reading.skip(P, &lane("a"), at(170, 1));
    let next = |reading: &Reading, name: &str, place| {
        reading.admit_next(P, &Scan::Whole, Some(&lane(name)), place)
    };
    assert_eq!(next(&reading, "a", at(300, 1)), Admission::Ignore);
    assert_eq!(next(&reading, "b", at(300, 1)), Admission::Offer);
    assert_eq!(low_mark(&reading), 150);
    reading.resume_skipped(|_| false);
    assert!(!reading.has_again(|_| true));
    reading.resume_skipped(|lane| *lane == self::lane("a"));
    assert_eq!(place_of(&reading), at(150, 3));
}

#[test]
fn while_one_lane_is_read_again_the_others_are_left_alone() {
    let mut reading = reading();
    reading.skip(P, &lane("a"), at(150, 4));
    reading.resume_skipped(|_| true);
    let scan = reading.scan(P, place_of(&reading));
    for (name, place, expected) in [
        ("a", at(160, 1), Admission::Offer),
        ("b", at(160, 2), Admission::Ignore),
        ("a", at(201, 1), Admission::Ignore),
    ] {
        let admission = reading.admit_next(P, &scan, Some(&lane(name)), place);
        assert_eq!(admission, expected, "{name} {place:?}");
    }
    assert_eq!(
        reading.admit_next(P, &scan, None, at(160, 3)),
        Admission::Ignore
    );
    assert!(
        reading.skip(P, &lane("a"), at(170, 1)),
        "the answer is used up"
    );
    assert_eq!(place_of(&reading), at(200, 9));
}

/// A whole range takes the place of one for a single lane, and that lane loses nothing.
#[test]
fn a_lane_that_is_interrupted_by_a_whole_range_is_skipped_from_where_it_stood() {
    let mut reading = reading();
    reading.skip(P, &lane("a"), at(120, 4));
    reading.resume_skipped(|_| true);
    reading.read_again(P, at(180, 1));
    assert_eq!(place_of(&reading), at(180, 0));
    assert_eq!(low_mark(&reading), 120);
    let admission = reading.admit_next(P, &Scan::Whole, Some(&lane("a")), at(190, 1));
    assert_eq!(admission, Admission::Ignore);
    read_to(&mut reading, at(200, 9));
    reading.resume_skipped(|_| true);
    assert_eq!(place_of(&reading), at(120, 3));
}

#[test]
fn a_late_or_due_message_waits_for_its_turn_where_its_part_is_read_again_anyway() {
    let mut reading = reading();
    let behind = |reading: &Reading, place| reading.admit_behind(P, Some(&lane("a")), place);
    assert_eq!(behind(&reading, at(150, 1)), Admission::Offer);
    assert_eq!(
        behind(&reading, at(201, 1)),
        Admission::Ignore,
        "comes as next"
    );
    reading.skip(P, &lane("a"), at(160, 1));
    assert_eq!(behind(&reading, at(150, 1)), Admission::Offer);
    assert_eq!(behind(&reading, at(160, 1)), Admission::Ignore);
    reading.read_again(P, at(140, 1));
    assert_eq!(behind(&reading, at(150, 1)), Admission::Ignore);
    assert_eq!(behind(&reading, at(130, 1)), Admission::Offer);
    assert_eq!(
        reading.admit_behind(9, Some(&lane("a")), at(1, 1)),
        Admission::Ignore,
        "not held"
    );
}

/// G1: a stream that was freed by somebody else is noticed by its counter, and read again from the low mark.
#[test]
fn rows_read_under_another_counter_of_removals_are_not_used() {
    let mut reading = reading();
    assert!(reading.accept_removals(P, 100, 0));
    assert!(!reading.accept_removals(P, 130, 1));
    assert_eq!(place_of(&reading), at(130, -1));
    assert!(reading.accept_removals(P, 130, 1));
    assert!(!reading.accept_removals(9, 100, 0), "not held");
}

#[test]
fn a_removal_of_ours_is_accounted_for_at_once_unless_somebody_else_removed_one_too() {
    for (removals, accepted) in [(1, true), (2, false)] {
        let mut reading = reading();
        reading.freed(P, at(150, 2), removals);
        assert_eq!(place_of(&reading), at(150, 1));
        assert_eq!(
            reading.accept_removals(P, 100, removals),
            accepted,
            "{removals} removals"
        );
    }
}

/// An answer from before a removal of ours must not undo that it was accounted for.
#[test]
fn an_older_counter_is_refused_but_not_taken_over() {
    let mut reading = reading();
    reading.freed(P, at(150, 2), 1);
    assert!(!reading.accept_removals(P, 100, 0));
    assert!(reading.accept_removals(P, 100, 1));
}

#[test]
fn a_low_mark_that_somebody_lowered_is_where_reading_goes_on() {
    let mut reading = reading();
    reading.low_mark_stored(P, 180);
    reading.low_mark_is(P, 180);
    assert!(!reading.has_again(|_| true));
    reading.low_mark_is(P, 120);
    assert_eq!(place_of(&reading), at(120, -1));
    assert_eq!(reading.mark(P, None).map(|mark| mark.seen), Some(120));
}

/// G1: a new owner starts at the low mark, so it is below everything that was not settled, deferred or parked.
#[test]
fn the_low_mark_is_the_lowest_of_everything_that_still_has_to_go() {
    let mut reading = reading();
    assert_eq!(reading.mark(P, Some(190)).unwrap().new, 190);
    reading.saw(&snapshot("185:210:185"));
    assert_eq!(low_mark(&reading), 185);
    reading.skip(P, &lane("a"), at(170, 1));
    assert_eq!(low_mark(&reading), 170);
    reading.read_again(P, at(160, 1));
    assert_eq!(low_mark(&reading), 160);
    reading.low_mark_stored(P, 165);
    assert_eq!(low_mark(&reading), 165, "it never goes back by itself");
    assert_eq!(reading.mark(9, None), None);
}

#[test]
fn without_a_partition_nothing_is_remembered() {
    let mut reading = reading();
    reading.saw(&snapshot("120:210:120"));
    reading.lose(P);
    assert!(reading.is_empty() && reading.remembered().is_empty());
    assert!(!reading.has_removals(P, 0));
}
