//! Ports for servers that must be able to come back on the same one.
//!
//! Invariant: ports come from below the range that the system gives to outgoing connections, else a connection of
//! another test could take the port of a server while that is down.

use std::net::TcpListener;
use std::sync::Mutex;

use anyhow::{Result, bail};

use crate::address;

const FIRST: u16 = 12_000;
const LAST: u16 = 31_999;

static GIVEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// A port that nobody listens on, where the servers of this run do, and that this process has not given out before.
///
/// # Errors
/// When none is found in a thousand tries.
pub fn free() -> Result<u16> {
    let mut given = GIVEN.lock().expect("no panic while a port is chosen");
    for _ in 0..1_000 {
        let random = uuid::Uuid::new_v4().as_u128() % u128::from(LAST - FIRST);
        let port = FIRST + u16::try_from(random)?;
        if !given.contains(&port) && TcpListener::bind((address::servers(), port)).is_ok() {
            given.push(port);
            return Ok(port);
        }
    }
    bail!(
        "no free port between {FIRST} and {LAST} on {}: look what listens there with 'ss -ltn'",
        address::servers()
    )
}
