//! One `InboxOutbox` document, read and judged without a cluster.
//!
//! Invariant: a [`Manifest`] that [`Manifest::from_yaml`] returned keeps every rule of [`crate::validate`].

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document;
use crate::inbox_outbox::{API_VERSION, InboxOutboxSpec, KIND};
use crate::problem::{Problem, shown};
use crate::validate;

/// An `InboxOutbox` as a person wrote it, with the defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// Always [`API_VERSION`].
    pub api_version: String,
    /// Always [`KIND`].
    pub kind: String,
    /// Which resource this is.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: InboxOutboxSpec,
    /// What an operator said about it; of no account here.
    #[serde(default, skip_serializing)]
    pub status: IgnoredAny,
}

/// The part of the metadata that has a meaning here. Labels, annotations and the like may stand
/// beside it, as in any manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Name of the resource.
    pub name: String,
    /// Namespace; `default` where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Counts the changes of the spec in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

impl Manifest {
    /// Reads a YAML (or JSON) text. The error lists everything that is wrong with it.
    pub fn from_yaml(text: &str) -> Result<Self, Vec<Problem>> {
        let document = document::from_yaml(text).map_err(|problem| vec![problem])?;
        let strangers = kind_problems(&document);
        if !strangers.is_empty() {
            return Err(strangers);
        }
        let mut reading = document::read::<Self>(&document);
        let rules = reading.value.as_ref().map(validate::manifest);
        let rules = rules.into_iter().flatten();
        let of_written: Vec<_> = rules
            .filter(|problem| !reading.is_blank(&problem.field))
            .collect();
        reading.problems.extend(of_written);
        match reading.value {
            Some(manifest) if reading.problems.is_empty() => Ok(manifest),
            _ => Err(reading.problems),
        }
    }
}

/// What says that the document is of another kind; judging its fields would then only confuse.
fn kind_problems(document: &Value) -> Vec<Problem> {
    if document.get("kind").and_then(Value::as_str) == Some("List") {
        return vec![Problem::of_field(
            "kind",
            "is 'List' but must be 'InboxOutbox'; put each resource in a file of its own",
        )];
    }
    [("apiVersion", API_VERSION), ("kind", KIND)]
        .into_iter()
        .filter_map(|(field, wanted)| {
            let found = document.get(field)?.as_str()?;
            let rest = format!("is {} but must be '{wanted}'", shown(found));
            (found != wanted).then(|| Problem::of_field(field, rest))
        })
        .collect()
}

#[cfg(feature = "kube")]
impl From<&crate::inbox_outbox::InboxOutbox> for Manifest {
    fn from(resource: &crate::inbox_outbox::InboxOutbox) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            metadata: Metadata {
                name: resource.metadata.name.clone().unwrap_or_default(),
                namespace: resource.metadata.namespace.clone(),
                generation: resource.metadata.generation,
            },
            spec: resource.spec.clone(),
            status: IgnoredAny,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
