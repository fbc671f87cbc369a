//! What a resource may add to the pods of its workers: a closed list.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "the derive for schemas copies each struct into a function body"
    )
)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::reference::LoginSecretRef;
#[cfg(feature = "kube")]
use crate::limits;

/// Additions to the pods of the workers and of the migration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodTemplate {
    /// Labels and annotations.
    pub metadata: PodMetadata,

    /// Where the pods run, and what their containers get.
    pub spec: PodSpec,
}

/// Labels and annotations of the pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodMetadata {
    /// Labels. Those of Postroom itself cannot be set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self.all(name, !name.startsWith('app.kubernetes.io/') && !name.startsWith('postroom.dev/') && !name.startsWith('batch.kubernetes.io/') && name != 'pod-template-hash')").message("names must not start with 'app.kubernetes.io/', 'postroom.dev/' or 'batch.kubernetes.io/' and must not be 'pod-template-hash'")
        )
    )]
    #[cfg_attr(feature = "kube", schemars(extend("maxProperties" = limits::POD_ENTRIES), transform = bound_label_values))]
    pub labels: BTreeMap<String, String>,

    /// Annotations. Those of Postroom itself cannot be set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "kube",
        x_kube(
            validation = kube::core::Rule::new("self.all(name, !name.startsWith('postroom.dev/'))").message("names must not start with 'postroom.dev/'")
        )
    )]
    #[cfg_attr(feature = "kube", schemars(extend("maxProperties" = limits::POD_ENTRIES), transform = bound_values))]
    pub annotations: BTreeMap<String, String>,
}

/// Where the pods run, and what their containers get.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodSpec {
    /// Labels that a node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "kube", schemars(extend("maxProperties" = limits::POD_ENTRIES), transform = bound_label_values))]
    pub node_selector: BTreeMap<String, String>,

    /// Taints of nodes that do not keep the pods away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "kube", schemars(length(max = limits::POD_ENTRIES)))]
    pub tolerations: Vec<Toleration>,

    /// Affinity to nodes and to other pods, as in any pod. The cluster checks it when workers are created.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(schema_with = "any_object"))]
    pub affinity: Option<serde_json::Map<String, serde_json::Value>>,

    /// How the workers are spread. Left out: over nodes, where that is possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(max = limits::POD_ENTRIES)))]
    pub topology_spread_constraints: Option<Vec<SpreadConstraint>>,

    /// Name of a priority class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SECRET_BYTES), regex(pattern = limits::SECRET_NAME_PATTERN)))]
    pub priority_class_name: Option<String>,

    /// Secrets with logins of the image's registry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "kube", schemars(length(max = limits::POD_ENTRIES)))]
    pub image_pull_secrets: Vec<PullSecret>,

    /// Environment variables, such as `POSTROOM_LOG`. No secrets: whoever may read pods reads them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "kube", schemars(length(max = limits::POD_ENTRIES)))]
    pub env: Vec<Variable>,
}

/// A Secret with the login of an image registry.
pub type PullSecret = LoginSecretRef;

/// A taint that does not keep a pod away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    /// Key of the taint. Left out with `Exists`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::LABEL_KEY_BYTES)))]
    pub key: Option<String>,

    /// `Equal`: key and value. `Exists`: the key alone.
    #[serde(default)]
    pub operator: TolerationOperator,

    /// Value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(max = limits::LABEL_BYTES)))]
    pub value: Option<String>,

    /// Effect of the taint. Left out: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,

    /// How long a pod stays on a node that gets the taint `NoExecute`. Left out: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(range(min = limits::TOLERATION_SECONDS.min, max = limits::TOLERATION_SECONDS.max)))]
    pub toleration_seconds: Option<u32>,
}

/// How a taint is recognised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum TolerationOperator {
    /// By key and value.
    #[default]
    Equal,
    /// By key.
    Exists,
}

/// What a taint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum TaintEffect {
    /// New pods stay away.
    NoSchedule,
    /// New pods rather stay away.
    PreferNoSchedule,
    /// All pods go.
    NoExecute,
}

/// How the workers of this resource are spread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpreadConstraint {
    /// Most pods that one place may have more than another.
    #[cfg_attr(feature = "kube", schemars(range(min = limits::MAX_SKEW.min, max = limits::MAX_SKEW.max)))]
    pub max_skew: u32,

    /// Label of nodes that says which place they are in.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::LABEL_KEY_BYTES)))]
    pub topology_key: String,

    /// What happens to a pod that cannot be placed so.
    pub when_unsatisfiable: WhenUnsatisfiable,
}

/// What happens to a pod that cannot be placed as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum WhenUnsatisfiable {
    /// It waits.
    DoNotSchedule,
    /// It is placed as well as possible.
    ScheduleAnyway,
}

/// An environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Variable {
    /// Its name.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SECRET_BYTES), regex(pattern = limits::VARIABLE_PATTERN)))]
    pub name: String,

    /// Its value.
    #[cfg_attr(feature = "kube", schemars(length(max = limits::POD_VALUE_BYTES)))]
    pub value: String,
}

#[cfg(feature = "kube")]
fn bound_label_values(schema: &mut schemars::Schema) {
    bound(schema, limits::LABEL_BYTES);
}

#[cfg(feature = "kube")]
fn bound_values(schema: &mut schemars::Schema) {
    bound(schema, limits::POD_VALUE_BYTES);
}

/// The schema of a map has no attribute for the length of its values.
#[cfg(feature = "kube")]
fn bound(schema: &mut schemars::Schema, most: u64) {
    if let Some(values) = schema.pointer_mut("/additionalProperties") {
        values["maxLength"] = most.into();
    }
}

/// The whole schema of an affinity is larger than all the rest of the resource.
#[cfg(feature = "kube")]
fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
