//! The kinds that the server knows.

/// What distinguishes the semantics of a kind.
#[derive(Debug)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Name in paths.
    pub plural: &'static str,
    /// Name in objects.
    pub kind: &'static str,
    /// Objects belong to a namespace.
    pub namespaced: bool,
    /// Writes to the object leave the status alone, and the other way round.
    pub has_status: bool,
    /// Defined by a CustomResourceDefinition.
    pub custom: bool,
}

const fn built_in(
    (group, version): (&'static str, &'static str),
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
    has_status: bool,
) -> Kind {
    Kind {
        group,
        version,
        plural,
        kind,
        namespaced,
        has_status,
        custom: false,
    }
}

const fn custom(plural: &'static str, kind: &'static str, namespaced: bool) -> Kind {
    Kind {
        group: "nfs-operator.io",
        version: "v1alpha1",
        plural,
        kind,
        namespaced,
        has_status: true,
        custom: true,
    }
}

/// The core group.
const CORE: (&str, &str) = ("", "v1");

/// All kinds.
pub static KINDS: [Kind; 14] = [
    built_in(CORE, "persistentvolumeclaims", "PersistentVolumeClaim", true, true),
    built_in(CORE, "persistentvolumes", "PersistentVolume", false, true),
    built_in(CORE, "namespaces", "Namespace", false, true),
    built_in(CORE, "nodes", "Node", false, true),
    built_in(CORE, "secrets", "Secret", true, false),
    built_in(("storage.k8s.io", "v1"), "storageclasses", "StorageClass", false, false),
    built_in(("coordination.k8s.io", "v1"), "leases", "Lease", true, false),
    built_in(("events.k8s.io", "v1"), "events", "Event", true, false),
    built_in(
        ("apiextensions.k8s.io", "v1"),
        "customresourcedefinitions",
        "CustomResourceDefinition",
        false,
        true,
    ),
    built_in(
        ("authentication.k8s.io", "v1"),
        "selfsubjectreviews",
        "SelfSubjectReview",
        false,
        false,
    ),
    custom("nfsbackends", "NfsBackend", false),
    custom("nfsarchives", "NfsArchive", false),
    custom("nfsbackups", "NfsBackup", true),
    custom("nfsbackupschedules", "NfsBackupSchedule", true),
];

impl Kind {
    /// Returns the `apiVersion` of objects.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns the name of the resource in messages.
    pub fn resource(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Returns the kind with this name in paths.
    pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        KINDS
            .iter()
            .find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
    }

    /// Returns the kind with this name in objects.
    pub fn named(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.kind == name)
    }

    /// Returns true if the server counts the changes of an object's desired state.
    pub fn has_generation(&self) -> bool {
        self.custom
    }
}
