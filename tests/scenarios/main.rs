//! The scenarios: each test is a sentence about what Postroom does, shown on real servers.
//!
//! One binary for all of them, so that the shared servers are started once.

mod harness;
mod source_files;
mod workspace;
