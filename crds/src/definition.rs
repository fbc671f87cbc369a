//! The `CustomResourceDefinition`, as a cluster gets it.
//!
//! Invariants: no `nullable` (a stored `null` would make a rule's `has()` lie), no unsigned number
//! formats, descriptions of one line, lists of named entries merge by name, and the text is the same
//! on every machine.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::inbox_outbox::InboxOutbox;

const LIST_TYPE: &str = "x-kubernetes-list-type";

/// The definition of the kind `InboxOutbox`.
pub fn inbox_outbox() -> Result<CustomResourceDefinition, serde_json::Error> {
    let mut definition = serde_json::to_value(InboxOutbox::crd())?;
    settle(&mut definition);
    serde_json::from_value(definition)
}

/// A definition as text. Half of it would be spaces, were it indented by two at each level.
pub fn yaml(definition: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    let options = serde_saphyr::ser_options! { indent_step: 1 };
    let text = serde_saphyr::to_string_with_options(definition, options)?;
    // An entry of a list that is an object begins on the next line, and leaves a space behind.
    let lines = text.lines().map(|line| format!("{}\n", line.trim_end()));
    Ok(lines.collect())
}

/// Brings a schema and everything in it to the form that this module promises.
fn settle(value: &mut Value) {
    match value {
        Value::Object(map) => {
            settle_schema(map);
            let sorted: Map<String, Value> = sorted(std::mem::take(map));
            *map = sorted;
            map.values_mut().for_each(settle);
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether another crate of the build makes maps keep insertion order must not show in the text.
fn sorted(map: Map<String, Value>) -> Map<String, Value> {
    let mut members: Vec<_> = map.into_iter().collect();
    members.sort_by(|one, other| one.0.cmp(&other.0));
    members.into_iter().collect()
}

fn settle_schema(schema: &mut Map<String, Value>) {
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        schema.remove("nullable");
    }
    // A cluster takes no such word; it drops what it does not know.
    if schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        schema.remove("additionalProperties");
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.split('\n').collect::<Vec<_>>().join(" ");
    }
    let signed = match schema.get("format").and_then(Value::as_str) {
        Some("uint32") => Some("int32"),
        Some("uint64") => Some("int64"),
        Some(_) | None => None,
    };
    if let Some(format) = signed {
        schema.insert("format".to_owned(), json!(format));
    }
    let has_named_items = schema
        .get("items")
        .and_then(|items| items.pointer("/properties/name"))
        .is_some();
    if schema.get("type") == Some(&json!("array")) && !schema.contains_key(LIST_TYPE) {
        let kind = if has_named_items { "map" } else { "atomic" };
        schema.insert(LIST_TYPE.to_owned(), json!(kind));
        if has_named_items {
            schema.insert("x-kubernetes-list-map-keys".to_owned(), json!(["name"]));
        }
    }
}

#[cfg(test)]
mod tests;
