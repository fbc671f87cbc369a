//! What a worker says of itself on `/stats`.
//!
//! Invariant: what a worker did not say is unknown, never zero.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use serde::Deserialize;

use crate::plan::pod::PORT;

/// Longest wait for one worker.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer stands in for one that does not come.
const MEMORY: Duration = Duration::from_secs(15);
/// Largest answer that is read.
const MOST_BYTES: usize = 1 << 20;

/// What a worker says of itself.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Stats {
    /// Whether the numbers are known.
    #[serde(default)]
    pub known: bool,
    /// Whether it is stopping.
    #[serde(default)]
    pub draining: bool,
    /// When the numbers were measured.
    #[serde(default)]
    pub measured_time: Option<Timestamp>,
    /// Transports and whether they are connected.
    #[serde(default)]
    pub transports: Vec<TransportStats>,
    /// What is wrong.
    #[serde(default)]
    pub conditions: Vec<Complaint>,
    /// Numbers by endpoint.
    #[serde(default)]
    pub endpoints: Vec<EndpointStats>,
}

/// A transport as a worker sees it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TransportStats {
    /// Its name.
    pub name: String,
    /// Whether the worker is connected.
    pub up: bool,
}

/// Something wrong, as a worker says it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Complaint {
    /// What it is about.
    pub scope: Scope,
    /// Which transport or endpoint.
    #[serde(default)]
    pub name: Option<String>,
    /// Stable code.
    pub code: String,
    /// What was seen.
    pub message: String,
    /// What a person should do.
    #[serde(default)]
    pub next_step: String,
}

/// What a complaint is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// The database.
    Database,
    /// A transport.
    Transport,
    /// An endpoint.
    Endpoint,
}

/// Numbers of one endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointStats {
    /// Its name.
    pub name: String,
    /// In flight in this process.
    pub in_flight: i64,
    /// Last confirm, or last message handled, in this process.
    pub last_delivery_time: Option<Timestamp>,
    /// Of the endpoint: waiting.
    pub pending: Option<i64>,
    /// Of the endpoint: waiting for a due time.
    pub deferred: Option<i64>,
    /// Of the endpoint: given up.
    pub dead: Option<i64>,
    /// Of the endpoint: when the oldest that waits was written.
    pub oldest_pending_time: Option<Timestamp>,
}

/// Asks workers, and remembers for a short while what they said: one slow answer is no news.
#[derive(Debug)]
pub struct Reader {
    client: Client<HttpConnector, Empty<Bytes>>,
    last: Mutex<HashMap<String, (Stats, Instant)>>,
}

impl Default for Reader {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(PATIENCE));
        // A connection that is kept would go to whichever pod has the address next.
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        Self {
            client,
            last: Mutex::default(),
        }
    }
}

impl Reader {
    /// Asks all of `workers`, by name and address, at once; an answer for each, in their order.
    pub async fn read_all(&self, workers: &[(String, IpAddr)]) -> Vec<Result<Stats, String>> {
        let answers = join_all(workers.iter().map(|(_, address)| self.read(*address))).await;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|_, (_, at)| at.elapsed() < MEMORY);
        let remembered = workers.iter().zip(answers).map(|((name, _), answer)| {
            if let Ok(stats) = &answer {
                last.insert(name.clone(), (stats.clone(), Instant::now()));
            }
            answer.or_else(|error| last.get(name).map(|(stats, _)| stats.clone()).ok_or(error))
        });
        remembered.collect()
    }

    async fn read(&self, address: IpAddr) -> Result<Stats, String> {
        match tokio::time::timeout(PATIENCE, self.ask(address)).await {
            Err(_) => Err(format!("no answer within {PATIENCE:?}")),
            Ok(answer) => answer,
        }
    }

    /// A worker that does not know its numbers answers 503, with everything else in the body.
    async fn ask(&self, address: IpAddr) -> Result<Stats, String> {
        let uri = format!("http://{}/stats", SocketAddr::new(address, PORT));
        let uri = uri.parse().map_err(|error| format!("{error}"))?;
        let answer = self
            .client
            .get(uri)
            .await
            .map_err(|error| error.to_string())?;
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| format!("not what a worker says: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Scope, Stats};

    #[test]
    fn what_a_worker_does_not_know_stays_unknown() {
        let text = r#"{"known": false, "draining": false, "measured_time": null, "transports": [{"name": "main", "up": false}],
            "conditions": [{"scope": "database", "name": null, "code": "ConnectionRefused", "message": "the database refused the connection",
            "nextStep": "Check.", "sinceSeconds": 3}], "endpoints": [{"name": "orders", "direction": "Outbox", "in_flight": 0, "leases": 0,
            "last_delivery_time": null, "errors": {}}, {"name": "payments", "direction": "Inbox", "in_flight": 3, "something_new": true}]}"#;
        let stats: Stats = serde_json::from_str(text).unwrap();
        assert!(!stats.known && !stats.transports[0].up);
        assert_eq!(stats.conditions[0].scope, Scope::Database);
        assert_eq!(stats.endpoints[0].pending, None);
        assert_eq!(stats.endpoints[1].in_flight, 3);
    }
}
