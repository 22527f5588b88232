//! Detects other installations in the cluster: Leases with the same name in other namespaces.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::runtime::election::LeaseError;
use crate::runtime::lease::{HolderIdentity, LeaseStatus, Observer};
use crate::runtime::write_fence::since_boot;

/// Observations of the Leases of other installations.
pub struct OtherInstallations {
    everywhere: Api<Lease>,
    namespace: String,
    name: String,
    /// Observers by namespace.
    observers: HashMap<String, Observer>,
    /// All Leases were read at least once.
    looked: bool,
}

/// The holder of a Lease in another namespace.
pub struct OtherInstallation {
    /// Namespace and name of the Lease.
    pub lease: String,
    /// Identity of the holder.
    pub holder: String,
    /// The holder was seen to be alive.
    pub alive: bool,
}

impl OtherInstallation {
    /// Returns the error that refuses to run beside this installation.
    pub fn refusal(self) -> LeaseError {
        LeaseError::Rival {
            lease: self.lease,
            holder: self.holder,
        }
    }
}

impl OtherInstallations {
    /// Creates an instance without observations.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            everywhere: Api::all(client),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            observers: HashMap::new(),
            looked: false,
        }
    }

    /// Returns an installation that may be running, if there is one. Prefers one that was seen to be alive.
    pub async fn find(
        &mut self,
        me: &HolderIdentity,
        duration: Duration,
    ) -> Result<Option<OtherInstallation>, kube::Error> {
        let mine = ListParams::default().fields(&format!("metadata.name={}", self.name));
        let leases = self.everywhere.list(&mine).await?;
        let now = since_boot();
        let mut found = None;
        for lease in leases {
            let namespace = lease.namespace().unwrap_or_default();
            if namespace == self.namespace {
                continue;
            }
            // A Lease that did not exist at the last read was just taken.
            let new = self.looked && !self.observers.contains_key(&namespace);
            let observer = self.observers.entry(namespace.clone()).or_default();
            if let LeaseStatus::Held { holder, alive, .. } = observer.observe(lease.spec.as_ref(), me, duration, now) {
                let alive = alive || new;
                let lease = format!("{namespace}/{}", self.name);
                if alive || found.is_none() {
                    found = Some(OtherInstallation { lease, holder, alive });
                }
            }
        }
        self.looked = true;
        Ok(found)
    }
}
