//! What a backend's status says of orphans: directories and volumes that have lost each other.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// In which way a directory, a volume or a record is alone.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
pub enum OrphanKind {
    /// A directory that was made for a volume, and no volume has it.
    DirectoryWithoutVolume,
    /// A volume whose directory is not there.
    VolumeWithoutDirectory,
    /// A volume at whose path lies something else than its directory.
    VolumeWithOtherDirectory,
    /// A volume with its directory, but without the record that its reclaim needs.
    VolumeWithoutRecord,
    /// A record of a directory that is not there, for a volume that is not there either.
    RecordWithoutDirectory,
    /// A record of an archive that is not there.
    ArchiveWithoutDirectory,
    /// A file among the records that cannot be read as one.
    RecordUnreadable,
}

impl OrphanKind {
    /// Every kind, for metrics that begin at 0 and the documentation's completeness.
    pub const ALL: [Self; 7] = [
        Self::DirectoryWithoutVolume,
        Self::VolumeWithoutDirectory,
        Self::VolumeWithOtherDirectory,
        Self::VolumeWithoutRecord,
        Self::RecordWithoutDirectory,
        Self::ArchiveWithoutDirectory,
        Self::RecordUnreadable,
    ];

    /// The kind as status and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::DirectoryWithoutVolume => "DirectoryWithoutVolume",
            Self::VolumeWithoutDirectory => "VolumeWithoutDirectory",
            Self::VolumeWithOtherDirectory => "VolumeWithOtherDirectory",
            Self::VolumeWithoutRecord => "VolumeWithoutRecord",
            Self::RecordWithoutDirectory => "RecordWithoutDirectory",
            Self::ArchiveWithoutDirectory => "ArchiveWithoutDirectory",
            Self::RecordUnreadable => "RecordUnreadable",
        }
    }

    /// What an administrator does about one.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::DirectoryWithoutVolume => {
                "look what it holds; create the volume again to use it, or remove the directory and then its record"
            }
            Self::VolumeWithoutDirectory => {
                "bring the directory back from a backup, or delete the claim and its volume"
            }
            Self::VolumeWithOtherDirectory => {
                "put the volume's own directory back at its path, or set its policy to Retain before the claim goes"
            }
            Self::VolumeWithoutRecord => {
                "bring the record back from a backup, or set the volume's policy to Retain before the claim goes"
            }
            Self::RecordWithoutDirectory => "nothing is lost with the record: remove it",
            Self::ArchiveWithoutDirectory => "bring the archive back, or remove its record",
            Self::RecordUnreadable => "bring the record back from a backup, or look at its directory and remove it",
        }
    }
}

impl fmt::Display for OrphanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the last scan of a backend's export found alone. Nothing of it is ever removed by the operator.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphansStatus {
    /// How many, of all kinds.
    #[serde(default)]
    pub total: i64,
    /// Volumes and records that could not be looked at.
    #[serde(default)]
    pub skipped: i64,
    /// By kind; kinds of which there are none are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind"]))]
    pub kinds: Vec<OrphansOfKind>,
    /// When the last scan came to its end; written with the next change of the status, at most once a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scan: Option<Time>,
}

/// The orphans of one kind.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphansOfKind {
    /// The kind.
    pub kind: OrphanKind,
    /// How many.
    pub count: i64,
    /// The first few, by the names of their volumes; the operator's log names more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<Orphan>,
}

/// Something that is alone.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// The name of the volume that it is about; also that of the record, in `.nfs-operator/<cluster id>/records/`.
    pub volume: String,
    /// The directory or archive, relative to the backend's path; absent where nothing names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
}

/// Examples of a kind in the status: enough to see what happened, few enough for an object that is written often.
const EXAMPLES: usize = 3;

impl OrphansStatus {
    /// Takes in one that was found.
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
            if of.examples.len() < EXAMPLES {
                of.examples.push(orphan);
            }
        }
    }

    /// How many there are of a kind.
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
