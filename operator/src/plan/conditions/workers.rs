//! `WorkersAvailable`.

use k8s_openapi::api::apps::v1::Deployment;

use super::{Facts, Verdict};
use crate::observe::PodSeen;

/// Reasons of a kubelet that say the image does not come.
const NO_IMAGE: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
];

pub(super) fn verdict(facts: &Facts<'_>) -> Verdict {
    let wanted = facts.resource.spec.workers.replicas;
    let Some(deployment) = &facts.seen.deployment else {
        return Verdict::no(
            "WaitingForSchema",
            "the workers are created when the schema is there",
        );
    };
    if wanted == 0 {
        return Verdict::yes(
            "ScaledToZero",
            "`workers.replicas` is 0: nothing is delivered or received, and rows may still be written",
        );
    }
    let (ready, updated, all) = (
        facts.workers.ready_replicas,
        facts.workers.updated_replicas,
        facts.workers.replicas,
    );
    let wanted = i32::try_from(wanted).unwrap_or(i32::MAX);
    let is_rolled_out = is_seen(deployment, wanted) && updated == wanted && all == wanted;
    if is_rolled_out && ready == wanted {
        return Verdict::yes(
            "MinimumReplicasAvailable",
            format!("{ready}/{wanted} workers are ready"),
        );
    }
    if let Some(why) = facts.fleet().find_map(stuck) {
        return Verdict::no(why.reason, why.message);
    }
    if let Some(why) = refused(deployment) {
        return why;
    }
    if is_rolled_out {
        return Verdict::no(
            "MinimumReplicasUnavailable",
            format!("{ready}/{wanted} workers are ready"),
        );
    }
    Verdict::no(
        "RolloutInProgress",
        format!(
            "{updated}/{wanted} workers have the present configuration, {ready} workers are ready"
        ),
    )
}

/// Why a pod does not run.
pub(super) struct Stuck {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Whether a pod cannot run before something changes.
pub(super) fn stuck(pod: &PodSeen) -> Option<Stuck> {
    if let Some(message) = &pod.unschedulable {
        return Some(Stuck {
            reason: "Unschedulable",
            message: format!("pod {} finds no node: {message}", pod.name),
        });
    }
    let failure = pod
        .failure
        .as_ref()
        .map(|failure| format!("{}: {}", failure.code, failure.message));
    let (reason, message) = pod.waiting.as_ref()?;
    if NO_IMAGE.contains(&reason.as_str()) {
        let message = format!(
            "the image of pod {} cannot be had: {reason}: {message}",
            pod.name
        );
        return Some(Stuck {
            reason: "ImagePullFailed",
            message,
        });
    }
    match reason.as_str() {
        "CrashLoopBackOff" => {
            let why = failure.unwrap_or_else(|| "look at its log".to_owned());
            Some(Stuck {
                reason: "CrashLooping",
                message: format!("a worker ends again and again: {why}"),
            })
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            Some(Stuck {
                reason: "ContainerNotCreated",
                message: format!("pod {}: {reason}: {message}", pod.name),
            })
        }
        _ => None,
    }
}

/// Whether the Deployment's own numbers are about what is wanted now.
fn is_seen(deployment: &Deployment, wanted: i32) -> bool {
    let observed = deployment
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    let asked = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    observed >= deployment.metadata.generation && asked == Some(wanted)
}

/// The API server takes the Deployment but not its pods.
fn refused(deployment: &Deployment) -> Option<Verdict> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions
        .iter()
        .find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")?;
    let message = failure.message.clone().unwrap_or_default();
    let reason = if message.contains("exceeded quota") {
        "QuotaExceeded"
    } else {
        "PodsRefused"
    };
    Some(Verdict::no(
        reason,
        format!("the cluster refuses pods of the workers: {message}"),
    ))
}
