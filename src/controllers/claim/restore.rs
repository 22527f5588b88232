//! A claim that requests an archive's data (`dataSourceRef`): authorization and mode of the restore.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::eligibility::ClaimRequest;
use super::placement::pending_backend;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{RESTORE, volume_name};
use crate::api::{NfsBackend, NfsBackup};
use crate::decide::archive_object::archive_ref;
use crate::decide::placement::class_permits;
use crate::decide::restore_permission::{is_from, is_listed, is_namesake};
use crate::decide::restore_source::RestoreSource;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::archives::{archived_bytes, expiry_reason, requested_bytes};
use crate::state::context::Context;
use export_store::ArchiveRef;

/// The archive that a claim is restored from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSource {
    /// The archive's backend. A move stays there.
    pub backend: String,
    /// The ID of the archive's export.
    pub export_id: String,
    /// The archive.
    pub archive: ArchiveRef,
    /// The capacity that it uses, in bytes.
    pub bytes: u128,
}

impl ArchiveSource {
    /// Returns true if the other one is the same archive on the same export.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.backend, &self.export_id, &self.archive) == (&other.backend, &other.export_id, &other.archive)
    }
}

impl fmt::Display for ArchiveSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NfsArchive {}", self.archive.volume)
    }
}

/// Mode of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreMode {
    /// The archive's directory becomes the volume's.
    Move,
    /// The archive stays, and the volume gets a copy.
    Copy,
}

/// Input of the decision, besides the archive.
struct RestoreRequest<'a> {
    claim: &'a PersistentVolumeClaim,
    request: &'a ClaimRequest,
    namespace: &'a PartialObjectMeta<Namespace>,
    /// Reason why the archive has expired, if it has.
    expired: Option<String>,
    /// The backend that the class is restricted to, if its provisioner name is an alias.
    alias: Option<&'a str>,
    /// The labels of the archive's backend.
    labels: &'a BTreeMap<String, String>,
    /// True if that backend allows restores into a namespace with the same name but another UID.
    by_name: bool,
    /// True if the claim names a backup, which is kept for further restores.
    from_backup: bool,
    /// The mode of a restore in progress. The earlier decision stays valid.
    in_progress: Option<RestoreMode>,
}

/// An archive that a claim may have, and how the claim gets its data.
pub type FoundArchive = Result<(ArchiveSource, RestoreMode), PlannedCondition>;

/// Returns the archive that a claim requests and how it gets the data, if it may have the data according to the watch
/// caches. Costs no request, however many claims request archives that they do not get, and their changes wake the claim.
///
/// What is found is read again by [`find_archive`] before the claim gets the data.
pub fn find_cached_archive(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
    source: &RestoreSource,
) -> FoundArchive {
    let backups = &ctx.stores.backups;
    let backup = |name: &str| backups.get(&ObjectRef::new(name).within(&namespace.name_any()));
    let name = match source {
        RestoreSource::Archive(name) => name.clone(),
        RestoreSource::Backup(name) => match backup(name) {
            Some(backup) => backup.archive_name(),
            None => return Err(source_not_found(source)),
        },
    };
    let Some(archive) = ctx.stores.archives.get(&ObjectRef::new(&name)) else {
        return Err(source_not_found(source));
    };
    let backend = ctx
        .stores
        .backends
        .get(&ObjectRef::new(&archive.observed().backend_name));
    let by_name = backend.is_some_and(|backend| backend.spec.archive_policy.restore_by_name);
    check(ctx, claim, request, namespace, source, &archive, by_name)
}

/// Returns the archive that a claim requests and how it gets the data, if it may have the data now.
///
/// Archive, namespace and the backend's policy are read from the API server, because the restore gives data to a tenant
/// (data-safety rule 15). The caller holds a slot.
pub async fn find_archive(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    source: &RestoreSource,
) -> Result<FoundArchive, WriteError> {
    let failed = WriteError::action("read what the claim is to be restored from");
    let client = ctx.clients.calls.clone();
    let archives: Api<NfsArchive> = Api::all(client.clone());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let claim_namespace = claim.namespace().unwrap_or_default();
    let namespace = reads::get_metadata_opt(&namespaces, &claim_namespace)
        .await
        .map_err(failed)?;
    let Some(namespace) = namespace else {
        return Ok(Err(source_not_found(source)));
    };
    let name = match source {
        RestoreSource::Archive(name) => name.clone(),
        RestoreSource::Backup(name) => {
            let backups: Api<NfsBackup> = Api::namespaced(client.clone(), &claim_namespace);
            match reads::get_opt(&backups, name).await.map_err(failed)? {
                Some(backup) => backup.archive_name(),
                None => return Ok(Err(source_not_found(source))),
            }
        }
    };
    let Some(archive) = reads::get_opt(&archives, &name).await.map_err(failed)? else {
        return Ok(Err(source_not_found(source)));
    };
    let by_name = match is_namesake(&namespace, &archive) {
        false => false,
        true => {
            let backend = reads::get_opt(&Api::<NfsBackend>::all(client), &archive.observed().backend_name).await;
            let backend = backend.map_err(failed)?;
            backend.is_some_and(|backend| backend.spec.archive_policy.restore_by_name)
        }
    };
    Ok(check(ctx, claim, request, &namespace, source, &archive, by_name))
}

/// Decides whether the claim may have the data. `by_name` is true if the archive's backend allows restores into a namespace
/// with the same name but another UID.
fn check(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    namespace: &PartialObjectMeta<Namespace>,
    source: &RestoreSource,
    archive: &NfsArchive,
    by_name: bool,
) -> FoundArchive {
    if !archive.is_complete() {
        return Err(incomplete(namespace, archive)).map_err(|condition| of_source(condition, source));
    }
    let backend = ctx
        .stores
        .backends
        .get(&ObjectRef::new(&archive.observed().backend_name));
    let request = RestoreRequest {
        claim,
        request,
        namespace,
        expired: expiry_reason(ctx, archive, ctx.clock.now()),
        alias: ctx
            .settings
            .served
            .aliases
            .get(&request.provisioner)
            .map(String::as_str),
        labels: backend.as_ref().map_or(&NO_LABELS, |backend| backend.labels()),
        by_name,
        from_backup: matches!(source, RestoreSource::Backup(_)),
        in_progress: mode_in_progress(ctx, &volume_name(&claim.uid().unwrap_or_default())),
    };
    decide(&request, archive).map_err(|condition| of_source(condition, source))
}

/// Returns the condition for a source that does not exist, or that the namespace may not have.
fn source_not_found(source: &RestoreSource) -> PlannedCondition {
    of_source(not_found(source.name()), source)
}

/// Returns the condition to report about a source. A tenant who restores a backup does not know its archive.
fn of_source(condition: PlannedCondition, source: &RestoreSource) -> PlannedCondition {
    match source {
        RestoreSource::Backup(name) if condition.reason == Reason::ArchiveNotFound => PlannedCondition::fails(
            Reason::ArchiveNotFound,
            format!(
                "NfsBackup {name} does not exist in this namespace or has no data: correct the name, or see the condition \
                 Ready of the NfsBackup"
            ),
        ),
        RestoreSource::Backup(_) | RestoreSource::Archive(_) => condition,
    }
}

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// Returns the mode of a restore that this process or a previous one started.
fn mode_in_progress(ctx: &Context, volume: &str) -> Option<RestoreMode> {
    let backend = pending_backend(ctx, volume)?;
    Some(if backend.is_move(volume) {
        RestoreMode::Move
    } else {
        RestoreMode::Copy
    })
}

/// Returns the condition for an archive that does not exist, and for one that the namespace may not have: a tenant must
/// not learn which names exist.
fn not_found(name: &str) -> PlannedCondition {
    let message = format!(
        "NfsArchive {name} does not exist or is not available to this namespace: correct the name, or ask an \
         administrator to add the namespace to spec.allowedNamespaces of the archive"
    );
    PlannedCondition::fails(Reason::ArchiveNotFound, message)
}

/// Returns the condition for an archive whose copy is not complete. Its namespace is known by name only, so the
/// condition reveals nothing to other namespaces.
fn incomplete(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> PlannedCondition {
    let name = archive.name_any();
    if !is_listed(namespace, archive) && namespace.name_any() != archive.spec.claim_ref.namespace {
        return not_found(&name);
    }
    let message = format!("NfsArchive {name} is still being created: it can be restored once it is Available");
    PlannedCondition::fails(Reason::ArchiveBusy, message)
}

/// Decides whether and how to restore. A tenant learns nothing about an archive that their namespace may not have.
fn decide(request: &RestoreRequest<'_>, archive: &NfsArchive) -> FoundArchive {
    let (name, observed) = (archive.name_any(), archive.observed());
    let archive_ref = archive_ref(archive).ok_or_else(|| not_found(&name))?;
    let from_here = is_from(request.namespace, archive);
    let listed = is_listed(request.namespace, archive);
    let by_name = request.by_name && is_namesake(request.namespace, archive);
    if !from_here && !listed && !by_name {
        return Err(not_found(&name));
    }
    let source = ArchiveSource {
        backend: observed.backend_name.clone(),
        export_id: observed.export_id.clone(),
        archive: archive_ref,
        bytes: archived_bytes(archive),
    };
    match request.in_progress {
        Some(RestoreMode::Move) if from_here => return Ok((source, RestoreMode::Move)),
        Some(RestoreMode::Copy) => return Ok((source, RestoreMode::Copy)),
        _ => {}
    }
    check_available(request, archive)?;
    Ok((source, restore_mode(request, archive, from_here)?))
}

fn check_available(request: &RestoreRequest<'_>, archive: &NfsArchive) -> Result<(), PlannedCondition> {
    let name = archive.name_any();
    if archive.metadata.deletion_timestamp.is_some() {
        return Err(PlannedCondition::fails(
            Reason::ArchiveBusy,
            format!("NfsArchive {name} is being deleted"),
        ));
    }
    if let Some(why) = request.expired.as_ref().filter(|_| !archive.spec.legal_hold) {
        let message =
            format!("NfsArchive {name} has expired, {why}: an administrator can still set a later spec.expirationTime");
        return Err(PlannedCondition::fails(Reason::ArchiveExpired, message));
    }
    let size = requested_bytes(archive);
    if size.is_some_and(|size| request.request.bytes < size) {
        let message = format!(
            "NfsArchive {name} was a volume of {}: recreate the claim with at least as much",
            archive.observed().requested_size.as_ref().map_or("", |size| &size.0)
        );
        return Err(PlannedCondition::fails(Reason::ClaimTooSmall, message));
    }
    Ok(())
}

/// Selects the mode. An archive is moved only if no unauthorized client can hold a handle to its data: a rename does
/// not revoke handles.
fn restore_mode(
    request: &RestoreRequest<'_>,
    archive: &NfsArchive,
    from_here: bool,
) -> Result<RestoreMode, PlannedCondition> {
    let backend = archive.observed().backend_name.as_str();
    let permitted = class_permits(&request.request.parameters, backend, request.labels)
        && request.alias.is_none_or(|alias| alias == backend);
    match request.claim.annotations().get(RESTORE).map(String::as_str) {
        Some("copy") => Ok(RestoreMode::Copy),
        // The files of a backup may be in other backups of the claim too, and a pod writes to what was moved.
        None | Some("move") if archive.is_on_demand() => Ok(RestoreMode::Copy),
        // A backup is kept for further restores.
        None if request.from_backup => Ok(RestoreMode::Copy),
        None | Some("move") if from_here && permitted && !archive.spec.legal_hold => Ok(RestoreMode::Move),
        None | Some("move") => Ok(RestoreMode::Copy),
        Some(other) => Err(PlannedCondition::fails(
            Reason::InvalidOverride,
            format!("annotation {RESTORE} cannot be {other:?}: it takes one of move, copy"),
        )),
    }
}

#[cfg(test)]
mod tests;
