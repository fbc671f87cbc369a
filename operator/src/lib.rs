//! The control plane of Postroom.
//!
//! So far it does what needs no cluster: it prints the resource definitions and judges a manifest
//! by the rules a cluster and a worker apply.
//!
//! Reading order: [`cli`] says which commands there are and runs them, [`definitions`] renders the
//! definitions as plain YAML or as a template of the chart, [`validation`] judges a file.
//!
//! Invariant: it opens no connection to a database or a broker, and reads no Secret.

pub mod cli;
pub mod definitions;
pub mod validation;
