//! The `InboxOutbox` file a worker is started with.
//!
//! A test says only what matters to it; everything else is left to the defaults, or is what makes tests quick.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use crate::run;

/// An outbox of the resource.
#[derive(Debug, Clone)]
pub struct Outbox(Value);

impl Outbox {
    /// An outbox that publishes to `exchange`.
    pub fn new(name: &str, exchange: &str) -> Self {
        Self(json!({"name": name, "exchange": exchange}))
    }

    /// Sets a field by its path, for example `ordering.mode` or `retry.maxAttempts`.
    #[must_use]
    pub fn with(mut self, path: &str, value: impl Into<Value>) -> Self {
        set(&mut self.0, path, value.into());
        self
    }

    /// The routing key or its template.
    #[must_use]
    pub fn routing_key(self, routing_key: &str) -> Self {
        self.with("routingKey", routing_key)
    }
}

/// An inbox of the resource.
#[derive(Debug, Clone)]
pub struct Inbox(Value);

impl Inbox {
    /// An inbox fed from `queue` whose messages applications take themselves.
    pub fn pulled(name: &str, queue: &str) -> Self {
        Self(json!({"name": name, "queue": queue, "handler": {"pull": {}}}))
    }

    /// An inbox fed from `queue` whose messages a function in the database handles.
    pub fn handled(name: &str, queue: &str, function: &str) -> Self {
        let handler = json!({"sqlFunction": {"name": function}});
        Self(json!({"name": name, "queue": queue, "handler": handler}))
    }

    /// Sets a field by its path, for example `consumer.batchSize`.
    #[must_use]
    pub fn with(mut self, path: &str, value: impl Into<Value>) -> Self {
        set(&mut self.0, path, value.into());
        self
    }
}

/// A resource with one transport, `main`, that has no TLS unless a test says so.
#[derive(Debug, Clone)]
pub struct Resource(Value);

impl Resource {
    /// A resource without outboxes.
    pub fn new(name: &str) -> Self {
        Self(json!({
            "apiVersion": "postroom.dev/v1alpha1",
            "kind": "InboxOutbox",
            "metadata": {"name": name, "namespace": "tests"},
            "spec": {
                "database": {"secretRef": {"name": "database"}},
                "transports": [{"name": "main", "rabbitmq": {"secretRef": {"name": "broker"}, "tls": {"mode": "Disable"}}}],
                "outboxes": [],
            },
        }))
    }

    /// Adds an outbox.
    #[must_use]
    pub fn outbox(mut self, outbox: Outbox) -> Self {
        if let Some(outboxes) = self.0["spec"]["outboxes"].as_array_mut() {
            outboxes.push(outbox.0);
        }
        self
    }

    /// Adds an inbox.
    #[must_use]
    pub fn inbox(mut self, inbox: Inbox) -> Self {
        let inboxes = &mut self.0["spec"]["inboxes"];
        if inboxes.is_null() {
            *inboxes = json!([]);
        }
        if let Some(inboxes) = inboxes.as_array_mut() {
            inboxes.push(inbox.0);
        }
        self
    }

    /// Sets a field by its path below `spec`; a number is a place in a list: `outboxes.0.ordering.mode`.
    #[must_use]
    pub fn with(mut self, path: &str, value: impl Into<Value>) -> Self {
        set(&mut self.0["spec"], path, value.into());
        self
    }

    /// The name of the schema that holds the tables.
    #[must_use]
    pub fn schema(self, schema: &str) -> Self {
        self.with("database.schema", schema)
    }

    /// How long a silent worker keeps its leases. The confirm time-out of all outboxes goes below it, as it must.
    #[must_use]
    pub fn lease_seconds(self, seconds: u64) -> Self {
        let outboxes = self.0["spec"]["outboxes"].as_array().map_or(0, Vec::len);
        let shorter = (0..outboxes).fold(self, |resource, number| {
            resource.with(
                &format!("outboxes.{number}.delivery.confirmTimeoutSeconds"),
                (seconds - 1).min(10),
            )
        });
        shorter.with("workers.leaseSeconds", seconds)
    }

    /// Says that there is a pooler in transaction mode in between. Migrations have a way of their own around it.
    #[must_use]
    pub fn behind_transaction_pooler(self) -> Self {
        self.with("database.pool.poolerMode", "Transaction")
            .with("database.migrationSecretRef", json!({"name": "owner"}))
    }

    /// The whole document, to look into or to spoil.
    pub fn document(&mut self) -> &mut Value {
        &mut self.0
    }

    /// As YAML.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn yaml(&self) -> Result<String> {
        serde_saphyr::to_string(&self.0).context("write the resource as YAML")
    }

    /// Writes it to a new file.
    ///
    /// # Errors
    /// When that is impossible.
    pub fn write(&self) -> Result<PathBuf> {
        let file = run::new_folder("resource")?.join("resource.yaml");
        fs::write(&file, self.yaml()?).with_context(|| format!("write {}", file.display()))?;
        Ok(file)
    }
}

/// Sets a field by path, making objects on the way.
///
/// # Panics
/// When the path leads through a place in a list that does not exist: a mistake in the test.
fn set(document: &mut Value, path: &str, value: Value) {
    let place = path
        .split('.')
        .fold(document, |place, step| match step.parse::<usize>() {
            Ok(number) => &mut place[number],
            Err(_) => {
                if place.is_null() {
                    *place = Map::new().into();
                }
                &mut place[step]
            }
        });
    *place = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_set_by_path_and_the_file_is_what_the_worker_reads() {
        let resource = Resource::new("orders")
            .outbox(
                Outbox::new("orders", "shop")
                    .routing_key("order.{type}")
                    .with("ordering.mode", "None"),
            )
            .lease_seconds(6)
            .schema("mail");
        let yaml = resource.yaml().unwrap();
        let read: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read["spec"]["outboxes"][0]["ordering"]["mode"], "None");
        assert_eq!(
            read["spec"]["outboxes"][0]["delivery"]["confirmTimeoutSeconds"],
            5
        );
        assert_eq!(read["spec"]["database"]["schema"], "mail");
        assert_eq!(read["spec"]["workers"]["leaseSeconds"], 6);
    }

    #[test]
    fn the_document_fits_the_contract() {
        let resource = Resource::new("orders")
            .outbox(Outbox::new("orders", "shop"))
            .lease_seconds(6);
        let manifest = postroom_crds::manifest::Manifest::from_yaml(&resource.yaml().unwrap());
        assert!(manifest.is_ok(), "{manifest:?}");
    }
}
