//! Order within a lane, limits, and that nothing is taken twice.

use super::*;
use crate::engine::message::Identity;
use crate::engine::message::samples::message;

const PLENTY: Limits = Limits {
    messages: 100,
    bytes: 10_000,
};

fn lanes(mode: OrderingMode) -> Lanes {
    Lanes::new(mode, PLENTY)
}

fn per_stream() -> Lanes {
    lanes(OrderingMode::PerStream)
}

fn offer(lanes: &mut Lanes, partition: i16, xact: u64, stream: Option<&str>) -> Offered {
    lanes.offer(Arc::new(message(partition, xact, stream)), true)
}

/// Hands out all that may go, and says from which transactions.
fn out(lanes: &mut Lanes) -> Vec<Arc<Message>> {
    std::iter::from_fn(|| lanes.next(|_| true)).collect()
}

fn xacts(messages: &[Arc<Message>]) -> Vec<u64> {
    messages
        .iter()
        .map(|message| message.identity.key.place.xact)
        .collect()
}

/// G3: one at a time of a stream, all at once of what has none, and streams do not wait for each other.
#[test]
fn only_the_first_of_each_stream_goes_and_everything_without_one() {
    let mut lanes = per_stream();
    for (xact, stream) in [
        (1, Some("a")),
        (2, Some("a")),
        (3, None),
        (4, None),
        (5, Some("b")),
    ] {
        assert_eq!(offer(&mut lanes, 0, xact, stream), Offered::Taken);
    }
    let first = out(&mut lanes);
    assert_eq!(xacts(&first), [1, 3, 4, 5]);
    assert_eq!((lanes.waiting(), lanes.in_flight()), (1, 4));
    lanes.settling(&first[0], true);
    assert_eq!(xacts(&out(&mut lanes)), [2]);
}

#[test]
fn the_same_stream_of_two_tenants_is_two_streams() {
    let mut lanes = per_stream();
    offer(&mut lanes, 0, 1, Some("a"));
    let mut other = message(0, 2, Some("a"));
    other.tenant = "acme".to_owned();
    other.stream = Some(Stream::new("acme", "a"));
    lanes.offer(Arc::new(other), true);
    assert_eq!(xacts(&out(&mut lanes)), [1, 2]);
}

#[test]
fn with_total_order_one_message_is_in_flight_and_without_order_all_are() {
    for (mode, expected) in [
        (OrderingMode::Total, vec![1]),
        (OrderingMode::None, vec![1, 2, 3]),
    ] {
        let mut lanes = lanes(mode);
        for (xact, stream) in [(1, Some("a")), (2, None), (3, Some("a"))] {
            offer(&mut lanes, 0, xact, stream);
        }
        assert_eq!(xacts(&out(&mut lanes)), expected, "{mode:?}");
    }
}

/// G3: a late message of a stream goes before those that were read earlier and still wait.
#[test]
fn a_late_message_goes_before_what_waits_but_does_not_recall_what_is_in_flight() {
    let mut lanes = per_stream();
    offer(&mut lanes, 0, 10, Some("a"));
    offer(&mut lanes, 0, 12, Some("a"));
    let flying = out(&mut lanes);
    let late = Arc::new(message(0, 5, Some("a")));
    assert_eq!(lanes.offer(late, false), Offered::Taken);
    assert!(out(&mut lanes).is_empty());
    lanes.settling(&flying[0], true);
    assert_eq!(xacts(&out(&mut lanes)), [5]);
}

/// What is known in whatever state is not taken a second time; once removed it is.
#[test]
fn a_message_is_known_until_it_is_removed() {
    let mut lanes = per_stream();
    offer(&mut lanes, 0, 1, Some("a"));
    assert_eq!(offer(&mut lanes, 0, 1, Some("a")), Offered::Known);
    let flying = out(&mut lanes);
    assert_eq!(offer(&mut lanes, 0, 1, Some("a")), Offered::Known);
    lanes.settling(&flying[0], true);
    assert_eq!(offer(&mut lanes, 0, 1, Some("a")), Offered::Known);
    assert!(!lanes.is_clear_of(0));
    lanes.remove(flying[0].identity.key);
    assert!(lanes.is_clear_of(0) && lanes.is_empty());
    assert_eq!(offer(&mut lanes, 0, 1, Some("a")), Offered::Taken);
}

/// The settle of a message says nothing about the one that followed it on its confirm.
#[test]
fn the_settle_of_a_message_does_not_free_its_stream_a_second_time() {
    let mut lanes = per_stream();
    for xact in 1..=3 {
        offer(&mut lanes, 0, xact, Some("a"));
    }
    let first = out(&mut lanes);
    lanes.settling(&first[0], true);
    assert_eq!(xacts(&out(&mut lanes)), [2]);
    lanes.free(&first[0]);
    assert!(
        out(&mut lanes).is_empty(),
        "3 must wait for the confirm of 2"
    );
}

#[test]
fn what_the_broker_did_not_take_is_first_in_its_stream_again() {
    let mut lanes = per_stream();
    for xact in 1..=2 {
        offer(&mut lanes, 0, xact, Some("a"));
    }
    let flying = out(&mut lanes);
    lanes.back(flying[0].clone());
    assert_eq!((lanes.waiting(), lanes.in_flight()), (2, 0));
    assert_eq!(xacts(&out(&mut lanes)), [1]);
}

/// A blocking deferral parks what was written after it, and only that.
#[test]
fn what_waits_behind_a_deferred_message_is_dropped_and_what_came_late_before_it_goes_on() {
    let mut lanes = per_stream();
    for xact in [10, 11, 12] {
        offer(&mut lanes, 0, xact, Some("a"));
    }
    offer(&mut lanes, 0, 13, Some("b"));
    let flying = out(&mut lanes);
    lanes.offer(Arc::new(message(0, 5, Some("a"))), false);
    lanes.settling(&flying[0], false);
    lanes.park_behind(&flying[0]);
    lanes.remove(flying[0].identity.key);
    assert_eq!(xacts(&out(&mut lanes)), [5]);
    assert_eq!(lanes.waiting(), 0);
    assert_eq!(offer(&mut lanes, 0, 11, Some("a")), Offered::Taken);
}

#[test]
fn a_full_lane_refuses_what_was_read_in_order_but_not_what_is_late_and_says_when_there_is_room() {
    let mut lanes = per_stream();
    let lane = Lane::Stream(Stream::new("", "a"));
    for xact in 0..=LANE_ROOM as u64 {
        let expected = if xact < LANE_ROOM as u64 {
            Offered::Taken
        } else {
            Offered::Full
        };
        assert_eq!(offer(&mut lanes, 0, 10 + xact, Some("a")), expected);
    }
    assert_eq!(offer(&mut lanes, 0, 99, Some("b")), Offered::Taken);
    assert!(!lanes.has_room(&lane) && !lanes.take_room());
    assert_eq!(
        lanes.offer(Arc::new(message(0, 5, Some("a"))), false),
        Offered::Taken
    );
    let mut rounds = 0;
    while !lanes.take_room() {
        for message in out(&mut lanes) {
            lanes.settling(&message, true);
        }
        rounds += 1;
        assert!(rounds <= LANE_ROOM, "room is never announced");
    }
    assert!(lanes.has_room(&lane));
    assert!(!lanes.take_room(), "announced once");
}

#[test]
fn the_limits_of_what_is_in_flight_hold_by_count_and_by_bytes_but_one_message_always_goes() {
    for (limits, expected) in [
        (
            Limits {
                messages: 2,
                bytes: 10_000,
            },
            2,
        ),
        (
            Limits {
                messages: 100,
                bytes: 15,
            },
            2,
        ),
        (
            Limits {
                messages: 100,
                bytes: 1,
            },
            1,
        ),
    ] {
        let mut lanes = Lanes::new(OrderingMode::None, limits);
        for xact in 1..=5 {
            offer(&mut lanes, 0, xact, None);
        }
        let flying = out(&mut lanes);
        assert_eq!(flying.len(), expected, "{limits:?}");
        lanes.settling(&flying[0], true);
        assert_eq!(out(&mut lanes).len(), 1, "{limits:?}");
    }
}

#[test]
fn a_partition_that_may_not_hand_out_keeps_its_messages_and_does_not_hold_up_others() {
    let mut lanes = per_stream();
    offer(&mut lanes, 0, 1, Some("a"));
    offer(&mut lanes, 0, 2, None);
    offer(&mut lanes, 1, 3, Some("b"));
    let flying: Vec<_> = std::iter::from_fn(|| lanes.next(|partition| partition == 1)).collect();
    assert_eq!(xacts(&flying), [3]);
    let mut rest = xacts(&out(&mut lanes));
    rest.sort_unstable();
    assert_eq!(rest, [1, 2]);
}

#[test]
fn dropping_what_waits_of_a_partition_leaves_what_is_in_flight_and_other_partitions() {
    let mut lanes = per_stream();
    for (partition, xact, stream) in [
        (0, 1, Some("a")),
        (0, 2, Some("a")),
        (0, 3, None),
        (1, 4, Some("b")),
    ] {
        offer(&mut lanes, partition, xact, stream);
    }
    let first = lanes.next(|_| true).unwrap();
    lanes.drop_waiting_of(0);
    assert_eq!((lanes.lowest(0), lanes.lowest(1)), (Some(1), Some(4)));
    assert_eq!(xacts(&out(&mut lanes)), [4]);
    lanes.settling(&first, true);
    lanes.remove(first.identity.key);
    assert!(lanes.is_clear_of(0) && out(&mut lanes).is_empty());
}

#[test]
fn a_lost_partition_is_forgotten_but_its_messages_in_flight_count_until_they_come_back() {
    let mut lanes = per_stream();
    offer(&mut lanes, 0, 1, Some("a"));
    offer(&mut lanes, 0, 2, Some("a"));
    let flying = out(&mut lanes);
    lanes.forget(0);
    assert!(lanes.is_empty());
    assert_eq!((lanes.waiting(), lanes.in_flight()), (0, 1));
    lanes.back(flying[0].clone());
    assert!(lanes.is_empty() && lanes.in_flight() == 0);
    assert!(out(&mut lanes).is_empty(), "it is not ours to hand out");
    assert_eq!(offer(&mut lanes, 0, 1, Some("a")), Offered::Taken);
    assert_eq!(xacts(&out(&mut lanes)), [1]);
}

/// A message that is run alone is known like any other, and outside every lane.
#[test]
fn a_held_message_is_known_and_counts_once_it_is_handed_out() {
    let mut lanes = per_stream();
    let held = message(0, 1, Some("a"));
    let Identity { key, .. } = held.identity;
    lanes.hold(key);
    assert!(lanes.knows(key) && lanes.next(|_| true).is_none());
    lanes.hand_out_held(&held);
    assert_eq!((lanes.waiting(), lanes.in_flight()), (0, 1));
    lanes.settling(&held, false);
    lanes.remove(key);
    assert!(lanes.is_empty() && lanes.in_flight() == 0);
}
