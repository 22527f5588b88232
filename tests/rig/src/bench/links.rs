//! Proxies between the operator and both servers that add a round trip, as a network would.

use std::{net::SocketAddr, time::Duration};

use crate::{
    cluster::Cluster,
    error::{Result, ResultExt as _},
    nfs_server::NfsServer,
    proxy::Proxy,
};

/// The proxies. Users and the binder reach the servers directly.
#[derive(Debug)]
pub struct Links {
    nfs: Proxy,
    api: Proxy,
}

impl Links {
    /// Starts the proxies without a delay.
    pub async fn start(cluster: &Cluster, nfs: &NfsServer) -> Result<Self> {
        let url = cluster.url();
        let address = url.trim_start_matches("https://");
        let address: SocketAddr = address.parse().with_context(|| format!("parse the URL {url}"))?;
        Ok(Self {
            nfs: Proxy::start(nfs.address()).await?,
            api: Proxy::start_for_bytes(address).await?,
        })
    }

    /// Returns the port of the proxy of the NFS server.
    pub fn nfs_port(&self) -> u16 {
        self.nfs.port()
    }

    /// Returns the URL of the proxy of the API server.
    pub fn api_url(&self) -> String {
        format!("https://{}", self.api.address())
    }

    /// Sets the additional round trip, half of it in each direction.
    pub fn set_round_trip(&self, round_trip: Duration) {
        for proxy in [&self.nfs, &self.api] {
            proxy.delay(round_trip / 2, round_trip / 2);
        }
    }
}
