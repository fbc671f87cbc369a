use serde_json::{Value, json};

use super::{inbox_outbox, yaml};
use crate::limits;
use crate::manifest::Manifest;

fn definition() -> Value {
    serde_json::to_value(inbox_outbox().unwrap()).unwrap()
}

fn spec_at(path: &str) -> Value {
    let pointer = format!("/spec/versions/0/schema/openAPIV3Schema/properties/spec{path}");
    let definition = definition();
    let found = definition.pointer(&pointer);
    found.unwrap_or_else(|| panic!("no {pointer}")).clone()
}

/// Calls `look` with every schema of a value and its path.
fn each_schema(schema: &Value, path: &str, look: &mut impl FnMut(&str, &Value)) {
    look(path, schema);
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        each_schema(member, &format!("{path}.{name}"), look);
    }
    for part in ["items", "additionalProperties"] {
        if schema[part].is_object() {
            each_schema(&schema[part], &format!("{path}[]"), look);
        }
    }
}

#[test]
fn the_kind_has_its_names() {
    let definition = definition();
    assert_eq!(definition["metadata"]["name"], "inboxoutboxes.postroom.dev");
    assert_eq!(
        definition["spec"]["names"],
        json!({
            "kind": "InboxOutbox",
            "plural": "inboxoutboxes",
            "singular": "inboxoutbox",
            "shortNames": ["iob"],
            "categories": ["postroom"],
        })
    );
    assert_eq!(definition["spec"]["scope"], "Namespaced");
    assert_eq!(definition["spec"]["versions"][0]["name"], "v1alpha1");
}

#[test]
fn every_field_is_described_and_bounded_and_none_takes_null() {
    let mut seen = 0;
    each_schema(&spec_at(""), "spec", &mut |path, schema| {
        seen += 1;
        assert_eq!(schema.get("nullable"), None, "{path}");
        if !path.ends_with("[]") {
            let described = schema["description"].as_str();
            assert!(described.is_some_and(|text| !text.is_empty()), "{path}");
        }
        let has = |key: &str| schema.get(key).is_some();
        match schema["type"]
            .as_str()
            .unwrap_or_else(|| panic!("{path} has no type"))
        {
            "string" => assert!(has("maxLength") || has("enum"), "{path}"),
            "integer" => {
                assert!(has("minimum") && has("maximum"), "{path}");
                let format = schema["format"].as_str().unwrap();
                assert!(["int32", "int64"].contains(&format), "{path}: {format}");
            }
            "array" => {
                assert!(has("maxItems"), "{path}");
                let named = schema.pointer("/items/properties/name").is_some();
                let kind = if named { "map" } else { "atomic" };
                assert_eq!(schema["x-kubernetes-list-type"], kind, "{path}");
                let keys = schema.get("x-kubernetes-list-map-keys");
                assert_eq!(keys, named.then(|| json!(["name"])).as_ref(), "{path}");
            }
            // The one thing that is handed on as it stands.
            "object" if path.ends_with(".affinity") => {
                assert_eq!(schema["x-kubernetes-preserve-unknown-fields"], true);
            }
            "object" => assert!(has("properties") || has("maxProperties"), "{path}"),
            "boolean" => {}
            other => panic!("{path} is of type {other}"),
        }
    });
    assert!(seen > 50, "{seen}");
}

/// The cluster fills in what the file without a cluster fills in.
#[test]
fn the_defaults_of_the_schema_are_those_of_the_types() {
    let smallest = include_str!("../../examples/smallest.yaml");
    let inbox = include_str!("../../examples/smallest-inbox.yaml");
    let mut spec = Manifest::from_yaml(smallest).unwrap().spec;
    let filled = |spec| serde_json::to_value(spec).unwrap();
    // What the lists hold is judged; their own defaults are those of a file that has the other one only.
    for path in ["inboxes", "outboxes"] {
        assert_eq!(
            spec_at(&format!("/properties/{path}"))["default"],
            json!([])
        );
    }
    assert_eq!(filled(spec.clone())["inboxes"], json!([]));
    spec.inboxes = Manifest::from_yaml(inbox).unwrap().spec.inboxes;
    let filled = filled(spec);
    let mut seen = 0;
    each_schema(&spec_at(""), "spec", &mut |path, schema| {
        let Some(default) = schema.get("default") else {
            return;
        };
        let path = path
            .trim_start_matches("spec")
            .replace("[]", ".0")
            .replace('.', "/");
        let is_list = default.is_array();
        if let Some(value) = filled.pointer(&path).filter(|_| !is_list) {
            seen += 1;
            assert_eq!(value, default, "{path}");
        }
    });
    assert!(seen >= 60, "{seen}");
}

#[test]
fn bounds_come_from_one_place() {
    let channels = spec_at("/properties/outboxes/items/properties/delivery/properties/channels");
    assert_eq!(
        channels["minimum"].as_f64(),
        Some(limits::CHANNELS.min as f64)
    );
    assert_eq!(
        channels["maximum"].as_f64(),
        Some(limits::CHANNELS.max as f64)
    );
    let schema = spec_at("/properties/database/properties/schema");
    assert_eq!(schema["pattern"], limits::SCHEMA_PATTERN);
    let headers = spec_at("/properties/outboxes/items/properties/headers");
    assert_eq!(headers["maxProperties"], limits::HEADERS);
    assert_eq!(
        headers["additionalProperties"]["maxLength"],
        limits::HEADER_VALUE_BYTES
    );
}

#[test]
fn choices_are_listed_in_full() {
    let outbox = "/properties/outboxes/items/properties";
    let inbox = "/properties/inboxes/items/properties";
    for (path, choices) in [
        (
            "/properties/database/properties/tls/properties/mode".to_owned(),
            json!(["Disable", "Require", "VerifyCA", "VerifyFull"]),
        ),
        (
            "/properties/database/properties/pool/properties/poolerMode".to_owned(),
            json!(["Session", "Transaction"]),
        ),
        (
            format!("{outbox}/onUnroutable"),
            json!(["Retry", "DeadLetter", "Drop"]),
        ),
        (
            format!("{outbox}/ordering/properties/mode"),
            json!(["None", "PerStream", "Total"]),
        ),
        (
            format!("{outbox}/ordering/properties/onFailure"),
            json!(["BlockStream", "Skip"]),
        ),
        (
            format!("{outbox}/ordering/properties/onScheduled"),
            json!(["Hold", "Pass"]),
        ),
        (
            format!("{outbox}/retry/properties/jitter"),
            json!(["Full", "None"]),
        ),
        (
            format!("{inbox}/identity/properties/source"),
            json!(["MessageId", "Header", "CloudEventId", "PayloadSha256"]),
        ),
        (
            format!("{inbox}/identity/properties/onMissing"),
            json!(["DeadLetter", "Discard"]),
        ),
        (
            format!("{inbox}/identity/properties/onConflict"),
            json!(["DeadLetter", "Discard"]),
        ),
        (
            format!("{inbox}/stream/properties/source"),
            json!(["None", "Header", "RoutingKey"]),
        ),
        (
            format!("{inbox}/tenant/properties/source"),
            json!(["None", "Header", "RoutingKeySegment", "Static"]),
        ),
        (
            "/properties/migrations/properties/policy".to_owned(),
            json!(["Automatic", "Manual", "Disabled"]),
        ),
    ] {
        assert_eq!(spec_at(&path)["enum"], choices, "{path}");
    }
}

#[test]
fn rules_between_fields_are_in_the_schema() {
    let rules = |path: &str| {
        spec_at(path)["x-kubernetes-validations"]
            .as_array()
            .map_or(0, Vec::len)
    };
    let outbox = "/properties/outboxes/items/properties";
    assert_eq!(rules(""), 7);
    assert_eq!(rules("/properties/database"), 1);
    assert_eq!(rules("/properties/migrations"), 1);
    let pod = "/properties/workers/properties/podTemplate/properties/metadata/properties";
    assert_eq!(rules(&format!("{pod}/labels")), 1);
    assert_eq!(rules(&format!("{pod}/annotations")), 1);
    assert_eq!(rules("/properties/retention"), 3);
    assert_eq!(rules("/properties/database/properties/schema"), 2);
    assert_eq!(rules("/properties/database/properties/tls"), 2);
    assert_eq!(
        rules("/properties/transports/items/properties/rabbitmq/properties/tls"),
        2
    );
    assert_eq!(rules(&format!("{outbox}/headers")), 1);
    assert_eq!(rules(&format!("{outbox}/delivery")), 1);
    assert_eq!(rules(&format!("{outbox}/retry")), 1);
    let inbox = "/properties/inboxes/items/properties";
    assert_eq!(rules(&format!("{inbox}/consumer")), 1);
    assert_eq!(rules(&format!("{inbox}/identity")), 2);
    assert_eq!(rules(&format!("{inbox}/stream")), 1);
    assert_eq!(rules(&format!("{inbox}/tenant")), 4);
    assert_eq!(rules(&format!("{inbox}/handler")), 1);
    assert_eq!(rules(&format!("{inbox}/retry")), 1);
    let root = definition();
    let root = &root["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(
        root["x-kubernetes-validations"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn what_is_there_can_be_seen_and_scaled() {
    let definition = definition();
    let version = &definition["spec"]["versions"][0];
    assert_eq!(version["subresources"]["status"], json!({}));
    assert_eq!(
        version["subresources"]["scale"],
        json!({
            "specReplicasPath": ".spec.workers.replicas",
            "statusReplicasPath": ".status.workers.replicas",
            "labelSelectorPath": ".status.workers.selector",
        })
    );
    let columns = |priority: u64| -> Vec<&str> {
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let of = |column: &&Value| column["priority"].as_u64().unwrap_or_default() == priority;
        columns
            .iter()
            .filter(of)
            .map(|column| column["name"].as_str().unwrap())
            .collect()
    };
    assert_eq!(
        columns(0),
        [
            "Ready", "Reason", "Workers", "Pending", "Oldest", "Dead", "Age"
        ]
    );
    assert_eq!(columns(1), ["InFlight", "Schema", "Message"]);
    // Without a default of the parent there is no number of replicas to scale.
    let workers = spec_at("/properties/workers");
    assert_eq!(workers["default"]["replicas"], 1);
}

#[test]
fn conditions_merge_by_type_and_the_text_is_small_enough_to_apply() {
    let definition = definition();
    let conditions = definition
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/conditions")
        .unwrap();
    assert_eq!(conditions["x-kubernetes-list-type"], "map");
    assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
    let text = yaml(&inbox_outbox().unwrap()).unwrap();
    assert!(text.len() <= 65_536, "{}", text.len());
}
