use serde_json::{Value, json};

use super::Manifest;
use crate::inbox_outbox::Retention;
use crate::inbox_outbox::database::PoolerMode;
use crate::inbox_outbox::migrations::{MigrationPolicy, Migrations};
use crate::inbox_outbox::outbox::{
    Delivery, Jitter, OnFailure, OnScheduled, OnUnroutable, Ordering, OrderingMode, Retry,
};
use crate::inbox_outbox::workers::{Amounts, DisruptionBudget, Resources, Workers};

const FULL: &str = include_str!("../../examples/full.yaml");
const SMALLEST: &str = include_str!("../../examples/smallest.yaml");
const SMALLEST_INBOX: &str = include_str!("../../examples/smallest-inbox.yaml");

/// What is wrong with `text`.
pub(crate) fn sentences(text: &str) -> Vec<String> {
    match Manifest::from_yaml(text) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// The sentences about the full manifest after `break_it` broke it.
pub(crate) fn broken(break_it: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut manifest: Value = serde_saphyr::from_str(FULL).unwrap();
    break_it(&mut manifest);
    sentences(&manifest.to_string())
}

/// The sentences about the full manifest with `value` at `pointer`.
pub(crate) fn with(pointer: &str, value: &Value) -> Vec<String> {
    broken(|manifest| match manifest.pointer_mut(pointer) {
        Some(place) => *place = value.clone(),
        None => {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            manifest.pointer_mut(parent).unwrap()[key] = value.clone();
        }
    })
}

/// Each value, put at its pointer, is refused with exactly its sentence.
pub(crate) fn assert_each(cases: &[(&str, Value, &str)]) {
    for (pointer, value, expected) in cases {
        assert_eq!(with(pointer, value), [*expected], "{pointer} = {value}");
    }
}

#[test]
fn the_examples_are_accepted() {
    assert_eq!(sentences(FULL), [""; 0]);
    assert_eq!(sentences(SMALLEST), [""; 0]);
    assert_eq!(sentences(SMALLEST_INBOX), [""; 0]);
}

#[test]
fn what_is_left_out_gets_its_default() {
    let spec = Manifest::from_yaml(SMALLEST).unwrap().spec;
    assert!(!spec.paused);
    assert_eq!(spec.database.schema, "postroom");
    assert_eq!(spec.database.tls, None);
    assert_eq!(spec.database.pool.pooler_mode, PoolerMode::Session);
    assert_eq!(spec.transports[0].rabbitmq.heartbeat_seconds, 30);
    assert_eq!(spec.transports[0].rabbitmq.vhost, None);
    let outbox = &spec.outboxes[0];
    assert_eq!(outbox.transport, None);
    assert_eq!(outbox.routing_key, "{type}");
    assert!(outbox.headers.is_empty());
    assert_eq!(outbox.on_unroutable, OnUnroutable::Retry);
    assert!(!outbox.paused);
    let [deduplication, requests, dead] = ["720h"; 3].map(str::to_owned);
    assert_eq!(
        spec.retention,
        Retention {
            deduplication,
            requests,
            dead
        }
    );
    let amounts = |cpu: Option<&str>, memory: &str| Amounts {
        cpu: cpu.map(str::to_owned),
        memory: Some(memory.to_owned()),
    };
    let workers = Workers {
        replicas: 1,
        lease_seconds: 15,
        termination_grace_period_seconds: 60,
        resources: Resources {
            requests: amounts(Some("100m"), "64Mi"),
            limits: amounts(None, "256Mi"),
        },
        pod_disruption_budget: DisruptionBudget {
            enabled: true,
            max_unavailable: 1,
        },
        pod_template: None,
    };
    assert_eq!(spec.workers, workers);
    let migrations = Migrations {
        policy: MigrationPolicy::Automatic,
        approved_version: None,
        lock_timeout_seconds: 5,
        statement_timeout_seconds: 300,
        active_deadline_seconds: 900,
        backoff_limit: 3,
        ttl_seconds_after_finished: 86_400,
    };
    assert_eq!(spec.migrations, migrations);
}

#[test]
fn an_endpoint_that_says_nothing_has_the_documented_settings() {
    let outbox = Manifest::from_yaml(SMALLEST)
        .unwrap()
        .spec
        .outboxes
        .remove(0);
    let delivery = Delivery {
        batch_size: 500,
        max_in_flight: 1_000,
        max_in_flight_bytes: 33_554_432,
        channels: 1,
        max_idle_poll_milliseconds: 100,
        confirm_timeout_seconds: 10,
        max_message_bytes: 16_777_216,
    };
    let ordering = Ordering {
        mode: OrderingMode::PerStream,
        on_failure: OnFailure::BlockStream,
        on_scheduled: OnScheduled::Hold,
    };
    let retry = Retry {
        max_attempts: 12,
        initial_delay_seconds: 1,
        max_delay_seconds: 300,
        jitter: Jitter::Full,
    };
    assert_eq!(outbox.delivery, delivery);
    assert_eq!(outbox.ordering, ordering);
    assert_eq!(outbox.retry, retry);
}

#[test]
fn a_value_of_the_wrong_type_is_refused_and_never_converted() {
    assert_each(&[
        (
            "/spec/outboxes/0/delivery/channels",
            json!("2"),
            "`spec.outboxes[0].delivery.channels` is '2' but must be a whole number",
        ),
        (
            "/spec/outboxes/0/delivery/channels",
            json!(-1),
            "`spec.outboxes[0].delivery.channels` is -1 but must be a whole number between 0 and 4294967295",
        ),
        (
            "/spec/workers/leaseSeconds",
            json!(7.5),
            "`spec.workers.leaseSeconds` is 7.5 but must be a whole number between 0 and 4294967295",
        ),
        (
            "/spec/outboxes/1/paused",
            json!("yes"),
            "`spec.outboxes[1].paused` is 'yes' but must be true or false",
        ),
        (
            "/spec/outboxes/0/exchange",
            json!(7),
            "`spec.outboxes[0].exchange` is 7 but must be a text: put it in quotes",
        ),
        (
            "/spec/transports/0/rabbitmq/vhost",
            Value::Null,
            "`spec.transports[0].rabbitmq.vhost` is null but must be left out or given a value",
        ),
        (
            "/spec/outboxes/0/ordering/mode",
            json!("perStream"),
            "`spec.outboxes[0].ordering.mode` is 'perStream' but must be one of 'None', 'PerStream', 'Total'",
        ),
        (
            "/spec/outboxes",
            json!({"orders": {"exchange": "shop"}}),
            "`spec.outboxes` is an object but must be a list",
        ),
        (
            "/spec/retention",
            json!(["720h", "720h"]),
            "`spec.retention` is a list but must be an object with `deduplication`, `requests`, `dead`",
        ),
        (
            "/spec/outboxes/0/headers/x-shard",
            json!(3),
            "`spec.outboxes[0].headers.x-shard` is 3 but must be a text: put it in quotes",
        ),
    ]);
}

#[test]
fn a_missing_field_is_named_by_its_own_path() {
    let remove = |pointer: &str| {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        broken(|manifest| {
            let parent = manifest.pointer_mut(parent).unwrap();
            parent.as_object_mut().unwrap().remove(key).unwrap();
        })
    };
    for (pointer, path) in [
        ("/apiVersion", "apiVersion"),
        ("/kind", "kind"),
        ("/metadata", "metadata"),
        ("/metadata/name", "metadata.name"),
        ("/spec", "spec"),
        ("/spec/database", "spec.database"),
        (
            "/spec/database/secretRef/name",
            "spec.database.secretRef.name",
        ),
        (
            "/spec/workers/podTemplate/spec/env/0/value",
            "spec.workers.podTemplate.spec.env[0].value",
        ),
        ("/spec/transports", "spec.transports"),
        ("/spec/transports/1/rabbitmq", "spec.transports[1].rabbitmq"),
        ("/spec/transports/0/name", "spec.transports[0].name"),
        ("/spec/outboxes/1/name", "spec.outboxes[1].name"),
        ("/spec/outboxes/1/exchange", "spec.outboxes[1].exchange"),
        ("/spec/inboxes/0/queue", "spec.inboxes[0].queue"),
        ("/spec/inboxes/0/handler", "spec.inboxes[0].handler"),
        (
            "/spec/inboxes/0/handler/sqlFunction/name",
            "spec.inboxes[0].handler.sqlFunction.name",
        ),
    ] {
        assert_eq!(
            remove(pointer),
            [format!("`{path}` is missing but must be given")]
        );
    }
}

#[test]
fn an_unknown_field_is_refused_with_the_allowed_ones() {
    assert_each(&[
        (
            "/spec/mailboxes",
            json!([]),
            "`spec.mailboxes` is not a known field; allowed here are `paused`, `database`, `transports`, `outboxes`, `inboxes`, `retention`, `migrations`, `workers`",
        ),
        (
            "/spec/inboxes/1/handler/pull/leaseSeconds",
            json!(30),
            "`spec.inboxes[1].handler.pull.leaseSeconds` is not a known field; none are allowed here",
        ),
        (
            "/spec/outboxes/1/retry",
            json!({"maxDelay": 5}),
            "`spec.outboxes[1].retry.maxDelay` is not a known field; allowed here are `maxAttempts`, `initialDelaySeconds`, `maxDelaySeconds`, `jitter`",
        ),
        (
            "/state",
            json!({}),
            "`state` is not a known field; allowed here are `apiVersion`, `kind`, `metadata`, `spec`, `status`",
        ),
    ]);
}

/// What a cluster answers can be judged as it stands.
#[test]
fn the_status_that_an_operator_wrote_is_no_matter() {
    let status =
        json!({"conditions": [{"type": "Ready"}], "summary": {"pending": 1.5, "dead": null}});
    assert_eq!(with("/status", &status), [""; 0]);
}

#[test]
fn metadata_may_carry_what_every_manifest_may() {
    let labels = with("/metadata/labels", &json!({"a": "b", "c": 3}));
    let time = with("/metadata/creationTimestamp", &Value::Null);
    assert_eq!((labels, time), (vec![], vec![]));
}

#[test]
fn everything_wrong_is_reported_together_and_nothing_that_only_follows() {
    let found = broken(|manifest| {
        let spec = &mut manifest["spec"];
        spec["mailboxes"] = json!([]);
        spec["database"]["secretRef"] = json!("orders-db");
        spec["transports"][1] = json!({"rabbitmq": {"secretRef": {}, "port": 5672}});
        spec["outboxes"][0]["delivery"]["channels"] = json!("two");
        spec["outboxes"][0]["delivery"]["batchSize"] = json!(0);
        spec["outboxes"][1] = json!(7);
        spec["workers"]["leaseSeconds"] = json!(3);
        manifest["metadata"]["name"] = json!("Orders");
    });
    let fields: Vec<_> = found.iter().map(|s| s.split('`').nth(1).unwrap()).collect();
    let mut sorted = fields.clone();
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        [
            "metadata.name",
            "spec.database.secretRef",
            "spec.mailboxes",
            "spec.outboxes[0].delivery.batchSize",
            "spec.outboxes[0].delivery.channels",
            "spec.outboxes[0].delivery.confirmTimeoutSeconds",
            "spec.outboxes[1]",
            "spec.transports[1].name",
            "spec.transports[1].rabbitmq.port",
            "spec.transports[1].rabbitmq.secretRef.name",
            "spec.workers.leaseSeconds",
        ],
        "{found:#?}"
    );
}

#[test]
fn another_kind_is_refused_without_judging_its_fields() {
    let refused = |text: &str| sentences(text);
    assert_eq!(
        refused("apiVersion: v1\nkind: List\nitems: []\n"),
        ["`kind` is 'List' but must be 'InboxOutbox'; put each resource in a file of its own"]
    );
    assert_eq!(
        refused("apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 1}\n"),
        [
            "`apiVersion` is 'apps/v1' but must be 'postroom.dev/v1alpha1'",
            "`kind` is 'Deployment' but must be 'InboxOutbox'",
        ]
    );
}

#[test]
fn a_file_that_is_not_one_document_is_refused() {
    let empty = "the file is empty but must hold one InboxOutbox";
    for text in ["", "\n\n", "# nothing\n", "---\n---\n", "null\n"] {
        assert_eq!(sentences(text), [empty], "{text:?}");
    }
    let two = format!("{SMALLEST}---\n{SMALLEST}");
    assert_eq!(
        sentences(&two),
        ["the file holds 2 documents but must hold one InboxOutbox; put each in a file of its own"]
    );
    assert_eq!(sentences(&format!("---\n{SMALLEST}---\n# end\n")), [""; 0]);
    let list = sentences("- a\n- b\n");
    assert_eq!(
        list,
        [
            "the document is a list but must be an object with `apiVersion`, `kind`, `metadata`, `spec`, `status`"
        ]
    );
}

#[test]
fn broken_yaml_is_refused_with_its_line_in_one_line() {
    for text in [
        "apiVersion: postroom.dev/v1alpha1\nkind: [InboxOutbox\n",
        "kind: InboxOutbox\nspec:\n\tpaused: true\n",
        "kind: InboxOutbox\nkind: InboxOutbox\n",
    ] {
        let found = sentences(text);
        assert_eq!(found.len(), 1, "{found:?}");
        let sentence = &found[0];
        assert!(
            sentence.starts_with("the file is not valid YAML: "),
            "{sentence}"
        );
        assert!(sentence.contains("line "), "{sentence}");
        assert!(!sentence.contains('\n'), "{sentence}");
    }
}

#[test]
fn a_secret_in_the_wrong_place_is_not_repeated() {
    let url = "postgres://shop:hunter2@db/shop";
    for pointer in [
        "/spec/database/secretRef",
        "/spec/database/secretRef/name",
        "/spec/database/secretRef/key",
        "/spec/database/schema",
        "/spec/transports/0/rabbitmq",
        "/spec/transports/0/name",
        "/spec/outboxes/0/transport",
        "/spec/outboxes/0/delivery/channels",
        "/spec/url",
    ] {
        let found = with(pointer, &json!(url)).join("\n");
        assert!(!found.is_empty(), "{pointer} was accepted");
        assert!(!found.contains("hunter2"), "{pointer}: {found}");
    }
    let found = with("/spec/database/secretRef", &json!("hunter2")).join("\n");
    assert!(
        found.contains("is a text but must be an object with `name`, `key`"),
        "{found}"
    );
    assert!(!found.contains("hunter2"), "{found}");
}
