//! Where the servers of a run listen: loopback, or, for a cluster, where its pods reach them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

/// Names the address; without it the servers listen on loopback.
pub const VARIABLE: &str = "POSTROOM_TEST_ADDRESS";

static SERVERS: LazyLock<IpAddr> = LazyLock::new(|| match std::env::var(VARIABLE) {
    Ok(text) => text
        .parse()
        .unwrap_or_else(|_| panic!("{VARIABLE} is '{text}', which is no IP address")),
    Err(_) => Ipv4Addr::LOCALHOST.into(),
});

/// The address of PostgreSQL and RabbitMQ servers.
///
/// # Panics
/// When the variable holds something else than an IP address.
pub fn servers() -> IpAddr {
    *SERVERS
}
