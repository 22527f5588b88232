//! Free ports on the loopback.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, TcpListener},
    sync::{LazyLock, Mutex, PoisonError},
};

use rand::RngExt;

use crate::error::{Error, Result};

/// Below the range from which the kernel takes ports for outgoing connections (32768 and up):
/// a port from there could be taken by somebody's connection while its server is being restarted.
const RANGE: std::ops::Range<u16> = 10_000..32_000;
/// A machine on which so many in a row are taken has another problem.
const ATTEMPTS: u32 = 1_000;

/// Ports that this process gave out: they are nobody's until their server has started.
static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A port that nobody listens on, and that this process did not give out before.
pub fn free() -> Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..ATTEMPTS {
        let port = rand::rng().random_range(RANGE);
        if !given.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            given.insert(port);
            return Ok(port);
        }
    }
    Err(Error::Usage(format!("no free port found in {RANGE:?} on 127.0.0.1")))
}
