//! Rules about migrations, and about the processes and pods of the workers.

use std::collections::BTreeMap;

use super::checker::Checker;
use crate::inbox_outbox::migrations::{MigrationPolicy, Migrations};
use crate::inbox_outbox::pod::{PodMetadata, PodSpec, PodTemplate};
use crate::inbox_outbox::workers::{Amounts, Workers};
use crate::limits;
use crate::problem::shown;

/// Starts of names that Postroom and Kubernetes keep for themselves.
const RESERVED_LABELS: [&str; 3] = [
    "app.kubernetes.io/",
    "postroom.dev/",
    "batch.kubernetes.io/",
];

pub(super) fn migrations(checker: &mut Checker, migrations: &Migrations) {
    for (field, value, bounds) in [
        (
            "lockTimeoutSeconds",
            migrations.lock_timeout_seconds,
            limits::LOCK_TIMEOUT_SECONDS,
        ),
        (
            "statementTimeoutSeconds",
            migrations.statement_timeout_seconds,
            limits::STATEMENT_TIMEOUT_SECONDS,
        ),
        (
            "activeDeadlineSeconds",
            migrations.active_deadline_seconds,
            limits::ACTIVE_DEADLINE_SECONDS,
        ),
        (
            "backoffLimit",
            migrations.backoff_limit,
            limits::BACKOFF_LIMIT,
        ),
        (
            "ttlSecondsAfterFinished",
            migrations.ttl_seconds_after_finished,
            limits::TTL_SECONDS,
        ),
    ] {
        checker.number(&format!("spec.migrations.{field}"), value, bounds);
    }
    let path = "spec.migrations.approvedVersion";
    if let Some(version) = migrations.approved_version {
        checker.number(path, version, limits::APPROVED_VERSION);
        match migrations.policy {
            MigrationPolicy::Manual => {}
            MigrationPolicy::Automatic | MigrationPolicy::Disabled => checker.refuse(
                path,
                "is given but must be left out unless `policy` is 'Manual'",
            ),
        }
    }
}

pub(super) fn workers(checker: &mut Checker, workers: &Workers) {
    for (field, value, bounds) in [
        ("replicas", workers.replicas, limits::REPLICAS),
        ("leaseSeconds", workers.lease_seconds, limits::LEASE_SECONDS),
        (
            "terminationGracePeriodSeconds",
            workers.termination_grace_period_seconds,
            limits::GRACE_SECONDS,
        ),
        (
            "podDisruptionBudget.maxUnavailable",
            workers.pod_disruption_budget.max_unavailable,
            limits::MAX_UNAVAILABLE,
        ),
    ] {
        checker.number(&format!("spec.workers.{field}"), value, bounds);
    }
    amounts(checker, "requests", &workers.resources.requests);
    amounts(checker, "limits", &workers.resources.limits);
    if let Some(PodTemplate { metadata, spec }) = &workers.pod_template {
        pod_metadata(checker, metadata);
        pod_spec(checker, spec);
    }
}

fn amounts(checker: &mut Checker, field: &str, amounts: &Amounts) {
    for (part, amount) in [("cpu", &amounts.cpu), ("memory", &amounts.memory)] {
        if let Some(amount) = amount {
            checker.quantity(&format!("spec.workers.resources.{field}.{part}"), amount);
        }
    }
}

fn pod_metadata(checker: &mut Checker, metadata: &PodMetadata) {
    let path = "spec.workers.podTemplate.metadata";
    let labels = format!("{path}.labels");
    checker.entries(&labels, metadata.labels.len(), limits::POD_ENTRIES);
    values(checker, &labels, &metadata.labels, limits::LABEL_BYTES);
    for name in metadata.labels.keys() {
        let reserved = RESERVED_LABELS.iter().any(|start| name.starts_with(start));
        if reserved || name == "pod-template-hash" {
            let name = shown(name);
            checker.refuse(
                &labels,
                format!("has the name {name} but names must not start with 'app.kubernetes.io/', 'postroom.dev/' or 'batch.kubernetes.io/' and must not be 'pod-template-hash'"),
            );
        }
    }
    let annotations = format!("{path}.annotations");
    checker.entries(
        &annotations,
        metadata.annotations.len(),
        limits::POD_ENTRIES,
    );
    values(
        checker,
        &annotations,
        &metadata.annotations,
        limits::POD_VALUE_BYTES,
    );
    for name in metadata.annotations.keys() {
        if name.starts_with("postroom.dev/") {
            let name = shown(name);
            checker.refuse(
                &annotations,
                format!("has the name {name} but names must not start with 'postroom.dev/'"),
            );
        }
    }
}

fn pod_spec(checker: &mut Checker, spec: &PodSpec) {
    let path = |field: &str| format!("spec.workers.podTemplate.spec.{field}");
    let selector = path("nodeSelector");
    checker.entries(&selector, spec.node_selector.len(), limits::POD_ENTRIES);
    values(checker, &selector, &spec.node_selector, limits::LABEL_BYTES);
    if let Some(name) = &spec.priority_class_name {
        checker.secret_name(&path("priorityClassName"), name);
    }
    checker.entries(
        &path("tolerations"),
        spec.tolerations.len(),
        limits::POD_ENTRIES,
    );
    for (index, toleration) in spec.tolerations.iter().enumerate() {
        let path = path(&format!("tolerations[{index}]"));
        if let Some(key) = &toleration.key {
            checker.filled(&format!("{path}.key"), key, limits::LABEL_KEY_BYTES);
        }
        if let Some(value) = &toleration.value {
            checker.bytes(&format!("{path}.value"), value, limits::LABEL_BYTES);
        }
        if let Some(seconds) = toleration.toleration_seconds {
            let bounds = limits::TOLERATION_SECONDS;
            checker.number(&format!("{path}.tolerationSeconds"), seconds, bounds);
        }
    }
    let constraints = spec.topology_spread_constraints.as_deref().unwrap_or(&[]);
    checker.entries(
        &path("topologySpreadConstraints"),
        constraints.len(),
        limits::POD_ENTRIES,
    );
    for (index, constraint) in constraints.iter().enumerate() {
        let path = path(&format!("topologySpreadConstraints[{index}]"));
        let key = format!("{path}.topologyKey");
        checker.number(
            &format!("{path}.maxSkew"),
            constraint.max_skew,
            limits::MAX_SKEW,
        );
        checker.filled(&key, &constraint.topology_key, limits::LABEL_KEY_BYTES);
    }
    let secrets = path("imagePullSecrets");
    checker.entries(&secrets, spec.image_pull_secrets.len(), limits::POD_ENTRIES);
    let names = || spec.image_pull_secrets.iter().map(|s| s.name.as_str());
    checker.unique(&secrets, names());
    for (index, name) in names().enumerate() {
        checker.secret_name(&format!("{secrets}[{index}].name"), name);
    }
    let env = path("env");
    checker.entries(&env, spec.env.len(), limits::POD_ENTRIES);
    checker.unique(&env, spec.env.iter().map(|variable| variable.name.as_str()));
    for (index, variable) in spec.env.iter().enumerate() {
        checker.variable(&format!("{env}[{index}].name"), &variable.name);
        let most = limits::POD_VALUE_BYTES;
        checker.bytes(&format!("{env}[{index}].value"), &variable.value, most);
    }
}

fn values(checker: &mut Checker, path: &str, map: &BTreeMap<String, String>, most: u64) {
    for (name, value) in map {
        checker.bytes(&format!("{path}[{}]", shown(name)), value, most);
    }
}
