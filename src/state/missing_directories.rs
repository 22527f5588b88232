//! Volumes whose claims report that the directory is missing. It is read from the claims, so that it survives a restart.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use parking_lot::Mutex;

/// Names of volumes, each with the UID of a claim that reports its directory as missing. The author of a claim may name any
/// volume in it, and must not have an effect on the entry of another claim.
#[derive(Default)]
pub struct MissingDirectories(Mutex<BTreeSet<(String, String)>>);

impl MissingDirectories {
    /// Records whether a claim `reports` a missing directory.
    pub fn observe(&self, claim: &PersistentVolumeClaim, reports: bool) {
        let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()) else {
            return;
        };
        let entry = (volume, claim.uid().unwrap_or_default());
        if reports {
            self.0.lock().insert(entry);
        } else {
            self.0.lock().remove(&entry);
        }
    }

    /// Returns true if a claim reports the directory of a volume as missing.
    pub fn contains(&self, volume: &str) -> bool {
        let entries = self.0.lock();
        let first = entries.range((volume.to_owned(), String::new())..).next();
        first.is_some_and(|(first, _)| first == volume)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_affects_only_its_own_entry() {
        let claim = |uid: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"volumeName": "pvc-1"}})).unwrap()
        };
        let missing = MissingDirectories::default();
        missing.observe(&claim("1"), true);
        missing.observe(&claim("another"), false);
        assert!(missing.contains("pvc-1") && !missing.contains("pvc-0") && !missing.contains("pvc-10"));
        missing.observe(&claim("1"), false);
        assert!(!missing.contains("pvc-1"));
    }
}
