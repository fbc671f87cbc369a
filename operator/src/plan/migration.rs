//! What to do about the schema: whether a Job is needed, runs, is done, or has failed and is to be tried again.
//!
//! Invariants: a failed migration is tried again for ever, after a pause, because its cause may be mended outside the cluster;
//! what was done is remembered in the status, because Jobs go.

use jiff::{Timestamp, ToSpan};
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use kube::ResourceExt;
use postroom_crds::SCHEMA_VERSION;
use postroom_crds::inbox_outbox::migrations::MigrationPolicy;
use postroom_crds::status::SchemaStatus;

use super::Wanted;
use super::children::{self, Child, Removal};
use super::job;
use crate::observe::{Failure, Observed, PodSeen};
use crate::stats::Scope;

/// Pause after a Job whose cause may pass by itself.
const PAUSE_SECONDS: i64 = 30;
/// Pause after a Job that said trying again will not help: somebody has to do something first.
const PAUSE_AFTER_PERMANENT_SECONDS: i64 = 120;
/// A fleet that finds no schema may be from before the migration; after this time it is not.
const SETTLED_SECONDS: i64 = 60;

/// What is known of the schema.
#[derive(Debug, Clone, PartialEq)]
pub enum Schema {
    /// It is as the workers need it; by which Job, and when, if that is known.
    Current {
        /// The Job.
        job: Option<String>,
        /// When it was done.
        at: Option<Timestamp>,
    },
    /// Somebody else migrates.
    Unmanaged,
    /// A person has to approve the version.
    AwaitingApproval,
    /// A Job runs or is about to.
    Migrating {
        /// The Job.
        job: String,
        /// How its last attempt failed.
        failure: Option<Failure>,
    },
    /// A Job has failed.
    Failed {
        /// The Job.
        job: String,
        /// Why.
        failure: Failure,
        /// When the next one is made.
        again_at: Timestamp,
    },
}

impl Schema {
    /// Whether workers may be started or changed.
    pub fn lets_workers_start(&self) -> bool {
        match self {
            Self::Current { .. } | Self::Unmanaged => true,
            Self::AwaitingApproval | Self::Migrating { .. } | Self::Failed { .. } => false,
        }
    }
}

/// What is known, and what to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What is known.
    pub schema: Schema,
    /// Jobs that must go.
    pub removals: Vec<Removal>,
    /// The Job that must be there.
    pub job: Option<Child>,
}

/// Decides about the schema.
pub(super) fn decide(wanted: Wanted<'_>, seen: &Observed, now: Timestamp) -> Decision {
    let name = job::name(wanted);
    let known = wanted
        .resource
        .status
        .as_ref()
        .and_then(|status| status.schema.clone())
        .unwrap_or_default();
    let keep = |schema: Schema| Decision {
        schema,
        removals: Vec::new(),
        job: None,
    };
    match permission(wanted, &known) {
        Permission::Nobody => return keep(Schema::Unmanaged),
        Permission::Missing => return keep(Schema::AwaitingApproval),
        Permission::NotNeeded => return keep(remembered(known)),
        Permission::Given => {}
    }
    let done = known.last_job_name.as_deref() == Some(name.as_str());
    let lost = done
        && schema_is_gone(seen)
        && is_past(
            known.last_migrated_time.as_ref().map(|time| time.0),
            SETTLED_SECONDS,
            now,
        );
    if done && !lost {
        return keep(remembered(known));
    }
    let mut decision = match seen.jobs.iter().find(|job| job.name_any() == name) {
        Some(job) => with_job(job, seen, lost, now),
        None => Decision {
            schema: Schema::Migrating {
                job: name.clone(),
                failure: None,
            },
            removals: Vec::new(),
            job: Some(job::job(wanted)),
        },
    };
    decision.removals.extend(outdated(wanted, seen, &name));
    decision
}

/// Jobs of an earlier spec that still try: what they would do is no longer wanted. Ended ones keep their logs a while.
fn outdated(wanted: Wanted<'_>, seen: &Observed, name: &str) -> Vec<Removal> {
    let ended = |job: &Job| {
        ["Complete", "Failed"]
            .iter()
            .any(|kind| finished(job, kind).is_some())
    };
    let others = seen
        .jobs
        .iter()
        .filter(|job| job.name_any() != name && !ended(job));
    let ours = others.filter(|job| children::is_owned(wanted, &job.metadata));
    ours.filter_map(|job| children::remove_job(job)).collect()
}

/// Whether a migration may run.
enum Permission {
    Given,
    NotNeeded,
    Missing,
    Nobody,
}

fn permission(wanted: Wanted<'_>, known: &SchemaStatus) -> Permission {
    let migrations = &wanted.resource.spec.migrations;
    match migrations.policy {
        MigrationPolicy::Disabled => Permission::Nobody,
        MigrationPolicy::Automatic => Permission::Given,
        MigrationPolicy::Manual
            if migrations
                .approved_version
                .is_some_and(|version| version >= SCHEMA_VERSION) =>
        {
            Permission::Given
        }
        // Endpoints are registered by the workers as well, so the version is all that counts.
        MigrationPolicy::Manual if known.version == Some(SCHEMA_VERSION) => Permission::NotNeeded,
        MigrationPolicy::Manual => Permission::Missing,
    }
}

fn remembered(known: SchemaStatus) -> Schema {
    Schema::Current {
        job: known.last_job_name,
        at: known.last_migrated_time.map(|time| time.0),
    }
}

/// What a Job that is there means. `lost`: it has succeeded, but the schema has gone since.
fn with_job(job: &Job, seen: &Observed, lost: bool, now: Timestamp) -> Decision {
    let name = job.name_any();
    let again = |schema: Schema| Decision {
        schema,
        removals: children::remove_job(job).into_iter().collect(),
        job: None,
    };
    let wait = |schema: Schema| Decision {
        schema,
        removals: Vec::new(),
        job: None,
    };
    let attempts = seen
        .migrators
        .iter()
        .filter(|pod| pod.job.as_deref() == Some(name.as_str()));
    let failure = last_failure(attempts);
    if let Some(at) = finished(job, "Complete") {
        return match lost {
            true => again(Schema::Migrating {
                job: name,
                failure: None,
            }),
            false => wait(Schema::Current {
                job: Some(name),
                at: Some(at),
            }),
        };
    }
    let Some(at) = finished(job, "Failed") else {
        return wait(Schema::Migrating { job: name, failure });
    };
    let failure = failure.unwrap_or_else(|| without_words(job));
    let pause = match failure.exit_code {
        job::PERMANENT => PAUSE_AFTER_PERMANENT_SECONDS,
        _ => PAUSE_SECONDS,
    };
    let again_at = at.checked_add(pause.seconds()).unwrap_or(at);
    let failed = Schema::Failed {
        job: name,
        failure,
        again_at,
    };
    if now >= again_at {
        again(failed)
    } else {
        wait(failed)
    }
}

/// The newest attempt that has ended badly, unless a newer one has not ended yet and says nothing.
fn last_failure<'a>(attempts: impl Iterator<Item = &'a PodSeen>) -> Option<Failure> {
    let failed = attempts.filter_map(|pod| Some((pod.created, &pod.name, pod.failure.clone()?)));
    failed
        .max_by_key(|(created, name, _)| (*created, (*name).clone()))
        .map(|(_, _, failure)| failure)
}

fn finished(job: &Job, kind: &str) -> Option<Timestamp> {
    let condition = condition(job, kind)?;
    let time = condition.last_transition_time.as_ref().map(|time| time.0);
    time.or_else(|| job.creation_timestamp().map(|time| time.0))
}

fn condition<'a>(job: &'a Job, kind: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status == "True")
}

/// A Job without a pod that could say why, such as one that ran out of time.
fn without_words(job: &Job) -> Failure {
    let condition = condition(job, "Failed");
    let reason = condition
        .and_then(|condition| condition.reason.clone())
        .unwrap_or_else(|| "JobFailed".to_owned());
    let message = condition
        .and_then(|condition| condition.message.clone())
        .unwrap_or_else(|| "the Job failed".to_owned());
    Failure {
        code: reason,
        message,
        exit_code: 0,
    }
}

/// A worker looks for the schema and finds none, or an older one.
fn schema_is_gone(seen: &Observed) -> bool {
    let stats = seen
        .workers
        .iter()
        .filter_map(|worker| worker.stats.as_ref()?.as_ref().ok());
    let mut complaints = stats.flat_map(|stats| &stats.conditions);
    complaints
        .any(|complaint| complaint.scope == Scope::Database && complaint.code == "SchemaNotReady")
}

fn is_past(time: Option<Timestamp>, seconds: i64, now: Timestamp) -> bool {
    time.is_none_or(|time| now.duration_since(time).as_secs() >= seconds)
}
