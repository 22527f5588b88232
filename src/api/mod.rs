//! The API: custom resources, conditions, reasons, annotations and StorageClass parameters. No I/O, no clock.

pub mod archive;
pub mod backend;
pub mod backup;
pub mod conditions;
pub mod consistency;
#[cfg(test)]
mod conventions;
pub mod duration;
mod explain;
pub mod names;
pub mod orphans;
pub mod parameters;
mod planned_condition;
mod quota;
mod recovery_request;
pub mod requests;
pub mod schedule;
mod schema;
pub mod selector;
pub mod usage;

pub use archive::{NfsArchive, NfsArchiveSpec, NfsArchiveStatus};
pub use backend::{NfsBackend, NfsBackendSpec, NfsBackendStatus};
pub use backup::{NfsBackup, NfsBackupSpec, NfsBackupStatus};
pub use conditions::{ArchiveCondition, BackendCondition, Reason};
pub use orphans::{Orphan, OrphanKind, OrphansStatus};
pub use parameters::{ClassParameters, ParameterError};
pub use recovery_request::{AbandonedVolumes, RecoveryRequest};
pub use schedule::{NfsBackupSchedule, NfsBackupScheduleSpec, NfsBackupScheduleStatus};
pub use usage::UsageStatus;

use kube::CustomResourceExt;

/// Returns the CustomResourceDefinitions of this operator, in the order in which to install them.
pub fn custom_resource_definitions()
-> Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> {
    [
        NfsBackend::crd(),
        NfsArchive::crd(),
        NfsBackup::crd(),
        NfsBackupSchedule::crd(),
    ]
    .map(explain::finish)
    .into()
}

/// Returns a definition as it is printed and applied. The Rust type has limits of numbers as floats, which would read as
/// `1.0`.
///
/// # Errors
/// The definition cannot be serialized.
pub fn to_value(
    definition: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
) -> Result<serde_json::Value, serde_json::Error> {
    let mut value = serde_json::to_value(definition)?;
    explain::whole_numbers(&mut value);
    Ok(value)
}
