use postroom_crds::inbox_outbox::InboxOutbox;
use postroom_crds::status::{Direction, EndpointState, Summary};
use serde_json::{Value, json};

use super::{
    SMALLEST, at, complaining, failure, healthy, kinds, known, migrated, planned, reason, resource,
    rolled_out, said, settings, smallest, well, worker,
};
use crate::observe::{Observed, PodSeen};
use crate::plan::children::Kind;
use crate::plan::conditions::refused;
use crate::plan::plan;
use crate::stats::{Complaint, EndpointStats, Scope, Stats};

#[test]
fn a_resource_that_is_well_says_so() {
    let (resource, seen) = well();
    let status = planned(&resource, &seen).status;
    let kinds: Vec<_> = status
        .conditions
        .iter()
        .map(|condition| (condition.type_.as_str(), condition.status.as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            ("Ready", "True"),
            ("SchemaUpToDate", "True"),
            ("DatabaseReachable", "True"),
            ("TransportsReachable", "True"),
            ("WorkersAvailable", "True"),
        ]
    );
    assert_eq!(
        said(&status, "Ready").2,
        "1 endpoints active, 1/1 workers ready"
    );
    assert!(
        status
            .conditions
            .iter()
            .all(|condition| condition.observed_generation == Some(3))
    );
    assert_eq!(status.observed_generation, Some(3));
}

#[test]
fn numbers_of_an_endpoint_are_taken_once_and_in_flight_is_summed() {
    let (resource, mut seen) = well();
    seen.workers.push(worker("orders-worker-2", healthy()));
    let status = planned(&resource, &seen).status;
    let oldest = status.endpoints[0].oldest_pending_time.clone();
    // The API server stores seconds; a finer time would be news at every look.
    assert_eq!(
        oldest.as_ref().unwrap().0,
        "2026-12-01T00:00:00Z".parse().unwrap()
    );
    let expected = Summary {
        pending: 7,
        in_flight: 4,
        dead: 0,
        oldest_pending_time: oldest,
    };
    assert_eq!(status.summary, Some(expected));
    assert_eq!(status.endpoints[0].state, EndpointState::Active);
}

/// The smallest resource with an inbox beside its outbox, and what a worker says of both.
fn with_an_inbox(change: impl FnOnce(&mut Value)) -> (InboxOutbox, Observed) {
    let resource = resource(SMALLEST, |document| {
        document["spec"]["inboxes"] =
            json!([{"name": "payments", "queue": "q", "handler": {"pull": {}}}]);
        change(document);
    });
    let mut stats = healthy();
    stats.endpoints.push(EndpointStats {
        name: "payments".to_owned(),
        in_flight: 1,
        pending: Some(30),
        deferred: Some(0),
        dead: Some(5),
        oldest_pending_time: None,
        last_delivery_time: Some(at(985)),
    });
    let seen = Observed {
        deployment: Some(rolled_out(1)),
        workers: vec![worker("orders-worker-1", stats)],
        ..Observed::default()
    };
    let status = Some(migrated(&resource));
    (InboxOutbox { status, ..resource }, seen)
}

#[test]
fn endpoints_of_both_directions_are_told_and_summed() {
    let (resource, seen) = with_an_inbox(|_| {});
    let status = planned(&resource, &seen).status;
    let told: Vec<_> = status
        .endpoints
        .iter()
        .map(|endpoint| (endpoint.name.as_str(), endpoint.direction, endpoint.pending))
        .collect();
    assert_eq!(
        told,
        [
            ("orders", Direction::Outbox, Some(7)),
            ("payments", Direction::Inbox, Some(30)),
        ]
    );
    let summary = status.summary.clone().unwrap();
    assert_eq!(
        (summary.pending, summary.in_flight, summary.dead),
        (37, 3, 5)
    );
    assert_eq!(
        said(&status, "Ready").2,
        "2 endpoints active, 1/1 workers ready"
    );
}

#[test]
fn an_inbox_is_paused_or_fails_by_itself() {
    let (resource, mut seen) = with_an_inbox(|document| {
        document["spec"]["inboxes"][0]["paused"] = json!(true);
    });
    let status = planned(&resource, &seen).status;
    assert_eq!(status.endpoints[0].state, EndpointState::Active);
    assert_eq!(status.endpoints[1].state, EndpointState::Paused);
    assert_eq!(
        said(&status, "Ready").2,
        "1 endpoints active, 1 paused, 1/1 workers ready"
    );

    let (resource, _) = with_an_inbox(|_| {});
    let stats = seen.workers[0].stats.as_mut().unwrap().as_mut().unwrap();
    stats.conditions.push(Complaint {
        scope: Scope::Endpoint,
        name: Some("payments".to_owned()),
        code: "TopologyMissing".to_owned(),
        message: "the queue is not there".to_owned(),
        next_step: "Declare it.".to_owned(),
    });
    let status = planned(&resource, &seen).status;
    assert_eq!(status.endpoints[0].state, EndpointState::Active);
    assert_eq!(status.endpoints[1].state, EndpointState::Failing);
    let (_, reason, message) = said(&status, "TransportsReachable");
    assert_eq!(reason, "TopologyMissing");
    assert_eq!(
        message,
        "endpoint 'payments': the queue is not there. Declare it"
    );
}

/// A sum without the inbox would be taken for the whole.
#[test]
fn what_is_not_known_of_an_inbox_leaves_the_sum_unknown() {
    let (resource, mut seen) = with_an_inbox(|_| {});
    seen.workers = vec![worker("orders-worker-1", healthy())];
    let status = planned(&resource, &seen).status;
    assert_eq!(status.endpoints[0].pending, Some(7));
    assert_eq!(status.endpoints[1].state, EndpointState::Unknown);
    assert_eq!(status.summary, None);
}

#[test]
fn a_resource_with_inboxes_alone_has_all_children() {
    let (resource, seen) = with_an_inbox(|document| {
        document["spec"]["outboxes"] = json!([]);
    });
    let plan = planned(&resource, &seen);
    assert!(kinds(&plan).contains(&Kind::Deployment));
    assert_eq!(plan.status.endpoints.len(), 1);
}

#[test]
fn what_no_worker_knows_is_absent() {
    let (resource, mut seen) = well();
    seen.workers[0].stats = Some(Err("no answer".to_owned()));
    let status = planned(&resource, &seen).status;
    assert_eq!((status.summary, status.measured_time), (None, None));
    assert_eq!(status.endpoints[0].pending, None);
    assert_eq!(status.endpoints[0].state, EndpointState::Unknown);
}

/// What is complained about; its code; the condition that says so; the word of `Ready`; whether it waits for a person.
const COMPLAINTS: &str = "
    Database  ConnectionRefused    DatabaseReachable   DatabaseUnreachable  passes
    Database  AuthenticationFailed DatabaseReachable   DatabaseUnreachable  stays
    Database  SecretKeyMissing     DatabaseReachable   InvalidReference     stays
    Database  SchemaAhead          SchemaUpToDate      SchemaNotReady       stays
    Transport ConnectionLost       TransportsReachable TransportUnreachable passes
    Transport AccessRefused        TransportsReachable TransportUnreachable stays
    Transport VhostNotFound        TransportsReachable TransportUnreachable stays
    Transport SecretNotFound       TransportsReachable InvalidReference     stays
    Endpoint  TopologyMissing      TransportsReachable TransportUnreachable stays
";

#[test]
fn workers_that_the_operator_cannot_reach_are_told_as_such() {
    let (resource, mut seen) = well();
    seen.workers[0].stats = Some(Err("no answer".to_owned()));
    let status = planned(&resource, &seen).status;
    assert_eq!(
        reason(&status, "TransportsReachable"),
        "Unknown WorkersSilent"
    );
    assert!(said(&status, "Ready").2.contains("port 9464: no answer."));
}

#[test]
fn each_complaint_has_its_condition_and_its_word_in_ready() {
    for line in COMPLAINTS.trim().lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [about, code, condition, ready, end] = words[..] else {
            panic!("{line}");
        };
        let scope = match about {
            "Database" => Scope::Database,
            "Transport" => Scope::Transport,
            _ => Scope::Endpoint,
        };
        let (resource, mut seen) = well();
        seen.workers[0] = worker("orders-worker-1", complaining(scope, code));
        let status = planned(&resource, &seen).status;
        assert_eq!(reason(&status, condition), format!("False {code}"));
        assert_eq!(reason(&status, "Ready"), format!("False {ready}"));
        let message = said(&status, "Ready").2;
        assert!(message.ends_with("it was seen. Do this"), "{message}");
        let stalled = said(&status, "Stalled").1;
        assert_eq!(stalled == code, end == "stays", "{line}");
    }
}

#[test]
fn an_endpoint_that_fails_makes_the_resource_not_ready() {
    let (resource, mut seen) = well();
    seen.workers[0] = worker("a", complaining(Scope::Endpoint, "NO_ROUTE"));
    let status = planned(&resource, &seen).status;
    assert_eq!(reason(&status, "Ready"), "False EndpointError");
    assert_eq!(status.endpoints[0].state, EndpointState::Failing);
}

#[test]
fn a_worker_that_goes_has_no_say() {
    let (resource, mut seen) = well();
    let mut leaving = worker("old", complaining(Scope::Database, "ConnectionLost"));
    leaving.ending = true;
    seen.workers.push(leaving);
    assert_eq!(
        reason(&planned(&resource, &seen).status, "Ready"),
        "True AllEndpointsActive"
    );
}

#[test]
fn what_is_paused_or_scaled_to_zero_is_told_apart_from_what_fails() {
    let pause = resource(SMALLEST, |document| {
        document["spec"]["paused"] = json!(true)
    });
    let (_, seen) = well();
    let mut paused = pause.clone();
    paused.status = Some(migrated(&pause));
    let status = planned(&paused, &seen).status;
    assert_eq!(reason(&status, "Ready"), "False Paused");
    assert_eq!(status.endpoints[0].state, EndpointState::Paused);

    let (mut none, _) = well();
    none.spec.workers.replicas = 0;
    let seen = Observed {
        deployment: Some(rolled_out(0)),
        ..Observed::default()
    };
    let status = planned(&none, &seen).status;
    assert_eq!(reason(&status, "WorkersAvailable"), "True ScaledToZero");
    assert_eq!(reason(&status, "Ready"), "True ScaledToZero");
}

fn stuck(change: impl FnOnce(&mut PodSeen)) -> String {
    let (resource, mut seen) = well();
    let mut deployment = (*rolled_out(1)).clone();
    deployment.status.as_mut().unwrap().ready_replicas = None;
    seen.deployment = Some(std::sync::Arc::new(deployment));
    let mut pod = PodSeen {
        name: "orders-worker-1".to_owned(),
        ..PodSeen::default()
    };
    change(&mut pod);
    seen.workers = vec![pod];
    reason(&planned(&resource, &seen).status, "WorkersAvailable")
}

#[test]
fn a_worker_that_cannot_run_tells_why() {
    let waiting = |reason: &str| Some((reason.to_owned(), "why".to_owned()));
    assert_eq!(
        stuck(|pod| pod.waiting = waiting("ImagePullBackOff")),
        "False ImagePullFailed"
    );
    assert_eq!(
        stuck(|pod| {
            pod.waiting = waiting("CrashLoopBackOff");
            pod.failure = Some(failure("OOMKilled", 137));
        }),
        "False CrashLooping"
    );
    assert_eq!(
        stuck(|pod| pod.unschedulable = Some("no node".to_owned())),
        "False Unschedulable"
    );
    assert_eq!(
        stuck(|pod| pod.waiting = waiting("ContainerCreating")),
        "False MinimumReplicasUnavailable"
    );
}

#[test]
fn a_rollout_is_not_ready_before_its_end() {
    let (resource, mut seen) = well();
    let mut deployment = (*rolled_out(1)).clone();
    deployment.metadata.generation = Some(3);
    seen.deployment = Some(std::sync::Arc::new(deployment));
    let status = planned(&resource, &seen).status;
    assert_eq!(
        reason(&status, "WorkersAvailable"),
        "False RolloutInProgress"
    );
    assert_eq!(reason(&status, "Ready"), "False Reconciling");
    assert_eq!(reason(&status, "Reconciling"), "True Reconciling");
}

#[test]
fn times_of_transition_move_only_with_the_status() {
    let (mut resource, seen) = well();
    let first = plan(&resource, &seen, &settings(), at(1_000)).status;
    resource.status = Some(first.clone());
    let second = plan(&resource, &seen, &settings(), at(2_000)).status;
    assert_eq!(first.conditions, second.conditions);
    let mut away = seen;
    away.workers[0] = worker("a", complaining(Scope::Database, "Timeout"));
    let third = plan(&resource, &away, &settings(), at(3_000)).status;
    let time = |kind: &str| {
        let mut found = third
            .conditions
            .iter()
            .filter(|condition| condition.type_ == kind);
        found.next().unwrap().last_transition_time.0
    };
    assert_eq!(
        (time("Ready"), time("WorkersAvailable")),
        (at(3_000), at(1_000))
    );
}

#[test]
fn a_worker_that_is_not_connected_yet_is_no_failure() {
    let (resource, mut seen) = well();
    let mut stats: Stats = healthy();
    stats.transports[0].up = false;
    seen.workers[0] = worker("a", stats);
    let status = planned(&resource, &seen).status;
    assert_eq!(reason(&status, "TransportsReachable"), "Unknown Connecting");
    assert_eq!(reason(&status, "Ready"), "False Reconciling");
}

#[test]
fn an_invalid_spec_changes_nothing_and_says_what_is_wrong() {
    let mut wrong = smallest();
    wrong.spec.workers.lease_seconds = 4;
    let plan = planned(&wrong, &Observed::default());
    assert!(plan.children.is_empty() && plan.removals.is_empty());
    assert_eq!(reason(&plan.status, "Ready"), "False InvalidSpec");
    assert_eq!(reason(&plan.status, "Stalled"), "True InvalidSpec");
    assert!(said(&plan.status, "Ready").2.starts_with('`'));
}

#[test]
fn a_child_that_the_cluster_refuses_is_told_beside_what_was_seen() {
    let (resource, seen) = well();
    let mut conditions = planned(&resource, &seen).status.conditions;
    refused(
        &mut conditions,
        "the API server refuses Deployment x: no",
        Some(3),
        at(1),
    );
    let status = postroom_crds::status::InboxOutboxStatus {
        conditions,
        ..known(migrated(&smallest())).status.unwrap()
    };
    assert_eq!(reason(&status, "Ready"), "False ChildRefused");
    assert_eq!(reason(&status, "Stalled"), "True ChildRefused");
    assert_eq!(
        reason(&status, "WorkersAvailable"),
        "True MinimumReplicasAvailable"
    );
}
