//! Why something is unreachable or refused: a stable code, a sentence, the next step.
//!
//! Invariant: no text here carries a connection URL or a password; what a driver says is cut down
//! to what the server answered.

use std::io;
use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use serde::Serialize;

/// A reason as `/stats` and the log show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reason {
    /// Stable code, such as `AuthenticationFailed`.
    pub code: &'static str,
    /// What was seen.
    pub message: String,
    /// What a person should do.
    pub next_step: &'static str,
}

impl Reason {
    /// A reason in full.
    pub fn new(code: &'static str, message: impl Into<String>, next_step: &'static str) -> Self {
        Self {
            code,
            message: message.into(),
            next_step,
        }
    }

    /// A call or connect that did not end in time.
    pub fn timeout(what: &str, after: Duration) -> Self {
        Self::new(
            "Timeout",
            format!("{what} did not answer within {after:?}"),
            "Check that the host and port are reachable from here, and that no firewall drops packets.",
        )
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}. {}", self.code, self.message, self.next_step)
    }
}

impl std::error::Error for Reason {}

/// Why a database call failed.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "errors of the driver are an open set"
)]
pub fn of_database(error: &sqlx::Error) -> Reason {
    match error {
        sqlx::Error::Database(answer) => {
            of_sqlstate(answer.code().as_deref().unwrap_or(""), answer.message())
        }
        sqlx::Error::Io(error) => of_io(error, "the database"),
        sqlx::Error::Tls(error) => of_tls(&error.to_string(), "the database"),
        other => Reason::new(
            "DatabaseError",
            other.to_string(),
            "Look at the log of the database server at this time.",
        ),
    }
}

fn of_sqlstate(code: &str, message: &str) -> Reason {
    let (name, next_step) = match code {
        "28P01" | "28000" => (
            "AuthenticationFailed",
            "Correct user and password in the connection URL, or the server's pg_hba.conf.",
        ),
        "3D000" => (
            "DatabaseNotFound",
            "Create the database, or correct its name in the connection URL.",
        ),
        "3F000" | "42P01" | "42883" => (
            "SchemaNotReady",
            "Run `postroom-worker migrate` with the same resource, with a login that may create the schema.",
        ),
        "42501" => (
            "PermissionDenied",
            "Grant the login the worker role of the schema (its name ends in `_worker`), or run the migration again.",
        ),
        "53300" => (
            "TooManyConnections",
            "Raise max_connections of the server, or run fewer workers.",
        ),
        "57P01" | "57P02" | "57P03" | "57P05" => (
            "ConnectionLost",
            "The server starts or stops; try again when it runs.",
        ),
        "25006" => (
            "ReadOnly",
            "Point the connection URL at the primary server.",
        ),
        "PR004" => (
            "EndpointUnknown",
            "Run `postroom-worker migrate` with the same resource.",
        ),
        "PR007" => (
            "SchemaAhead",
            "Run a worker of the version that migrated the schema, or a newer one.",
        ),
        _ => (
            "DatabaseError",
            "Look at the log of the database server at this time.",
        ),
    };
    Reason::new(
        name,
        format!("the database answered {code}: {message}"),
        next_step,
    )
}

/// Why a broker call failed.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "errors of the driver are an open set"
)]
pub fn of_broker(error: &lapin::Error) -> Reason {
    match error.kind() {
        ErrorKind::ProtocolError(answer) => of_amqp(answer.kind(), answer.get_message().as_str()),
        ErrorKind::IOError(error) => of_io(error, "the broker"),
        ErrorKind::MissingHeartbeatError => Reason::new(
            "ConnectionLost",
            "the broker sent no heartbeat",
            "Check the network to the broker and the broker's log.",
        ),
        _ => Reason::new(
            "ConnectionLost",
            error.to_string(),
            "Check that the broker runs; the worker connects again by itself.",
        ),
    }
}

fn of_amqp(kind: &AMQPErrorKind, message: &str) -> Reason {
    let (code, next_step) = match kind {
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => (
            "AccessRefused",
            "Correct user and password, or give the user write permission on the exchange.",
        ),
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => (
            "TopologyMissing",
            "Create the exchange; publishing goes on by itself when it is there.",
        ),
        AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => (
            "VhostNotFound",
            "Create the virtual host and give the user permissions on it, or correct its name.",
        ),
        AMQPErrorKind::Hard(AMQPHardError::CONNECTIONFORCED) => (
            "ConnectionForced",
            "The broker closed the connection on purpose; the worker connects again by itself.",
        ),
        AMQPErrorKind::Soft(_) | AMQPErrorKind::Hard(_) => {
            ("BrokerError", "Look at the log of the broker at this time.")
        }
    };
    Reason::new(code, format!("the broker answered {message}"), next_step)
}

fn of_io(error: &io::Error, whom: &str) -> Reason {
    let text = error.to_string();
    if text.contains("certificate") || text.contains("TLS") || text.contains("tls") {
        return of_tls(&text, whom);
    }
    if text.contains("lookup") || text.contains("resolve") {
        return Reason::new(
            "HostNotFound",
            format!("the host of {whom} has no address: {text}"),
            "Correct the host name, or the name server.",
        );
    }
    if error.kind() == io::ErrorKind::ConnectionRefused {
        return Reason::new(
            "ConnectionRefused",
            format!("{whom} refused the connection"),
            "Check that the server runs and listens on the host and port of the connection URL.",
        );
    }
    Reason::new(
        "ConnectionLost",
        format!("the connection to {whom} broke: {text}"),
        "Check that the server runs; the worker connects again by itself.",
    )
}

fn of_tls(text: &str, whom: &str) -> Reason {
    Reason::new(
        "TlsVerificationFailed",
        format!("no protected connection to {whom}: {text}"),
        "Name the authority that signed the server's certificate under tls.caSecretRef (or its variable), and check that the certificate names the host.",
    )
}
