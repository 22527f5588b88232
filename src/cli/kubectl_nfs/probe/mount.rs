//! The volume of a pod whose kubelet mounts an export, and what a failed mount means. Pure.

use export_store::text::escape;
use k8s_openapi::api::core::v1::{
    Event, NFSVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
    PersistentVolumeClaimVolumeSource, PersistentVolumeSpec, Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nfs_client::address::ExportAddress;

/// Reason of the events of a kubelet that could not mount a volume.
const FAILED_MOUNT: &str = "FailedMount";
/// A mount must not hang for longer than the command waits: a call that is not answered fails after about 15 seconds.
const SOFT: [&str; 4] = ["ro", "soft", "timeo=50", "retrans=2"];
/// Access mode of the volume and of its claim.
const READ_ONLY: &str = "ReadOnlyMany";

/// A volume for one pod: the strictest policy for pods allows claims, and no NFS server in the pod itself.
pub struct MountedExport<'a> {
    /// Name of the volume, of its claim, and of the Job that mounts it.
    pub name: &'a str,
    /// Namespace of the claim.
    pub namespace: &'a str,
    /// What is mounted.
    pub export: &'a ExportAddress,
    /// Mount options of the connection.
    pub options: Vec<String>,
}

impl MountedExport<'_> {
    /// Returns the volume. It belongs to no provisioner, and its policy is Retain: nobody deletes what is on the export.
    pub fn volume(&self) -> PersistentVolume {
        let options = SOFT.map(str::to_owned).into_iter().chain(self.options.clone());
        PersistentVolume {
            metadata: self.metadata(),
            spec: Some(PersistentVolumeSpec {
                access_modes: Some(vec![READ_ONLY.to_owned()]),
                capacity: Some([("storage".to_owned(), Quantity("1".to_owned()))].into()),
                claim_ref: Some(ObjectReference {
                    namespace: Some(self.namespace.to_owned()),
                    name: Some(self.name.to_owned()),
                    ..ObjectReference::default()
                }),
                mount_options: Some(options.collect()),
                nfs: Some(NFSVolumeSource {
                    server: self.export.server.clone(),
                    path: self.export.path.clone(),
                    read_only: Some(true),
                }),
                persistent_volume_reclaim_policy: Some("Retain".to_owned()),
                storage_class_name: Some(String::new()),
                ..PersistentVolumeSpec::default()
            }),
            status: None,
        }
    }

    /// Returns the claim that is bound to the volume.
    pub fn claim(&self) -> PersistentVolumeClaim {
        PersistentVolumeClaim {
            metadata: self.metadata(),
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(vec![READ_ONLY.to_owned()]),
                resources: Some(VolumeResourceRequirements {
                    requests: Some([("storage".to_owned(), Quantity("1".to_owned()))].into()),
                    ..VolumeResourceRequirements::default()
                }),
                storage_class_name: Some(String::new()),
                volume_name: Some(self.name.to_owned()),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: None,
        }
    }

    fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.name.to_owned()),
            ..ObjectMeta::default()
        }
    }
}

/// Returns the volume of a pod that uses this claim, and where its container has it.
pub fn pod_volume(claim: &str) -> (Volume, VolumeMount) {
    let volume = Volume {
        name: "export".to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            read_only: Some(true),
        }),
        ..Volume::default()
    };
    let mount = VolumeMount {
        name: "export".to_owned(),
        mount_path: "/export".to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    (volume, mount)
}

const NO_MODULE: &str = "the kernel of the node has no NFS client: load or install its module (modprobe nfs)";
const NODE_REFUSED: &str = "let the address of the node access the export, which may differ from that of its pods";

/// Returns why the kubelet could not mount the volume of a pod, with the remedy, if its events say so.
pub fn mount_failure(events: &[Event]) -> Option<String> {
    let failed = events
        .iter()
        .find(|event| event.reason.as_deref() == Some(FAILED_MOUNT))?;
    let lines = failed.message.iter().flat_map(|message| message.lines());
    let message = lines.collect::<Vec<_>>().join(" ");
    let message = escape(&message);
    // The answers of mount(8) and mount.nfs(8), which the kubelet quotes.
    let remedy = [
        (
            "helper program",
            "install the NFS client on the node (nfs-common, nfs-utils)",
        ),
        ("unknown filesystem", NO_MODULE),
        ("No such device", NO_MODULE),
        ("access denied", NODE_REFUSED),
        ("Permission denied", NODE_REFUSED),
        ("No such file", "correct /PATH"),
        ("timed out", "check firewalls between the node and the server"),
        ("refused", "start the NFS server, or correct --port"),
        (
            "Protocol not supported",
            "select a version that the server and the node support with --nfs-version",
        ),
    ]
    .iter()
    .find(|(answer, _)| message.contains(answer))
    .map_or("try the same on the node: mount -t nfs", |(_, remedy)| remedy);
    Some(format!("{remedy}; the kubelet says: {message}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_volume_is_read_only_retained_and_reserved_for_the_claim() {
        let export = ExportAddress {
            server: "nfs.example.com".to_owned(),
            path: "/export".to_owned(),
        };
        let mounted = MountedExport {
            name: "mount-1",
            namespace: "probes",
            export: &export,
            options: vec!["port=2050".to_owned()],
        };
        let volume = serde_json::to_value(mounted.volume()).unwrap();
        let expected = json!({
            "accessModes": ["ReadOnlyMany"], "capacity": {"storage": "1"}, "storageClassName": "",
            "claimRef": {"namespace": "probes", "name": "mount-1"}, "persistentVolumeReclaimPolicy": "Retain",
            "mountOptions": ["ro", "soft", "timeo=50", "retrans=2", "port=2050"],
            "nfs": {"server": "nfs.example.com", "path": "/export", "readOnly": true},
        });
        assert_eq!(volume.get("spec"), Some(&expected));
        let claim = mounted.claim().spec.unwrap();
        assert_eq!(claim.volume_name.as_deref(), Some("mount-1"));
        assert_eq!(claim.storage_class_name.as_deref(), Some(""), "no class provisions it");
    }

    #[test]
    fn a_failed_mount_has_the_remedy_for_the_answer_that_the_kubelet_quotes() {
        let event = |reason: &str, message: &str| -> Event {
            let event = json!({"metadata": {}, "involvedObject": {}, "reason": reason, "message": message});
            serde_json::from_value(event).unwrap()
        };
        let failure = |message: &str| mount_failure(&[event("Scheduled", ""), event("FailedMount", message)]).unwrap();
        for (message, remedy) in [
            (
                "bad option; you might need a /sbin/mount.<type> helper program",
                "nfs-common",
            ),
            (
                "mount.nfs: access denied by server while mounting nfs:/export",
                "the address of the node",
            ),
            ("mount.nfs: Connection timed out", "firewalls"),
            ("Output: mount.nfs: No such device", "modprobe nfs"),
            ("something else", "try the same on the node"),
        ] {
            let said = failure(message);
            assert!(said.contains(remedy) && said.contains(message), "{said}");
        }
        assert_eq!(mount_failure(&[event("Scheduled", "")]), None);
    }
}
