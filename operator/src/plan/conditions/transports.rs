//! `TransportsReachable`.

use super::super::pod::PORT;
use super::{Facts, Verdict, told};
use crate::stats::{Complaint, Scope};

pub(super) fn verdict(facts: &Facts<'_>) -> Verdict {
    let transports = facts.complaints(Scope::Transport);
    if let Some((_, complaint)) = transports.first() {
        let what = format!(
            "transport '{}'",
            complaint.name.as_deref().unwrap_or_default()
        );
        return Verdict::no(reason(complaint), told(complaint, Some(&what)));
    }
    let endpoints = facts.complaints(Scope::Endpoint);
    if let Some((_, complaint)) = endpoints
        .iter()
        .find(|(_, complaint)| complaint.code == "TopologyMissing")
    {
        let what = format!(
            "endpoint '{}'",
            complaint.name.as_deref().unwrap_or_default()
        );
        return Verdict::no("TopologyMissing", told(complaint, Some(&what)));
    }
    let answers = facts
        .fleet()
        .filter_map(|worker| worker.stats.as_ref()?.as_ref().ok());
    let states: Vec<bool> = answers
        .flat_map(|stats| stats.transports.iter().map(|transport| transport.up))
        .collect();
    match states.as_slice() {
        [] if facts.wants_no_workers() => Verdict::unknown(
            "ScaledToZero",
            "no worker connects to the brokers, because `workers.replicas` is 0",
        ),
        [] if facts.has_ready_worker() => Verdict::unknown("WorkersSilent", silent(facts)),
        [] => Verdict::unknown(
            "NoWorkerReady",
            "no worker has connected to the brokers yet",
        ),
        states if states.iter().all(|up| *up) => {
            Verdict::yes("Connected", "every worker is connected to every transport")
        }
        _ => Verdict::unknown(
            "Connecting",
            "not every worker is connected to every transport yet",
        ),
    }
}

fn silent(facts: &Facts<'_>) -> String {
    let mut errors = facts
        .fleet()
        .filter_map(|worker| worker.stats.as_ref()?.as_ref().err());
    let why = errors.next().map_or("", String::as_str);
    format!(
        "no worker answers the operator on port {PORT}: {why}. Let the operator's pods reach that port, if a network policy stands between"
    )
}

/// What a worker calls a wrong URL says more with the name of the protocol.
fn reason(complaint: &Complaint) -> &str {
    match complaint.code.as_str() {
        "WrongUrl" => "NotAnAmqpUri",
        code => code,
    }
}
