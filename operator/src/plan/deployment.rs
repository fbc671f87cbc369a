//! The fleet of workers.

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, HTTPGetAction, Probe, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use postroom_crds::inbox_outbox::pod::{SpreadConstraint, WhenUnsatisfiable};
use postroom_crds::names::{self, ANNOTATION_CONFIG_HASH, Component};
use postroom_crds::worker_config::{CONFIG_FILE, WorkerConfig};

use super::Wanted;
use super::children::{Child, Kind, child, metadata};
use super::pod::{self, PORT};

/// The workers of a resource.
pub(super) fn deployment(wanted: Wanted<'_>) -> Child {
    let name = wanted.resource.name_any();
    let workers = &wanted.resource.spec.workers;
    let selector = LabelSelector {
        match_labels: Some(names::selector(&name, Component::Worker)),
        ..LabelSelector::default()
    };
    let secrets = pod::secrets_of_worker(&wanted.resource.spec);
    let mut template = pod::template(wanted, Component::Worker, container(wanted), &secrets);
    if let Some(metadata) = &mut template.metadata {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(
            ANNOTATION_CONFIG_HASH.to_owned(),
            config_hash(wanted.config),
        );
    }
    if let Some(spec) = &mut template.spec {
        spec.termination_grace_period_seconds =
            Some(i64::from(workers.termination_grace_period_seconds));
        spec.topology_spread_constraints = pod::some_of(spread(wanted, &selector));
    }
    let deployment = Deployment {
        metadata: metadata(wanted, names::worker(&name), Component::Worker),
        spec: Some(DeploymentSpec {
            replicas: Some(i32::try_from(workers.replicas).unwrap_or(i32::MAX)),
            revision_history_limit: Some(3),
            selector,
            // The new worker is ready before the old one goes: with one replica, too, somebody always delivers.
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template,
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    };
    pod::with_affinity(wanted, child(Kind::Deployment, &deployment))
}

fn container(wanted: Wanted<'_>) -> Container {
    let secrets = pod::secrets_of_worker(&wanted.resource.spec);
    let address = format!("0.0.0.0:{PORT}");
    let command = ["run", "--config", CONFIG_FILE, "--http-address", &address];
    let probe = |path: &str, period: i32, failures: i32| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(i32::from(PORT)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        timeout_seconds: Some(2),
        ..Probe::default()
    };
    Container {
        ports: Some(vec![ContainerPort {
            name: Some("http".to_owned()),
            container_port: i32::from(PORT),
            ..ContainerPort::default()
        }]),
        startup_probe: Some(probe("/livez", 1, 60)),
        readiness_probe: Some(probe("/readyz", 2, 2)),
        // It looks at the process alone: a database that is away restarts nothing.
        liveness_probe: Some(probe("/livez", 10, 3)),
        ..pod::container(wanted, "worker", &command, &secrets)
    }
}

/// The number of the resource's spec is left out: scaling changes it, and must not roll the fleet.
fn config_hash(config: &WorkerConfig) -> String {
    let config = WorkerConfig {
        generation: 0,
        ..config.clone()
    };
    names::fingerprint(&serde_json::to_string(&config).unwrap_or_default())
}

fn spread(wanted: Wanted<'_>, selector: &LabelSelector) -> Vec<TopologySpreadConstraint> {
    let own = wanted
        .resource
        .spec
        .workers
        .pod_template
        .as_ref()
        .and_then(|template| template.spec.topology_spread_constraints.clone());
    let over_nodes = || {
        vec![SpreadConstraint {
            max_skew: 1,
            topology_key: "kubernetes.io/hostname".to_owned(),
            when_unsatisfiable: WhenUnsatisfiable::ScheduleAnyway,
        }]
    };
    let constraints = own
        .unwrap_or_else(over_nodes)
        .into_iter()
        .map(|constraint| TopologySpreadConstraint {
            max_skew: i32::try_from(constraint.max_skew).unwrap_or(i32::MAX),
            topology_key: constraint.topology_key,
            when_unsatisfiable: match constraint.when_unsatisfiable {
                WhenUnsatisfiable::DoNotSchedule => "DoNotSchedule".to_owned(),
                WhenUnsatisfiable::ScheduleAnyway => "ScheduleAnyway".to_owned(),
            },
            label_selector: Some(selector.clone()),
            ..TopologySpreadConstraint::default()
        });
    constraints.collect()
}
