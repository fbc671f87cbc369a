//! The checker itself: each kind of fault must be caught, and what is allowed must not be called a fault.

use super::*;

/// A ledger under construction, with ids that say which message is meant.
#[derive(Default)]
struct History {
    ledger: Ledger,
    arrivals: Vec<Arrival>,
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn body(number: u128) -> Vec<u8> {
    format!("body {number}").into_bytes()
}

fn arrival(number: u128) -> Arrival {
    Arrival {
        queue: "q".to_owned(),
        id: Some(id(number)),
        body: digest(&body(number)),
        rest: 1,
        redelivered: false,
    }
}

impl History {
    /// One transaction after the other, all of the stream `s`.
    fn wrote(self, outcome: Outcome, numbers: &[u128]) -> Self {
        pass_time();
        let mut draft = self.ledger.begin();
        for &number in numbers {
            draft.wrote(Some("s"), id(number), &body(number));
        }
        draft.end(outcome);
        pass_time();
        self
    }

    fn arrived(mut self, numbers: &[u128]) -> Self {
        self.arrivals
            .extend(numbers.iter().map(|&number| arrival(number)));
        self
    }

    fn verdict(&self) -> Verdict {
        check_arrivals(&self.ledger, &self.arrivals)
    }
}

/// Instants of transactions that follow each other must differ.
fn pass_time() {
    let now = Instant::now();
    while Instant::now() == now {}
}

#[test]
fn a_history_without_faults_is_sound() {
    let history = History::default()
        .wrote(Outcome::Committed, &[1, 2])
        .wrote(Outcome::RolledBack, &[3])
        .wrote(Outcome::Committed, &[4]);
    let verdict = history.arrived(&[1, 2, 4]).verdict();
    verdict.require(0).unwrap();
    assert_eq!((verdict.committed, verdict.received), (3, 3));
}

#[test]
fn a_lost_message_is_caught_unless_it_is_excused() {
    let verdict = History::default()
        .wrote(Outcome::Committed, &[1, 2])
        .arrived(&[1])
        .verdict();
    assert_eq!(verdict.missing, [id(2)]);
    verdict.require(0).unwrap_err();
    verdict.excuse(&HashSet::from([id(2)])).require(0).unwrap();
}

#[test]
fn a_rolled_back_message_is_caught() {
    let verdict = History::default()
        .wrote(Outcome::RolledBack, &[1])
        .arrived(&[1])
        .verdict();
    assert_eq!(verdict.unexpected, [id(1)]);
    verdict.require(0).unwrap_err();
}

#[test]
fn a_message_that_nobody_wrote_is_caught() {
    let verdict = History::default()
        .wrote(Outcome::Committed, &[1])
        .arrived(&[1, 9])
        .verdict();
    assert_eq!(verdict.unexpected, [id(9)]);
}

#[test]
fn a_message_without_an_id_is_caught() {
    let mut history = History::default()
        .wrote(Outcome::Committed, &[1])
        .arrived(&[1]);
    history.arrivals.push(Arrival {
        id: None,
        ..arrival(2)
    });
    assert_eq!(history.verdict().unexpected, [Uuid::nil()]);
}

#[test]
fn a_message_behind_a_savepoint_that_was_rolled_back_is_caught() {
    let ledger = Ledger::default();
    let mut draft = ledger.begin();
    draft.wrote(None, id(1), &body(1));
    let savepoint = draft.savepoint();
    draft.wrote(None, id(2), &body(2));
    draft.rolled_back_to(savepoint);
    draft.wrote(None, id(3), &body(3));
    draft.end(Outcome::Committed);
    assert_eq!(ledger.rolled_back(), 1);
    check_arrivals(&ledger, &[arrival(1), arrival(3)])
        .require(0)
        .unwrap();
    assert_eq!(
        check_arrivals(&ledger, &[arrival(1), arrival(2), arrival(3)]).unexpected,
        [id(2)]
    );
}

#[test]
fn the_wrong_order_of_two_transactions_is_caught() {
    let history = History::default()
        .wrote(Outcome::Committed, &[1])
        .wrote(Outcome::Committed, &[2]);
    let verdict = history.arrived(&[2, 1]).verdict();
    assert_eq!(
        verdict.out_of_order,
        [Breach {
            stream: "s".to_owned(),
            earlier: id(1),
            later: id(2)
        }]
    );
    verdict.require(0).unwrap_err();
}

#[test]
fn the_wrong_order_over_many_transactions_is_caught() {
    let mut history = History::default();
    for number in 1..=20 {
        history = history.wrote(Outcome::Committed, &[number]);
    }
    let mut numbers: Vec<u128> = (2..=20).collect();
    numbers.push(1);
    assert_eq!(history.arrived(&numbers).verdict().out_of_order.len(), 19);
}

#[test]
fn the_wrong_order_inside_a_transaction_is_caught() {
    let verdict = History::default()
        .wrote(Outcome::Committed, &[1, 2, 3])
        .arrived(&[1, 3, 2])
        .verdict();
    assert_eq!(
        verdict.out_of_order,
        [Breach {
            stream: "s".to_owned(),
            earlier: id(2),
            later: id(3)
        }]
    );
}

#[test]
fn transactions_that_overlap_may_come_in_any_order() {
    let ledger = Ledger::default();
    let (mut first, mut second) = (ledger.begin(), ledger.begin());
    pass_time();
    first.wrote(Some("s"), id(1), &body(1));
    second.wrote(Some("s"), id(2), &body(2));
    first.end(Outcome::Committed);
    second.end(Outcome::Committed);
    for order in [[1, 2], [2, 1]] {
        check_arrivals(&ledger, &order.map(arrival))
            .require(0)
            .unwrap();
    }
}

#[test]
fn order_counts_first_appearances_and_repeats_are_counted() {
    let history = History::default()
        .wrote(Outcome::Committed, &[1])
        .wrote(Outcome::Committed, &[2]);
    let verdict = history.arrived(&[1, 2, 1, 2]).verdict();
    assert_eq!(verdict.repeats, 2);
    verdict.require(2).unwrap();
    verdict.require(1).unwrap_err();
}

#[test]
fn a_repeat_by_the_broker_is_not_a_repeat_of_ours() {
    let mut history = History::default()
        .wrote(Outcome::Committed, &[1])
        .arrived(&[1]);
    history.arrivals.push(Arrival {
        redelivered: true,
        ..arrival(1)
    });
    history.verdict().require(0).unwrap();
}

#[test]
fn other_streams_and_other_queues_have_an_order_of_their_own() {
    let ledger = Ledger::default();
    for (number, stream) in [(1, Some("a")), (2, Some("b")), (3, None)] {
        let mut draft = ledger.begin();
        draft.wrote(stream, id(number), &body(number));
        draft.end(Outcome::Committed);
        pass_time();
    }
    check_arrivals(&ledger, &[3, 2, 1].map(arrival))
        .require(0)
        .unwrap();

    let mut history = History::default()
        .wrote(Outcome::Committed, &[1])
        .wrote(Outcome::Committed, &[2])
        .arrived(&[2, 1]);
    history.arrivals[0].queue = "other".to_owned();
    history.verdict().require(0).unwrap();
}

#[test]
fn a_changed_body_is_caught_at_first_and_on_a_repeat() {
    let mut history = History::default()
        .wrote(Outcome::Committed, &[1])
        .arrived(&[1, 1]);
    history.arrivals[1].body = 0;
    assert_eq!(history.verdict().changed, [(id(1), Change::BodyOnRepeat)]);
    history.arrivals[0].body = 0;
    assert_eq!(
        history.verdict().changed,
        [(id(1), Change::BodyFromWritten)]
    );
    history.verdict().require(9).unwrap_err();
}

#[test]
fn a_changed_header_on_a_repeat_is_caught() {
    let mut history = History::default()
        .wrote(Outcome::Committed, &[1])
        .arrived(&[1, 1]);
    history.arrivals[1].rest = 2;
    assert_eq!(
        history.verdict().changed,
        [(id(1), Change::HeadersOnRepeat)]
    );
}

#[test]
fn a_transaction_without_an_answer_may_arrive_or_not_until_it_is_settled() {
    let history = History::default()
        .wrote(Outcome::Unknown, &[1])
        .wrote(Outcome::Committed, &[2]);
    for order in [vec![2], vec![1, 2], vec![2, 1]] {
        check_arrivals(
            &history.ledger,
            &order.into_iter().map(arrival).collect::<Vec<_>>(),
        )
        .require(0)
        .unwrap();
    }
    history.ledger.settle_unknown(&HashSet::from([id(1)]));
    assert_eq!(
        check_arrivals(&history.ledger, &[arrival(2)]).missing,
        [id(1)]
    );

    let history = History::default().wrote(Outcome::Unknown, &[1]);
    history.ledger.settle_unknown(&HashSet::new());
    assert_eq!(
        check_arrivals(&history.ledger, &[arrival(1)]).unexpected,
        [id(1)]
    );
}

#[test]
fn a_draft_that_is_dropped_counts_as_unknown() {
    let ledger = Ledger::default();
    let mut draft = ledger.begin();
    draft.wrote(Some("s"), id(1), &body(1));
    drop(draft);
    assert_eq!((ledger.unknown(), ledger.committed()), (1, 0));
    check_arrivals(&ledger, &[arrival(1)]).require(0).unwrap();
    check_arrivals(&ledger, &[]).require(0).unwrap();
}

#[test]
fn two_hundred_thousand_messages_of_one_stream_are_judged_in_seconds() {
    let ledger = Ledger::default();
    let count = 200_000;
    for number in 1..=count {
        let mut draft = ledger.begin();
        draft.wrote(Some("s"), id(number), &body(number));
        draft.end(Outcome::Committed);
    }
    let arrivals: Vec<Arrival> = (1..=count).map(arrival).collect();
    let began = Instant::now();
    check_arrivals(&ledger, &arrivals).require(0).unwrap();
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}
