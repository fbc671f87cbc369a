//! Plans by value: a resource and what is there go in, the whole plan comes out.

mod children;
mod conditions;
mod migration;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use postroom_crds::SCHEMA_VERSION;
use postroom_crds::inbox_outbox::InboxOutbox;
use postroom_crds::status::InboxOutboxStatus;
use serde_json::{Value, json};

use super::children::{Child, Kind};
use super::{Plan, Settings, plan};
use crate::observe::{Failure, Observed, PodSeen};
use crate::stats::{Complaint, EndpointStats, Scope, Stats, TransportStats};

const FULL: &str = include_str!("../../../crds/examples/full.yaml");
const SMALLEST: &str = include_str!("../../../crds/examples/smallest.yaml");

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn settings() -> Settings {
    Settings {
        worker_image: "registry.example.com/postroom:1".to_owned(),
        image_pull_policy: "IfNotPresent".to_owned(),
    }
}

/// A resource as the cluster has it.
fn resource(text: &str, change: impl FnOnce(&mut Value)) -> InboxOutbox {
    let mut document: Value = serde_saphyr::from_str(text).unwrap();
    document["metadata"]["namespace"] = json!("shop");
    document["metadata"]["uid"] = json!("the-uid");
    document["metadata"]["generation"] = json!(3);
    change(&mut document);
    serde_json::from_value(document).unwrap()
}

fn smallest() -> InboxOutbox {
    resource(SMALLEST, |_| {})
}

/// The smallest resource after the operator has said something about it.
fn known(status: InboxOutboxStatus) -> InboxOutbox {
    InboxOutbox {
        status: Some(status),
        ..smallest()
    }
}

fn planned(resource: &InboxOutbox, seen: &Observed) -> Plan {
    plan(resource, seen, &settings(), at(1_000))
}

fn kinds(plan: &Plan) -> Vec<Kind> {
    plan.children.iter().map(|child| child.kind).collect()
}

fn child(plan: &Plan, kind: Kind) -> &Child {
    let mut of_kind = plan.children.iter().filter(|child| child.kind == kind);
    of_kind
        .next()
        .unwrap_or_else(|| panic!("no {} is planned", kind.as_str()))
}

/// The Job that a plan makes, as the cluster has it, with a condition.
fn job(resource: &InboxOutbox, condition: Option<(&str, i64)>) -> Arc<Job> {
    let fresh = InboxOutbox {
        status: None,
        ..resource.clone()
    };
    let plan = planned(&fresh, &Observed::default());
    let mut object = child(&plan, Kind::Job).object.clone();
    object["metadata"]["uid"] = json!("the-job");
    if let Some((kind, second)) = condition {
        let time = at(second).to_string();
        object["status"]["conditions"] = json!([{"type": kind, "status": "True", "lastTransitionTime": time, "reason": "BackoffLimitExceeded", "message": "too often"}]);
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

fn job_name(resource: &InboxOutbox) -> String {
    job(resource, None).metadata.name.clone().unwrap()
}

fn migrated(resource: &InboxOutbox) -> InboxOutboxStatus {
    let seen = Observed {
        jobs: vec![job(resource, Some(("Complete", 500)))],
        ..Observed::default()
    };
    planned(resource, &seen).status
}

/// A worker that runs, with what it says.
fn worker(name: &str, stats: Stats) -> PodSeen {
    PodSeen {
        name: name.to_owned(),
        ready: true,
        stats: Some(Ok(stats)),
        ..PodSeen::default()
    }
}

fn healthy() -> Stats {
    Stats {
        known: true,
        measured_time: Some(at(990)),
        transports: vec![TransportStats {
            name: "main".to_owned(),
            up: true,
        }],
        endpoints: vec![EndpointStats {
            name: "orders".to_owned(),
            in_flight: 2,
            pending: Some(7),
            deferred: Some(1),
            dead: Some(0),
            oldest_pending_time: Some("2026-12-01T00:00:00.25Z".parse().unwrap()),
            last_delivery_time: Some(at(980)),
        }],
        ..Stats::default()
    }
}

fn complaining(scope: Scope, code: &str) -> Stats {
    let name = match scope {
        Scope::Database => None,
        Scope::Transport => Some("main".to_owned()),
        Scope::Endpoint => Some("orders".to_owned()),
    };
    Stats {
        conditions: vec![Complaint {
            scope,
            name,
            code: code.to_owned(),
            message: "it was seen".to_owned(),
            next_step: "Do this.".to_owned(),
        }],
        ..healthy()
    }
}

fn failure(code: &str, exit_code: i32) -> Failure {
    Failure {
        code: code.to_owned(),
        message: "it was seen. Do this".to_owned(),
        exit_code,
    }
}

/// A Deployment with as many workers as wanted, all of them ready.
fn rolled_out(replicas: i32) -> Arc<Deployment> {
    let object = json!({
        "metadata": {"name": "orders-worker", "generation": 2},
        "spec": {"replicas": replicas, "selector": {}, "template": {}},
        "status": {"observedGeneration": 2, "replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

/// Everything as it should be, for the smallest resource.
fn well() -> (InboxOutbox, Observed) {
    let resource = known(migrated(&smallest()));
    let seen = Observed {
        deployment: Some(rolled_out(1)),
        workers: vec![worker("orders-worker-1", healthy())],
        ..Observed::default()
    };
    (resource, seen)
}

/// Status, reason and message of a condition; empty texts if it is absent.
fn said(status: &InboxOutboxStatus, kind: &str) -> (String, String, String) {
    let found = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind);
    found.map_or_else(Default::default, |condition| {
        (
            condition.status.clone(),
            condition.reason.clone(),
            condition.message.clone(),
        )
    })
}

fn reason(status: &InboxOutboxStatus, kind: &str) -> String {
    let (status, reason, _) = said(status, kind);
    format!("{status} {reason}")
}

#[test]
fn the_version_is_the_one_of_this_release() {
    assert_eq!(
        migrated(&smallest()).schema.unwrap().version,
        Some(SCHEMA_VERSION)
    );
}
