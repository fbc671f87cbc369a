use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use postroom_crds::status::{EndpointStatus, InboxOutboxStatus, Summary};

use super::{events, is_news};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn condition(kind: &str, status: &str, reason: &str) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: "why".to_owned(),
        observed_generation: Some(1),
        last_transition_time: Time(at(0)),
    }
}

fn measured(pending: i64, second: i64) -> InboxOutboxStatus {
    InboxOutboxStatus {
        conditions: vec![condition("Ready", "True", "AllEndpointsActive")],
        summary: Some(Summary {
            pending,
            ..Summary::default()
        }),
        endpoints: vec![EndpointStatus {
            name: "orders".to_owned(),
            pending: Some(pending),
            ..EndpointStatus::default()
        }],
        measured_time: Some(Time(at(second))),
        ..InboxOutboxStatus::default()
    }
}

#[test]
fn a_new_measurement_of_the_same_numbers_is_no_news() {
    assert!(!is_news(&measured(5, 0), &measured(5, 100), at(100)));
}

#[test]
fn new_numbers_are_news_after_thirty_seconds() {
    assert!(!is_news(&measured(5, 0), &measured(6, 29), at(29)));
    assert!(is_news(&measured(5, 0), &measured(6, 30), at(30)));
}

#[test]
fn another_condition_is_news_at_once_and_so_is_not_knowing() {
    let mut other = measured(5, 1);
    other.conditions[0].reason = "EndpointError".to_owned();
    assert!(is_news(&measured(5, 0), &other, at(1)));
    let mut unknown = measured(5, 1);
    unknown.summary = None;
    assert!(is_news(&measured(5, 0), &unknown, at(1)));
}

#[test]
fn an_event_is_told_when_a_condition_changes_and_not_again() {
    let status = |conditions: Vec<Condition>| InboxOutboxStatus {
        conditions,
        ..InboxOutboxStatus::default()
    };
    let reasons = |old: &InboxOutboxStatus, new: &InboxOutboxStatus| -> Vec<String> {
        events(old, new)
            .into_iter()
            .map(|event| event.reason)
            .collect()
    };
    let well = status(vec![condition("DatabaseReachable", "True", "Connected")]);
    let away = status(vec![condition(
        "DatabaseReachable",
        "False",
        "ConnectionRefused",
    )]);
    assert_eq!(reasons(&well, &away), ["DatabaseUnreachable"]);
    assert_eq!(reasons(&away, &away), [""; 0]);
    assert_eq!(reasons(&away, &well), ["DatabaseReachable"]);
    assert_eq!(reasons(&InboxOutboxStatus::default(), &well), [""; 0]);
}
