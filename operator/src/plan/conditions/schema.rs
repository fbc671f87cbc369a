//! `SchemaUpToDate`.

use postroom_crds::SCHEMA_VERSION;
use postroom_crds::names;

use kube::ResourceExt;

use super::super::migration::Schema;
use super::{Facts, Verdict, told};
use crate::stats::Scope;

/// What workers say about the schema itself.
const ABOUT_THE_SCHEMA: [&str; 4] = [
    "SchemaNotReady",
    "SchemaAhead",
    "PermissionDenied",
    "EndpointUnknown",
];

pub(super) fn verdict(facts: &Facts<'_>) -> Verdict {
    let Some(schema) = facts.schema else {
        return Verdict::unknown(
            "InvalidSpec",
            "the spec is invalid, so nothing was looked at",
        );
    };
    match schema {
        Schema::Current { .. } => found_by_workers(facts).unwrap_or_else(|| {
            Verdict::yes(
                "Migrated",
                format!("the schema is at version {SCHEMA_VERSION}"),
            )
        }),
        Schema::Unmanaged => found_by_workers(facts).unwrap_or_else(|| unmanaged(facts)),
        Schema::AwaitingApproval => Verdict::no("AwaitingApproval", approval(facts)),
        Schema::Migrating { job, failure: None } => migrating(facts, job),
        Schema::Migrating {
            job,
            failure: Some(failure),
        } => Verdict::no(
            "MigrationRunning",
            format!(
                "an attempt of Job {job} failed and is repeated: {}: {}",
                failure.code, failure.message
            ),
        ),
        Schema::Failed { job, failure, .. } => {
            let reason = match failure.code.as_str() {
                code @ ("PermissionDenied" | "SchemaAhead") => code,
                _ => "MigrationFailed",
            };
            let again =
                format!("A new Job follows by itself; to have it at once, delete Job {job}");
            Verdict::no(
                reason,
                format!("{}: {}. {again}", failure.code, failure.message),
            )
        }
    }
}

/// A worker knows better than a Job that has ended.
fn found_by_workers(facts: &Facts<'_>) -> Option<Verdict> {
    let complaints = facts.complaints(Scope::Database);
    let about_it = complaints
        .into_iter()
        .find(|(_, complaint)| ABOUT_THE_SCHEMA.contains(&complaint.code.as_str()));
    let by_complaint =
        about_it.map(|(_, complaint)| Verdict::no(&complaint.code, told(complaint, None)));
    // A worker that meets a newer schema does not stay to be asked.
    let mut ended = facts
        .fleet()
        .filter(|worker| !worker.ready)
        .filter_map(|worker| worker.failure.as_ref());
    let by_end = ended.find(|failure| failure.code == "SchemaAhead");
    by_complaint
        .or_else(|| by_end.map(|failure| Verdict::no(&failure.code, failure.message.clone())))
}

fn unmanaged(facts: &Facts<'_>) -> Verdict {
    if facts.has_ready_worker() {
        return Verdict::yes(
            "MigrationsDisabled",
            format!("the workers found version {SCHEMA_VERSION}"),
        );
    }
    Verdict::unknown(
        "MigrationsDisabled",
        "`migrations.policy` is 'Disabled'. Run `postroom-worker migrate` of this version yourself",
    )
}

fn approval(facts: &Facts<'_>) -> String {
    let map = names::worker(&facts.resource.name_any());
    format!(
        "`migrations.policy` is 'Manual' and version {SCHEMA_VERSION} is not approved. Look at what `postroom-worker migrate --print` \
         says (its configuration is in ConfigMap {map}), then set `migrations.approvedVersion` to {SCHEMA_VERSION}"
    )
}

fn migrating(facts: &Facts<'_>, job: &str) -> Verdict {
    let mut pods = facts
        .seen
        .migrators
        .iter()
        .filter(|pod| pod.job.as_deref() == Some(job));
    let stuck = pods.find_map(super::workers::stuck);
    match stuck {
        Some(why) => Verdict::no(
            "MigrationRunning",
            format!(
                "Job {job} does not get going: {}: {}",
                why.reason, why.message
            ),
        ),
        None => Verdict::no(
            "MigrationRunning",
            format!("Job {job} migrates to version {SCHEMA_VERSION}"),
        ),
    }
}
