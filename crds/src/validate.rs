//! The rules of a manifest and of a worker's configuration.
//!
//! Invariant: whatever the schema in the cluster refuses is refused here too, with the same bounds
//! from [`crate::limits`]; so a file that passes here can be applied.

mod checker;
mod configuration;
mod endpoint;
mod endpoints;
mod fleet;
mod form;
mod inbox;

use crate::inbox_outbox::InboxOutboxSpec;
use crate::inbox_outbox::database::{Connection, Database, PoolerMode};
use crate::inbox_outbox::migrations::MigrationPolicy;
use crate::inbox_outbox::reference::{SecretRef, Tls, TlsMode};
use crate::inbox_outbox::transport::Transport;
use crate::limits;
use crate::manifest::{Manifest, Metadata};
use crate::problem::{Problem, shown};
use crate::retention;
use crate::worker_config::WorkerConfig;
use checker::Checker;

/// Everything wrong with `manifest`; empty if nothing is.
pub fn manifest(manifest: &Manifest) -> Vec<Problem> {
    let mut checker = Checker::default();
    metadata(&mut checker, &manifest.metadata);
    let spec = &manifest.spec;
    database(&mut checker, &spec.database);
    pooler(&mut checker, spec);
    transports(&mut checker, &spec.transports);
    endpoints::endpoints(&mut checker, spec);
    durations(&mut checker, spec);
    fleet::migrations(&mut checker, &spec.migrations);
    fleet::workers(&mut checker, &spec.workers);
    checker.problems
}

/// Everything wrong with `config`; empty if nothing is.
pub fn worker_config(config: &WorkerConfig) -> Vec<Problem> {
    configuration::check(config)
}

fn metadata(checker: &mut Checker, metadata: &Metadata) {
    checker.label("metadata.name", &metadata.name, limits::OBJECT_NAME_BYTES);
    if let Some(namespace) = &metadata.namespace {
        checker.label("metadata.namespace", namespace, limits::LABEL_BYTES);
    }
}

fn database(checker: &mut Checker, database: &Database) {
    let path = "spec.database.secretRef";
    match (&database.secret_ref, &database.connection) {
        (Some(reference), None) => {
            secret(checker, path, reference);
        }
        (None, Some(server)) => connection(checker, "spec.database.connection", server),
        (Some(_), Some(_)) => checker.refuse(
            path,
            "is given beside `spec.database.connection` but exactly one of the two must be given",
        ),
        (None, None) => checker.refuse(
            path,
            "is left out, and so is `spec.database.connection`, but exactly one of the two must be given",
        ),
    }
    if let Some(reference) = &database.migration_secret_ref {
        secret(checker, "spec.database.migrationSecretRef", reference);
    }
    tls(checker, "spec.database.tls", database.tls.as_ref());
    checker.schema("spec.database.schema", &database.schema);
}

fn connection(checker: &mut Checker, path: &str, server: &Connection) {
    checker.host(&format!("{path}.host"), &server.host);
    checker.number(&format!("{path}.port"), server.port, limits::PORT);
    let most = limits::DATABASE_BYTES;
    checker.filled(&format!("{path}.database"), &server.database, most);
    checker.secret_name(
        &format!("{path}.credentialsSecretRef.name"),
        &server.credentials_secret_ref.name,
    );
}

/// The lock that keeps two migrations apart belongs to a session, which a transaction pooler does not keep.
fn pooler(checker: &mut Checker, spec: &InboxOutboxSpec) {
    let pooled = spec.database.pool.pooler_mode == PoolerMode::Transaction;
    let migrates = spec.migrations.policy != MigrationPolicy::Disabled;
    if pooled && migrates && spec.database.migration_secret_ref.is_none() {
        checker.refuse(
            "spec.database.migrationSecretRef",
            "is left out but must be given where `spec.database.pool.poolerMode` is 'Transaction' and `spec.migrations.policy` is not 'Disabled'",
        );
    }
}

fn transports(checker: &mut Checker, transports: &[Transport]) {
    checker.count("spec.transports", transports.len(), limits::TRANSPORTS);
    let names = transports.iter().map(|transport| transport.name.as_str());
    checker.unique("spec.transports", names);
    for (index, transport) in transports.iter().enumerate() {
        let path = format!("spec.transports[{index}]");
        checker.label(
            &format!("{path}.name"),
            &transport.name,
            limits::LABEL_BYTES,
        );
        let path = format!("{path}.rabbitmq");
        let rabbitmq = &transport.rabbitmq;
        secret(checker, &format!("{path}.secretRef"), &rabbitmq.secret_ref);
        tls(checker, &format!("{path}.tls"), rabbitmq.tls.as_ref());
        broker_tls(checker, &format!("{path}.tls.mode"), rabbitmq.tls.as_ref());
        checker.vhost(&format!("{path}.vhost"), rabbitmq.vhost.as_deref());
        checker.number(
            &format!("{path}.heartbeatSeconds"),
            rabbitmq.heartbeat_seconds,
            limits::HEARTBEAT_SECONDS,
        );
    }
}

fn durations(checker: &mut Checker, spec: &InboxOutboxSpec) {
    for (path, text, bounds, least) in [
        (
            "spec.retention.deduplication",
            &spec.retention.deduplication,
            limits::DEDUPLICATION_SECONDS,
            "1h",
        ),
        (
            "spec.retention.requests",
            &spec.retention.requests,
            limits::REQUESTS_SECONDS,
            "1h",
        ),
        (
            "spec.retention.dead",
            &spec.retention.dead,
            limits::DEAD_SECONDS,
            "1m",
        ),
    ] {
        match retention::seconds(text) {
            Some(seconds) if bounds.contain(seconds) => {}
            Some(_) => checker.refuse(
                path,
                format!("is {} but must be between '{least}' and '87600h'", shown(text)),
            ),
            None => checker.refuse(
                path,
                format!(
                    "is {} but must be one to three whole numbers of at most five digits with the unit h, m or s each, such as '720h' or '1h30m'",
                    shown(text)
                ),
            ),
        }
    }
}

fn secret(checker: &mut Checker, path: &str, secret: &SecretRef) {
    checker.secret_name(&format!("{path}.name"), &secret.name);
    if let Some(key) = &secret.key {
        checker.secret_key(&format!("{path}.key"), key);
    }
}

fn tls(checker: &mut Checker, path: &str, tls: Option<&Tls>) {
    let Some(tls) = tls else { return };
    if let Some(ca) = &tls.ca_secret_ref {
        let path = format!("{path}.caSecretRef");
        checker.secret_name(&format!("{path}.name"), &ca.name);
        checker.secret_key(&format!("{path}.key"), &ca.key);
        match tls.mode {
            TlsMode::VerifyCa | TlsMode::VerifyFull => {}
            TlsMode::Disable | TlsMode::Require => checker.refuse(
                &path,
                "is given but must be left out unless `mode` is 'VerifyCA' or 'VerifyFull'",
            ),
        }
    }
    if let Some(certificate) = &tls.client_certificate_secret_ref {
        let path = format!("{path}.clientCertificateSecretRef");
        checker.secret_name(&format!("{path}.name"), &certificate.name);
        match tls.mode {
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => {}
            TlsMode::Disable => checker.refuse(
                &path,
                "is given but must be left out where `mode` is 'Disable'",
            ),
        }
    }
}

/// Between none and the whole check of a broker's certificate there is nothing.
fn broker_tls(checker: &mut Checker, path: &str, tls: Option<&Tls>) {
    let rule = "must be 'Disable' or 'VerifyFull' for a broker";
    match tls.map(|tls| tls.mode) {
        Some(TlsMode::Require) => checker.refuse(path, format!("is 'Require' but {rule}")),
        Some(TlsMode::VerifyCa) => checker.refuse(path, format!("is 'VerifyCA' but {rule}")),
        None | Some(TlsMode::Disable | TlsMode::VerifyFull) => {}
    }
}

#[cfg(test)]
mod tests;
