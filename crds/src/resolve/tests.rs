use serde_json::{Value, json};

use super::Where;
use crate::inbox_outbox::database::Connection;
use crate::inbox_outbox::inbox::Pull;
use crate::inbox_outbox::reference::LoginSecretRef;
use crate::manifest::Manifest;
use crate::worker_config::{FileSource, HandlerConfig, Login, Source, TlsLevel, WorkerConfig};

const FULL: &str = include_str!("../../examples/full.yaml");
const SMALLEST: &str = include_str!("../../examples/smallest.yaml");
const SMALLEST_INBOX: &str = include_str!("../../examples/smallest-inbox.yaml");

/// Fields that only something in a cluster takes up.
const FOR_THE_CLUSTER: [&str; 9] = [
    "/spec/migrations/policy",
    "/spec/migrations/approvedVersion",
    "/spec/migrations/activeDeadlineSeconds",
    "/spec/migrations/backoffLimit",
    "/spec/migrations/ttlSecondsAfterFinished",
    "/spec/workers/replicas",
    "/spec/workers/resources",
    "/spec/workers/podDisruptionBudget",
    "/spec/workers/podTemplate",
];

fn config(text: &str, place: Where) -> WorkerConfig {
    let manifest = Manifest::from_yaml(text).unwrap();
    WorkerConfig::from_resource(&manifest, place).unwrap()
}

/// Values that a field can be changed to, tried in turn until the manifest is valid again.
fn other_values(value: &Value) -> Vec<Value> {
    let words = [
        "Disable",
        "VerifyFull",
        "VerifyCA",
        "Transaction",
        "Drop",
        "Total",
        "Skip",
        "Pass",
        "None",
        "48h",
        "main",
        "audit",
        "another",
        "MessageId",
        "PayloadSha256",
        "RoutingKey",
        "Discard",
        "app.another",
    ];
    match value {
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(number) => {
            let number = number.as_u64().unwrap();
            vec![json!(number + 1), json!(number - 1)]
        }
        Value::String(text) => words
            .iter()
            .filter(|word| *word != text)
            .map(|word| json!(word))
            .collect(),
        Value::Null | Value::Array(_) | Value::Object(_) => Vec::new(),
    }
}

fn leaves(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| leaves(value, &format!("{pointer}/{key}"), found)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, value)| leaves(value, &format!("{pointer}/{index}"), found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            found.push(pointer.to_owned());
        }
    }
}

/// The full manifest as the types write it, so that a field of the types cannot be missing.
fn full() -> Value {
    let mut manifest = Manifest::from_yaml(FULL).unwrap();
    manifest.metadata.generation = Some(7);
    serde_json::to_value(manifest).unwrap()
}

/// Endpoints that named a transport go on naming it.
fn follow(manifest: &mut Value, old: &Value, new: &Value) {
    for list in ["outboxes", "inboxes"] {
        for endpoint in manifest["spec"][list].as_array_mut().unwrap() {
            if endpoint["transport"] == *old {
                endpoint["transport"] = new.clone();
            }
        }
    }
}

/// Takes away what stands beside a choice and belongs to it: a broker's `tls.mode` has only one other value, and that one
/// goes without certificates; another `source` has other members.
fn without_members(manifest: &mut Value, pointer: &str) {
    let Some((parent, field @ ("mode" | "source"))) = pointer.rsplit_once('/') else {
        return;
    };
    if field == "source" || parent.ends_with("/rabbitmq/tls") {
        let parent = manifest.pointer_mut(parent).unwrap();
        parent
            .as_object_mut()
            .unwrap()
            .retain(|name, _| name == field);
    }
}

fn resolved(manifest: &Value) -> Option<WorkerConfig> {
    let manifest = Manifest::from_yaml(&manifest.to_string()).ok()?;
    WorkerConfig::from_resource(&manifest, Where::Mounted).ok()
}

#[test]
fn a_change_of_any_field_changes_the_configuration() {
    let manifest = full();
    let mut pointers = Vec::new();
    leaves(&manifest, "", &mut pointers);
    pointers.retain(|pointer| !matches!(pointer.as_str(), "/apiVersion" | "/kind"));
    // What is not the worker's own business: an operator makes pods, Jobs and budgets of it, and has a test like this one.
    pointers.retain(|pointer| {
        !FOR_THE_CLUSTER
            .iter()
            .any(|start| pointer.starts_with(start))
    });
    // The resource itself is the tenant of all messages there, so none can lack one.
    pointers.retain(|pointer| pointer != "/spec/inboxes/2/tenant/required");
    assert!(pointers.len() >= 110, "{pointers:#?}");
    for pointer in pointers {
        let mut manifest = manifest.clone();
        if pointer.contains("/rabbitmq/") {
            without_members(&mut manifest, &pointer);
        }
        let before = resolved(&manifest).unwrap();
        let place = manifest.pointer(&pointer).unwrap();
        let after = other_values(place).into_iter().find_map(|value| {
            let mut changed = manifest.clone();
            let old = changed.pointer(&pointer).cloned();
            without_members(&mut changed, &pointer);
            *changed.pointer_mut(&pointer).unwrap() = value.clone();
            if pointer.starts_with("/spec/transports/") && pointer.ends_with("/name") {
                follow(&mut changed, &old.unwrap(), &value);
            }
            resolved(&changed)
        });
        let after = after.unwrap_or_else(|| panic!("no valid change of {pointer} is known"));
        assert_ne!(after, before, "{pointer} has no effect");
    }
}

/// The walk above sees only what the manifest has, so this one must have everything.
#[test]
fn the_full_example_gives_every_field_a_value() {
    let manifest = Manifest::from_yaml(FULL).unwrap();
    let spec = &manifest.spec;
    let database = spec.database.tls.as_ref().unwrap();
    let broker = &spec.transports[0].rabbitmq;
    let broker_tls = broker.tls.as_ref().unwrap();
    let database_secret = spec.database.secret_ref.as_ref().unwrap();
    assert!(database_secret.key.is_some() && broker.secret_ref.key.is_some());
    assert!(spec.database.migration_secret_ref.is_some());
    assert!(spec.migrations.approved_version.is_some());
    let pod = spec.workers.pod_template.as_ref().unwrap();
    assert!(!pod.metadata.labels.is_empty() && !pod.metadata.annotations.is_empty());
    let pod = &pod.spec;
    assert!(!pod.node_selector.is_empty() && !pod.tolerations.is_empty() && !pod.env.is_empty());
    assert!(pod.affinity.is_some() && pod.topology_spread_constraints.is_some());
    assert!(pod.priority_class_name.is_some() && !pod.image_pull_secrets.is_empty());
    for tls in [database, broker_tls] {
        assert!(tls.ca_secret_ref.is_some() && tls.client_certificate_secret_ref.is_some());
    }
    assert!(broker.vhost.is_some() && manifest.metadata.namespace.is_some());
    assert!(spec.outboxes[0].transport.is_some() && !spec.outboxes[0].headers.is_empty());
    let inbox = &spec.inboxes[0];
    assert!(inbox.transport.is_some() && !inbox.types.is_empty());
    assert!(inbox.identity.header.is_some() && inbox.stream.header.is_some());
    assert!(
        spec.inboxes
            .iter()
            .any(|inbox| inbox.handler.pull.is_some())
    );
    let tenants = || spec.inboxes.iter().map(|inbox| &inbox.tenant);
    assert!(tenants().any(|tenant| tenant.header.is_some()));
    assert!(tenants().any(|tenant| tenant.segment.is_some()));
    assert!(tenants().any(|tenant| tenant.value.is_some()));
}

/// The walk above changes a value for another and so never sees a source that goes without members, nor an empty handler.
#[test]
fn another_handler_is_another_configuration() {
    let handler = |handler: Value| {
        let mut manifest = full();
        manifest["spec"]["inboxes"][1]["handler"] = handler;
        resolved(&manifest).unwrap().inboxes[1].handler.clone()
    };
    assert_eq!(handler(json!({"pull": {}})), HandlerConfig::Pull(Pull {}));
    let HandlerConfig::SqlFunction(function) = handler(json!({"sqlFunction": {"name": "a.b"}}))
    else {
        panic!("it is no function")
    };
    let numbers = (
        function.timeout_seconds,
        function.concurrency,
        function.batch_size,
    );
    assert_eq!(numbers, (10, 4, 50));
}

#[test]
fn a_cluster_finds_secrets_in_mounted_files() {
    let config = config(FULL, Where::Mounted);
    let file = |path: &str| FileSource::File(format!("/etc/postroom/secrets/{path}"));
    assert_eq!(
        config.database.url,
        Source::File("/etc/postroom/secrets/orders-db-app/uri".to_owned())
    );
    assert_eq!(config.database.tls.mode, TlsLevel::VerifyFull);
    assert_eq!(config.database.tls.ca, Some(file("orders-db-ca/ca.crt")));
    let client = config.database.tls.client_certificate.unwrap();
    assert_eq!(client.certificate, file("orders-db-client/tls.crt"));
    assert_eq!(client.key, file("orders-db-client/tls.key"));
    assert_eq!(
        config.transports[0].tls.ca,
        Some(file("rabbitmq-ca/ca.crt"))
    );
    assert_eq!(config.transports[1].tls.mode, TlsLevel::FromUrl);
    let names: Vec<_> = config.transports.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["main", "audit"]);
}

#[test]
fn a_secret_without_a_key_is_found_as_a_folder_and_a_login_with_its_server() {
    let folder = |name: &str| format!("/etc/postroom/secrets/{name}");
    let smallest = config(SMALLEST, Where::Mounted);
    assert!(
        matches!(&smallest.database.url, Source::Secret(path) if path.starts_with(&folder("")))
    );
    assert!(matches!(&smallest.transports[0].url, Source::Secret(_)));
    let mut manifest = Manifest::from_yaml(FULL).unwrap();
    manifest.spec.database.secret_ref = None;
    manifest.spec.database.connection = Some(Connection {
        host: "db.shop".to_owned(),
        port: 6432,
        database: "shop".to_owned(),
        credentials_secret_ref: LoginSecretRef {
            name: "orders-login".to_owned(),
        },
    });
    let config = WorkerConfig::from_resource(&manifest, Where::Mounted).unwrap();
    let login = Login {
        secret: folder("orders-login"),
        host: "db.shop".to_owned(),
        port: 6432,
        database: "shop".to_owned(),
    };
    assert_eq!(config.database.url, Source::Login(login));
    let owner = Source::File(folder("orders-db-owner/uri"));
    assert_eq!(config.database.migration_url, Some(owner));
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(WorkerConfig::from_json(&json), Ok(config));
}

#[test]
fn a_run_without_a_cluster_finds_secrets_in_variables() {
    let config = config(FULL, Where::Environment);
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        config.database.url,
        Source::Environment(names(&["DATABASE_URL"]))
    );
    assert_eq!(
        config.transports[1].url,
        Source::Environment(names(&["AMQP_URL_AUDIT", "AMQP_URL"]))
    );
    assert_eq!(
        config.database.tls.ca,
        Some(FileSource::Environment(names(&[
            "POSTROOM_DATABASE_CA_FILE"
        ])))
    );
    let client = config.transports[0].tls.client_certificate.clone().unwrap();
    let expected = ["POSTROOM_AMQP_KEY_FILE_MAIN", "POSTROOM_AMQP_KEY_FILE"];
    assert_eq!(client.key, FileSource::Environment(names(&expected)));
    assert_eq!(config.transports[1].tls.ca, None);
}

#[test]
fn the_smallest_manifest_resolves_its_only_transport_and_all_defaults() {
    let config = config(SMALLEST, Where::Environment);
    assert_eq!(config.outboxes[0].transport, "main");
    assert_eq!(
        (config.namespace.as_str(), config.generation),
        ("default", 0)
    );
    assert_eq!(config.retention.deduplication_seconds, 2_592_000);
    assert_eq!(config.retention.requests_seconds, 2_592_000);
    assert_eq!(config.retention.dead_seconds, 2_592_000);
    assert_eq!(config.database.tls.mode, TlsLevel::FromUrl);
    assert_eq!(
        (config.worker.lease_seconds, config.worker.grace_seconds),
        (15, 60)
    );
}

#[test]
fn the_smallest_inbox_resolves_its_only_transport_and_all_defaults() {
    let config = config(SMALLEST_INBOX, Where::Environment);
    assert_eq!(config.outboxes, []);
    let inbox = serde_json::to_value(&config.inboxes[0]).unwrap();
    assert_eq!(
        inbox,
        json!({
            "name": "payments",
            "transport": "main",
            "queue": "shop.payments",
            "types": [],
            "consumer": {"prefetch": 500, "batchSize": 200, "maxBatchDelayMilliseconds": 5, "maxMessageBytes": 16_777_216},
            "identity": {"source": "MessageId", "onMissing": "DeadLetter", "onConflict": "DeadLetter", "trustHeaders": false},
            "stream": {"source": "Header", "header": "x-postroom-stream"},
            "tenant": {"source": "Header", "header": "x-postroom-tenant", "required": false},
            "handler": {"sqlFunction": {"name": "app.handle_payment", "timeoutSeconds": 10, "concurrency": 4, "batchSize": 50}},
            "ordering": {"mode": "PerStream", "onFailure": "BlockStream", "onScheduled": "Hold"},
            "retry": {"maxAttempts": 12, "initialDelaySeconds": 1, "maxDelaySeconds": 300, "jitter": "Full"},
            "paused": false,
        })
    );
}

#[test]
fn a_configuration_survives_its_own_json() {
    for place in [Where::Mounted, Where::Environment] {
        for text in [FULL, SMALLEST, SMALLEST_INBOX] {
            let config = config(text, place);
            let json = serde_json::to_string(&config).unwrap();
            assert_eq!(WorkerConfig::from_json(&json), Ok(config));
        }
    }
}

#[test]
fn a_resource_that_was_not_validated_is_validated_here() {
    let mut manifest = Manifest::from_yaml(FULL).unwrap();
    manifest.spec.workers.lease_seconds = 4;
    let problems = WorkerConfig::from_resource(&manifest, Where::Mounted).unwrap_err();
    assert_eq!(
        problems[0].field,
        "spec.outboxes[0].delivery.confirmTimeoutSeconds"
    );
    assert!(
        problems
            .iter()
            .any(|p| p.field == "spec.workers.leaseSeconds")
    );
}

fn sentences(break_it: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut document = serde_json::to_value(config(FULL, Where::Mounted)).unwrap();
    break_it(&mut document);
    let problems = WorkerConfig::from_json(&document.to_string()).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_configuration_that_breaks_a_rule_is_refused() {
    type Break = fn(&mut Value);
    let cases: [(Break, &str); 15] = [
        (
            |c| c["version"] = json!(2),
            "`version` is 2 but must be 1; run a worker of the operator's version",
        ),
        (
            |c| c["outboxes"][0]["delivery"]["channels"] = json!(99),
            "`outboxes[0].delivery.channels` is 99 but must be between 1 and 16",
        ),
        (
            |c| c["outboxes"][0]["transport"] = json!("gone"),
            "`outboxes[0].transport` is 'gone' but must be the name of a transport: one of 'main', 'audit'",
        ),
        (
            |c| c["inboxes"][0]["transport"] = json!("gone"),
            "`inboxes[0].transport` is 'gone' but must be the name of a transport: one of 'main', 'audit'",
        ),
        (
            |c| c["inboxes"][0]["consumer"]["batchSize"] = json!(501),
            "`inboxes[0].consumer.batchSize` is 501 but must be at most `inboxes[0].consumer.prefetch`, which is 500",
        ),
        (
            |c| c["inboxes"][1]["tenant"]["header"] = json!("x-tenant"),
            "`inboxes[1].tenant.header` is given but must be left out unless `source` is 'Header'",
        ),
        (
            |c| c["inboxes"][1]["name"] = json!("orders"),
            "`inboxes[1].name` is 'orders' but must be a name that no entry of `outboxes` has",
        ),
        (
            |c| c["inboxes"][1]["handler"] = json!({"http": {}}),
            "`inboxes[1].handler` is 'http' but must be one of 'sqlFunction', 'pull'",
        ),
        (
            |c| c["worker"]["graceSeconds"] = json!(14),
            "`inboxes[0].handler.sqlFunction.timeoutSeconds` is 10 but must be at least 5 less than `worker.graceSeconds`, which is 14",
        ),
        (
            |c| c["worker"]["leaseSeconds"] = json!(10),
            "`outboxes[0].delivery.confirmTimeoutSeconds` is 10 but must be less than `worker.leaseSeconds`, which is 10",
        ),
        (
            |c| c["retention"]["deadSeconds"] = json!(1),
            "`retention.deadSeconds` is 1 but must be between 60 and 315360000",
        ),
        (
            |c| c["surprise"] = json!(1),
            "`surprise` is not a known field; allowed here are `version`, `name`, `namespace`, `generation`, `schema`, `paused`, `database`, `transports`, `outboxes`, `inboxes`, `retention`, `migration`, `worker`",
        ),
        (
            |c| c["database"]["url"] = json!({"file": "secrets/uri"}),
            "`database.url.file` must be a path that starts with '/'",
        ),
        (
            |c| c["database"]["url"] = json!({"environment": []}),
            "`database.url.environment` must name at least one variable and no empty one",
        ),
        (
            |c| c["database"]["url"] = json!("postgres://shop:hunter2@db/shop"),
            "`database.url` is a URL (not shown) but must be one of 'file', 'environment', 'secret', 'login'",
        ),
    ];
    for (break_it, expected) in cases {
        let found = sentences(break_it);
        assert_eq!(found[0], expected, "{found:?}");
    }
}

#[test]
fn a_configuration_without_a_field_is_refused() {
    let found = sentences(|c| {
        c.as_object_mut().unwrap().remove("paused");
        c["outboxes"][0].as_object_mut().unwrap().remove("headers");
    });
    assert_eq!(
        found,
        [
            "`outboxes[0].headers` is missing but must be given",
            "`paused` is missing but must be given",
        ]
    );
    let problems = WorkerConfig::from_json("{").unwrap_err();
    assert!(
        problems[0]
            .sentence
            .starts_with("the document is not valid JSON: ")
    );
}
