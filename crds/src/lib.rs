//! The contracts of Postroom: what a person writes, what a worker is given, and the rules between them.
//!
//! Reading order:
//! 1. [`inbox_outbox`]: the spec of an `InboxOutbox`, field by field, with its defaults;
//! 2. [`limits`]: every bound, once, for the schema in the cluster and for the rules here;
//! 3. [`problem`]: how something wrong is said;
//! 4. [`document`]: text to typed values, with every misfit named by its path;
//! 5. [`manifest`]: one `InboxOutbox` document, read without a cluster;
//! 6. [`routing_key`], [`retention`]: the two small languages inside a spec;
//! 7. [`validate`]: the rules;
//! 8. [`worker_config`], [`resolve`]: the document a worker runs from, and how a resource becomes one;
//! 9. [`names`], [`conditions`]: what an operator calls things;
//! 10. `status`, `definition` (feature `kube` only): what an operator says, the `CustomResourceDefinition`.
//!
//! Invariants: no input or output and no clock here; a secret's value is never held, only where to
//! find it; without the feature `kube` nothing of Kubernetes is compiled.

pub mod inbox_outbox;
pub mod limits;
pub mod problem;

pub mod document;
pub mod manifest;

pub mod retention;
pub mod routing_key;
pub mod validate;

pub mod resolve;
pub mod worker_config;

pub mod conditions;
pub mod names;

#[cfg(feature = "kube")]
pub mod definition;
#[cfg(feature = "kube")]
pub mod status;

/// Version of the schema that the workers of this release need: the number of the last file in `migrations`.
pub const SCHEMA_VERSION: u32 = 9;
