//! What a record says of the volume itself: enough to make the object again on the day when it is lost.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest note in bytes. Beside it the rest of a record has as much again, and needs less. Only a node affinity
/// of hundreds of terms is longer.
const LONGEST_NOTE: usize = 8 * 1024;

/// What a volume was when it was saved or changed last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMetadata {
    /// The uid of the kube-system namespace of the cluster that the volume's claim is in. A cluster that was rebuilt has
    /// another one, and goes on in the same folder.
    pub cluster: String,
    /// The provisioner name that it was made under.
    pub provisioner: String,
    /// Its size, as a quantity.
    pub size: String,
    /// Its StorageClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Its access modes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Its mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// Its reclaim policy.
    pub reclaim_policy: String,
    /// The policy that a class or a claim asked for, as its annotation says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<String>,
    /// Its node affinity, as the API has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<Value>,
    /// Its claim is gone, and the volume was kept: nobody's, until somebody decides.
    #[serde(default, skip_serializing_if = "is_false")]
    pub released: bool,
}

impl VolumeMetadata {
    /// The note, unless it is too long to be kept in a record.
    pub fn if_it_fits(self) -> Option<Self> {
        let length = serde_json::to_vec(&self).map_or(usize::MAX, |bytes| bytes.len());
        (length <= LONGEST_NOTE).then_some(self)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
