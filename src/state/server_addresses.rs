//! Comparison of servers by their addresses: a server has many spellings (data-safety rule 16).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use export_store::ServerComparison;
use futures::future::BoxFuture;
use nfs_client::{Tcp, Transport};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long addresses and failures are reused. One reclaim compares the same servers several times.
const CACHED: Duration = Duration::from_secs(10);
/// Maximum duration of resolving one name.
const DEADLINE: Duration = Duration::from_secs(5);

/// The addresses of a server, or why its name does not resolve.
type Resolved = Result<Vec<IpAddr>, String>;

/// Resolves the names of servers, without the cluster's search list, as for a connection.
pub struct ServerAddresses {
    transport: Arc<dyn Transport>,
    cache: Mutex<HashMap<String, (Instant, Resolved)>>,
}

impl ServerAddresses {
    /// Resolves names as this transport does when it connects.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self {
            transport,
            cache: Mutex::default(),
        }
    }

    async fn resolve(&self, server: &str) -> Resolved {
        let now = Instant::now();
        if let Some(cached) = self.cached(server, now) {
            return cached;
        }
        let resolved = self.transport.resolve(server, now + DEADLINE).await;
        let resolved = resolved.map_err(|error| error.to_string());
        let mut cache = self.cache.lock();
        cache.retain(|_, (at, _)| at.elapsed() < CACHED);
        cache.insert(server.to_owned(), (now, resolved.clone()));
        resolved
    }

    fn cached(&self, server: &str, now: Instant) -> Option<Resolved> {
        let cache = self.cache.lock();
        let (at, resolved) = cache.get(server)?;
        (now.saturating_duration_since(*at) < CACHED).then(|| resolved.clone())
    }
}

impl Default for ServerAddresses {
    fn default() -> Self {
        Self::new(Arc::new(Tcp))
    }
}

impl ServerComparison for ServerAddresses {
    fn why_same<'a>(&'a self, server: &'a str, other: &'a str) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let (own, others) = futures::join!(self.resolve(server), self.resolve(other));
            why_same((server, own), (other, others))
        })
    }
}

/// Returns why two servers may be the same machine. Only servers without a common address are different ones, and a
/// name that does not resolve may stand for any address.
fn why_same((server, own): (&str, Resolved), (other, others): (&str, Resolved)) -> Option<String> {
    match (own, others) {
        (Ok(own), Ok(others)) => {
            let common = own
                .iter()
                .find(|own| others.iter().any(|other| is_same_address(**own, *other)))?;
            Some(format!(
                "{other} is the same server as {server} by its address {common}"
            ))
        }
        (Err(error), _) | (_, Err(error)) => Some(format!(
            "{other} may be the same server as {server}: {error}; make the name resolvable for the operator"
        )),
    }
}

/// Compares two addresses. Each loopback address is this machine, and so is the unspecified one.
fn is_same_address(one: IpAddr, other: IpAddr) -> bool {
    let (one, other) = (one.to_canonical(), other.to_canonical());
    let is_local = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    one == other || (is_local(one) && is_local(other))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_servers_that_both_resolve_to_other_addresses_are_different_machines() {
        let resolved =
            |addresses: &[&str]| -> Resolved { Ok(addresses.iter().map(|address| address.parse().unwrap()).collect()) };
        let failed = || -> Resolved { Err("no such name".to_owned()) };
        for (own, other, same) in [
            (resolved(&["10.0.0.1"]), resolved(&["10.0.0.2"]), false),
            (
                resolved(&["10.0.0.1", "fd00::1"]),
                resolved(&["10.0.0.2", "fd00::1"]),
                true,
            ),
            (resolved(&["10.0.0.1"]), resolved(&["::ffff:10.0.0.1"]), true),
            (resolved(&["127.0.0.1"]), resolved(&["::1"]), true),
            (resolved(&["127.0.0.1"]), resolved(&["127.0.0.2"]), true),
            (resolved(&["10.0.0.1"]), failed(), true),
            (failed(), resolved(&["10.0.0.1"]), true),
            (failed(), failed(), true),
        ] {
            let why = why_same(("nas", own.clone()), ("other", other.clone()));
            assert_eq!(why.is_some(), same, "{own:?} {other:?}: {why:?}");
        }
    }

    #[tokio::test]
    async fn a_server_is_recognized_by_its_address_whatever_its_name_is() {
        let servers = ServerAddresses::default();
        let why = servers.why_same("127.0.0.1", "LOCALHOST.").await.unwrap();
        assert!(why.contains("is the same server as 127.0.0.1"), "{why}");
        assert_eq!(servers.why_same("192.0.2.1", "192.0.2.2").await, None);
        let why = servers.why_same("192.0.2.1", "not a name").await.unwrap();
        assert!(why.contains("may be the same server"), "{why}");
    }
}
