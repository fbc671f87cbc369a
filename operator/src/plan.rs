//! What should be, from what is wanted and what is there. Pure: the same input gives the same plan.
//!
//! Reading order: [`plan`] below; `migration` decides about the schema, `children` and what lies below make the objects,
//! `conditions` and `numbers` say what is true.

pub mod children;
pub mod conditions;
pub mod deployment;
pub mod job;
pub mod migration;
pub mod numbers;
pub mod pod;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use postroom_crds::SCHEMA_VERSION;
use postroom_crds::inbox_outbox::InboxOutbox;
use postroom_crds::manifest::Manifest;
use postroom_crds::names::{self, Component};
use postroom_crds::problem::Problem;
use postroom_crds::resolve::Where;
use postroom_crds::status::{InboxOutboxStatus, SchemaStatus, WorkersStatus};
use postroom_crds::worker_config::WorkerConfig;

use crate::observe::Observed;
use children::{Child, Removal};
use conditions::{Facts, conditions};
use migration::{Decision, Schema};

/// Pause before a healthy resource is looked at again; changes are seen at once, this is for what workers say.
const WHEN_WELL: Duration = Duration::from_secs(10);
/// The same while something is not as it should be.
const WHEN_NOT: Duration = Duration::from_secs(3);

/// What all resources have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Image of workers and migrations.
    pub worker_image: String,
    /// When that image is pulled: `Always`, `IfNotPresent` or `Never`.
    pub image_pull_policy: String,
}

/// What should be.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What must go, before anything is made.
    pub removals: Vec<Removal>,
    /// What must be there, in this order.
    pub children: Vec<Child>,
    /// What is true.
    pub status: InboxOutboxStatus,
    /// When to look again.
    pub look_again: Duration,
}

/// What the children are made from.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The resource.
    pub resource: &'a InboxOutbox,
    /// What its workers run with.
    pub config: &'a WorkerConfig,
    /// What all resources have in common.
    pub settings: &'a Settings,
}

/// What should be for `resource`, given what is there.
pub fn plan(resource: &InboxOutbox, seen: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    match WorkerConfig::from_resource(&Manifest::from(resource), Where::Mounted) {
        Ok(config) => plan_valid(
            Wanted {
                resource,
                config: &config,
                settings,
            },
            seen,
            now,
        ),
        Err(problems) => plan_invalid(resource, seen, &problems, now),
    }
}

fn plan_valid(wanted: Wanted<'_>, seen: &Observed, now: Timestamp) -> Plan {
    let Decision {
        schema,
        removals: old_jobs,
        job,
    } = migration::decide(wanted, seen, now);
    let (budget, old_budget) = children::disruption_budget(wanted, seen);
    let mut children = vec![
        children::service_account(wanted),
        children::config_map(wanted),
    ];
    children.extend(job);
    children.extend(budget);
    // Last, and only on a schema that its pods can work with: a crash loop would look like our fault.
    if schema.lets_workers_start() {
        children.push(deployment::deployment(wanted));
    }
    let status = status(wanted.resource, seen, Some(&schema), &[], now);
    let look_again = if conditions::is_ready(&status) {
        WHEN_WELL
    } else {
        WHEN_NOT
    };
    Plan {
        removals: old_jobs.into_iter().chain(old_budget).collect(),
        children,
        status,
        look_again,
    }
}

/// The schema of the cluster refuses what is invalid; this is for rules that an older definition lacks.
fn plan_invalid(
    resource: &InboxOutbox,
    seen: &Observed,
    problems: &[Problem],
    now: Timestamp,
) -> Plan {
    let status = status(resource, seen, None, problems, now);
    Plan {
        status,
        look_again: WHEN_WELL,
        ..Plan::default()
    }
}

fn status(
    resource: &InboxOutbox,
    seen: &Observed,
    schema: Option<&Schema>,
    problems: &[Problem],
    now: Timestamp,
) -> InboxOutboxStatus {
    let old = resource.status.clone().unwrap_or_default();
    let numbers = numbers::numbers(resource, seen);
    let facts = Facts {
        resource,
        seen,
        schema,
        problems,
        endpoints: &numbers.endpoints,
        workers: workers(resource, seen),
    };
    InboxOutboxStatus {
        observed_generation: resource.meta().generation,
        conditions: conditions(&facts, &old.conditions, now),
        schema: Some(schema_status(&old, schema)),
        workers: Some(facts.workers),
        summary: numbers.summary,
        endpoints: numbers.endpoints,
        measured_time: numbers.measured.map(Time),
    }
}

fn schema_status(old: &InboxOutboxStatus, schema: Option<&Schema>) -> SchemaStatus {
    let old = old.schema.clone().unwrap_or_default();
    match schema {
        Some(Schema::Current {
            job: Some(job),
            at: Some(at),
        }) => SchemaStatus {
            version: Some(SCHEMA_VERSION),
            target_version: SCHEMA_VERSION,
            last_job_name: Some(job.clone()),
            last_migrated_time: Some(Time(*at)),
        },
        _ => SchemaStatus {
            target_version: SCHEMA_VERSION,
            ..old
        },
    }
}

fn workers(resource: &InboxOutbox, seen: &Observed) -> WorkersStatus {
    let status = seen
        .deployment
        .as_ref()
        .and_then(|deployment| deployment.status.clone())
        .unwrap_or_default();
    WorkersStatus {
        replicas: status.replicas.unwrap_or_default(),
        ready_replicas: status.ready_replicas.unwrap_or_default(),
        updated_replicas: status.updated_replicas.unwrap_or_default(),
        selector: names::as_text(&names::selector(&resource.name_any(), Component::Worker)),
    }
}

#[cfg(test)]
mod tests;
