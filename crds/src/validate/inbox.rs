//! The rules of an inbox that hold in a manifest and in a worker's configuration alike.

use super::checker::Checker;
use super::endpoint::check_retry;
use crate::inbox_outbox::inbox::{
    Consumer, Handler, Identity, IdentitySource, Inbox, SqlFunction, Stream, StreamSource, Tenant,
    TenantSource,
};
use crate::inbox_outbox::outbox::Retry;
use crate::limits;
use crate::worker_config::InboxConfig;

/// The settings that both documents have.
pub(super) struct Rules<'a> {
    name: &'a str,
    queue: &'a str,
    types: &'a [String],
    consumer: &'a Consumer,
    identity: &'a Identity,
    stream: &'a Stream,
    tenant: &'a Tenant,
    retry: &'a Retry,
}

impl<'a> From<&'a Inbox> for Rules<'a> {
    fn from(inbox: &'a Inbox) -> Self {
        Self {
            name: &inbox.name,
            queue: &inbox.queue,
            types: &inbox.types,
            consumer: &inbox.consumer,
            identity: &inbox.identity,
            stream: &inbox.stream,
            tenant: &inbox.tenant,
            retry: &inbox.retry,
        }
    }
}

impl<'a> From<&'a InboxConfig> for Rules<'a> {
    fn from(inbox: &'a InboxConfig) -> Self {
        Self {
            name: &inbox.name,
            queue: &inbox.queue,
            types: &inbox.types,
            consumer: &inbox.consumer,
            identity: &inbox.identity,
            stream: &inbox.stream,
            tenant: &inbox.tenant,
            retry: &inbox.retry,
        }
    }
}

impl Rules<'_> {
    /// Checks everything an inbox says by itself; `path` is where it stands.
    pub(super) fn check(&self, checker: &mut Checker, path: &str) {
        checker.label(&format!("{path}.name"), self.name, limits::LABEL_BYTES);
        let most = limits::SHORT_STRING_BYTES;
        checker.filled(&format!("{path}.queue"), self.queue, most);
        let types = format!("{path}.types");
        checker.entries(&types, self.types.len(), limits::TYPES);
        for (index, name) in self.types.iter().enumerate() {
            checker.filled(&format!("{types}[{index}]"), name, most);
        }
        check_consumer(checker, &format!("{path}.consumer"), self.consumer);
        self.check_sources(checker, path);
        check_retry(checker, &format!("{path}.retry"), self.retry);
    }

    /// Each of the three places has the members that belong to its source, and no others.
    fn check_sources(&self, checker: &mut Checker, path: &str) {
        let header = |part: &str| format!("{path}.{part}.header");
        let wanted = self.identity.source == IdentitySource::Header;
        let given = self.identity.header.as_deref();
        short_member(checker, &header("identity"), given, ("Header", wanted));
        let wanted = self.stream.source == StreamSource::Header;
        let given = self.stream.header.as_deref();
        short_member(checker, &header("stream"), given, ("Header", wanted));
        check_tenant(checker, &format!("{path}.tenant"), self.tenant);
    }
}

fn check_consumer(checker: &mut Checker, path: &str, consumer: &Consumer) {
    let numbers = [
        ("prefetch", u64::from(consumer.prefetch), limits::PREFETCH),
        ("batchSize", consumer.batch_size.into(), limits::BATCH_SIZE),
        (
            "maxBatchDelayMilliseconds",
            consumer.max_batch_delay_milliseconds.into(),
            limits::MAX_BATCH_DELAY_MILLISECONDS,
        ),
        (
            "maxMessageBytes",
            consumer.max_message_bytes,
            limits::MAX_MESSAGE_BYTES,
        ),
    ];
    for (field, value, bounds) in numbers {
        checker.number(&format!("{path}.{field}"), value, bounds);
    }
    checker.at_most(
        &format!("{path}.batchSize"),
        consumer.batch_size,
        &format!("{path}.prefetch"),
        consumer.prefetch,
    );
}

fn check_tenant(checker: &mut Checker, path: &str, tenant: &Tenant) {
    let source = tenant.source;
    let of = |name, wanted: TenantSource| (name, source == wanted);
    let header = tenant.header.as_deref();
    let value = tenant.value.as_deref();
    let is_header = of("Header", TenantSource::Header);
    short_member(checker, &format!("{path}.header"), header, is_header);
    let is_static = of("Static", TenantSource::Static);
    short_member(checker, &format!("{path}.value"), value, is_static);
    if value.is_some_and(|value| !value.is_empty() && value.trim_matches(' ').is_empty()) {
        checker.refuse(
            &format!("{path}.value"),
            "has only spaces, which is no tenant, but must have another character",
        );
    }
    let segment = format!("{path}.segment");
    let is_segment = of("RoutingKeySegment", TenantSource::RoutingKeySegment);
    member(checker, &segment, tenant.segment.is_some(), is_segment);
    if let Some(number) = tenant.segment {
        checker.number(&segment, number, limits::SEGMENT);
    }
    let of_the_message = match source {
        TenantSource::Header | TenantSource::RoutingKeySegment => true,
        TenantSource::None | TenantSource::Static => false,
    };
    if tenant.required && !of_the_message {
        checker.refuse(
            &format!("{path}.required"),
            "is true but must be false unless `source` is 'Header' or 'RoutingKeySegment'",
        );
    }
}

/// A text that belongs to one source.
fn short_member(checker: &mut Checker, path: &str, text: Option<&str>, source: (&str, bool)) {
    member(checker, path, text.is_some(), source);
    if let Some(text) = text {
        checker.filled(path, text, limits::SHORT_STRING_BYTES);
    }
}

/// A member that must be there if its source, of that name, is the chosen one, and only then.
fn member(checker: &mut Checker, path: &str, given: bool, (source, chosen): (&str, bool)) {
    match (given, chosen) {
        (false, true) => checker.refuse(
            path,
            format!("is left out but must be given where `source` is '{source}'"),
        ),
        (true, false) => checker.refuse(
            path,
            format!("is given but must be left out unless `source` is '{source}'"),
        ),
        (true, true) | (false, false) => {}
    }
}

/// The function of an inbox at `path`, if that is its one handler.
pub(super) fn the_one_handler<'a>(
    checker: &mut Checker,
    path: &str,
    handler: &'a Handler,
) -> Option<&'a SqlFunction> {
    let rest = match (&handler.sql_function, &handler.pull) {
        (Some(_), None) | (None, Some(_)) => None,
        (Some(_), Some(_)) => Some("has both `sqlFunction` and `pull`"),
        (None, None) => Some("has neither `sqlFunction` nor `pull`"),
    };
    if let Some(rest) = rest {
        checker.refuse(
            &format!("{path}.handler"),
            format!("{rest} but must have exactly one of the two"),
        );
    }
    handler.sql_function.as_ref()
}

/// The function of an inbox at `path`; `grace` is where the grace period stands, and how long it is.
pub(super) fn check_function(
    checker: &mut Checker,
    path: &str,
    function: Option<&SqlFunction>,
    (grace_path, grace): (&str, u32),
) {
    let Some(function) = function else { return };
    let path = format!("{path}.handler.sqlFunction");
    checker.function(&format!("{path}.name"), &function.name);
    let timeout = format!("{path}.timeoutSeconds");
    for (field, value, bounds) in [
        (
            "timeoutSeconds",
            function.timeout_seconds,
            limits::HANDLER_TIMEOUT_SECONDS,
        ),
        (
            "concurrency",
            function.concurrency,
            limits::HANDLER_CONCURRENCY,
        ),
        ("batchSize", function.batch_size, limits::HANDLER_BATCH_SIZE),
    ] {
        checker.number(&format!("{path}.{field}"), value, bounds);
    }
    // A worker hands back what it has not finished by then; a call that may take longer would never end.
    let (value, drain) = (function.timeout_seconds, limits::DRAIN_SECONDS);
    if value.saturating_add(drain) > grace {
        checker.refuse(
            &timeout,
            format!(
                "is {value} but must be at least {drain} less than `{grace_path}`, which is {grace}"
            ),
        );
    }
}
