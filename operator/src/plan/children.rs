//! The small children, and what all children have in common.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use postroom_crds::names::{self, Component};
use serde::Serialize;
use serde_json::Value;

use super::Wanted;
use crate::observe::Observed;

/// An object as it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The object, with nothing in it that the operator does not decide.
    pub object: Value,
}

/// An object that must go: exactly the one with this uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The kinds of children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Identity of the pods.
    ServiceAccount,
    /// Configuration of the workers.
    ConfigMap,
    /// Migration.
    Job,
    /// Budget of the workers.
    PodDisruptionBudget,
    /// The workers.
    Deployment,
}

impl Kind {
    /// As Kubernetes calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::ConfigMap => "ConfigMap",
            Self::Job => "Job",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::Deployment => "Deployment",
        }
    }
}

/// Metadata of a child.
pub(super) fn metadata(wanted: Wanted<'_>, name: String, component: Component) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: wanted.resource.namespace(),
        labels: Some(names::labels(&wanted.resource.name_any(), component)),
        owner_references: wanted
            .resource
            .controller_owner_ref(&())
            .map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// An object made ready to be applied.
pub(super) fn child<K: Resource<DynamicType = ()> + Serialize>(kind: Kind, object: &K) -> Child {
    // Types of Kubernetes always have a JSON form.
    let object_json = serde_json::to_value(object).unwrap_or_default();
    Child {
        kind,
        name: object.name_any(),
        object: object_json,
    }
}

/// The identity of the pods. It has no rights, and no token is mounted.
pub(super) fn service_account(wanted: Wanted<'_>) -> Child {
    let name = names::worker(&wanted.resource.name_any());
    let account = ServiceAccount {
        metadata: metadata(wanted, name, Component::Worker),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    child(Kind::ServiceAccount, &account)
}

/// The configuration of workers and migrations.
pub(super) fn config_map(wanted: Wanted<'_>) -> Child {
    let name = names::worker(&wanted.resource.name_any());
    let text = serde_json::to_string_pretty(wanted.config).unwrap_or_default();
    let map = ConfigMap {
        metadata: metadata(wanted, name, Component::Worker),
        data: Some(BTreeMap::from([(super::pod::CONFIG_KEY.to_owned(), text)])),
        ..ConfigMap::default()
    };
    child(Kind::ConfigMap, &map)
}

/// The budget, or the one that must go.
pub(super) fn disruption_budget(
    wanted: Wanted<'_>,
    seen: &Observed,
) -> (Option<Child>, Option<Removal>) {
    let budget = &wanted.resource.spec.workers.pod_disruption_budget;
    let name = wanted.resource.name_any();
    if !budget.enabled {
        let old = seen
            .disruption_budget
            .as_ref()
            .filter(|old| is_owned(wanted, &old.metadata));
        return (
            None,
            old.and_then(|old| removal(Kind::PodDisruptionBudget, &old.metadata)),
        );
    }
    let selector = names::selector(&name, Component::Worker);
    let most = i32::try_from(budget.max_unavailable).unwrap_or(i32::MAX);
    let object = PodDisruptionBudget {
        metadata: metadata(wanted, names::worker(&name), Component::Worker),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(most)),
            selector: Some(LabelSelector {
                match_labels: Some(selector),
                ..LabelSelector::default()
            }),
            // A worker that is not ready does no work; it must not hold up a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    };
    (Some(child(Kind::PodDisruptionBudget, &object)), None)
}

/// Whether an object is a child of the resource, and not only named like one.
pub(super) fn is_owned(wanted: Wanted<'_>, metadata: &ObjectMeta) -> bool {
    let owners = metadata.owner_references.iter().flatten();
    let uid = wanted.resource.metadata.uid.as_deref();
    owners
        .into_iter()
        .any(|owner| owner.controller == Some(true) && Some(owner.uid.as_str()) == uid)
}

/// That an object must go.
pub(super) fn removal(kind: Kind, metadata: &ObjectMeta) -> Option<Removal> {
    Some(Removal {
        kind,
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
    })
}

/// The Job as it was seen must go.
pub(super) fn remove_job(job: &Job) -> Option<Removal> {
    removal(Kind::Job, &job.metadata)
}
