//! `DatabaseReachable`.

use super::super::migration::Schema;
use super::{Facts, Verdict, told};
use crate::observe::Failure;
use crate::stats::Scope;

/// Codes of a worker that say it has no session with the database. All others come over one.
const WITHOUT_A_SESSION: [&str; 13] = [
    "AuthenticationFailed",
    "ConnectionLost",
    "ConnectionRefused",
    "DatabaseError",
    "DatabaseNotFound",
    "HostNotFound",
    "ReadOnly",
    "SecretKeyMissing",
    "SecretNotFound",
    "Timeout",
    "TlsVerificationFailed",
    "TooManyConnections",
    "WrongUrl",
];

pub(super) fn verdict(facts: &Facts<'_>) -> Verdict {
    let said = facts.complaints(Scope::Database);
    let mut without = said
        .iter()
        .filter(|(_, complaint)| WITHOUT_A_SESSION.contains(&complaint.code.as_str()));
    if let Some((_, complaint)) = without.next() {
        return Verdict::no(&complaint.code, told(complaint, None));
    }
    if facts.has_ready_worker() {
        return Verdict::yes("Connected", "the workers hold sessions with the database");
    }
    by_migration(facts).unwrap_or_else(|| match (facts.wants_no_workers(), said.is_empty()) {
        (_, false) => Verdict::yes("Connected", "a worker has reached the database"),
        (true, true) => Verdict::unknown(
            "ScaledToZero",
            "no worker looks at the database, because `workers.replicas` is 0",
        ),
        (false, true) => Verdict::unknown(
            "NoWorkerReady",
            "no worker has a session with the database yet",
        ),
    })
}

/// What a migration has met, while no worker can say.
fn by_migration(facts: &Facts<'_>) -> Option<Verdict> {
    let failure: &Failure = match facts.schema? {
        Schema::Migrating { failure, .. } => failure.as_ref()?,
        Schema::Failed { failure, .. } => failure,
        Schema::Current { .. } | Schema::Unmanaged | Schema::AwaitingApproval => return None,
    };
    Some(match WITHOUT_A_SESSION.contains(&failure.code.as_str()) {
        true => Verdict::no(&failure.code, failure.message.clone()),
        false => Verdict::yes("Connected", "the migration has reached the database"),
    })
}
