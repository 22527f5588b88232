//! Volumes that nfs-subdir-external-provisioner made under a name that is an alias now. Pure.
//!
//! They say nothing of themselves but an address: it must lead to one backend and one directory, or the data stays.

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
use crate::decide::policy::{Refusal, annotation, escape, reclaim_unsafe, same_server};
use export_store::naming::DirectoryPath;

/// What the operator writes on its own volumes.
const OURS: [&str; 6] = [
    VOLUME_BACKEND,
    VOLUME_DIRECTORY,
    VOLUME_EXPORT_ID,
    VOLUME_FILE_ID,
    VOLUME_NAMESPACE_UID,
    VOLUME_ON_DELETE,
];

/// The backend of the alias that a volume was made under, if nothing on the volume is ours.
///
/// A volume that has lost some of our annotations is not taken for one of these.
pub fn alias_backend<'a>(volume: &PersistentVolume, aliases: &'a BTreeMap<String, String>) -> Option<&'a str> {
    let backend = aliases.get(annotation(volume, PROVISIONED_BY)?)?;
    let held = || {
        let mut finalizers = volume.metadata.finalizers.iter().flatten();
        finalizers.any(|finalizer| finalizer == RECLAIM_FINALIZER)
    };
    let marked = OURS.iter().any(|name| annotation(volume, name).is_some());
    (!marked && !held()).then_some(backend)
}

/// What becomes of the data, by the class as it is now: kept as an archive where it says nothing, or is gone.
///
/// # Errors
/// [`Reason::InvalidParameter`] when the class can't be read: the data stays as it is.
pub fn policy(class: Option<Result<ClassParameters, ParameterError>>) -> Result<OnDelete, Refusal> {
    match class {
        None => Ok(OnDelete::Archive),
        Some(Ok(parameters)) => Ok(parameters.on_delete.unwrap_or(OnDelete::Archive)),
        Some(Err(error)) => Err(Refusal {
            reason: Reason::InvalidParameter,
            message: format!(
                "the volume's StorageClass does not say what becomes of the data: {error}; make the class anew with a value \
                 that it can have, or delete it to have the data archived"
            ),
        }),
    }
}

/// Where a volume's directory is, by its address alone.
///
/// # Errors
/// [`Reason::ReclaimUnsafe`] when the volume's name is not its claim's, or its address does not lead to exactly one of
/// `backends`, the alias', and a directory below it. The data stays.
pub fn locate(volume: &PersistentVolume, alias: &str, backends: &[&NfsBackend]) -> Result<DirectoryPath, Refusal> {
    check_name(volume)?;
    let Some(source) = volume.spec.as_ref().and_then(|spec| spec.nfs.as_ref()) else {
        return Err(reclaim_unsafe("the volume has no `spec.nfs`".into()));
    };
    let at = format!("{}:{}", escape(&source.server), escape(&source.path));
    let mut nearest: Vec<(usize, &str, &str)> = Vec::new();
    for backend in backends {
        let name = backend.metadata.name.as_deref().unwrap_or_default();
        if let Some((length, rest)) = below(volume, backend) {
            nearest.push((length, name, rest));
        }
    }
    let longest = nearest.iter().map(|(length, ..)| *length).max();
    nearest.retain(|(length, ..)| Some(*length) == longest);
    match nearest.as_slice() {
        [(_, name, rest)] if *name == alias => DirectoryPath::parse(rest).map_err(|error| {
            reclaim_unsafe(format!(
                "the volume is at {at}, and the operator touches no such directory: {error}; reclaim it by hand and delete the \
                 volume"
            ))
        }),
        [(_, name, _)] => Err(reclaim_unsafe(format!(
            "the volume is at {at}, which lies in backend {name}, and its provisioner's alias reaches backend {alias} only: \
             correct --provisioner-alias, or reclaim it by hand and delete the volume"
        ))),
        [] => Err(reclaim_unsafe(format!(
            "the volume is at {at}, which lies below no backend's address: if backend {alias} is meant, add the address that \
             the volume was made with to its formerAddresses, spelled as there"
        ))),
        several => Err(reclaim_unsafe(format!(
            "the volume is at {at}, which lies below several backends of the same address ({}), so it can't be told whose it \
             is: leave one of them there, or reclaim it by hand and delete the volume",
            several.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// A volume's directory as a backend's address has it, relative to the backend's path.
pub fn directory_on<'a>(volume: &'a PersistentVolume, backend: &NfsBackend) -> Option<&'a str> {
    below(volume, backend).map(|(_, rest)| rest)
}

/// The length of the longest of the backend's paths that the volume lies strictly below, and what remains of its own.
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

/// nfs-subdir names a volume after its claim's uid: any other was renamed or made by hand.
fn check_name(volume: &PersistentVolume) -> Result<(), Refusal> {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let uid = claim.and_then(|claim| claim.uid.as_deref()).unwrap_or_default();
    if !uid.is_empty() && volume.metadata.name.as_deref() == Some(volume_name(uid).as_str()) {
        return Ok(());
    }
    Err(reclaim_unsafe(
        "the volume is not named pvc-<uid of its claim>, so it was not provisioned for it: reclaim it by hand and delete the \
         volume, or set its policy to Retain"
            .into(),
    ))
}

#[cfg(test)]
mod tests;
