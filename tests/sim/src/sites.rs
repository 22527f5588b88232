//! The exports of a run: where they are, and the disks behind them.

use serde_json::Value;

use crate::nfs_server::NfsServer;
use crate::objects::text;

/// An export.
#[derive(Debug, Clone)]
pub struct Site {
    /// Name of the server in backends and volumes.
    pub address: &'static str,
    /// Another name that it may get.
    pub alias: Option<&'static str>,
    /// Path of the export on the server.
    pub path: &'static str,
    /// The server.
    pub server: NfsServer,
    /// Name of the disk that is exported.
    pub disk: &'static str,
}

impl Site {
    fn is_at(&self, address: &str) -> bool {
        self.address == address || self.alias == Some(address)
    }
}

/// The exports of a run. An export is identified by its index.
#[derive(Debug, Clone)]
pub struct Sites(Vec<Site>);

impl Sites {
    /// Returns these exports.
    pub fn new(sites: Vec<Site>) -> Self {
        Self(sites)
    }

    /// Returns the exports with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Site)> {
        self.0.iter().enumerate()
    }

    /// Returns an export.
    pub fn get(&self, index: usize) -> Option<&Site> {
        self.0.get(index)
    }

    /// Returns the export of a backend.
    pub fn of_backend(&self, backend: &Value) -> Option<usize> {
        let (address, path) = (text(backend, "/spec/server"), text(backend, "/spec/path"));
        self.0.iter().position(|site| site.is_at(address) && site.path == path)
    }

    /// Returns the export of a volume, and the volume's directory relative to it.
    pub fn of_volume<'a>(&self, volume: &'a Value) -> Option<(usize, &'a str)> {
        let (address, path) = (text(volume, "/spec/nfs/server"), text(volume, "/spec/nfs/path"));
        let index = self.0.iter().position(|site| {
            let below = path.strip_prefix(site.path);
            site.is_at(address) && below.is_some_and(|below| below.starts_with('/'))
        })?;
        let directory = path.strip_prefix(self.get(index)?.path)?.trim_start_matches('/');
        Some((index, directory))
    }
}
