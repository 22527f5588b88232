//! Which namespaces may have the data of an archive. Pure.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;

use crate::api::NfsArchive;
use crate::decide::placement::is_namespace_allowed;

/// Returns true if the archive is from this namespace. The UID must match: a recreated namespace may belong to someone
/// else.
pub fn is_from(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> bool {
    let uid = &archive.observed().namespace_uid;
    !uid.is_empty()
        && namespace.metadata.uid.as_ref() == Some(uid)
        && namespace.name_any() == archive.spec.claim_ref.namespace
}

/// Returns true for a namespace with the same name but another UID: it may belong to the same people in a rebuilt
/// cluster, or to someone else. The archive's backend decides whether it may have the data.
pub fn is_namesake(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> bool {
    let name = &archive.spec.claim_ref.namespace;
    !name.is_empty() && namespace.name_any() == *name && !is_from(namespace, archive)
}

/// Returns true if the archive allows the namespace to have a copy.
pub fn is_listed(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> bool {
    let allowed = archive.spec.allowed_namespaces.as_ref();
    allowed.is_some_and(|allowed| is_namespace_allowed(allowed, &namespace.name_any(), namespace.labels()))
}
