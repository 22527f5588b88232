//! Other installations in the cluster: Leases of our name in other namespaces.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::runtime::election::LeaseError;
use crate::runtime::lease::{HolderIdentity, LeaseStatus, Observer};
use crate::runtime::write_fence::since_boot;

/// What was seen of them.
pub struct OtherInstallations {
    everywhere: Api<Lease>,
    namespace: String,
    name: String,
    /// By namespace.
    observers: HashMap<String, Observer>,
    /// All of them were looked at before.
    looked: bool,
}

/// Who holds a Lease in another namespace.
pub struct OtherInstallation {
    /// Namespace and name.
    pub lease: String,
    /// Who.
    pub holder: String,
    /// Whether it was seen to be alive.
    pub alive: bool,
}

impl OtherInstallation {
    /// There can be only one installation.
    pub fn refusal(self) -> LeaseError {
        LeaseError::Rival {
            lease: self.lease,
            holder: self.holder,
        }
    }
}

impl OtherInstallations {
    /// Nothing was seen yet.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            everywhere: Api::all(client),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            observers: HashMap::new(),
            looked: false,
        }
    }

    /// One that may be alive, if there is any.
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
            // One that was not there at the last look was just taken.
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
