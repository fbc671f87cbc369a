//! The Job that migrates the schema and registers the endpoints.

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
use kube::ResourceExt;
use postroom_crds::SCHEMA_VERSION;
use postroom_crds::names::{self, Component};
use postroom_crds::worker_config::{CONFIG_FILE, LimitsConfig, WorkerConfig};
use serde_json::json;

use super::Wanted;
use super::children::{Child, Kind, child, metadata};
use super::pod;

/// Exit code of the worker that says: trying again will not help.
pub const PERMANENT: i32 = 4;
/// Name of the container.
const CONTAINER: &str = "migrate";

/// The name stands for everything the Job runs: another resource, image, endpoint or database is another Job.
pub(super) fn name(wanted: Wanted<'_>) -> String {
    let resource = wanted.resource.name_any();
    let limits = LimitsConfig {
        lease_seconds: 0,
        grace_seconds: 0,
    };
    let config = WorkerConfig {
        generation: 0,
        transports: Vec::new(),
        worker: limits,
        ..wanted.config.clone()
    };
    let template = wanted.resource.spec.workers.pod_template.as_ref();
    let what = json!([resource, wanted.settings.worker_image, config, template]);
    let hash = names::fingerprint(&what.to_string());
    names::migration_job(&resource, SCHEMA_VERSION, &hash[..8])
}

/// The Job.
pub(super) fn job(wanted: Wanted<'_>) -> Child {
    let migrations = &wanted.resource.spec.migrations;
    let secrets = pod::secrets_of_migration(&wanted.resource.spec);
    let command = ["migrate", "--config", CONFIG_FILE];
    let container = pod::container(wanted, CONTAINER, &command, &secrets);
    let mut template = pod::template(wanted, Component::Migration, container, &secrets);
    if let Some(spec) = &mut template.spec {
        spec.restart_policy = Some("Never".to_owned());
    }
    let number = |value: u32| Some(i32::try_from(value).unwrap_or(i32::MAX));
    let job = Job {
        metadata: metadata(wanted, name(wanted), Component::Migration),
        spec: Some(JobSpec {
            parallelism: Some(1),
            completions: Some(1),
            backoff_limit: number(migrations.backoff_limit),
            active_deadline_seconds: Some(i64::from(migrations.active_deadline_seconds)),
            ttl_seconds_after_finished: number(migrations.ttl_seconds_after_finished),
            // Never two at once, not even for a moment.
            pod_replacement_policy: Some("Failed".to_owned()),
            pod_failure_policy: Some(failure_policy()),
            template,
            ..JobSpec::default()
        }),
        ..Job::default()
    };
    pod::with_affinity(wanted, child(Kind::Job, &job))
}

fn failure_policy() -> PodFailurePolicy {
    let permanent = PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(CONTAINER.to_owned()),
            operator: "In".to_owned(),
            values: vec![PERMANENT],
        }),
        ..PodFailurePolicyRule::default()
    };
    let disrupted = PodFailurePolicyRule {
        action: "Ignore".to_owned(),
        on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
        }]),
        ..PodFailurePolicyRule::default()
    };
    PodFailurePolicy {
        rules: vec![permanent, disrupted],
    }
}
