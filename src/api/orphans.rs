//! Orphans in the status of a backend: directories without a volume, and volumes or records without a directory.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of an orphan: which of directory, volume and record exist, and which are missing.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
pub enum OrphanKind {
    /// Directory that was created for a volume that does not exist.
    DirectoryWithoutVolume,
    /// Record of a shared directory for a volume that does not exist. Other volumes may have the directory.
    SharedDirectoryWithoutVolume,
    /// Volume whose directory does not exist.
    VolumeWithoutDirectory,
    /// Volume whose path leads to a different directory.
    VolumeWithOtherDirectory,
    /// Volume on another export than its backend has now.
    VolumeOnOtherExport,
    /// Volume whose address is neither the address of its backend nor a former one.
    VolumeAtOtherAddress,
    /// Volume whose directory exists, but not the record that is required to reclaim it.
    VolumeWithoutRecord,
    /// Record whose directory and volume do not exist.
    RecordWithoutDirectory,
    /// Record of a volume that does not exist, whose path leads to a different directory.
    RecordWithOtherDirectory,
    /// Record of an archive whose directory does not exist.
    ArchiveWithoutDirectory,
    /// Record of an archive whose path leads to a different directory.
    ArchiveWithOtherDirectory,
    /// File in the directory of records that is not a valid record.
    RecordUnreadable,
    /// Record of a backend that does not exist, without a volume.
    RecordWithoutBackend,
}

impl OrphanKind {
    /// All kinds, for metrics that start at 0 and for tests of the documentation.
    pub const ALL: [Self; 13] = [
        Self::DirectoryWithoutVolume,
        Self::SharedDirectoryWithoutVolume,
        Self::VolumeWithoutDirectory,
        Self::VolumeWithOtherDirectory,
        Self::VolumeOnOtherExport,
        Self::VolumeAtOtherAddress,
        Self::VolumeWithoutRecord,
        Self::RecordWithoutDirectory,
        Self::RecordWithOtherDirectory,
        Self::ArchiveWithoutDirectory,
        Self::ArchiveWithOtherDirectory,
        Self::RecordUnreadable,
        Self::RecordWithoutBackend,
    ];

    /// Returns the name that status and metrics use.
    pub fn name(self) -> &'static str {
        match self {
            Self::DirectoryWithoutVolume => "DirectoryWithoutVolume",
            Self::SharedDirectoryWithoutVolume => "SharedDirectoryWithoutVolume",
            Self::VolumeWithoutDirectory => "VolumeWithoutDirectory",
            Self::VolumeWithOtherDirectory => "VolumeWithOtherDirectory",
            Self::VolumeOnOtherExport => "VolumeOnOtherExport",
            Self::VolumeAtOtherAddress => "VolumeAtOtherAddress",
            Self::VolumeWithoutRecord => "VolumeWithoutRecord",
            Self::RecordWithoutDirectory => "RecordWithoutDirectory",
            Self::RecordWithOtherDirectory => "RecordWithOtherDirectory",
            Self::ArchiveWithoutDirectory => "ArchiveWithoutDirectory",
            Self::ArchiveWithOtherDirectory => "ArchiveWithOtherDirectory",
            Self::RecordUnreadable => "RecordUnreadable",
            Self::RecordWithoutBackend => "RecordWithoutBackend",
        }
    }

    /// Returns what an administrator should do about an orphan of this kind.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::DirectoryWithoutVolume => {
                "inspect its contents; to use it, recreate the volume by annotating the backend with \
                 nfs-operator.io/readopt=<volume>@$(date +%s); if its data is not needed any more, remove the directory and then its record"
            }
            Self::SharedDirectoryWithoutVolume => {
                "leave the directory, which other volumes may use; to get the volume back, annotate the backend with \
                 nfs-operator.io/readopt=<volume>@$(date +%s); otherwise, remove its record"
            }
            Self::VolumeWithoutDirectory => "move the directory back to its path, or restore it from a backup",
            Self::VolumeWithOtherDirectory => {
                "if the export was restored or moved file by file, accept the directory by annotating the backend with \
                 nfs-operator.io/accept-directories=<volume>@$(date +%s); otherwise, move the directory of the volume back to its path, \
                 and if the claim is deleted before that, set the policy of the volume to Retain"
            }
            Self::VolumeOnOtherExport => {
                "restore the export that the volume is on; until then, the volume cannot be reclaimed, copied or backed up; if \
                 its data is lost for good, set the policy of the volume to Retain and delete its claim"
            }
            Self::VolumeAtOtherAddress => {
                "if the export had the address of the volume before, add it to spec.formerAddresses of the backend; until then, \
                 the volume cannot be reclaimed, copied or backed up"
            }
            Self::VolumeWithoutRecord => {
                "restore the record from a backup; if the claim is deleted before that, set the policy of the volume to \
                 Retain"
            }
            Self::RecordWithoutDirectory => {
                "if the directory was moved, move it back to its path; if its data is not needed any more, remove the record"
            }
            Self::RecordWithOtherDirectory => {
                "if the export was restored or moved file by file, accept the directory by annotating the backend with \
                 nfs-operator.io/accept-directories=<volume>@$(date +%s); otherwise, move the directory of the record back to \
                 its path; if its data is not needed any more, remove the record"
            }
            Self::ArchiveWithoutDirectory => "restore the directory of the archive, or remove its record",
            Self::ArchiveWithOtherDirectory => {
                "if the export was restored or moved file by file, accept the directory by annotating the backend with \
                 nfs-operator.io/accept-directories=<archive>@$(date +%s); otherwise, move the directory of the archive back \
                 to its path; if its data is lost for good, remove the record"
            }
            Self::RecordUnreadable => {
                "restore the record from a backup, or inspect its directory and remove the record"
            }
            Self::RecordWithoutBackend => {
                "recreate the backend that the record names, or, if it is the record of a volume or an archive, annotate \
                 this one with nfs-operator.io/adopt-record: <volume> to take it over"
            }
        }
    }
}

impl fmt::Display for OrphanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Orphans that the last scan of the export found. The operator never removes them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphansStatus {
    /// Number of orphans of all kinds.
    #[serde(default)]
    pub total: i64,
    /// Number of volumes and records that could not be checked.
    #[serde(default)]
    pub skipped: i64,
    /// Orphans by kind. Kinds without orphans are omitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind"]))]
    pub kinds: Vec<OrphansOfKind>,
    /// Time when the last scan ended; written with the next change of the status, at most once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scan_time: Option<Time>,
}

/// Orphans of one kind.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphansOfKind {
    /// Kind of the orphans.
    pub kind: OrphanKind,
    /// Number of orphans of this kind.
    pub count: i64,
    /// First few orphans, ordered by the name of the volume. The log of the operator lists more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub examples: Vec<Orphan>,
}

/// An orphan.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// Name of the volume, and of the record in `.nfs-operator/<cluster id>/records/`.
    pub volume: String,
    /// Directory of the volume or archive, relative to the path of the backend. Unset if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
}

/// Maximum number of examples per kind: the object is written often, so it must stay small.
const MAX_EXAMPLES: usize = 3;

impl OrphansStatus {
    /// Adds an orphan.
    pub fn add(&mut self, kind: OrphanKind, orphan: Orphan) {
        self.total += 1;
        let at = self.kinds.partition_point(|of| of.kind < kind);
        if self.kinds.get(at).is_none_or(|of| of.kind != kind) {
            let none = OrphansOfKind {
                kind,
                count: 0,
                examples: Vec::new(),
            };
            self.kinds.insert(at, none);
        }
        if let Some(of) = self.kinds.get_mut(at) {
            of.count += 1;
            if of.examples.len() < MAX_EXAMPLES {
                of.examples.push(orphan);
            }
        }
    }

    /// Returns the number of orphans of a kind.
    pub fn count(&self, kind: OrphanKind) -> i64 {
        let found = self.kinds.iter().find(|of| of.kind == kind);
        found.map_or(0, |of| of.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_few_of_each_kind_are_named() {
        let mut found = OrphansStatus::default();
        for number in 0..10 {
            let orphan = |directory: Option<&str>| Orphan {
                volume: format!("pvc-{number}"),
                directory: directory.map(str::to_owned),
            };
            found.add(OrphanKind::RecordUnreadable, orphan(None));
            found.add(OrphanKind::DirectoryWithoutVolume, orphan(Some("d")));
        }
        assert_eq!(found.total, 20);
        let kinds: Vec<_> = found.kinds.iter().map(|of| (of.kind, of.count)).collect();
        let sorted = [
            (OrphanKind::DirectoryWithoutVolume, 10),
            (OrphanKind::RecordUnreadable, 10),
        ];
        assert_eq!(kinds, sorted);
        assert_eq!(found.count(OrphanKind::RecordUnreadable), 10);
        assert_eq!(found.count(OrphanKind::ArchiveWithoutDirectory), 0);
        for of in &found.kinds {
            let names: Vec<_> = of.examples.iter().map(|orphan| orphan.volume.as_str()).collect();
            assert_eq!(names, ["pvc-0", "pvc-1", "pvc-2"]);
        }
    }
}
