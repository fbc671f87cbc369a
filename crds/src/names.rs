//! Names and labels of what an operator makes for an `InboxOutbox`.
//!
//! Invariant: labels of the selector never change; a name fits where Kubernetes takes it, whatever the resource is called.

use std::collections::BTreeMap;

/// Who writes everything that carries this name under `app.kubernetes.io/managed-by`.
pub const OPERATOR: &str = "postroom-operator";

/// Label with the name of the program.
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// Label with the name of the `InboxOutbox`.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
/// Label with the part: `worker` or `migration`.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// Label with [`OPERATOR`].
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label with the name of the whole.
pub const LABEL_PART_OF: &str = "app.kubernetes.io/part-of";

/// Annotation of pods with a hash of their configuration: another one rolls the workers.
pub const ANNOTATION_CONFIG_HASH: &str = "postroom.dev/config-hash";
/// Annotation of children with a hash of what the operator last wrote.
pub const ANNOTATION_APPLIED_HASH: &str = "postroom.dev/applied-hash";

/// Longest name of a Job, which becomes a label of its pods.
const MOST_NAME_BYTES: usize = 63;

/// Which part of a resource an object belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The fleet.
    Worker,
    /// The Job that migrates the schema.
    Migration,
}

impl Component {
    /// As the label says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Migration => "migration",
        }
    }
}

/// Name of the Deployment, the `ServiceAccount`, the `ConfigMap` and the `PodDisruptionBudget` of `resource`.
pub fn worker(resource: &str) -> String {
    format!("{resource}-worker")
}

/// Name of the Job that migrates to `version`; `hash` stands for everything it runs.
pub fn migration_job(resource: &str, version: u32, hash: &str) -> String {
    let ending = format!("-migrate-{version}-{hash}");
    let room = MOST_NAME_BYTES.saturating_sub(ending.len());
    let start = resource.get(..room).unwrap_or(resource);
    format!("{}{ending}", start.trim_end_matches('-'))
}

/// Labels that find the pods of a component.
pub fn selector(resource: &str, component: Component) -> BTreeMap<String, String> {
    [
        (LABEL_NAME, "postroom-worker"),
        (LABEL_INSTANCE, resource),
        (LABEL_COMPONENT, component.as_str()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// All labels of an object of a component.
pub fn labels(resource: &str, component: Component) -> BTreeMap<String, String> {
    let mut labels = selector(resource, component);
    labels.insert(LABEL_MANAGED_BY.to_owned(), OPERATOR.to_owned());
    labels.insert(LABEL_PART_OF.to_owned(), "postroom".to_owned());
    labels
}

/// Labels as one text, as `kubectl --selector` takes it.
pub fn as_text(labels: &BTreeMap<String, String>) -> String {
    let pairs: Vec<_> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(",")
}

/// FNV-1a with 64 bits, as hexadecimal digits: the same in every version and on every machine.
pub fn fingerprint(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::{Component, as_text, fingerprint, migration_job, selector};

    #[test]
    fn the_longest_name_leaves_room_for_the_job() {
        assert_eq!(
            migration_job("orders", 7, "1f3a9c00"),
            "orders-migrate-7-1f3a9c00"
        );
        let longest = migration_job(&"a".repeat(52), 1234, "1f3a9c00");
        assert_eq!(longest.len(), 63);
        assert!(longest.ends_with("-migrate-1234-1f3a9c00"), "{longest}");
        let hyphen = format!("{}-{}", "a".repeat(42), "b".repeat(9));
        assert!(!migration_job(&hyphen, 7, "1f3a9c00").contains("--"));
    }

    #[test]
    fn the_selector_is_one_line() {
        assert_eq!(
            as_text(&selector("orders", Component::Worker)),
            "app.kubernetes.io/component=worker,app.kubernetes.io/instance=orders,app.kubernetes.io/name=postroom-worker"
        );
    }

    #[test]
    fn the_fingerprint_is_the_published_function() {
        assert_eq!(fingerprint(""), "cbf29ce484222325");
        assert_eq!(fingerprint("foobar"), "85944171f73967e8");
    }
}
