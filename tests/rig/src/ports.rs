//! Free TCP ports on the loopback interface.

use std::{
    collections::HashSet,
    net::{Ipv4Addr, TcpListener},
    sync::LazyLock,
};

use parking_lot::Mutex;
use rand::RngExt;

use crate::error::{Error, Result};

/// Below the range from which the kernel takes ports for outgoing connections (32768 and up): an outgoing connection
/// could take a port from that range while its server restarts.
const RANGE: std::ops::Range<u16> = 10_000..32_000;
/// Maximum number of ports to try. If that many ports in a row are in use, the machine has another problem.
const MAX_ATTEMPTS: u32 = 1_000;

/// Ports that this process has returned. Nobody listens on them until their server has started.
static RETURNED: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// Returns a port that nobody listens on and that this process has not returned before.
pub fn free() -> Result<u16> {
    let mut returned = RETURNED.lock();
    for _ in 0..MAX_ATTEMPTS {
        let port = rand::rng().random_range(RANGE);
        if !returned.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            returned.insert(port);
            return Ok(port);
        }
    }
    Err(Error::Usage(format!("no free port in {RANGE:?} on 127.0.0.1")))
}
