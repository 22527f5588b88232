//! The archive that a claim is to be restored from. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::api::names::GROUP;

/// Object that a claim names as the archive to restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreSource {
    /// The NfsArchive with this name.
    Archive(String),
    /// The archive of the NfsBackup with this name in the claim's namespace.
    Backup(String),
}

impl RestoreSource {
    /// Returns the source that a claim requests, if it is an archive.
    pub fn of(claim: &PersistentVolumeClaim) -> Option<Self> {
        let source = claim.spec.as_ref()?.data_source_ref.as_ref()?;
        let is_local = source.namespace.as_deref().is_none_or(str::is_empty);
        if source.api_group.as_deref() != Some(GROUP) || !is_local {
            return None;
        }
        match source.kind.as_str() {
            "NfsArchive" => Some(Self::Archive(source.name.clone())),
            "NfsBackup" => Some(Self::Backup(source.name.clone())),
            _ => None,
        }
    }

    /// Returns the name of the object.
    pub fn name(&self) -> &str {
        match self {
            Self::Archive(name) | Self::Backup(name) => name,
        }
    }

    /// Returns the kind of the object.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Archive(_) => "NfsArchive",
            Self::Backup(_) => "NfsBackup",
        }
    }
}
