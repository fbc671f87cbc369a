//! Writes what is true, and says what has become of it.
//!
//! Invariants: one write at most, and none when nothing that matters is new; numbers alone are written at most every 30
//! seconds; an event is told only after the status that it is about is stored.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client, Resource, ResourceExt};
use postroom_crds::conditions::{
    DATABASE_REACHABLE, SCHEMA_UP_TO_DATE, STALLED, TRANSPORTS_REACHABLE, WORKERS_AVAILABLE,
};
use postroom_crds::inbox_outbox::{API_VERSION, InboxOutbox, KIND};
use postroom_crds::status::InboxOutboxStatus;
use serde_json::json;

/// Who owns the fields of the status.
const MANAGER: &str = "postroom-operator-status";
/// Shortest time between two writes that bring nothing but numbers.
const NUMBERS_SECONDS: i64 = 30;

/// Stores `status` if it says something new.
///
/// # Errors
/// When the API server does not take it.
pub async fn report(
    client: &Client,
    recorder: &Recorder,
    resource: &InboxOutbox,
    status: &InboxOutboxStatus,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let old = resource.status.clone().unwrap_or_default();
    if !is_news(&old, status, now) {
        return Ok(());
    }
    let api: Api<InboxOutbox> =
        Api::namespaced(client.clone(), &resource.namespace().unwrap_or_default());
    let patch = json!({"apiVersion": API_VERSION, "kind": KIND, "status": status});
    let parameters = PatchParams::apply(MANAGER).force();
    match api
        .patch_status(&resource.name_any(), &parameters, &Patch::Apply(&patch))
        .await
    {
        Ok(_) => tell(recorder, resource, &old, status).await,
        // It was deleted meanwhile.
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether `new` is worth a write.
fn is_news(old: &InboxOutboxStatus, new: &InboxOutboxStatus, now: Timestamp) -> bool {
    if without_numbers(old) != without_numbers(new) {
        return true;
    }
    let same = old.summary == new.summary && old.endpoints == new.endpoints;
    let due = old
        .measured_time
        .as_ref()
        .is_none_or(|time| now.duration_since(time.0).as_secs() >= NUMBERS_SECONDS);
    !same && due
}

/// What is left counts at once: conditions, states, whether numbers are known.
fn without_numbers(status: &InboxOutboxStatus) -> InboxOutboxStatus {
    let mut status = status.clone();
    status.measured_time = status
        .measured_time
        .map(|_| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    status.summary = status
        .summary
        .map(|_| postroom_crds::status::Summary::default());
    for endpoint in &mut status.endpoints {
        endpoint.pending = endpoint.pending.map(|_| 0);
        endpoint.in_flight = endpoint.in_flight.map(|_| 0);
        endpoint.deferred = endpoint.deferred.map(|_| 0);
        endpoint.dead = endpoint.dead.map(|_| 0);
        endpoint.oldest_pending_time = None;
        endpoint.last_delivery_time = None;
    }
    status
}

async fn tell(
    recorder: &Recorder,
    resource: &InboxOutbox,
    old: &InboxOutboxStatus,
    new: &InboxOutboxStatus,
) -> Result<(), kube::Error> {
    let reference = resource.object_ref(&());
    for event in events(old, new) {
        recorder.publish(&event, &reference).await?;
    }
    Ok(())
}

/// What has become of the conditions.
fn events(old: &InboxOutboxStatus, new: &InboxOutboxStatus) -> Vec<Event> {
    let find = |status: &InboxOutboxStatus, kind: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .cloned()
    };
    let told = [
        SCHEMA_UP_TO_DATE,
        DATABASE_REACHABLE,
        TRANSPORTS_REACHABLE,
        WORKERS_AVAILABLE,
        STALLED,
    ]
    .into_iter()
    .filter_map(|kind| {
        let (before, after) = (find(old, kind), find(new, kind)?);
        let changed = before
            .as_ref()
            .is_none_or(|before| before.status != after.status || before.reason != after.reason);
        if changed {
            event(kind, before.as_ref(), &after)
        } else {
            None
        }
    });
    told.collect()
}

fn event(kind: &str, before: Option<&Condition>, after: &Condition) -> Option<Event> {
    let was_false = before.is_some_and(|before| before.status == "False");
    let (reason, normal, action) = match (kind, after.status.as_str(), after.reason.as_str()) {
        (SCHEMA_UP_TO_DATE, "True", _) => ("SchemaMigrationSucceeded", true, "Migrate"),
        (SCHEMA_UP_TO_DATE, "False", "MigrationRunning") => {
            ("SchemaMigrationStarted", true, "Migrate")
        }
        (SCHEMA_UP_TO_DATE, "False", _) => ("SchemaMigrationFailed", false, "Migrate"),
        (DATABASE_REACHABLE, "False", _) => ("DatabaseUnreachable", false, "Connect"),
        (DATABASE_REACHABLE, "True", _) if was_false => ("DatabaseReachable", true, "Connect"),
        (TRANSPORTS_REACHABLE, "False", "TopologyMissing") => {
            ("TransportTopologyMissing", false, "Connect")
        }
        (TRANSPORTS_REACHABLE, "False", _) => ("TransportUnreachable", false, "Connect"),
        (TRANSPORTS_REACHABLE, "True", _) if was_false => ("TransportReachable", true, "Connect"),
        (WORKERS_AVAILABLE, "True", "MinimumReplicasAvailable") => {
            ("WorkersRolledOut", true, "Deploy")
        }
        (STALLED, _, "ChildRefused") => ("ChildRefused", false, "Apply"),
        _ => return None,
    };
    let type_ = if normal {
        EventType::Normal
    } else {
        EventType::Warning
    };
    Some(Event {
        type_,
        reason: reason.to_owned(),
        note: Some(noted(&after.message)),
        action: action.to_owned(),
        secondary: None,
    })
}

/// A note takes 1 kB.
fn noted(message: &str) -> String {
    match message.char_indices().nth(240) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
