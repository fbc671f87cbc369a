//! `Ready`, and whether something is being changed or waits for a person.

use postroom_crds::status::EndpointState;

use super::super::migration::Schema;
use super::{Facts, Is, Verdict};

/// Reasons that do not pass by themselves.
const FOR_A_PERSON: [&str; 22] = [
    "AccessRefused",
    "AuthenticationFailed",
    "AwaitingApproval",
    "ContainerNotCreated",
    "CrashLooping",
    "DatabaseNotFound",
    "HostNotFound",
    "ImagePullFailed",
    "InvalidSpec",
    "MigrationFailed",
    "NotAnAmqpUri",
    "PermissionDenied",
    "PodsRefused",
    "QuotaExceeded",
    "SchemaAhead",
    "SecretKeyMissing",
    "SecretNotFound",
    "TlsVerificationFailed",
    "TopologyMissing",
    "Unschedulable",
    "VhostNotFound",
    "WrongUrl",
];

/// The first thing in the way, from the database outwards.
pub(super) fn verdict(
    facts: &Facts<'_>,
    schema: &Verdict,
    database: &Verdict,
    transports: &Verdict,
    workers: &Verdict,
) -> Verdict {
    if let Some(problem) = facts.problems.first() {
        return Verdict::no("InvalidSpec", problem.sentence.clone());
    }
    let because = |reason: &str, part: &Verdict| Verdict::no(reason, part.message.clone());
    if database.is == Is::False {
        return because(reference_or("DatabaseUnreachable", database), database);
    }
    if schema.is == Is::False {
        let reason = match facts.schema {
            Some(Schema::Migrating { failure: None, .. }) => "Reconciling",
            _ => "SchemaNotReady",
        };
        return because(reason, schema);
    }
    if transports.is == Is::False {
        return because(reference_or("TransportUnreachable", transports), transports);
    }
    if workers.is == Is::False {
        let changing = ["RolloutInProgress", "WaitingForSchema"].contains(&workers.reason.as_str());
        return because(
            if changing {
                "Reconciling"
            } else {
                "WorkersUnavailable"
            },
            workers,
        );
    }
    if facts.wants_no_workers() {
        return Verdict::yes("ScaledToZero", workers.message.clone());
    }
    if let Some(part) = [schema, database, transports]
        .into_iter()
        .find(|part| part.is == Is::Unknown)
    {
        return because("Reconciling", part);
    }
    endpoints(facts)
}

fn endpoints(facts: &Facts<'_>) -> Verdict {
    let count = |state: EndpointState| {
        facts
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.state == state)
            .count()
    };
    let all = facts.endpoints.len();
    if let Some(failing) = facts
        .endpoints
        .iter()
        .find(|endpoint| endpoint.state == EndpointState::Failing)
    {
        let why = failing.message.as_deref().unwrap_or("no worker says why");
        return Verdict::no(
            "EndpointError",
            format!("endpoint '{}': {why}", failing.name),
        );
    }
    if count(EndpointState::Paused) == all {
        return Verdict::no(
            "Paused",
            "every endpoint is paused by the resource; rows may still be written",
        );
    }
    let (ready, wanted) = (
        facts.workers.ready_replicas,
        facts.resource.spec.workers.replicas,
    );
    let paused = match count(EndpointState::Paused) {
        0 => String::new(),
        paused => format!(", {paused} paused"),
    };
    let active = all - count(EndpointState::Paused);
    Verdict::yes(
        "AllEndpointsActive",
        format!("{active} endpoints active{paused}, {ready}/{wanted} workers ready"),
    )
}

/// A Secret that is not there is named apart from a server that does not answer.
fn reference_or(reason: &'static str, part: &Verdict) -> &'static str {
    match part.reason.as_str() {
        "SecretNotFound" | "SecretKeyMissing" => "InvalidReference",
        _ => reason,
    }
}

/// `Reconciling` and `Stalled`, where they are true.
pub(super) fn progress(ready: &Verdict, parts: &[&Verdict]) -> (Option<Verdict>, Option<Verdict>) {
    let truly = |verdict: &Verdict| {
        Some(Verdict {
            is: Is::True,
            ..verdict.clone()
        })
    };
    if ready.is == Is::True {
        return (None, None);
    }
    let for_a_person =
        |part: &&&Verdict| part.is == Is::False && FOR_A_PERSON.contains(&part.reason.as_str());
    let stalled = match parts.iter().find(for_a_person) {
        Some(part) => truly(part),
        None if ready.reason == "InvalidSpec" => truly(ready),
        None => None,
    };
    let reconciling = (stalled.is_none() && ready.reason == "Reconciling")
        .then(|| truly(ready))
        .flatten();
    (reconciling, stalled)
}
