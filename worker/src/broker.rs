//! The connection to a broker: kept up for ever, its state told to whoever publishes.
//!
//! Invariants: one listener for the connection's events; every attempt has a deadline; pauses between
//! attempts grow and are spread by chance.

mod filter;
mod runtime;

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, Event};
use postroom_crds::worker_config::{TlsLevel, TransportConfig};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::reason::{self, Reason};
use crate::secret::{self, Server};

/// Deadline of a connect, from name lookup to open virtual host.
const CONNECT: Duration = Duration::from_secs(10);

/// State of a transport.
#[derive(Debug, Clone)]
pub enum Transport {
    /// No connection.
    Down {
        /// Since when.
        since: Instant,
        /// Why; none before the first attempt has ended.
        reason: Option<Reason>,
    },
    /// Connected.
    Up(Up),
}

/// A connection that stands.
#[derive(Debug, Clone)]
pub struct Up {
    /// The connection.
    pub connection: Arc<Connection>,
    /// Why the broker takes nothing at present.
    pub blocked: Option<String>,
    /// Call when the connection proves dead although nobody has said so.
    pub broken: Arc<Notify>,
}

impl Transport {
    /// Since when there has been no connection.
    pub fn down_since(&self) -> Option<Instant> {
        match self {
            Self::Down { since, .. } => Some(*since),
            Self::Up(_) => None,
        }
    }
}

/// Keeps `state` true until the receivers are gone. `name` is what the connection is called in the log and at the broker.
pub async fn keep_connected(
    config: TransportConfig,
    name: String,
    state: watch::Sender<Transport>,
) {
    let mut backoff = Backoff::default();
    loop {
        match connect(&config, &name).await {
            Ok(connection) => {
                tracing::info!(transport = %config.name, "Connected to transport {name}");
                let connected = Instant::now();
                let reason = watch_connection(Arc::new(connection), &state).await;
                tracing::warn!(transport = %config.name, code = reason.code, "Lost transport {name}: {reason}");
                state.send_replace(Transport::Down {
                    since: Instant::now(),
                    reason: Some(reason),
                });
                if connected.elapsed() > Duration::from_secs(30) {
                    backoff = Backoff::default();
                }
            }
            Err(reason) => {
                tracing::warn!(transport = %config.name, code = reason.code, "Cannot connect to transport {name}: {reason}");
                state.send_modify(|state| {
                    let since = state.down_since().unwrap_or_else(Instant::now);
                    *state = Transport::Down {
                        since,
                        reason: Some(reason),
                    };
                });
            }
        }
        if state.is_closed() {
            return;
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// Publishes the state of a connection until it ends; answers why.
async fn watch_connection(connection: Arc<Connection>, state: &watch::Sender<Transport>) -> Reason {
    let mut events = Box::pin(connection.events_listener());
    let broken = Arc::new(Notify::new());
    let up = Up {
        connection: connection.clone(),
        blocked: None,
        broken: broken.clone(),
    };
    state.send_replace(Transport::Up(up.clone()));
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = broken.notified() => return Reason::new("ConnectionLost", "the broker did not answer in time", "Check the network to the broker; the worker connects again by itself."),
            () = state.closed() => return Reason::new("Stopped", "the worker is stopping", ""),
        };
        match event {
            Some(Event::ConnectionBlocked(why)) => {
                tracing::warn!(
                    "The broker blocks publishing: {why}. Publishing goes on by itself when it unblocks"
                );
                state.send_replace(Transport::Up(Up {
                    blocked: Some(why),
                    ..up.clone()
                }));
            }
            Some(Event::ConnectionUnblocked) => {
                tracing::info!("The broker takes messages again");
                state.send_replace(Transport::Up(up.clone()));
            }
            Some(Event::Error(error))
                if !connection.status().connected() || !error.is_amqp_soft_error() =>
            {
                if error.is_amqp_soft_error() {
                    continue;
                }
                return reason::of_broker(&error);
            }
            Some(_) => {}
            None => {
                return Reason::new(
                    "ConnectionLost",
                    "the connection ended",
                    "Check that the broker runs; the worker connects again by itself.",
                );
            }
        }
    }
}

async fn connect(config: &TransportConfig, name: &str) -> Result<Connection, Reason> {
    let uri = address(config)?;
    let tls = tls(config)?;
    let properties = ConnectionProperties::default()
        .with_connection_name(format!("postroom-worker {name}").into());
    match timeout(CONNECT, runtime::connect(uri, properties, tls)).await {
        Err(_) => Err(Reason::timeout("the broker", CONNECT)),
        Ok(Err(error)) => Err(reason::of_broker(&error)),
        Ok(Ok(connection)) => Ok(connection),
    }
}

/// Where to connect: the URL, with what the configuration says in its place.
fn address(config: &TransportConfig) -> Result<AMQPUri, Reason> {
    let url = secret::read(&config.url, Server::Broker)?;
    let wrong = || {
        Reason::new(
            "NotAnAmqpUri",
            "the connection URL of the broker cannot be read",
            "Write it as amqp://USER:PASSWORD@HOST:PORT/VHOST or amqps://..., with reserved characters percent-encoded.",
        )
    };
    let mut uri = AMQPUri::from_str(&url).map_err(|_| wrong())?;
    if let Some(vhost) = &config.vhost {
        uri.vhost.clone_from(vhost);
    }
    uri.query.heartbeat = Some(u16::try_from(config.heartbeat_seconds).unwrap_or(u16::MAX));
    let default_port = uri.scheme.default_port();
    match config.tls.mode {
        TlsLevel::FromUrl => {}
        TlsLevel::Disable => uri.scheme = AMQPScheme::AMQP,
        TlsLevel::Require | TlsLevel::VerifyCa | TlsLevel::VerifyFull => {
            uri.scheme = AMQPScheme::AMQPS
        }
    }
    if uri.authority.port == default_port {
        uri.authority.port = uri.scheme.default_port();
    }
    Ok(uri)
}

fn tls(config: &TransportConfig) -> Result<OwnedTLSConfig, Reason> {
    let read = |path: String| secret::file(&path);
    let cert_chain = secret::path(config.tls.ca.as_ref())?
        .map(read)
        .transpose()?;
    let identity = match &config.tls.client_certificate {
        None => None,
        Some(client) => {
            let certificate = secret::path(Some(&client.certificate))?
                .map(read)
                .transpose()?;
            let key = secret::path(Some(&client.key))?.map(read).transpose()?;
            certificate.zip(key).map(|(pem, key)| OwnedIdentity::PKCS8 {
                pem: pem.into_bytes(),
                key: key.into_bytes(),
            })
        }
    };
    Ok(OwnedTLSConfig {
        identity,
        cert_chain,
    })
}
