//! What the pods of workers and migrations have in common.
//!
//! Invariants: they pass the `restricted` Pod Security standard; they get no token of the cluster; a secret comes as a file of
//! a mounted directory, never as a variable. Directories are whole Secrets and optional: a process that starts without one
//! says which Secret or key is missing, and finds it when it comes, while a pod that waits for it says nothing.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, EnvVar, LocalObjectReference,
    PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements, SeccompProfile,
    SecretVolumeSource, SecurityContext, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use postroom_crds::inbox_outbox::InboxOutboxSpec;
use postroom_crds::inbox_outbox::pod::{PodTemplate, TaintEffect, TolerationOperator};
use postroom_crds::inbox_outbox::reference::Tls;
use postroom_crds::inbox_outbox::workers::Amounts;
use postroom_crds::names::{self, Component};
use postroom_crds::worker_config::{CONFIG_FOLDER, SECRETS_FOLDER};

use super::Wanted;
use super::children::Child;

/// Port of a worker's probes, statistics and metrics.
pub const PORT: u16 = 9464;
/// The worker's program in the image.
const PROGRAM: &str = "/postroom-worker";
/// Key of the configuration in its `ConfigMap`.
pub(super) const CONFIG_KEY: &str = "config.json";
/// Where the kubelet finds why a process ended.
const LAST_WORDS: &str = "/dev/termination-log";

/// A pod with one container that runs `command` of the worker.
pub(super) fn template(
    wanted: Wanted<'_>,
    component: Component,
    container: Container,
    secrets: &BTreeSet<String>,
) -> PodTemplateSpec {
    let name = wanted.resource.name_any();
    let overlay = overlay(wanted);
    let mut labels = overlay.metadata.labels.clone();
    labels.extend(names::labels(&name, component));
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: filled(overlay.metadata.annotations.clone()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            service_account_name: Some(names::worker(&name)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            node_selector: filled(overlay.spec.node_selector.clone()),
            tolerations: some_of(tolerations(&overlay)),
            priority_class_name: overlay.spec.priority_class_name.clone(),
            image_pull_secrets: some_of(
                overlay
                    .spec
                    .image_pull_secrets
                    .iter()
                    .map(|secret| LocalObjectReference {
                        name: secret.name.clone(),
                    })
                    .collect(),
            ),
            volumes: Some(volumes(&name, secrets)),
            containers: vec![container],
            ..PodSpec::default()
        }),
    }
}

/// A container that runs `command` of the worker.
pub(super) fn container(
    wanted: Wanted<'_>,
    name: &str,
    command: &[&str],
    secrets: &BTreeSet<String>,
) -> Container {
    let resources = &wanted.resource.spec.workers.resources;
    let arguments = ["--failure-file", LAST_WORDS].iter().chain(command);
    Container {
        name: name.to_owned(),
        image: Some(wanted.settings.worker_image.clone()),
        image_pull_policy: Some(wanted.settings.image_pull_policy.clone()),
        command: Some(vec![PROGRAM.to_owned()]),
        args: Some(arguments.map(|argument| (*argument).to_owned()).collect()),
        env: Some(variables(&overlay(wanted))),
        resources: Some(ResourceRequirements {
            requests: amounts(&resources.requests),
            limits: amounts(&resources.limits),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts(secrets)),
        ..Container::default()
    }
}

fn overlay(wanted: Wanted<'_>) -> PodTemplate {
    wanted
        .resource
        .spec
        .workers
        .pod_template
        .clone()
        .unwrap_or_default()
}

/// Secrets that a worker needs.
pub(super) fn secrets_of_worker(spec: &InboxOutboxSpec) -> BTreeSet<String> {
    let database = spec.database.secret_ref.iter().map(|secret| &secret.name);
    let login = spec
        .database
        .connection
        .iter()
        .map(|server| &server.credentials_secret_ref.name);
    let brokers = spec
        .transports
        .iter()
        .map(|transport| &transport.rabbitmq.secret_ref.name);
    let broker_tls = spec
        .transports
        .iter()
        .flat_map(|transport| of_tls(transport.rabbitmq.tls.as_ref()));
    let names = database
        .chain(login)
        .chain(brokers)
        .chain(of_tls(spec.database.tls.as_ref()))
        .chain(broker_tls);
    names.cloned().collect()
}

/// Secrets that a migration needs: only those of the database.
pub(super) fn secrets_of_migration(spec: &InboxOutboxSpec) -> BTreeSet<String> {
    let database = &spec.database;
    let url = match (
        &database.migration_secret_ref,
        &database.secret_ref,
        &database.connection,
    ) {
        (Some(secret), _, _) | (None, Some(secret), _) => Some(&secret.name),
        (None, None, Some(server)) => Some(&server.credentials_secret_ref.name),
        (None, None, None) => None,
    };
    url.into_iter()
        .chain(of_tls(database.tls.as_ref()))
        .cloned()
        .collect()
}

fn of_tls(tls: Option<&Tls>) -> impl Iterator<Item = &String> {
    let ca = tls
        .and_then(|tls| tls.ca_secret_ref.as_ref())
        .map(|secret| &secret.name);
    let client = tls
        .and_then(|tls| tls.client_certificate_secret_ref.as_ref())
        .map(|secret| &secret.name);
    ca.into_iter().chain(client)
}

/// The volumes stand in the order of the Secrets' names, so that nothing moves without a reason.
fn volumes(resource: &str, secrets: &BTreeSet<String>) -> Vec<Volume> {
    let config = Volume {
        name: "config".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: names::worker(resource),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let secrets = secrets.iter().enumerate().map(|(number, secret)| Volume {
        name: volume_name(number),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.clone()),
            optional: Some(true),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    });
    [config].into_iter().chain(secrets).collect()
}

fn mounts(secrets: &BTreeSet<String>) -> Vec<VolumeMount> {
    let mount = |name: String, path: String| VolumeMount {
        name,
        mount_path: path,
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let config = mount("config".to_owned(), CONFIG_FOLDER.to_owned());
    let secrets = secrets
        .iter()
        .enumerate()
        .map(|(number, secret)| mount(volume_name(number), format!("{SECRETS_FOLDER}/{secret}")));
    [config].into_iter().chain(secrets).collect()
}

fn volume_name(number: usize) -> String {
    format!("secret-{number}")
}

/// Variables of the resource win.
fn variables(overlay: &PodTemplate) -> Vec<EnvVar> {
    // An empty value is stored as none.
    let variable = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()).filter(|value| !value.is_empty()),
        ..EnvVar::default()
    };
    let own = overlay
        .spec
        .env
        .iter()
        .map(|own| variable(&own.name, &own.value));
    let form = "POSTROOM_LOG_FORMAT";
    let is_set = overlay.spec.env.iter().any(|own| own.name == form);
    (!is_set)
        .then(|| variable(form, "json"))
        .into_iter()
        .chain(own)
        .collect()
}

fn amounts(amounts: &Amounts) -> Option<BTreeMap<String, Quantity>> {
    let parts = [("cpu", &amounts.cpu), ("memory", &amounts.memory)];
    let given = parts
        .into_iter()
        .filter_map(|(name, amount)| Some((name.to_owned(), Quantity(amount.clone()?))));
    filled(given.collect())
}

fn tolerations(overlay: &PodTemplate) -> Vec<Toleration> {
    let operator = |operator| match operator {
        TolerationOperator::Equal => "Equal",
        TolerationOperator::Exists => "Exists",
    };
    let effect = |effect| match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    };
    let tolerations = overlay
        .spec
        .tolerations
        .iter()
        .map(|toleration| Toleration {
            key: toleration.key.clone(),
            operator: Some(operator(toleration.operator).to_owned()),
            value: toleration.value.clone(),
            effect: toleration.effect.map(|it| effect(it).to_owned()),
            toleration_seconds: toleration.toleration_seconds.map(i64::from),
        });
    tolerations.collect()
}

/// Adds the affinity to a Deployment or a Job as the resource has it: the API server judges it, nothing is left out here.
pub(super) fn with_affinity(wanted: Wanted<'_>, mut child: Child) -> Child {
    let affinity = overlay(wanted).spec.affinity;
    if let (Some(affinity), Some(spec)) =
        (affinity, child.object.pointer_mut("/spec/template/spec"))
    {
        spec["affinity"] = affinity.into();
    }
    child
}

fn filled<V>(map: BTreeMap<String, V>) -> Option<BTreeMap<String, V>> {
    (!map.is_empty()).then_some(map)
}

pub(super) fn some_of<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
