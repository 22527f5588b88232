//! Reclaim policy: what happens to a released volume, and where its directory is.
//!
//! Every check can refuse a reclaim; none extends it beyond the one directory on which all sources agree.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::api::backend::OnDelete;
use crate::api::conditions::Reason;
use crate::api::names::{
    PROVISIONED_BY, RECLAIM_FINALIZER, VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_EXPORT_ID, VOLUME_FILE_ID,
    VOLUME_ON_DELETE,
};
use crate::api::parameters;
use export_store::naming::{DirectoryPath, MAX_PATH_LEN};

/// Action for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReclaimDecision {
    /// Do nothing: the volume belongs to another provisioner, is in use, or is already reclaimed.
    Nothing,
    /// Remove the finalizer, because the reclaim policy is Retain. Data and volume stay.
    RemoveFinalizer,
    /// Delete the volume, apply the policy to the directory, and remove the finalizer.
    Reclaim(OnDelete),
    /// Change nothing and report the reason.
    Refuse(Refusal),
}

/// Reason why a volume is not reclaimed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Reason for the event and the condition.
    pub reason: Reason,
    /// Cause and remedy.
    pub message: String,
}

/// Decides what to do with a volume.
///
/// `provisioners` are the provisioner names of this operator. `backend_policy` is the current policy of the backend; it
/// applies only if neither the class nor the claim specified one when the volume was provisioned.
pub fn decide(volume: &PersistentVolume, provisioners: &[&str], backend_policy: OnDelete) -> ReclaimDecision {
    if !annotation(volume, PROVISIONED_BY).is_some_and(|name| provisioners.contains(&name)) {
        return ReclaimDecision::Nothing;
    }
    let has_finalizer = volume
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|finalizer| finalizer == RECLAIM_FINALIZER);
    let is_deleted = volume.metadata.deletion_timestamp.is_some();
    if is_deleted && !has_finalizer {
        return ReclaimDecision::Nothing;
    }
    match (reclaim_policy(volume), is_released(volume)) {
        // The deletion of the object begins each reclaim. What was done then is completed.
        ("Retain", true) if is_deleted => ReclaimDecision::Reclaim(OnDelete::Retain),
        // Released or not: the volume has the finalizer only while its reclaim policy is Delete.
        ("Retain", _) if has_finalizer => ReclaimDecision::RemoveFinalizer,
        ("Retain", _) | (_, false) => ReclaimDecision::Nothing,
        ("Delete", true) => decide_policy(volume, backend_policy),
        (other, true) => ReclaimDecision::Refuse(unsupported_policy(other)),
    }
}

/// Returns why a volume with this reclaim policy is not reclaimed.
pub(crate) fn unsupported_policy(policy: &str) -> Refusal {
    Refusal {
        reason: Reason::RecycleUnsupported,
        message: format!(
            "persistentVolumeReclaimPolicy {policy} is not supported: set it to Delete (the archive policy decides) or \
             Retain"
        ),
    }
}

/// Returns true if the volume needs the finalizer that keeps it until its directory is reclaimed: it was provisioned by this
/// operator, and its reclaim policy is Delete, possibly because of a later edit.
pub fn needs_finalizer(volume: &PersistentVolume, provisioners: &[&str]) -> bool {
    let ours = annotation(volume, PROVISIONED_BY).is_some_and(|name| provisioners.contains(&name))
        && annotation(volume, VOLUME_BACKEND).is_some();
    ours && reclaim_policy(volume) == "Delete" && volume.metadata.deletion_timestamp.is_none()
}

fn decide_policy(volume: &PersistentVolume, backend_policy: OnDelete) -> ReclaimDecision {
    let Some(text) = annotation(volume, VOLUME_ON_DELETE) else {
        return ReclaimDecision::Reclaim(backend_policy);
    };
    match parameters::parse_on_delete(text) {
        Some(policy) => ReclaimDecision::Reclaim(policy),
        None => ReclaimDecision::Refuse(reclaim_unsafe(format!(
            "annotation {VOLUME_ON_DELETE} is \"{}\", which is not one of archive, delete, retain: correct it",
            escape_for_message(text)
        ))),
    }
}

/// Returns the reclaim policy. The default for volumes is Retain (core/v1 `persistentVolumeReclaimPolicy`).
pub(crate) fn reclaim_policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref())
        .unwrap_or("Retain")
}

/// Returns true if the claim of the volume was deleted.
pub fn is_released(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Released" | "Failed"))
}

/// Returns true if the volume can be bound to any claim.
pub fn is_available(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Available")
}

/// Properties of a backend with which a volume must agree to be reclaimed there.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedLocation<'a> {
    /// Name of the backend.
    pub backend: &'a str,
    /// Confirmed identity of the export; `None` while it is not confirmed.
    pub export_id: Option<&'a str>,
    /// Server and path of the current and former addresses.
    pub addresses: &'a [(&'a str, &'a str)],
}

/// Location of the data of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLocation {
    /// Directory, relative to the path of the backend.
    pub directory: DirectoryPath,
    /// Fileid of the directory.
    pub file_id: u64,
}

/// Returns the location of a volume, if its annotations and its path agree with each other and with the backend
/// (data-safety rule 8). The record and the export are compared afterwards.
///
/// # Errors
/// [`Reason::IdentityMismatch`] if the export is a different one, [`Reason::NotProbed`] while its identity is not confirmed,
/// and [`Reason::ReclaimUnsafe`] for every other contradiction. The data stays.
pub fn locate(volume: &PersistentVolume, expected: &ExpectedLocation<'_>) -> Result<VolumeLocation, Refusal> {
    let backend = required(volume, VOLUME_BACKEND)?;
    if backend != expected.backend {
        return Err(reclaim_unsafe(format!(
            "annotation {VOLUME_BACKEND} does not name backend {}: restore the annotation",
            expected.backend
        )));
    }
    let text = required(volume, VOLUME_DIRECTORY)?;
    let directory = DirectoryPath::parse(text)
        .map_err(|error| reclaim_unsafe(format!("annotation {VOLUME_DIRECTORY} is invalid: {error}")))?;
    check_address(volume, &directory, expected.backend, expected.addresses)?;
    let file_id = parse_file_id(required(volume, VOLUME_FILE_ID)?)?;
    check_identity(required(volume, VOLUME_EXPORT_ID)?, expected)?;
    Ok(VolumeLocation { directory, file_id })
}

/// Checks that `spec.nfs` is one of the addresses of the backend plus the directory. The expected path is built and compared
/// as a whole, so that it does not matter how a path is parsed.
pub(crate) fn check_address(
    volume: &PersistentVolume,
    directory: &DirectoryPath,
    backend: &str,
    addresses: &[(&str, &str)],
) -> Result<(), Refusal> {
    let source = volume.spec.as_ref().and_then(|spec| spec.nfs.as_ref()).ok_or_else(|| {
        reclaim_unsafe("the volume has no `spec.nfs`: it was not provisioned by this operator".into())
    })?;
    let matches = addresses.iter().any(|&(server, path)| {
        let base = if path == "/" { "" } else { path };
        same_server(server, &source.server) && source.path == format!("{base}/{directory}")
    });
    if matches {
        return Ok(());
    }
    Err(reclaim_unsafe(format!(
        "the volume is at {}:{}, which is not directory {directory} at the address or a former address of backend {}: if the \
         export had that address before, add it to formerAddresses of the backend",
        escape_for_message(&source.server),
        escape_for_message(&source.path),
        backend
    )))
}

/// Compares two servers: names without regard to case, IP addresses by value, because IPv6 has several notations.
pub fn same_server(one: &str, other: &str) -> bool {
    match (parse_ip(one), parse_ip(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one.eq_ignore_ascii_case(other),
    }
}

fn parse_ip(server: &str) -> Option<IpAddr> {
    let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(server).parse().ok()
}

fn parse_file_id(text: &str) -> Result<u64, Refusal> {
    let digits = text.bytes().all(|digit| digit.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().ok_or_else(|| {
        reclaim_unsafe(format!(
            "annotation {VOLUME_FILE_ID} is not a fileid (decimal, 64 bits): restore the annotation"
        ))
    })
}

fn check_identity(recorded: &str, expected: &ExpectedLocation<'_>) -> Result<(), Refusal> {
    match expected.export_id {
        Some(confirmed) if confirmed == recorded => Ok(()),
        Some(confirmed) => Err(Refusal {
            reason: Reason::IdentityMismatch,
            message: format!(
                "the volume is on export {}, but backend {} is export {confirmed} now: restore the previous export",
                escape_for_message(recorded),
                expected.backend
            ),
        }),
        None => Err(Refusal {
            reason: Reason::NotProbed,
            message: format!(
                "the identity of the export of backend {} is not confirmed yet: see the conditions of the backend",
                expected.backend
            ),
        }),
    }
}

fn required<'a>(volume: &'a PersistentVolume, name: &str) -> Result<&'a str, Refusal> {
    annotation(volume, name).ok_or_else(|| {
        reclaim_unsafe(format!(
            "annotation {name} is missing: restore it, or set the reclaim policy to Retain"
        ))
    })
}

pub(crate) fn annotation<'a>(volume: &'a PersistentVolume, name: &str) -> Option<&'a str> {
    volume.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(crate) fn reclaim_unsafe(message: String) -> Refusal {
    Refusal {
        reason: Reason::ReclaimUnsafe,
        message,
    }
}

/// Escapes the text of an object for a message, and limits its length to that of the longest path.
pub(crate) fn escape_for_message(text: &str) -> String {
    text.escape_debug().take(2 * MAX_PATH_LEN).collect()
}

#[cfg(test)]
mod tests;
