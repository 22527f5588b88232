//! Location of volumes that nfs-subdir-external-provisioner created under a name that is now an alias. Pure.
//!
//! Such a volume has only an address. The address must lead to exactly one backend and one directory; otherwise, the
//! data is retained.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::api::NfsBackend;
use crate::api::backend::OnDelete;
use crate::api::conditions::Reason;
use crate::api::names::{
    PROVISIONED_BY, RECLAIM_FINALIZER, VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_EXPORT_ID, VOLUME_FILE_ID,
    VOLUME_NAMESPACE_UID, VOLUME_ON_DELETE, volume_name,
};
use crate::api::parameters::{ClassParameters, ParameterError};
use crate::decide::reclaim::{Refusal, annotation, escape_for_message, reclaim_unsafe, same_server};
use export_store::naming::DirectoryPath;

/// Annotations that the operator writes on its own volumes.
const OURS: [&str; 6] = [
    VOLUME_BACKEND,
    VOLUME_DIRECTORY,
    VOLUME_EXPORT_ID,
    VOLUME_FILE_ID,
    VOLUME_NAMESPACE_UID,
    VOLUME_ON_DELETE,
];

/// Returns the backend of the alias that a volume was created under, if the volume has no annotation or finalizer of
/// this operator.
///
/// A volume of this operator that has lost only some of its annotations does not match.
pub fn alias_backend<'a>(volume: &PersistentVolume, aliases: &'a BTreeMap<String, String>) -> Option<&'a str> {
    let backend = aliases.get(annotation(volume, PROVISIONED_BY)?)?;
    let held = || {
        let mut finalizers = volume.metadata.finalizers.iter().flatten();
        finalizers.any(|finalizer| finalizer == RECLAIM_FINALIZER)
    };
    let marked = OURS.iter().any(|name| annotation(volume, name).is_some());
    (!marked && !held()).then_some(backend)
}

/// Returns the deletion policy of the volume's current class; [`OnDelete::Archive`] if the class sets none or does not
/// exist.
///
/// # Errors
/// [`Reason::InvalidParameter`] if the parameters of the class are invalid; the data is retained.
pub fn policy(class: Option<Result<ClassParameters, ParameterError>>) -> Result<OnDelete, Refusal> {
    match class {
        None => Ok(OnDelete::Archive),
        Some(Ok(parameters)) => Ok(parameters.on_delete.unwrap_or(OnDelete::Archive)),
        Some(Err(error)) => Err(Refusal {
            reason: Reason::InvalidParameter,
            message: format!(
                "the volume's StorageClass does not define what happens to the data: {error}; recreate the class with a value \
                 that it can have, or delete it to have the data archived"
            ),
        }),
    }
}

/// Returns the directory of a volume, from its address only.
///
/// # Errors
/// [`Reason::ReclaimUnsafe`] if the name of the volume does not match its claim, or if its address does not lead to a
/// directory below exactly one of `backends`, which must be the backend of the alias. The data is retained.
pub fn locate(volume: &PersistentVolume, alias: &str, backends: &[&NfsBackend]) -> Result<DirectoryPath, Refusal> {
    check_name(volume)?;
    let Some(source) = volume.spec.as_ref().and_then(|spec| spec.nfs.as_ref()) else {
        return Err(reclaim_unsafe("the volume has no `spec.nfs`".into()));
    };
    let at = format!(
        "{}:{}",
        escape_for_message(&source.server),
        escape_for_message(&source.path)
    );
    match nearest(volume, backends).as_slice() {
        [(name, rest)] if *name == alias => DirectoryPath::parse(rest).map_err(|error| {
            reclaim_unsafe(format!(
                "the volume is at {at}, which is not a valid directory: {error}; reclaim its data manually, then delete the \
                 volume"
            ))
        }),
        [(name, _)] => Err(reclaim_unsafe(format!(
            "the volume is at {at}, which is on backend {name}, but the alias of its provisioner allows only backend {alias}: \
             correct --provisioner-alias, or reclaim its data manually and delete the volume"
        ))),
        [] => Err(reclaim_unsafe(format!(
            "the volume is at {at}, which is not below the address of any backend: if it is on backend {alias}, add the \
             address with which the volume was created to formerAddresses of that backend, spelled as in the volume"
        ))),
        several => Err(reclaim_unsafe(format!(
            "the volume is at {at}, which is below several backends of the same address ({}): change all but one of them, or \
             reclaim its data manually and delete the volume",
            several.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// Returns the backends with the longest path that contains the volume, each with the path of the volume below it.
pub fn nearest<'a>(volume: &'a PersistentVolume, backends: &[&'a NfsBackend]) -> Vec<(&'a str, &'a str)> {
    let containing = backends.iter().filter_map(|backend| {
        let name = backend.metadata.name.as_deref().unwrap_or_default();
        below(volume, backend).map(|(length, rest)| (length, name, rest))
    });
    let containing: Vec<_> = containing.collect();
    let longest = containing.iter().map(|(length, ..)| *length).max();
    let nearest = containing.iter().filter(|(length, ..)| Some(*length) == longest);
    nearest.map(|&(_, name, rest)| (name, rest)).collect()
}

/// Returns the directory of a volume on a backend, relative to the path of the backend.
pub fn directory_on<'a>(volume: &'a PersistentVolume, backend: &NfsBackend) -> Option<&'a str> {
    below(volume, backend).map(|(_, rest)| rest)
}

/// Returns the length of the longest path of the backend that contains the volume, and the path of the volume below it.
fn below<'a>(volume: &'a PersistentVolume, backend: &NfsBackend) -> Option<(usize, &'a str)> {
    let source = volume.spec.as_ref()?.nfs.as_ref()?;
    let spec = &backend.spec;
    let former = spec.former_addresses.iter();
    let addresses =
        std::iter::once((&*spec.server, &*spec.path)).chain(former.map(|address| (&*address.server, &*address.path)));
    let remainders = addresses.filter_map(|(server, path)| {
        let base = if path == "/" { "" } else { path };
        let rest = source.path.strip_prefix(base)?.strip_prefix('/')?;
        (same_server(server, &source.server) && !rest.is_empty()).then_some((base.len(), rest))
    });
    remainders.max_by_key(|(length, _)| *length)
}

/// Checks that the volume is named after the UID of its claim, as nfs-subdir names volumes. Any other volume was
/// renamed or created manually.
fn check_name(volume: &PersistentVolume) -> Result<(), Refusal> {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let uid = claim.and_then(|claim| claim.uid.as_deref()).unwrap_or_default();
    if !uid.is_empty() && volume.metadata.name.as_deref() == Some(volume_name(uid).as_str()) {
        return Ok(());
    }
    Err(reclaim_unsafe(
        "the volume is not named pvc-<uid of its claim>, so it was not provisioned for that claim: reclaim its data manually and \
         delete the volume, or set its policy to Retain"
            .into(),
    ))
}

#[cfg(test)]
mod tests;
