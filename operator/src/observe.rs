//! What is there: the children of a resource, and what its workers say. Only reads.
//!
//! Invariant: everything comes from the caches, which watches keep true, and from the workers themselves; at rest nothing is
//! asked of the API server.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use postroom_crds::inbox_outbox::InboxOutbox;
use postroom_crds::names::{self, Component, LABEL_COMPONENT, LABEL_INSTANCE};
use serde::Deserialize;

use crate::caches::Caches;
use crate::stats::{Reader, Stats};

/// Everything a plan is made from, besides the resource.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// The configuration of the workers.
    pub config_map: Option<Arc<ConfigMap>>,
    /// The identity of the pods.
    pub service_account: Option<Arc<ServiceAccount>>,
    /// The budget of the workers.
    pub disruption_budget: Option<Arc<PodDisruptionBudget>>,
    /// The workers.
    pub deployment: Option<Arc<Deployment>>,
    /// Migrations, whatever their version.
    pub jobs: Vec<Arc<Job>>,
    /// Pods of the workers.
    pub workers: Vec<PodSeen>,
    /// Pods of migrations.
    pub migrators: Vec<PodSeen>,
}

/// A pod, as far as it matters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSeen {
    /// Its name.
    pub name: String,
    /// What tells it from all other pods there ever were.
    pub id: String,
    /// The Job it belongs to.
    pub job: Option<String>,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// Where it answers.
    pub address: Option<IpAddr>,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it is on its way out, or has ended.
    pub ending: bool,
    /// Why its container does not run, and what the node says.
    pub waiting: Option<(String, String)>,
    /// Why it has no node.
    pub unschedulable: Option<String>,
    /// How its container last ended, if badly.
    pub failure: Option<Failure>,
    /// What it says. None if it was not asked.
    pub stats: Option<Result<Stats, String>>,
}

/// Why a process ended, in its own words where it left some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Stable code, such as `AuthenticationFailed`.
    pub code: String,
    /// What was seen, and what to do.
    pub message: String,
    /// What the process ended with.
    pub exit_code: i32,
}

/// Looks at everything that belongs to `resource`.
pub async fn observe(resource: &InboxOutbox, caches: &Caches, reader: &Reader) -> Observed {
    let (name, namespace) = (
        resource.name_any(),
        resource.namespace().unwrap_or_default(),
    );
    let child = names::worker(&name);
    let pods = belonging(&caches.pods, &name, &namespace);
    let of = |component: Component| -> Vec<PodSeen> {
        let has = |pod: &&Arc<Pod>| {
            pod.labels()
                .get(LABEL_COMPONENT)
                .is_some_and(|label| label == component.as_str())
        };
        pods.iter().filter(has).map(|pod| seen(pod)).collect()
    };
    let mut workers = of(Component::Worker);
    ask(&mut workers, reader).await;
    Observed {
        config_map: caches.config_maps.get(&reference(&child, &namespace)),
        service_account: caches.service_accounts.get(&reference(&child, &namespace)),
        disruption_budget: caches
            .disruption_budgets
            .get(&reference(&child, &namespace)),
        deployment: caches.deployments.get(&reference(&child, &namespace)),
        jobs: belonging(&caches.jobs, &name, &namespace),
        workers,
        migrators: of(Component::Migration),
    }
}

fn reference<K: Resource<DynamicType = ()>>(name: &str, namespace: &str) -> ObjectRef<K> {
    ObjectRef::new(name).within(namespace)
}

fn belonging<K>(store: &Store<K>, resource: &str, namespace: &str) -> Vec<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let ours = |object: &K| {
        object.namespace().as_deref() == Some(namespace)
            && object
                .labels()
                .get(LABEL_INSTANCE)
                .is_some_and(|label| label == resource)
    };
    let mut found: Vec<_> = store
        .state()
        .into_iter()
        .filter(|object| ours(object))
        .collect();
    found.sort_by_key(|object| object.name_any());
    found
}

async fn ask(workers: &mut [PodSeen], reader: &Reader) {
    let may_answer = |worker: &PodSeen| worker.address.filter(|_| !worker.ending);
    let addresses: Vec<_> = workers
        .iter()
        .filter_map(|worker| Some((worker.id.clone(), may_answer(worker)?)))
        .collect();
    let mut answers = reader.read_all(&addresses).await.into_iter();
    for worker in workers
        .iter_mut()
        .filter(|worker| may_answer(worker).is_some())
    {
        worker.stats = answers.next();
    }
}

fn seen(pod: &Pod) -> PodSeen {
    let status = pod.status.clone().unwrap_or_default();
    let container = status
        .container_statuses
        .as_ref()
        .and_then(|list| list.first());
    let condition = |kind: &str| {
        status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == kind)
    };
    let phase = status.phase.as_deref().unwrap_or_default();
    PodSeen {
        name: pod.name_any(),
        id: pod.uid().unwrap_or_default(),
        job: pod.labels().get("batch.kubernetes.io/job-name").cloned(),
        created: pod
            .creation_timestamp()
            .map_or(0, |time| time.0.as_second()),
        address: status
            .pod_ip
            .as_ref()
            .and_then(|address| address.parse().ok())
            .filter(|_| container.is_some_and(is_running)),
        ready: condition("Ready").is_some_and(|condition| condition.status == "True"),
        ending: pod.metadata.deletion_timestamp.is_some()
            || matches!(phase, "Succeeded" | "Failed"),
        waiting: container.and_then(waiting),
        unschedulable: condition("PodScheduled")
            .filter(|condition| condition.reason.as_deref() == Some("Unschedulable"))
            .map(|condition| condition.message.clone().unwrap_or_default()),
        failure: container.and_then(failure),
        stats: None,
    }
}

fn is_running(container: &ContainerStatus) -> bool {
    container
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some())
}

fn waiting(container: &ContainerStatus) -> Option<(String, String)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((
        waiting.reason.clone()?,
        waiting.message.clone().unwrap_or_default(),
    ))
}

/// What a process leaves in its termination message.
#[derive(Deserialize)]
struct LastWords {
    error: LastError,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LastError {
    code: String,
    message: String,
    #[serde(default)]
    next_step: String,
}

fn failure(container: &ContainerStatus) -> Option<Failure> {
    let of = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        state.as_ref().and_then(|state| state.terminated.clone())
    };
    let end = of(&container.state).or_else(|| of(&container.last_state))?;
    if end.exit_code == 0 {
        return None;
    }
    let words = end.message.as_deref().unwrap_or_default();
    let (code, message) = match serde_json::from_str::<LastWords>(words) {
        Ok(LastWords { error }) => (error.code, sentence(&error.message, &error.next_step)),
        Err(_) => {
            let code = end
                .reason
                .clone()
                .filter(|reason| reason == "OOMKilled")
                .unwrap_or_else(|| "ProcessEnded".to_owned());
            let message = match code.as_str() {
                "OOMKilled" => "the process used more memory than its limit. Raise `workers.resources.limits.memory`".to_owned(),
                _ => format!("the process ended with code {}. Look at its log", end.exit_code),
            };
            (code, message)
        }
    };
    Some(Failure {
        code,
        message,
        exit_code: end.exit_code,
    })
}

/// What was seen and what to do, as one text.
pub fn sentence(message: &str, next_step: &str) -> String {
    let message = message.trim_end_matches('.');
    match next_step {
        "" => message.to_owned(),
        step => format!("{message}. {}", step.trim_end_matches('.')),
    }
}
