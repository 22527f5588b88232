//! The archive that a claim is to be restored from. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::api::names::GROUP;

/// Returns the archive that a claim requests as its data source.
pub fn requested_archive(claim: &PersistentVolumeClaim) -> Option<&str> {
    let source = claim.spec.as_ref()?.data_source_ref.as_ref()?;
    let ours = source.api_group.as_deref() == Some(GROUP) && source.kind == "NfsArchive";
    (ours && source.namespace.as_deref().is_none_or(str::is_empty)).then_some(source.name.as_str())
}
