//! The rules of a worker's configuration. It is rendered by a program, so a broken rule here means
//! that operator and worker are of different versions, or that somebody edited the document.

use super::checker::Checker;
use super::endpoint::Endpoint;
use super::endpoints::names;
use super::inbox::{Rules, check_function};
use crate::limits;
use crate::problem::Problem;
use crate::worker_config::{FileSource, HandlerConfig, Source, TlsConfig, VERSION, WorkerConfig};

/// Everything wrong with `config`.
pub(super) fn check(config: &WorkerConfig) -> Vec<Problem> {
    let mut checker = Checker::default();
    identity(&mut checker, config);
    connections(&mut checker, config);
    endpoints(&mut checker, config);
    numbers(&mut checker, config);
    checker.problems
}

fn identity(checker: &mut Checker, config: &WorkerConfig) {
    if config.version != VERSION {
        checker.refuse(
            "version",
            format!(
                "is {} but must be {VERSION}; run a worker of the operator's version",
                config.version
            ),
        );
    }
    checker.label("name", &config.name, limits::OBJECT_NAME_BYTES);
    checker.label("namespace", &config.namespace, limits::LABEL_BYTES);
    checker.schema("schema", &config.schema);
}

fn connections(checker: &mut Checker, config: &WorkerConfig) {
    source(checker, "database.url", &config.database.url);
    if let Some(url) = &config.database.migration_url {
        source(checker, "database.migrationUrl", url);
    }
    tls(checker, "database.tls", &config.database.tls);
    checker.count("transports", config.transports.len(), limits::TRANSPORTS);
    let names = config.transports.iter().map(|t| t.name.as_str());
    checker.unique("transports", names);
    for (index, transport) in config.transports.iter().enumerate() {
        let path = format!("transports[{index}]");
        checker.label(
            &format!("{path}.name"),
            &transport.name,
            limits::LABEL_BYTES,
        );
        source(checker, &format!("{path}.url"), &transport.url);
        tls(checker, &format!("{path}.tls"), &transport.tls);
        checker.vhost(&format!("{path}.vhost"), transport.vhost.as_deref());
        checker.number(
            &format!("{path}.heartbeatSeconds"),
            transport.heartbeat_seconds,
            limits::HEARTBEAT_SECONDS,
        );
    }
}

fn endpoints(checker: &mut Checker, config: &WorkerConfig) {
    let of_outboxes: Vec<_> = config.outboxes.iter().map(|o| o.name.as_str()).collect();
    let of_inboxes: Vec<_> = config.inboxes.iter().map(|i| i.name.as_str()).collect();
    names(checker, "", &of_outboxes, &of_inboxes);
    outboxes(checker, config);
    inboxes(checker, config);
}

fn inboxes(checker: &mut Checker, config: &WorkerConfig) {
    for (index, inbox) in config.inboxes.iter().enumerate() {
        let path = format!("inboxes[{index}]");
        let transports = config.transports.iter().map(|t| t.name.as_str());
        checker.refers(&format!("{path}.transport"), &inbox.transport, transports);
        Rules::from(inbox).check(checker, &path);
        let function = match &inbox.handler {
            HandlerConfig::SqlFunction(function) => Some(function),
            HandlerConfig::Pull(_) => None,
        };
        let grace = ("worker.graceSeconds", config.worker.grace_seconds);
        check_function(checker, &path, function, grace);
    }
}

fn outboxes(checker: &mut Checker, config: &WorkerConfig) {
    for (index, outbox) in config.outboxes.iter().enumerate() {
        let path = format!("outboxes[{index}]");
        let transports = config.transports.iter().map(|t| t.name.as_str());
        checker.refers(&format!("{path}.transport"), &outbox.transport, transports);
        Endpoint::from(outbox).check(checker, &path);
        checker.less(
            &format!("{path}.delivery.confirmTimeoutSeconds"),
            outbox.delivery.confirm_timeout_seconds,
            "worker.leaseSeconds",
            config.worker.lease_seconds,
        );
    }
}

fn numbers(checker: &mut Checker, config: &WorkerConfig) {
    let retention = &config.retention;
    let worker = &config.worker;
    let migration = &config.migration;
    for (path, value, bounds) in [
        (
            "retention.deduplicationSeconds",
            retention.deduplication_seconds,
            limits::DEDUPLICATION_SECONDS,
        ),
        (
            "retention.requestsSeconds",
            retention.requests_seconds,
            limits::REQUESTS_SECONDS,
        ),
        (
            "retention.deadSeconds",
            retention.dead_seconds,
            limits::DEAD_SECONDS,
        ),
        (
            "migration.lockTimeoutSeconds",
            migration.lock_timeout_seconds.into(),
            limits::LOCK_TIMEOUT_SECONDS,
        ),
        (
            "migration.statementTimeoutSeconds",
            migration.statement_timeout_seconds.into(),
            limits::STATEMENT_TIMEOUT_SECONDS,
        ),
        (
            "worker.leaseSeconds",
            worker.lease_seconds.into(),
            limits::LEASE_SECONDS,
        ),
        (
            "worker.graceSeconds",
            worker.grace_seconds.into(),
            limits::GRACE_SECONDS,
        ),
    ] {
        checker.number(path, value, bounds);
    }
}

fn source(checker: &mut Checker, path: &str, source: &Source) {
    match source {
        Source::File(file) => place(checker, path, Some(file), &[]),
        Source::Environment(names) => place(checker, path, None, names),
        Source::Secret(folder) => place(checker, path, Some(folder), &[]),
        Source::Login(login) => {
            place(checker, path, Some(&login.secret), &[]);
            checker.host(&format!("{path}.login.host"), &login.host);
            checker.number(&format!("{path}.login.port"), login.port, limits::PORT);
            let most = limits::DATABASE_BYTES;
            checker.filled(&format!("{path}.login.database"), &login.database, most);
        }
    }
}

fn file_source(checker: &mut Checker, path: &str, source: &FileSource) {
    match source {
        FileSource::File(file) => place(checker, path, Some(file), &[]),
        FileSource::Environment(names) => place(checker, path, None, names),
    }
}

fn place(checker: &mut Checker, path: &str, file: Option<&str>, names: &[String]) {
    match file {
        // The text is not repeated: it may be the secret itself.
        Some(file) if !file.starts_with('/') => {
            checker.refuse(
                &format!("{path}.file"),
                "must be a path that starts with '/'",
            );
        }
        None if names.is_empty() || names.iter().any(String::is_empty) => checker.refuse(
            &format!("{path}.environment"),
            "must name at least one variable and no empty one",
        ),
        Some(_) | None => {}
    }
}

fn tls(checker: &mut Checker, path: &str, tls: &TlsConfig) {
    if let Some(ca) = &tls.ca {
        file_source(checker, &format!("{path}.ca"), ca);
    }
    if let Some(client) = &tls.client_certificate {
        let path = format!("{path}.clientCertificate");
        file_source(checker, &format!("{path}.certificate"), &client.certificate);
        file_source(checker, &format!("{path}.key"), &client.key);
    }
}
