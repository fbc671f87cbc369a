//! What the scenarios stand on: real PostgreSQL and RabbitMQ servers of their own, a database and a virtual host per
//! test, the real worker as a child process, faults on demand, and a ledger that decides what should have arrived.
//!
//! Invariants: nothing listens on a default port, and outside loopback only in the network of a test cluster; nothing outlives the test process, however that
//! ends ([`run`]); no server is imitated.

pub mod background;
pub mod run;

pub mod address;
pub mod flavour;
pub mod ports;
pub mod process;

pub mod broker;
pub mod certs;
pub mod database;
pub mod pooler;
pub mod postgres;
pub mod proxy;
pub mod raw;
pub mod received;
pub mod receiver;
pub mod vhost;

pub mod kubectl;
pub mod launch;
pub mod resource;
pub mod worker;

pub mod eventually;
pub mod http;
pub mod intake;
pub mod ledger;
pub mod sender;
pub mod setup;
pub mod verdict;
