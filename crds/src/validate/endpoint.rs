//! The rules of an outbox that hold in a manifest and in a worker's configuration alike.

use std::collections::BTreeMap;

use super::checker::Checker;
use crate::inbox_outbox::outbox::{Delivery, Outbox, Retry};
use crate::limits;
use crate::problem::shown;
use crate::routing_key::Template;
use crate::worker_config::OutboxConfig;

/// The settings that both documents have.
pub(super) struct Endpoint<'a> {
    name: &'a str,
    exchange: &'a str,
    routing_key: &'a str,
    headers: &'a BTreeMap<String, String>,
    delivery: &'a Delivery,
    retry: &'a Retry,
}

impl<'a> From<&'a Outbox> for Endpoint<'a> {
    fn from(outbox: &'a Outbox) -> Self {
        Self {
            name: &outbox.name,
            exchange: &outbox.exchange,
            routing_key: &outbox.routing_key,
            headers: &outbox.headers,
            delivery: &outbox.delivery,
            retry: &outbox.retry,
        }
    }
}

impl<'a> From<&'a OutboxConfig> for Endpoint<'a> {
    fn from(outbox: &'a OutboxConfig) -> Self {
        Self {
            name: &outbox.name,
            exchange: &outbox.exchange,
            routing_key: &outbox.routing_key,
            headers: &outbox.headers,
            delivery: &outbox.delivery,
            retry: &outbox.retry,
        }
    }
}

impl Endpoint<'_> {
    /// Checks everything an endpoint says by itself; `path` is where it stands.
    pub(super) fn check(&self, checker: &mut Checker, path: &str) {
        checker.label(&format!("{path}.name"), self.name, limits::LABEL_BYTES);
        let exchange = format!("{path}.exchange");
        checker.bytes(&exchange, self.exchange, limits::SHORT_STRING_BYTES);
        self.check_routing_key(checker, &format!("{path}.routingKey"));
        self.check_headers(checker, &format!("{path}.headers"));
        check_delivery(checker, &format!("{path}.delivery"), self.delivery);
        check_retry(checker, &format!("{path}.retry"), self.retry);
    }

    fn check_routing_key(&self, checker: &mut Checker, path: &str) {
        checker.bytes(path, self.routing_key, limits::SHORT_STRING_BYTES);
        if let Err(refusal) = Template::parse(self.routing_key) {
            checker.refuse(path, refusal);
        }
    }

    fn check_headers(&self, checker: &mut Checker, path: &str) {
        checker.entries(path, self.headers.len(), limits::HEADERS);
        for (name, value) in self.headers {
            let entry = format!("{path}[{}]", shown(name));
            checker.bytes(&entry, value, limits::HEADER_VALUE_BYTES);
            check_header_name(checker, path, name);
        }
    }
}

fn check_header_name(checker: &mut Checker, path: &str, name: &str) {
    let most = limits::SHORT_STRING_BYTES;
    let reserved = limits::RESERVED_HEADER_PREFIX;
    let name_shown = shown(name);
    if name.is_empty() || !u64::try_from(name.len()).is_ok_and(|bytes| bytes <= most) {
        checker.refuse(
            path,
            format!("has the name {name_shown} but names must have 1 to {most} bytes"),
        );
    }
    if name.to_ascii_lowercase().starts_with(reserved) {
        checker.refuse(
            path,
            format!("has the name {name_shown} but names must not start with '{reserved}', which is kept for Postroom"),
        );
    }
}

fn check_delivery(checker: &mut Checker, path: &str, delivery: &Delivery) {
    let numbers = [
        (
            "batchSize",
            u64::from(delivery.batch_size),
            limits::BATCH_SIZE,
        ),
        (
            "maxInFlight",
            delivery.max_in_flight.into(),
            limits::MAX_IN_FLIGHT,
        ),
        (
            "maxInFlightBytes",
            delivery.max_in_flight_bytes,
            limits::MAX_IN_FLIGHT_BYTES,
        ),
        ("channels", delivery.channels.into(), limits::CHANNELS),
        (
            "maxIdlePollMilliseconds",
            delivery.max_idle_poll_milliseconds.into(),
            limits::MAX_IDLE_POLL_MILLISECONDS,
        ),
        (
            "confirmTimeoutSeconds",
            delivery.confirm_timeout_seconds.into(),
            limits::CONFIRM_TIMEOUT_SECONDS,
        ),
        (
            "maxMessageBytes",
            delivery.max_message_bytes,
            limits::MAX_MESSAGE_BYTES,
        ),
    ];
    for (field, value, bounds) in numbers {
        checker.number(&format!("{path}.{field}"), value, bounds);
    }
    checker.at_most(
        &format!("{path}.maxMessageBytes"),
        delivery.max_message_bytes,
        &format!("{path}.maxInFlightBytes"),
        delivery.max_in_flight_bytes,
    );
}

pub(super) fn check_retry(checker: &mut Checker, path: &str, retry: &Retry) {
    let numbers = [
        ("maxAttempts", retry.max_attempts, limits::MAX_ATTEMPTS),
        (
            "initialDelaySeconds",
            retry.initial_delay_seconds,
            limits::INITIAL_DELAY_SECONDS,
        ),
        (
            "maxDelaySeconds",
            retry.max_delay_seconds,
            limits::MAX_DELAY_SECONDS,
        ),
    ];
    for (field, value, bounds) in numbers {
        checker.number(&format!("{path}.{field}"), value, bounds);
    }
    checker.at_most(
        &format!("{path}.initialDelaySeconds"),
        retry.initial_delay_seconds,
        &format!("{path}.maxDelaySeconds"),
        retry.max_delay_seconds,
    );
}
