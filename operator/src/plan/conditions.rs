//! What is true of a resource, in words that scripts may wait for and people can act on.
//!
//! Reading order: [`conditions`] makes the list, with one function for each condition; `ready` sums up.
//!
//! Invariants: a condition that says no carries the sentence of what to do; messages hold nothing that changes by itself, so
//! that a state that lasts is written once.

mod database;
mod ready;
mod schema;
mod transports;
mod workers;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use postroom_crds::conditions::{
    DATABASE_REACHABLE, READY, RECONCILING, SCHEMA_UP_TO_DATE, STALLED, TRANSPORTS_REACHABLE,
    WORKERS_AVAILABLE,
};
use postroom_crds::inbox_outbox::InboxOutbox;
use postroom_crds::problem::Problem;
use postroom_crds::status::{EndpointStatus, InboxOutboxStatus, WorkersStatus};

use super::migration::Schema;
use crate::observe::{Observed, PodSeen, sentence};
use crate::stats::{Complaint, Scope};

/// What the conditions are made from.
pub(super) struct Facts<'a> {
    pub(super) resource: &'a InboxOutbox,
    pub(super) seen: &'a Observed,
    /// None while the spec is invalid.
    pub(super) schema: Option<&'a Schema>,
    pub(super) problems: &'a [Problem],
    pub(super) endpoints: &'a [EndpointStatus],
    pub(super) workers: WorkersStatus,
}

/// Whether something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Is {
    True,
    False,
    Unknown,
}

/// What one condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) is: Is,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Verdict {
    fn yes(reason: &str, message: impl Into<String>) -> Self {
        Self {
            is: Is::True,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    fn no(reason: &str, message: impl Into<String>) -> Self {
        Self {
            is: Is::False,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    fn unknown(reason: &str, message: impl Into<String>) -> Self {
        Self {
            is: Is::Unknown,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// All conditions. Times of transition are kept where nothing has changed.
pub(super) fn conditions(facts: &Facts<'_>, old: &[Condition], now: Timestamp) -> Vec<Condition> {
    let schema = schema::verdict(facts);
    let database = database::verdict(facts);
    let transports = transports::verdict(facts);
    let workers = workers::verdict(facts);
    let ready = ready::verdict(facts, &schema, &database, &transports, &workers);
    let parts = [&schema, &database, &transports, &workers];
    let (reconciling, stalled) = ready::progress(&ready, &parts);
    let list = [
        (READY, Some(ready)),
        (SCHEMA_UP_TO_DATE, Some(schema)),
        (DATABASE_REACHABLE, Some(database)),
        (TRANSPORTS_REACHABLE, Some(transports)),
        (WORKERS_AVAILABLE, Some(workers)),
        (RECONCILING, reconciling),
        (STALLED, stalled),
    ];
    let present = list
        .into_iter()
        .filter_map(|(kind, verdict)| Some((kind, verdict?)));
    present
        .map(|(kind, verdict)| {
            condition(kind, verdict, facts.resource.metadata.generation, old, now)
        })
        .collect()
}

/// Whether a status says that all is well.
pub(super) fn is_ready(status: &InboxOutboxStatus) -> bool {
    status
        .conditions
        .iter()
        .any(|condition| condition.type_ == READY && condition.status == "True")
}

/// The conditions after the API server refused a child: the rest stays as it was seen.
pub(crate) fn refused(
    conditions: &mut Vec<Condition>,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let old = conditions.clone();
    conditions
        .retain(|condition| ![READY, RECONCILING, STALLED].contains(&condition.type_.as_str()));
    let verdict = Verdict::no("ChildRefused", message);
    conditions.insert(0, condition(READY, verdict.clone(), generation, &old, now));
    conditions.push(condition(
        STALLED,
        Verdict {
            is: Is::True,
            ..verdict
        },
        generation,
        &old,
        now,
    ));
}

fn condition(
    kind: &str,
    verdict: Verdict,
    generation: Option<i64>,
    old: &[Condition],
    now: Timestamp,
) -> Condition {
    let status = match verdict.is {
        Is::True => "True",
        Is::False => "False",
        Is::Unknown => "Unknown",
    };
    let before = old
        .iter()
        .find(|before| before.type_ == kind && before.status == status);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason,
        message: shortened(&verdict.message),
        observed_generation: generation,
        last_transition_time: before
            .map_or(Time(now), |before| before.last_transition_time.clone()),
    }
}

/// The longest message that the API takes is 32768 bytes; nobody reads so far.
fn shortened(message: &str) -> String {
    const MOST: usize = 1_000;
    match message.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message.to_owned(),
    }
}

impl Facts<'_> {
    /// The workers that are not on their way out.
    fn fleet(&self) -> impl Iterator<Item = &PodSeen> {
        self.seen.workers.iter().filter(|worker| !worker.ending)
    }

    /// What workers say about `scope`, with the worker that says it.
    fn complaints(&self, scope: Scope) -> Vec<(&PodSeen, &Complaint)> {
        let stats = self
            .fleet()
            .filter_map(|worker| Some((worker, worker.stats.as_ref()?.as_ref().ok()?)));
        let all = stats.flat_map(|(worker, stats)| {
            stats
                .conditions
                .iter()
                .map(move |complaint| (worker, complaint))
        });
        all.filter(|(_, complaint)| complaint.scope == scope)
            .collect()
    }

    fn has_ready_worker(&self) -> bool {
        self.fleet().any(|worker| worker.ready)
    }

    fn wants_no_workers(&self) -> bool {
        self.resource.spec.workers.replicas == 0
    }
}

/// The sentence of a complaint, for a fleet of which `count` workers have it.
fn told(complaint: &Complaint, what: Option<&str>) -> String {
    let sentence = sentence(&complaint.message, &complaint.next_step);
    match what {
        Some(what) => format!("{what}: {sentence}"),
        None => sentence,
    }
}
