//! What becomes of a released volume, and where its directory must be. Pure.
//!
//! Everything here may stop a reclaim; nothing makes it touch more than the one directory that all sources agree on.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PersistentVolume;

use crate::api::backend::OnDelete;
use crate::api::conditions::Reason;
use crate::api::names::{
    PROVISIONED_BY, RECLAIM_FINALIZER, VOLUME_BACKEND, VOLUME_DIRECTORY, VOLUME_EXPORT_ID, VOLUME_FILE_ID,
    VOLUME_ON_DELETE,
};
use crate::api::parameters;
use export_store::naming::{DirectoryPath, LONGEST_PATH};

pub mod retention;

/// What to do with a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: it is not ours, in use, or done.
    Nothing,
    /// The reclaim policy says Retain: take our finalizer off, touch neither data nor volume.
    DropFinalizer,
    /// Treat the directory so, delete the volume, take the finalizer off.
    Reclaim(OnDelete),
    /// Touch nothing and say why.
    Stop(Refusal),
}

/// Why a volume is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The reason for event and condition.
    pub reason: Reason,
    /// What is wrong, and the remedy.
    pub message: String,
}

/// Decides what becomes of a volume as it stands.
///
/// `provisioners` are the names that we provision under. `backend_policy` is what the backend says now, and counts only
/// if neither class nor claim had a say when the volume was made. An `adopted` directory is somebody else's work, so
/// it is archived where it would be deleted.
pub fn decide(volume: &PersistentVolume, provisioners: &[&str], backend_policy: OnDelete, adopted: bool) -> Decision {
    if !annotation(volume, PROVISIONED_BY).is_some_and(|name| provisioners.contains(&name)) {
        return Decision::Nothing;
    }
    let held = volume
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|finalizer| finalizer == RECLAIM_FINALIZER);
    if volume.metadata.deletion_timestamp.is_some() && !held {
        return Decision::Nothing;
    }
    match (reclaim_policy(volume), is_released(volume)) {
        // Whether released or not: the finalizer is there only while the policy is Delete.
        ("Retain", _) if held => Decision::DropFinalizer,
        ("Retain", _) | (_, false) => Decision::Nothing,
        ("Delete", true) => policy(volume, backend_policy, adopted),
        (other, true) => Decision::Stop(Refusal {
            reason: Reason::RecycleUnsupported,
            message: format!(
                "persistentVolumeReclaimPolicy {other} is not supported: set it to Delete (the archive policy decides) or \
                 Retain"
            ),
        }),
    }
}

/// Whether a volume must not vanish before its directory is reclaimed, so that it needs our finalizer: one that we made,
/// whose reclaim policy is Delete, perhaps by a later edit.
pub fn needs_finalizer(volume: &PersistentVolume, provisioners: &[&str]) -> bool {
    let ours = annotation(volume, PROVISIONED_BY).is_some_and(|name| provisioners.contains(&name))
        && annotation(volume, VOLUME_BACKEND).is_some();
    ours && reclaim_policy(volume) == "Delete" && volume.metadata.deletion_timestamp.is_none()
}

fn policy(volume: &PersistentVolume, backend_policy: OnDelete, adopted: bool) -> Decision {
    let recorded = annotation(volume, VOLUME_ON_DELETE);
    let policy = match recorded.map(|text| (text, parameters::on_delete(text))) {
        None => backend_policy,
        Some((_, Some(policy))) => policy,
        Some((text, None)) => {
            return Decision::Stop(unsafe_because(format!(
                "annotation {VOLUME_ON_DELETE} is \"{}\", and not one of archive, delete, retain: correct it",
                cut(text)
            )));
        }
    };
    match policy {
        OnDelete::Delete if adopted => Decision::Reclaim(OnDelete::Archive),
        policy => Decision::Reclaim(policy),
    }
}

/// Kubernetes' default for volumes is Retain (core/v1 `persistentVolumeReclaimPolicy`).
fn reclaim_policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref())
        .unwrap_or("Retain")
}

/// Whether its claim let go of it.
pub fn is_released(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Released" | "Failed"))
}

/// What a volume must agree with to be reclaimed on a backend.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedLocation<'a> {
    /// The backend's name.
    pub backend: &'a str,
    /// The identity confirmed on its export; absent while it is not.
    pub export_id: Option<&'a str>,
    /// Server and path of its address and of its former ones.
    pub addresses: &'a [(&'a str, &'a str)],
}

/// Where a volume's data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLocation {
    /// The directory, relative to the backend's path.
    pub directory: DirectoryPath,
    /// The directory's fileid.
    pub file_id: u64,
}

/// The directory of a volume that we made, if all that it says of itself agrees with its backend (design 6.8; the
/// record and the export are compared after this).
///
/// # Errors
/// [`Reason::IdentityMismatch`] when the export is another one, [`Reason::NotProbed`] when that is not known yet,
/// [`Reason::ReclaimUnsafe`] for every other disagreement. The data stays.
pub fn locate(volume: &PersistentVolume, home: &ExpectedLocation<'_>) -> Result<VolumeLocation, Refusal> {
    let backend = required(volume, VOLUME_BACKEND)?;
    if backend != home.backend {
        return Err(unsafe_because(format!(
            "annotation {VOLUME_BACKEND} does not name backend {}: restore it",
            home.backend
        )));
    }
    let text = required(volume, VOLUME_DIRECTORY)?;
    let directory = DirectoryPath::parse(text)
        .map_err(|error| unsafe_because(format!("annotation {VOLUME_DIRECTORY} cannot be used: {error}")))?;
    check_address(volume, &directory, home)?;
    let file_id = file_id(required(volume, VOLUME_FILE_ID)?)?;
    check_identity(required(volume, VOLUME_EXPORT_ID)?, home)?;
    Ok(VolumeLocation { directory, file_id })
}

/// `spec.nfs` must be one of the backend's addresses with the directory below it. Built and compared whole, so there is
/// no second reading of a path that could come out differently.
fn check_address(
    volume: &PersistentVolume,
    directory: &DirectoryPath,
    home: &ExpectedLocation<'_>,
) -> Result<(), Refusal> {
    let source = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.nfs.as_ref())
        .ok_or_else(|| unsafe_because("the volume has no `spec.nfs`: it was not made by this operator".into()))?;
    let fits = home.addresses.iter().any(|&(server, path)| {
        let base = if path == "/" { "" } else { path };
        same_server(server, &source.server) && source.path == format!("{base}/{directory}")
    });
    if fits {
        return Ok(());
    }
    Err(unsafe_because(format!(
        "the volume is at {}:{}, which is directory {directory} below neither the address of backend {} nor a former one: if \
         the export was there once, add that to the backend's formerAddresses",
        cut(&source.server),
        cut(&source.path),
        home.backend
    )))
}

/// Names compare case-folded; addresses by what they mean, since IPv6 has many spellings.
pub fn same_server(one: &str, other: &str) -> bool {
    match (address(one), address(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one.eq_ignore_ascii_case(other),
    }
}

fn address(server: &str) -> Option<IpAddr> {
    let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(server).parse().ok()
}

fn file_id(text: &str) -> Result<u64, Refusal> {
    let digits = text.bytes().all(|digit| digit.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().ok_or_else(|| {
        unsafe_because(format!(
            "annotation {VOLUME_FILE_ID} is no fileid (decimal, 64 bits): restore it"
        ))
    })
}

fn check_identity(recorded: &str, home: &ExpectedLocation<'_>) -> Result<(), Refusal> {
    match home.export_id {
        Some(confirmed) if confirmed == recorded => Ok(()),
        Some(confirmed) => Err(Refusal {
            reason: Reason::IdentityMismatch,
            message: format!(
                "the volume was made on export {}, and backend {} is export {confirmed} now: bring the former one back",
                cut(recorded),
                home.backend
            ),
        }),
        None => Err(Refusal {
            reason: Reason::NotProbed,
            message: format!(
                "the export of backend {} is not confirmed yet to be the one that the volume was made on: its condition \
                 says what it waits for",
                home.backend
            ),
        }),
    }
}

fn required<'a>(volume: &'a PersistentVolume, name: &str) -> Result<&'a str, Refusal> {
    annotation(volume, name).ok_or_else(|| {
        unsafe_because(format!(
            "annotation {name} is missing: restore it, or set the policy to Retain"
        ))
    })
}

pub(crate) fn annotation<'a>(volume: &'a PersistentVolume, name: &str) -> Option<&'a str> {
    volume.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(crate) fn unsafe_because(message: String) -> Refusal {
    Refusal {
        reason: Reason::ReclaimUnsafe,
        message,
    }
}

/// An object's text for a message: escaped, and long enough for any path that we make.
pub(crate) fn cut(text: &str) -> String {
    text.escape_debug().take(2 * LONGEST_PATH).collect()
}

#[cfg(test)]
mod tests;
