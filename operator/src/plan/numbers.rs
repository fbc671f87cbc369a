//! Depth and progress of the endpoints, from what the workers say.
//!
//! Invariant: in flight is each worker's own and is summed; all else is the endpoint's, the same on every worker, and is taken
//! from the freshest answer.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use postroom_crds::inbox_outbox::InboxOutbox;
use postroom_crds::status::{Direction, EndpointState, EndpointStatus, Summary};

use crate::observe::Observed;
use crate::stats::{EndpointStats, Scope, Stats};

/// What is known in numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Numbers {
    /// All endpoints together; none while unknown.
    pub summary: Option<Summary>,
    /// Each endpoint.
    pub endpoints: Vec<EndpointStatus>,
    /// When the freshest answer was measured.
    pub measured: Option<Timestamp>,
}

/// What the workers say about depth.
pub fn numbers(resource: &InboxOutbox, seen: &Observed) -> Numbers {
    let answers: Vec<&Stats> = seen
        .workers
        .iter()
        .filter_map(|worker| worker.stats.as_ref()?.as_ref().ok())
        .collect();
    let known = answers.iter().filter(|stats| stats.known);
    let freshest = known.max_by_key(|stats| stats.measured_time).copied();
    let endpoints: Vec<_> = endpoints(resource)
        .map(|endpoint| status(resource, endpoint, freshest, &answers))
        .collect();
    Numbers {
        summary: freshest.and_then(|_| summary(&endpoints)),
        endpoints,
        measured: freshest.and_then(|stats| stats.measured_time),
    }
}

/// What the spec says of an endpoint, whatever its direction.
#[derive(Clone, Copy)]
struct Endpoint<'a> {
    name: &'a str,
    direction: Direction,
    paused: bool,
}

/// The endpoints in the order of the spec. No two have the same name.
fn endpoints(resource: &InboxOutbox) -> impl Iterator<Item = Endpoint<'_>> {
    let outboxes = resource.spec.outboxes.iter().map(|outbox| Endpoint {
        name: &outbox.name,
        direction: Direction::Outbox,
        paused: outbox.paused,
    });
    let inboxes = resource.spec.inboxes.iter().map(|inbox| Endpoint {
        name: &inbox.name,
        direction: Direction::Inbox,
        paused: inbox.paused,
    });
    outboxes.chain(inboxes)
}

fn status(
    resource: &InboxOutbox,
    endpoint: Endpoint<'_>,
    freshest: Option<&Stats>,
    answers: &[&Stats],
) -> EndpointStatus {
    let row = |stats: &'_ &'_ Stats| -> Option<EndpointStats> {
        stats
            .endpoints
            .iter()
            .find(|row| row.name == endpoint.name)
            .cloned()
    };
    let own: Vec<EndpointStats> = answers.iter().filter_map(row).collect();
    let whole = freshest.as_ref().and_then(row).unwrap_or_default();
    let complaints = answers.iter().flat_map(|stats| &stats.conditions);
    let mut about_it = complaints.filter(|complaint| {
        complaint.scope == Scope::Endpoint && complaint.name.as_deref() == Some(endpoint.name)
    });
    let message = about_it
        .next()
        .map(|complaint| crate::observe::sentence(&complaint.message, &complaint.next_step));
    let state = match &message {
        _ if resource.spec.paused || endpoint.paused => EndpointState::Paused,
        Some(_) => EndpointState::Failing,
        None if own.is_empty() => EndpointState::Unknown,
        None => EndpointState::Active,
    };
    EndpointStatus {
        name: endpoint.name.to_owned(),
        direction: endpoint.direction,
        state,
        message,
        pending: whole.pending,
        in_flight: (!own.is_empty()).then(|| own.iter().map(|row| row.in_flight).sum()),
        deferred: whole.deferred,
        dead: whole.dead,
        oldest_pending_time: whole.oldest_pending_time.map(in_seconds),
        last_delivery_time: own
            .iter()
            .filter_map(|row| row.last_delivery_time)
            .max()
            .map(in_seconds),
    }
}

/// As the API server stores it; a finer time would differ from what is stored for ever.
fn in_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// None if any endpoint is unknown: part of a sum would be taken for the whole.
fn summary(endpoints: &[EndpointStatus]) -> Option<Summary> {
    let sum = |number: fn(&EndpointStatus) -> Option<i64>| {
        endpoints.iter().map(number).sum::<Option<i64>>()
    };
    Some(Summary {
        pending: sum(|endpoint| endpoint.pending)?,
        in_flight: sum(|endpoint| endpoint.in_flight)?,
        dead: sum(|endpoint| endpoint.dead)?,
        oldest_pending_time: endpoints
            .iter()
            .filter_map(|endpoint| endpoint.oldest_pending_time.clone())
            .min_by_key(|time| time.0),
    })
}
