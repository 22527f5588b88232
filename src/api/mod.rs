//! The kinds that users write, and every name that we write on their objects. No I/O, no clock.

pub mod archive;
pub mod backend;
pub mod conditions;
mod explain;
pub mod names;
pub mod orphans;
pub mod parameters;
mod recovery_request;
mod schema;
mod selector;
pub mod usage;
mod verdict;

pub use archive::{NfsArchive, NfsArchiveSpec, NfsArchiveStatus};
pub use backend::{NfsBackend, NfsBackendSpec, NfsBackendStatus};
pub use conditions::{ArchiveCondition, BackendCondition, Reason};
pub use orphans::{Orphan, OrphanKind, OrphansStatus};
pub use parameters::{ClassParameters, ParameterError};
pub use recovery_request::RecoveryRequest;
pub use usage::UsageStatus;

use kube::CustomResourceExt;

/// The CustomResourceDefinitions of this operator, in the order in which to install them.
pub fn custom_resource_definitions()
-> Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> {
    [NfsBackend::crd(), NfsArchive::crd()].map(explain::explained).into()
}
