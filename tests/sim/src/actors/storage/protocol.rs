//! The versions of NFS that a server offers and that its backends request.

use std::fmt;

use serde_json::json;

use super::{BY, backends};
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::nfs_server::ServerOptions;
use crate::objects::name;

/// The versions of NFS that a server offers and that its backends request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolChoice {
    /// `spec.nfs.version` of the backends.
    requested: &'static str,
    /// The newest minor version of NFSv4 that the server offers; `None`: only NFSv3.
    newest: Option<u32>,
}

impl ProtocolChoice {
    /// Every choice; those with sessions more than once.
    const ALL: [Self; 10] = [
        Self::new("Auto", Some(2)),
        Self::new("Auto", Some(2)),
        Self::new("4.2", Some(2)),
        Self::new("Auto", Some(1)),
        Self::new("4.1", Some(2)),
        Self::new("4.1", Some(1)),
        Self::new("Auto", Some(0)),
        Self::new("4.0", Some(2)),
        Self::new("Auto", None),
        Self::new("3", Some(2)),
    ];

    const fn new(requested: &'static str, newest: Option<u32>) -> Self {
        Self { requested, newest }
    }

    /// Returns the choice of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let chance = Chance::new(seed, "protocol");
        chance.choose(&Self::ALL).copied().unwrap_or(Self::new("Auto", Some(2)))
    }

    /// Returns the properties of the server.
    pub fn server_options(self) -> ServerOptions {
        ServerOptions {
            minor_versions: self.newest.map_or(0..0, |newest| 0..newest + 1).collect(),
            ..ServerOptions::default()
        }
    }

    /// Lets the backends of the export request their version.
    ///
    /// # Errors
    /// The API server refuses it: the simulation is wrong.
    pub fn request(self, api: &ApiServer) -> Result<(), String> {
        for backend in backends(api) {
            let path = format!("/apis/nfs-operator.io/v1alpha1/nfsbackends/{}", name(&backend));
            let patch = json!({"spec": {"nfs": {"version": self.requested}}});
            let patched = api.call(BY, "PATCH", &path, &patch);
            patched.map_err(|refusal| format!("{path}: {}", refusal.status))?;
        }
        Ok(())
    }

    /// Returns true if the server executes each call once, and refuses those of a former leader.
    pub fn has_sessions(self) -> bool {
        match self.requested {
            "Auto" => self.newest.is_some_and(|newest| newest > 0),
            requested => matches!(requested, "4.1" | "4.2"),
        }
    }
}

impl fmt::Display for ProtocolChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.newest {
            Some(newest) => write!(f, "offers NFS 4.{newest} to 4.0 and 3")?,
            None => write!(f, "offers NFS 3")?,
        }
        write!(f, "; the backends request {}", self.requested)
    }
}
