//! The scenarios: each test is a sentence about what Postroom does, shown on real servers.
//!
//! One binary for all of them, so that the shared servers are started once.

mod accepting;
mod bad_input;
mod broker_faults;
mod burying;
mod claiming;
mod clocks;
mod connecting;
mod crashes;
mod database;
mod database_faults;
mod demo;
mod docs;
mod fleet;
mod ground;
mod harness;
mod hostile;
mod late_commits;
mod leases;
mod maintenance;
mod migrate_command;
mod migrations;
mod odd_names;
mod order;
mod plain_inserts;
mod publishing;
mod racing;
mod readme_sql;
mod red_controls;
mod refusing;
mod rights;
mod scheduling;
mod serving;
mod settling;
mod source_files;
mod sql;
mod taking_over;
mod tls;
mod traffic;
mod views;
mod wire;
mod workers;
mod workload;
mod workspace;
mod writing;
