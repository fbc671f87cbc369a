//! What Postroom does in a real cluster. Each test is a sentence.
//!
//! `make cluster` runs these: it starts a cluster, puts the image into it, and runs this program inside. Tests share
//! the cluster and the operator; each has a namespace, a database and a virtual host of its own. Those that disturb
//! what is shared run alone ([`shared`]).

mod ground;
mod load;
mod shared;

mod chart;
mod children;
mod control_plane;
mod deletion;
mod disturbances;
mod faults;
mod refusals;
mod rest;
mod starting;
