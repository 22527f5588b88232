//! Whether the data of an archive exist now.

use kube::ResourceExt;

use crate::api::NfsArchive;
use crate::decide::archive_object::agrees_with_record;
use export_store::{ArchivePhase, ExportError, ExportStore, SignatureStatus};

/// Reports whether the record and the directory of an archive exist as its object describes them, before older ones are deleted.
///
/// # Errors
/// The export cannot be read.
pub(crate) async fn is_kept(
    archive: &NfsArchive,
    (backend, export): (&str, &ExportStore),
) -> Result<bool, ExportError> {
    let recorded = export.find_archive(&archive.name_any()).await?;
    Ok(recorded.is_some_and(|recorded| {
        recorded.trust == SignatureStatus::Signed
            && recorded.phase == ArchivePhase::Archived
            && recorded.exists
            && agrees_with_record(archive, &recorded, backend)
    }))
}
