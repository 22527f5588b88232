//! A Lease object in the API: read, taken, renewed and released under one identity.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::runtime::api_error::api_error_text;
use crate::runtime::clock::Clock;
use crate::runtime::election::LeaseError;
use crate::runtime::lease::{self, HolderIdentity, LeaseTimings};
use crate::runtime::writes::http_status;

/// Maximum time to release a Lease. An unreleased Lease expires.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A Lease object, and the identity under which this process takes it.
#[derive(Clone)]
pub struct LeaseObject {
    leases: Api<Lease>,
    /// Name of the object.
    pub name: String,
    /// Namespace and name, for messages.
    pub qualified_name: String,
    /// Identity of this process as the holder.
    pub holder: HolderIdentity,
    timings: LeaseTimings,
    clock: Clock,
    /// The operator creates the object if it does not exist.
    created: bool,
}

impl LeaseObject {
    /// Names a Lease that the operator creates if it does not exist.
    pub fn new(
        client: Client,
        (namespace, name): (&str, &str),
        holder: HolderIdentity,
        timings: LeaseTimings,
        clock: Clock,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            qualified_name: format!("{namespace}/{name}"),
            holder,
            timings,
            clock,
            created: true,
        }
    }

    /// The same for a Lease that is installed together with the permissions of the operator, which cannot create it.
    pub fn installed(self) -> Self {
        Self { created: false, ..self }
    }

    /// Reads the Lease.
    pub async fn read(&self) -> Result<Option<Lease>, kube::Error> {
        self.leases.get_opt(&self.name).await
    }

    /// Writes the holder's identity into the Lease as it was read. Returns `None` if another process was faster.
    pub async fn take(&self, found: Option<Lease>) -> Result<Option<HeldLease>, kube::Error> {
        let mut lease = found.unwrap_or_else(|| self.empty());
        lease.spec = Some(lease::acquire_spec(
            lease.spec.as_ref(),
            &self.holder,
            &self.timings,
            self.clock.now(),
        ));
        match self.write(&lease).await {
            Ok(written) => Ok(Some(HeldLease {
                object: self.clone(),
                written,
            })),
            Err(error) if http_status(&error) == Some(409) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn empty(&self) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some(self.name.clone());
        lease
    }

    /// Writes the Lease, with the resourceVersion that was read: the API server refuses if anybody wrote since.
    async fn write(&self, lease: &Lease) -> Result<Lease, kube::Error> {
        let params = PostParams::default();
        if lease.metadata.resource_version.is_some() {
            self.leases.replace(&self.name, &params, lease).await
        } else {
            self.leases.create(&params, lease).await
        }
    }
}

/// A Lease that this process holds.
pub struct HeldLease {
    object: LeaseObject,
    /// The Lease as last written.
    written: Lease,
}

impl HeldLease {
    /// Returns namespace and name, for messages.
    pub fn qualified_name(&self) -> &str {
        &self.object.qualified_name
    }

    /// Renews the Lease. Returns false if that failed and may be retried.
    ///
    /// # Errors
    /// Another process holds the Lease, or may soon.
    pub async fn renew(&mut self) -> Result<bool, LeaseError> {
        match self.write_renewal().await {
            Ok(()) => return Ok(true),
            Err(error) if matches!(http_status(&error), Some(404 | 409)) => {}
            Err(error) => return Ok(self.report("renew", &error)),
        }
        // Somebody wrote or deleted it.
        match self.object.read().await {
            Ok(Some(found)) => self.written = self.unless_lost(found)?,
            Ok(None) if self.object.created => {
                self.written = Lease {
                    spec: self.written.spec.take(),
                    ..self.object.empty()
                };
            }
            Ok(None) => {
                tracing::warn!("{}", missing(self.qualified_name()));
                return Ok(false);
            }
            Err(error) => return Ok(self.report("read", &error)),
        }
        match self.write_renewal().await {
            Ok(()) => Ok(true),
            Err(error) => Ok(self.report("renew", &error)),
        }
    }

    async fn write_renewal(&mut self) -> Result<(), kube::Error> {
        let LeaseObject {
            holder, timings, clock, ..
        } = &self.object;
        let spec = lease::renew_spec(self.written.spec.as_ref(), holder, timings, clock.now());
        let lease = Lease {
            spec: Some(spec),
            ..self.written.clone()
        };
        self.written = self.object.write(&lease).await?;
        Ok(())
    }

    /// Returns the Lease if it still names this process.
    fn unless_lost(&self, found: Lease) -> Result<Lease, LeaseError> {
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        let cause = match holder {
            Some(holder) if holder == self.object.holder.name => return Ok(found),
            None | Some("") => "its holder was removed".to_owned(),
            Some(holder) => format!("{holder} holds it now"),
        };
        Err(LeaseError::Lost {
            lease: self.object.qualified_name.clone(),
            cause,
        })
    }

    fn report(&self, action: &str, error: &kube::Error) -> bool {
        tracing::warn!(
            lease = self.qualified_name(),
            "cannot {action} the Lease: {}",
            api_error_text(error)
        );
        false
    }

    /// Releases the Lease, so that another process can take it at once.
    pub async fn release(&self) {
        let former = self.written.spec.clone().unwrap_or_default();
        let released = Lease {
            spec: Some(lease::release_spec(&former, self.object.clock.now())),
            ..self.written.clone()
        };
        let lease = self.qualified_name();
        match timeout(RELEASE_TIMEOUT, self.object.write(&released)).await {
            Ok(Ok(_)) => tracing::info!(lease, "released the Lease"),
            Ok(Err(error)) => tracing::warn!(
                lease,
                "cannot release the Lease; it expires on its own: {}",
                api_error_text(&error)
            ),
            Err(_) => tracing::warn!(lease, "cannot release the Lease; it expires on its own: no answer"),
        }
    }
}

/// Returns the message about an installed Lease that does not exist.
pub fn missing(lease: &str) -> String {
    format!(
        "the Lease {lease} does not exist: upgrade the Helm release or apply config/rbac, which contain it, or correct \
         --cluster-lock-namespace"
    )
}
