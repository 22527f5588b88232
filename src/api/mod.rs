//! The API: custom resources, conditions, reasons, annotations and StorageClass parameters. No I/O, no clock.

pub mod archive;
pub mod backend;
pub mod conditions;
mod explain;
pub mod names;
pub mod orphans;
pub mod parameters;
mod planned_condition;
mod recovery_request;
mod schema;
mod selector;
pub mod usage;

pub use archive::{NfsArchive, NfsArchiveSpec, NfsArchiveStatus};
pub use backend::{NfsBackend, NfsBackendSpec, NfsBackendStatus};
pub use conditions::{ArchiveCondition, BackendCondition, Reason};
pub use orphans::{Orphan, OrphanKind, OrphansStatus};
pub use parameters::{ClassParameters, ParameterError};
pub use recovery_request::RecoveryRequest;
pub use usage::UsageStatus;

use kube::CustomResourceExt;

/// Returns the CustomResourceDefinitions of this operator, in the order in which to install them.
pub fn custom_resource_definitions()
-> Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> {
    [NfsBackend::crd(), NfsArchive::crd()]
        .map(explain::with_readable_descriptions)
        .into()
}
