//! Which outcome leads to which decision.

use super::*;
use crate::engine::message::samples::message;

const ORDERED: Ordering = Ordering {
    mode: OrderingMode::PerStream,
    on_failure: OnFailure::BlockStream,
    on_scheduled: postroom_crds::inbox_outbox::outbox::OnScheduled::Hold,
};

fn policy() -> Policy {
    Policy {
        ordering: ORDERED,
        retry: Retry {
            jitter: Jitter::None,
            ..Retry::default()
        },
        on_unroutable: OnUnroutable::Retry,
    }
}

fn after(attempts: u32, deferrals: u32) -> Message {
    Message {
        attempts,
        deferrals,
        ..message(0, 1, Some("a"))
    }
}

fn returned() -> Outcome {
    Outcome::Returned("312 NO_ROUTE".to_owned())
}

fn deferral(decision: Decision) -> (u64, bool, bool, &'static str) {
    match decision {
        Decision::Defer {
            delay,
            counted,
            blocking,
            reason,
            ..
        } => (
            u64::try_from(delay.as_millis()).unwrap(),
            counted,
            blocking,
            reason,
        ),
        other @ (Decision::Complete
        | Decision::Nothing
        | Decision::SendAgain
        | Decision::Bury { .. }) => {
            panic!("not deferred: {other:?}")
        }
    }
}

/// G1: only a confirm without a return lets a row go, but for a policy that says so.
#[test]
fn only_a_confirmed_message_is_complete_and_a_returned_one_where_it_may_be_dropped() {
    let all = [
        Outcome::Confirmed,
        returned(),
        Outcome::Nacked,
        Outcome::Unknown,
        Outcome::Unpublishable("headers".to_owned()),
        Outcome::ClosedChannel("PRECONDITION_FAILED".to_owned()),
    ];
    for on_unroutable in [
        OnUnroutable::Retry,
        OnUnroutable::DeadLetter,
        OnUnroutable::Drop,
    ] {
        let policy = Policy {
            on_unroutable,
            ..policy()
        };
        for outcome in &all {
            let complete = policy.decide(&after(0, 0), outcome.clone(), 0.5) == Decision::Complete;
            let expected = *outcome == Outcome::Confirmed
                || (on_unroutable == OnUnroutable::Drop && *outcome == returned());
            assert_eq!(complete, expected, "{on_unroutable:?}, {outcome:?}");
        }
    }
}

/// F12: a return is the message's own failure; its stream waits for it, or goes on, as the endpoint says.
#[test]
fn a_returned_message_is_tried_again_and_counted() {
    let decision = policy().decide(&after(0, 0), returned(), 0.5);
    assert_eq!(deferral(decision), (1_000, true, true, "Unroutable"));
    let skip = Policy {
        ordering: Ordering {
            on_failure: OnFailure::Skip,
            ..ORDERED
        },
        ..policy()
    };
    let decision = skip.decide(&after(0, 0), returned(), 0.5);
    assert_eq!(deferral(decision), (1_000, true, false, "Unroutable"));
}

#[test]
fn a_returned_message_is_a_dead_letter_at_once_where_the_endpoint_says_so() {
    let policy = Policy {
        on_unroutable: OnUnroutable::DeadLetter,
        ..policy()
    };
    let expected = Decision::Bury {
        counted: true,
        reason: "Unroutable",
        error: "312 NO_ROUTE".to_owned(),
    };
    assert_eq!(policy.decide(&after(0, 0), returned(), 0.5), expected);
}

#[test]
fn the_delay_doubles_up_to_its_maximum_however_many_attempts_there_were() {
    let policy = Policy {
        retry: Retry {
            max_attempts: 0,
            ..policy().retry
        },
        ..policy()
    };
    for (attempts, seconds) in [(0, 1), (1, 2), (2, 4), (8, 256), (9, 300), (5_000_000, 300)] {
        let decision = policy.decide(&after(attempts, attempts), returned(), 0.5);
        assert_eq!(deferral(decision).0, seconds * 1_000, "{attempts} attempts");
    }
}

#[test]
fn full_jitter_takes_any_part_of_the_delay_and_never_more() {
    let policy = Policy {
        retry: Retry::default(),
        ..policy()
    };
    for (chance, milliseconds) in [(0.0, 0), (0.25, 1_000), (1.0, 4_000), (7.0, 4_000)] {
        let decision = policy.decide(&after(2, 2), returned(), chance);
        assert_eq!(deferral(decision).0, milliseconds, "chance {chance}");
    }
}

/// The limit of attempts buries; without a limit nothing does.
#[test]
fn the_last_attempt_buries_the_message_and_zero_attempts_means_no_limit() {
    for (max_attempts, attempts, buries) in [
        (12, 10, false),
        (12, 11, true),
        (1, 0, true),
        (0, 99, false),
    ] {
        let policy = Policy {
            retry: Retry {
                max_attempts,
                ..policy().retry
            },
            ..policy()
        };
        for outcome in [returned(), Outcome::ClosedChannel("no".to_owned())] {
            let decision = policy.decide(&after(attempts, attempts), outcome, 0.5);
            assert_eq!(
                matches!(decision, Decision::Bury { .. }),
                buries,
                "{attempts} of {max_attempts}: {decision:?}"
            );
        }
    }
}

/// F13: a refusal is not the message's fault: never counted, never buried, and its stream waits whatever the policy for
/// failures says.
#[test]
fn a_refused_message_is_put_off_uncounted_for_longer_each_time() {
    let skip = Policy {
        ordering: Ordering {
            on_failure: OnFailure::Skip,
            ..ORDERED
        },
        ..policy()
    };
    for (deferrals, milliseconds) in [
        (0, 100),
        (1, 200),
        (5, 3_200),
        (6, 5_000),
        (4_000_000_000, 5_000),
    ] {
        let decision = skip.decide(&after(11, deferrals), Outcome::Nacked, 0.5);
        assert_eq!(
            deferral(decision),
            (milliseconds, false, true, "Nacked"),
            "{deferrals} deferrals"
        );
    }
    let unordered = Policy {
        ordering: Ordering {
            mode: OrderingMode::None,
            ..ORDERED
        },
        ..policy()
    };
    let decision = unordered.decide(&after(0, 0), Outcome::Nacked, 0.5);
    assert!(!deferral(decision).2, "there is no stream that could wait");
}

#[test]
fn a_message_whose_fate_is_unknown_is_sent_again_however_often_it_has_failed() {
    let decision = policy().decide(&after(11, 40), Outcome::Unknown, 0.5);
    assert_eq!(decision, Decision::SendAgain);
}

#[test]
fn what_cannot_be_published_is_buried_at_once_with_the_reason() {
    let outcome = Outcome::Unpublishable("headers: 70000 bytes".to_owned());
    let expected = Decision::Bury {
        counted: false,
        reason: "Unpublishable",
        error: "headers: 70000 bytes".to_owned(),
    };
    assert_eq!(policy().decide(&after(0, 0), outcome, 0.5), expected);
}

/// The words of a handler: what it cannot handle is given up, what it wants later waits as long as it says, and what it does not
/// know is never counted against it (F26).
#[test]
fn a_handler_decides_about_its_message() {
    let policy = policy();
    let failed = after(0, 0);
    let decide = |outcome| policy.decide(&failed, outcome, 1.0);
    assert_eq!(decide(Outcome::Handled), Decision::Nothing);
    assert_eq!(decide(Outcome::Gone), Decision::Nothing);
    assert_eq!(decide(Outcome::Lost(3)), Decision::SendAgain);
    let (_, counted, _, reason) = deferral(decide(Outcome::HandlerFailed("x".to_owned())));
    assert!(counted && reason == "HandlerFailed");
    let asked = Duration::from_secs(77);
    let later = deferral(decide(Outcome::RetryIn(asked, "x".to_owned())));
    assert_eq!((later.0, later.1), (77_000, true));
    let unknown = deferral(decide(Outcome::NotHandled("x".to_owned())));
    assert_eq!((unknown.1, unknown.3), (false, "NoHandler"));
    let refused = decide(Outcome::HandlerRefused("x".to_owned()));
    assert!(matches!(refused, Decision::Bury { counted: true, .. }));
}
