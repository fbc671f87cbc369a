//! Makes the children what the plan says, in its order.
//!
//! Invariants: only what differs is written, so nothing is written at rest; a field that somebody else owns is left alone; an
//! object that merely has the name of a child is never touched; a deletion names the uid it means.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{
    DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy, ValidationDirective,
};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource, ResourceExt};
use postroom_crds::inbox_outbox::InboxOutbox;
use postroom_crds::names::{ANNOTATION_APPLIED_HASH, OPERATOR, fingerprint};
use serde_json::Value;

use crate::observe::Observed;
use crate::plan::Plan;
use crate::plan::children::{Child, Kind, Removal};

/// Why a child is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum NotApplied {
    /// Somebody must change something.
    #[error("{0}")]
    Refused(String),
    /// The API server cannot be asked, or does not know yet.
    #[error(transparent)]
    Failed(#[from] kube::Error),
}

/// Objects that the API server writes down in other words than ours, such as `1` for `1000m`: a write changed nothing.
///
/// Without it they would be written again at every look.
#[derive(Debug, Default)]
pub struct Settled(Mutex<HashMap<String, (String, String)>>);

impl Settled {
    fn has(&self, live: &Value, child: &Child) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = (text(live, "/metadata/resourceVersion"), hash(child));
        known.get(&text(live, "/metadata/uid")) == Some(&state)
    }

    fn note(&self, live: &Value, after: &DynamicObject, child: &Child) {
        let version = text(live, "/metadata/resourceVersion");
        if after.metadata.resource_version.as_deref() == Some(&version) {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(text(live, "/metadata/uid"), (version, hash(child)));
        }
    }
}

fn text(object: &Value, pointer: &str) -> String {
    let found = object.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

fn hash(child: &Child) -> String {
    fingerprint(&child.object.to_string())
}

/// Brings the children to what `plan` says.
///
/// # Errors
/// At the first child that cannot be: what comes after it may need it.
pub async fn apply(
    client: &Client,
    settled: &Settled,
    resource: &InboxOutbox,
    plan: &Plan,
    seen: &Observed,
) -> Result<(), NotApplied> {
    for removal in &plan.removals {
        remove(client, resource, removal).await?;
    }
    for child in &plan.children {
        let child = marked(child);
        match live(&child, seen) {
            Some(live) if is_as_wanted(&child.object, &live) || settled.has(&live, &child) => {}
            Some(live) if is_child_of(&live, resource) => {
                let after = write(client, resource, &child).await?;
                settled.note(&live, &after, &child);
            }
            Some(_) => return Err(taken(&child)),
            None => create(client, resource, &child).await?,
        }
    }
    Ok(())
}

async fn remove(
    client: &Client,
    resource: &InboxOutbox,
    removal: &Removal,
) -> Result<(), NotApplied> {
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions {
            uid: Some(removal.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api(client, resource, removal.kind)
        .delete(&removal.name, &parameters)
        .await
    {
        Ok(_) => {
            let namespace = resource.namespace().unwrap_or_default();
            let kind = removal.kind.as_str();
            tracing::info!("Deleted {kind} {namespace}/{}", removal.name);
            Ok(())
        }
        // It is gone already, or another one has its name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The caches hold only what carries the operator's label, so somebody else's object of the same name is looked for.
async fn create(client: &Client, resource: &InboxOutbox, child: &Child) -> Result<(), NotApplied> {
    match api(client, resource, child.kind)
        .get_opt(&child.name)
        .await?
    {
        Some(live) if !is_child_of(&serde_json::to_value(&live).unwrap_or_default(), resource) => {
            Err(taken(child))
        }
        Some(live) if live.metadata.deletion_timestamp.is_some() => Ok(()),
        Some(_) | None => write(client, resource, child).await.map(drop),
    }
}

fn taken(child: &Child) -> NotApplied {
    let (kind, name) = (child.kind.as_str(), &child.name);
    NotApplied::Refused(format!(
        "{kind} {name} exists and does not belong to this resource. Delete it, or give this resource another name"
    ))
}

async fn write(
    client: &Client,
    resource: &InboxOutbox,
    child: &Child,
) -> Result<DynamicObject, NotApplied> {
    let parameters = PatchParams {
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply(OPERATOR).force()
    };
    let api = api(client, resource, child.kind);
    match api
        .patch(&child.name, &parameters, &Patch::Apply(&child.object))
        .await
    {
        Ok(after) => {
            let namespace = resource.namespace().unwrap_or_default();
            tracing::info!("Applied {} {namespace}/{}", child.kind.as_str(), child.name);
            Ok(after)
        }
        // What is wrong with the object, or forbidden, does not pass by itself; the rest may.
        Err(kube::Error::Api(status)) if is_final(&status) => {
            let (kind, name) = (child.kind.as_str(), &child.name);
            Err(NotApplied::Refused(format!(
                "the API server refuses {kind} {name}: {}",
                status.message
            )))
        }
        Err(error) => Err(error.into()),
    }
}

/// An object that is not even of its kind's form is answered with 500.
fn is_final(status: &kube::core::Status) -> bool {
    matches!(status.code, 400 | 403 | 422)
        || status
            .message
            .starts_with("failed to create typed patch object")
}

fn api(client: &Client, resource: &InboxOutbox, kind: Kind) -> Api<DynamicObject> {
    let kind = match kind {
        Kind::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
        Kind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
        Kind::Job => ApiResource::erase::<Job>(&()),
        Kind::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
        Kind::Deployment => ApiResource::erase::<Deployment>(&()),
    };
    Api::namespaced_with(
        client.clone(),
        &resource.namespace().unwrap_or_default(),
        &kind,
    )
}

/// The child with a hash of itself, so that a field that is no longer wanted is noticed as well.
fn marked(child: &Child) -> Child {
    let mut marked = child.clone();
    let hash = hash(child);
    if let Some(metadata) = marked.object.get_mut("metadata") {
        metadata["annotations"][ANNOTATION_APPLIED_HASH] = hash.into();
    }
    marked
}

/// The object as the caches have it. A Job is never changed, only made: its name stands for its content.
fn live(child: &Child, seen: &Observed) -> Option<Value> {
    let live = match child.kind {
        Kind::ServiceAccount => seen.service_account.as_deref().map(serde_json::to_value),
        Kind::ConfigMap => seen.config_map.as_deref().map(serde_json::to_value),
        Kind::PodDisruptionBudget => seen.disruption_budget.as_deref().map(serde_json::to_value),
        Kind::Deployment => seen.deployment.as_deref().map(serde_json::to_value),
        Kind::Job => None,
    };
    live?.ok()
}

fn is_child_of(live: &Value, resource: &InboxOutbox) -> bool {
    let owners = live
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array);
    let uid = resource.meta().uid.as_deref();
    owners
        .into_iter()
        .flatten()
        .any(|owner| owner["controller"] == true && owner["uid"].as_str() == uid && uid.is_some())
}

/// Whether `live` has everything that is wanted; what it has besides belongs to others.
fn is_as_wanted(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted
            .iter()
            .all(|(key, value)| live.get(key).is_some_and(|live| is_as_wanted(value, live))),
        (Value::Array(wanted), Value::Array(live)) => wanted
            .iter()
            .all(|value| live.iter().any(|live| is_as_wanted(value, live))),
        (wanted, live) => wanted == live,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::is_as_wanted;

    #[test]
    fn what_others_added_is_no_difference() {
        let wanted =
            json!({"spec": {"replicas": 2, "containers": [{"name": "worker", "image": "a"}]}});
        let live = json!({"spec": {"replicas": 2, "paused": false, "containers": [{"name": "mesh"}, {"name": "worker", "image": "a", "tty": false}]}, "status": {}});
        assert!(is_as_wanted(&wanted, &live));
    }

    #[test]
    fn what_others_changed_or_took_away_is() {
        let wanted =
            json!({"spec": {"replicas": 2, "containers": [{"name": "worker", "image": "a"}]}});
        for live in [
            json!({"spec": {"replicas": 3, "containers": [{"name": "worker", "image": "a"}]}}),
            json!({"spec": {"replicas": 2, "containers": [{"name": "worker", "image": "b"}]}}),
            json!({"spec": {"replicas": 2, "containers": []}}),
            json!({"spec": {"containers": [{"name": "worker", "image": "a"}]}}),
        ] {
            assert!(!is_as_wanted(&wanted, &live), "{live}");
        }
    }
}
