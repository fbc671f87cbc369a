//! What this process knows of itself: conditions, counts, the last measurement. `/stats` and `/metrics` read it.
//!
//! Invariant: unknown is said, never shown as zero.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use crate::reason::Reason;
use crate::store::{Backlog, Direction};

/// A measurement older than this is unknown.
const STALE: Duration = Duration::from_secs(60);

/// What a condition is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// The database.
    Database,
    /// A transport, by name.
    Transport(String),
    /// An endpoint, by name.
    Endpoint(String),
    /// Receiving for an inbox, by name: a part of its endpoint that is well or unwell by itself.
    Receiving(String),
}

impl Scope {
    fn parts(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Database => ("database", None),
            Self::Transport(name) => ("transport", Some(name)),
            Self::Endpoint(name) | Self::Receiving(name) => ("endpoint", Some(name)),
        }
    }
}

/// Counts of one endpoint since the process began.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// In flight now.
    pub in_flight: usize,
    /// Partitions held now.
    pub leases: usize,
    /// Seconds since 1970 of the last confirm.
    pub last_delivery: Option<u64>,
    /// Failures by reason code.
    pub errors: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
struct State {
    conditions: BTreeMap<Scope, (Reason, Instant)>,
    counts: BTreeMap<String, Counts>,
    backlog: Option<(Vec<Backlog>, Instant)>,
    database_held: bool,
    transports: BTreeMap<String, bool>,
    draining: bool,
}

/// The shared status.
#[derive(Debug, Clone, Default)]
pub struct Status(Arc<Mutex<State>>);

impl Status {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is wrong, for this reason; said in the log when it is new.
    pub fn raise(&self, scope: Scope, reason: Reason) {
        let mut state = self.lock();
        let known = state
            .conditions
            .get(&scope)
            .map(|(known, since)| (known.code, *since));
        if known.is_none_or(|(code, _)| code != reason.code) {
            let (kind, name) = scope.parts();
            tracing::warn!(scope = kind, name, code = reason.code, "{reason}");
        }
        let since = known
            .filter(|(code, _)| *code == reason.code)
            .map_or_else(Instant::now, |(_, since)| since);
        state.conditions.insert(scope, (reason, since));
    }

    /// It is well again.
    pub fn clear(&self, scope: &Scope) {
        let cleared = self.lock().conditions.remove(scope);
        if let Some((reason, _)) = cleared {
            let (kind, name) = scope.parts();
            tracing::info!(
                scope = kind,
                name,
                code = reason.code,
                "{} is over",
                reason.code
            );
        }
    }

    /// Whether the database session is held.
    pub fn database_is(&self, held: bool) {
        self.lock().database_held = held;
    }

    /// Whether a transport is connected.
    pub fn transport_is(&self, name: &str, up: bool) {
        self.lock().transports.insert(name.to_owned(), up);
    }

    /// The process drains.
    pub fn drains(&self) {
        self.lock().draining = true;
    }

    /// Ready: the database session is held, and the process is not stopping.
    pub fn is_ready(&self) -> bool {
        let state = self.lock();
        state.database_held && !state.draining
    }

    /// Changes the counts of an endpoint.
    pub fn count(&self, endpoint: &str, change: impl FnOnce(&mut Counts)) {
        let mut state = self.lock();
        if let Some(counts) = state.counts.get_mut(endpoint) {
            change(counts);
        } else {
            change(state.counts.entry(endpoint.to_owned()).or_default());
        }
    }

    /// In flight by endpoint, for the renewal.
    pub fn in_flight(&self) -> BTreeMap<String, usize> {
        self.lock()
            .counts
            .iter()
            .map(|(name, counts)| (name.clone(), counts.in_flight))
            .collect()
    }

    /// Counts by endpoint.
    pub fn counts(&self) -> BTreeMap<String, Counts> {
        self.lock().counts.clone()
    }

    /// A new measurement.
    pub fn measured(&self, backlog: Vec<Backlog>) {
        self.lock().backlog = Some((backlog, Instant::now()));
    }

    /// The last measurement and its age, unless it is stale.
    pub fn backlog(&self) -> Option<(Vec<Backlog>, Duration)> {
        let state = self.lock();
        let (backlog, at) = state.backlog.as_ref()?;
        let age = at.elapsed();
        (age < STALE).then(|| (backlog.clone(), age))
    }

    /// What `/stats` answers, and whether the numbers are known.
    pub fn report(&self, endpoints: &[(String, Direction)]) -> (bool, serde_json::Value) {
        let measured = self.backlog();
        let state = self.lock();
        let conditions: Vec<_> = state
            .conditions
            .iter()
            .map(|(scope, (reason, since))| {
                let (kind, name) = scope.parts();
                json!({"scope": kind, "name": name, "code": reason.code, "message": reason.message,
                    "nextStep": reason.next_step, "sinceSeconds": since.elapsed().as_secs()})
            })
            .collect();
        let known = measured.is_some();
        let rows: Vec<_> = endpoints
            .iter()
            .map(|(name, direction)| {
                let counts = state.counts.get(name).cloned().unwrap_or_default();
                let row = measured.as_ref().and_then(|(rows, _)| rows.iter().find(|row| row.endpoint == *name));
                let mut entry = json!({"name": name, "direction": direction.name(), "in_flight": counts.in_flight, "leases": counts.leases,
                    "last_delivery_time": counts.last_delivery.map(crate::clock::rfc3339), "errors": counts.errors});
                if let (Some(row), Some(entry)) = (row, entry.as_object_mut()) {
                    entry.insert("pending".into(), row.pending.into());
                    entry.insert("deferred".into(), row.deferred.into());
                    entry.insert("parked".into(), row.parked.into());
                    entry.insert("dead".into(), row.dead.into());
                    entry.insert("paused".into(), row.paused.into());
                    entry.insert("oldest_pending_time".into(), row.oldest_pending_time.clone().into());
                }
                entry
            })
            .collect();
        let age = measured.map(|(_, age)| age);
        let transports: Vec<_> = state
            .transports
            .iter()
            .map(|(name, up)| json!({"name": name, "up": up}))
            .collect();
        let report = json!({
            "known": known,
            "draining": state.draining,
            "measured_time": age.map(|age| crate::clock::rfc3339(crate::clock::now().saturating_sub(age.as_secs()))),
            "transports": transports,
            "conditions": conditions,
            "endpoints": rows,
        });
        (known, report)
    }
}
