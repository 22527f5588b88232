//! Metadata of a volume in a record: enough to recreate a lost object.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum size of the metadata in bytes. The rest of the record has the same amount of space, and needs less. Only a
/// node affinity with hundreds of terms is longer.
const MAX_NOTE_LEN: usize = 8 * 1024;

/// Metadata of a volume, as of its creation or last change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMetadata {
    /// UID of the kube-system namespace of the cluster with the volume's claim. A rebuilt cluster has another one and
    /// continues with the same folder.
    pub cluster: String,
    /// Name of the provisioner that created the volume.
    pub provisioner: String,
    /// Size, as a quantity.
    pub size: String,
    /// StorageClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Access modes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// Reclaim policy.
    pub reclaim_policy: String,
    /// Policy that a class or a claim requested, as in its annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<String>,
    /// Group that pods get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Node affinity, as in the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<Value>,
    /// The claim was deleted and the volume was retained. It stays unclaimed until an administrator acts.
    #[serde(default, skip_serializing_if = "is_false")]
    pub released: bool,
}

impl VolumeMetadata {
    /// Returns the metadata, unless it is too long for a record.
    pub fn within_size_limit(self) -> Option<Self> {
        let length = serde_json::to_vec(&self).map_or(usize::MAX, |bytes| bytes.len());
        (length <= MAX_NOTE_LEN).then_some(self)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
