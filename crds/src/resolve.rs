//! From a resource to the configuration of its workers.
//!
//! Invariant: every field of the resource reaches the configuration; a test changes each one and
//! looks for the difference.

use crate::document;
use crate::inbox_outbox::InboxOutboxSpec;
use crate::inbox_outbox::database::Connection;
use crate::inbox_outbox::inbox::{Handler, Inbox, Pull};
use crate::inbox_outbox::outbox::Outbox;
use crate::inbox_outbox::reference::{SecretRef, Tls, TlsMode};
use crate::inbox_outbox::transport::Transport;
use crate::manifest::Manifest;
use crate::problem::Problem;
use crate::retention;
use crate::validate;
use crate::worker_config::{
    ClientCertificate, DatabaseConfig, FileSource, HandlerConfig, InboxConfig, LimitsConfig, Login,
    MigrationConfig, OutboxConfig, RetentionConfig, SECRETS_FOLDER, Source, TlsConfig, TlsLevel,
    TransportConfig, VERSION, WorkerConfig,
};

/// Where the worker will find secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// In files that the operator mounts below [`SECRETS_FOLDER`].
    Mounted,
    /// In environment variables, as a person sets them for a run outside a cluster. They stand in
    /// for the Secrets that the resource names: `DATABASE_URL`; `MIGRATION_DATABASE_URL`, where the
    /// resource has a Secret for it, or `DATABASE_URL`; `AMQP_URL_<TRANSPORT>` or `AMQP_URL`. Certificates are named by path, only where the resource names a Secret for
    /// them: `POSTROOM_DATABASE_CA_FILE`, `POSTROOM_DATABASE_CERTIFICATE_FILE`,
    /// `POSTROOM_DATABASE_KEY_FILE`; `POSTROOM_AMQP_CA_FILE_<TRANSPORT>` or
    /// `POSTROOM_AMQP_CA_FILE` and so on. `<TRANSPORT>` is the transport's name in capitals with
    /// underscores for hyphens.
    Environment,
}

impl WorkerConfig {
    /// The configuration of the workers of `manifest`, or everything wrong with it.
    pub fn from_resource(manifest: &Manifest, place: Where) -> Result<Self, Vec<Problem>> {
        let problems = validate::manifest(manifest);
        if !problems.is_empty() {
            return Err(problems);
        }
        let Manifest { metadata, spec, .. } = manifest;
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        Ok(Self {
            version: VERSION,
            name: metadata.name.clone(),
            namespace: namespace.to_owned(),
            generation: metadata.generation.unwrap_or_default(),
            schema: spec.database.schema.clone(),
            paused: spec.paused,
            database: database(spec, place),
            transports: spec
                .transports
                .iter()
                .map(|t| transport(t, place))
                .collect(),
            outboxes: spec
                .outboxes
                .iter()
                .map(|o| outbox(o, &spec.transports))
                .collect(),
            inboxes: spec
                .inboxes
                .iter()
                .map(|i| inbox(i, &spec.transports))
                .collect(),
            retention: RetentionConfig {
                deduplication_seconds: seconds(&spec.retention.deduplication),
                requests_seconds: seconds(&spec.retention.requests),
                dead_seconds: seconds(&spec.retention.dead),
            },
            migration: MigrationConfig {
                lock_timeout_seconds: spec.migrations.lock_timeout_seconds,
                statement_timeout_seconds: spec.migrations.statement_timeout_seconds,
            },
            worker: LimitsConfig {
                lease_seconds: spec.workers.lease_seconds,
                grace_seconds: spec.workers.termination_grace_period_seconds,
            },
        })
    }

    /// Reads the JSON document an operator rendered, and checks it again.
    pub fn from_json(text: &str) -> Result<Self, Vec<Problem>> {
        let document = document::from_json(text).map_err(|problem| vec![problem])?;
        let mut reading = document::read::<Self>(&document);
        let rules = reading.value.as_ref().map(validate::worker_config);
        let rules = rules.into_iter().flatten();
        let of_written: Vec<_> = rules
            .filter(|problem| !reading.is_blank(&problem.field))
            .collect();
        reading.problems.extend(of_written);
        match reading.value {
            Some(config) if reading.problems.is_empty() => Ok(config),
            _ => Err(reading.problems),
        }
    }
}

fn database(spec: &InboxOutboxSpec, place: Where) -> DatabaseConfig {
    let names = Names::database(place);
    let migration = spec.database.migration_secret_ref.as_ref();
    DatabaseConfig {
        url: names.database_url(
            spec.database.secret_ref.as_ref(),
            spec.database.connection.as_ref(),
        ),
        migration_url: migration.map(|secret| names.migration_url(secret)),
        tls: names.tls(spec.database.tls.as_ref()),
        pooler_mode: spec.database.pool.pooler_mode,
    }
}

fn transport(transport: &Transport, place: Where) -> TransportConfig {
    let names = Names::transport(place, &transport.name);
    let rabbitmq = &transport.rabbitmq;
    TransportConfig {
        name: transport.name.clone(),
        url: names.url(&rabbitmq.secret_ref, "AMQP_URL"),
        vhost: rabbitmq.vhost.clone(),
        tls: names.tls(rabbitmq.tls.as_ref()),
        heartbeat_seconds: rabbitmq.heartbeat_seconds,
    }
}

fn outbox(outbox: &Outbox, transports: &[Transport]) -> OutboxConfig {
    OutboxConfig {
        name: outbox.name.clone(),
        transport: chosen(outbox.transport.as_ref(), transports),
        exchange: outbox.exchange.clone(),
        routing_key: outbox.routing_key.clone(),
        headers: outbox.headers.clone(),
        on_unroutable: outbox.on_unroutable,
        delivery: outbox.delivery.clone(),
        ordering: outbox.ordering,
        retry: outbox.retry,
        paused: outbox.paused,
    }
}

fn inbox(inbox: &Inbox, transports: &[Transport]) -> InboxConfig {
    InboxConfig {
        name: inbox.name.clone(),
        transport: chosen(inbox.transport.as_ref(), transports),
        queue: inbox.queue.clone(),
        types: inbox.types.clone(),
        consumer: inbox.consumer.clone(),
        identity: inbox.identity.clone(),
        stream: inbox.stream.clone(),
        tenant: inbox.tenant.clone(),
        handler: handler(&inbox.handler),
        ordering: inbox.ordering,
        retry: inbox.retry,
        paused: inbox.paused,
    }
}

/// The rules were kept, so there is exactly one.
fn handler(handler: &Handler) -> HandlerConfig {
    match &handler.sql_function {
        Some(function) => HandlerConfig::SqlFunction(function.clone()),
        None => HandlerConfig::Pull(Pull {}),
    }
}

/// The rules were kept, so there is only one where none is named.
fn chosen(named: Option<&String>, transports: &[Transport]) -> String {
    let only = transports.first().map(|transport| &transport.name);
    named.or(only).cloned().unwrap_or_default()
}

/// The rules were kept, so the text is a duration.
fn seconds(duration: &str) -> u64 {
    retention::seconds(duration).unwrap_or_default()
}

/// Names of the places of one connection's secrets.
struct Names {
    place: Where,
    side: &'static str,
    suffix: Option<String>,
}

impl Names {
    fn database(place: Where) -> Self {
        Self {
            place,
            side: "DATABASE",
            suffix: None,
        }
    }

    fn transport(place: Where, name: &str) -> Self {
        Self {
            place,
            side: "AMQP",
            suffix: Some(name.to_ascii_uppercase().replace('-', "_")),
        }
    }

    fn variables(&self, name: &str) -> Vec<String> {
        let own = self.suffix.iter().map(|suffix| format!("{name}_{suffix}"));
        own.chain([name.to_owned()]).collect()
    }

    fn database_url(&self, secret: Option<&SecretRef>, server: Option<&Connection>) -> Source {
        match (self.place, secret, server) {
            (Where::Mounted, Some(secret), _) => in_secret(secret),
            (Where::Mounted, None, Some(server)) => Source::Login(Login {
                secret: folder(&server.credentials_secret_ref.name),
                host: server.host.clone(),
                port: server.port,
                database: server.database.clone(),
            }),
            // The rules were kept, so there is one of the two.
            (Where::Mounted, None, None) | (Where::Environment, _, _) => {
                Source::Environment(self.variables("DATABASE_URL"))
            }
        }
    }

    fn migration_url(&self, secret: &SecretRef) -> Source {
        let names = ["MIGRATION_DATABASE_URL", "DATABASE_URL"];
        match self.place {
            Where::Mounted => in_secret(secret),
            Where::Environment => Source::Environment(names.map(str::to_owned).to_vec()),
        }
    }

    fn url(&self, secret: &SecretRef, variable: &str) -> Source {
        match self.place {
            Where::Mounted => in_secret(secret),
            Where::Environment => Source::Environment(self.variables(variable)),
        }
    }

    fn file(&self, secret: &str, key: &str, what: &str) -> FileSource {
        match self.place {
            Where::Mounted => FileSource::File(mounted(secret, key)),
            Where::Environment => {
                let variable = format!("POSTROOM_{}_{what}_FILE", self.side);
                FileSource::Environment(self.variables(&variable))
            }
        }
    }

    fn tls(&self, tls: Option<&Tls>) -> TlsConfig {
        let ca = tls.and_then(|tls| tls.ca_secret_ref.as_ref());
        let client = tls.and_then(|tls| tls.client_certificate_secret_ref.as_ref());
        TlsConfig {
            mode: tls.map_or(TlsLevel::FromUrl, |tls| level(tls.mode)),
            ca: ca.map(|ca| self.file(&ca.name, &ca.key, "CA")),
            client_certificate: client.map(|client| ClientCertificate {
                certificate: self.file(&client.name, "tls.crt", "CERTIFICATE"),
                key: self.file(&client.name, "tls.key", "KEY"),
            }),
        }
    }
}

fn in_secret(secret: &SecretRef) -> Source {
    match &secret.key {
        Some(key) => Source::File(mounted(&secret.name, key)),
        None => Source::Secret(folder(&secret.name)),
    }
}

fn folder(secret: &str) -> String {
    format!("{SECRETS_FOLDER}/{secret}")
}

fn mounted(secret: &str, key: &str) -> String {
    format!("{}/{key}", folder(secret))
}

fn level(mode: TlsMode) -> TlsLevel {
    match mode {
        TlsMode::Disable => TlsLevel::Disable,
        TlsMode::Require => TlsLevel::Require,
        TlsMode::VerifyCa => TlsLevel::VerifyCa,
        TlsMode::VerifyFull => TlsLevel::VerifyFull,
    }
}

#[cfg(test)]
mod tests;
