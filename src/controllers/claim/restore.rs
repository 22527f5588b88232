//! Claims that ask for an archive's data (`dataSourceRef`): whether they may have them, and how.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::copy::DataSource;
use super::guard::ClaimRequest;
use crate::api::NfsBackend;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{RESTORE, volume_name};
use crate::decide::archive_object::archive_ref;
use crate::decide::placement::{admits, class_permits, quantity};
use crate::runtime::writes::WriteError;
use crate::state::archives::expiry_reason;
use crate::state::context::Context;
use export_store::ArchiveRef;

/// The archive that a claim's data come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSource {
    /// The backend that it lies on: a move goes nowhere else.
    pub backend: String,
    /// The identity of the export that it lies on.
    pub export_id: String,
    /// The archive.
    pub which: ArchiveRef,
}

impl fmt::Display for ArchiveSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NfsArchive {}", self.which.volume)
    }
}

impl DataSource {
    /// The archive, if it is one.
    pub(crate) fn archive(&self) -> Option<&ArchiveRef> {
        match self {
            Self::Archive(origin) => Some(&origin.which),
            Self::Claim(_) => None,
        }
    }
}

/// How a claim gets an archive's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreMode {
    /// The archive's directory becomes the volume's.
    Move,
    /// The archive stays, and the volume gets a copy.
    Copy,
}

/// What the judgement rests on, besides the objects.
struct Asked<'a> {
    claim: &'a PersistentVolumeClaim,
    request: &'a ClaimRequest,
    namespace: &'a PartialObjectMeta<Namespace>,
    /// Why the archive may be purged, if it may.
    due: Option<String>,
    /// The one backend that the class's provisioner name reaches, when it is an alias.
    alias: Option<&'a str>,
    /// The labels of the backend that the archive lies on.
    labels: &'a BTreeMap<String, String>,
    /// That backend lets a namespace have what came from one of its name.
    by_name: bool,
    /// How the restore was begun: what was judged then holds.
    begun: Option<RestoreMode>,
}

/// The archive that a claim asks for and how it gets its data, if it may have them now. Archive, namespace and what lets a
/// namesake in are read live: what follows gives a tenant data.
pub async fn origin(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &ClaimRequest,
    name: &str,
) -> Result<Result<(ArchiveSource, RestoreMode), PlannedCondition>, WriteError> {
    let failed = WriteError::of("read what the claim is to be restored from");
    let client = ctx.clients.calls.clone();
    let archives: Api<NfsArchive> = Api::all(client.clone());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let in_namespace = claim.namespace().unwrap_or_default();
    let namespace = namespaces.get_metadata_opt(&in_namespace).await.map_err(failed)?;
    let Some(namespace) = namespace else {
        let message = format!("namespace {in_namespace} is not there");
        return Ok(Err(PlannedCondition::fails(Reason::ArchiveNotAllowed, message)));
    };
    let Some(archive) = archives.get_opt(name).await.map_err(failed)? else {
        return Ok(Err(not_found(name)));
    };
    if !archive.is_complete() {
        return Ok(Err(unfinished(&namespace, &archive)));
    }
    let lies_on = ctx.stores.backends.get(&ObjectRef::new(&archive.spec.backend));
    let by_name = match is_namesake(&namespace, &archive) {
        false => false,
        true => {
            let backend = Api::<NfsBackend>::all(client).get_opt(&archive.spec.backend).await;
            let backend = backend.map_err(failed)?;
            backend.is_some_and(|backend| backend.spec.archive_policy.restore_by_name)
        }
    };
    let asked = Asked {
        claim,
        request,
        namespace: &namespace,
        due: expiry_reason(ctx, &archive, jiff::Timestamp::now()),
        alias: ctx.settings.aliases.get(&request.provisioner).map(String::as_str),
        labels: lies_on.as_ref().map_or(&NO_LABELS, |backend| backend.labels()),
        by_name,
        begun: begun(ctx, &volume_name(&claim.uid().unwrap_or_default())),
    };
    Ok(judge(&asked, &archive))
}

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// How the directory of a volume was begun, by this life or a former one, if it was.
fn begun(ctx: &Context, volume: &str) -> Option<RestoreMode> {
    let backends = ctx.backends.all();
    let on = backends.iter().find(|backend| backend.is_open(volume))?;
    Some(if on.is_move(volume) {
        RestoreMode::Move
    } else {
        RestoreMode::Copy
    })
}

fn not_found(name: &str) -> PlannedCondition {
    let message = format!("NfsArchive {name} does not exist: correct the name; or it was restored or purged meanwhile");
    PlannedCondition::fails(Reason::ArchiveNotFound, message)
}

/// What is told of an archive whose copy is still being made. Whose it is, is known by name only: nothing is given away yet.
fn unfinished(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> PlannedCondition {
    let name = archive.name_any();
    if !is_listed(namespace, archive) && namespace.name_any() != archive.spec.claim.namespace {
        return not_allowed(&name);
    }
    let message = format!("NfsArchive {name} is still being made: it can be had when it says Available");
    PlannedCondition::fails(Reason::ArchiveBusy, message)
}

fn not_allowed(name: &str) -> PlannedCondition {
    let message = format!(
        "NfsArchive {name} did not come from this namespace, by its uid: an administrator can let the namespace have it by \
         spec.allowedNamespaces of the archive"
    );
    PlannedCondition::fails(Reason::ArchiveNotAllowed, message)
}

/// Whether the archive lets the namespace have a copy.
fn is_listed(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> bool {
    let allowed = archive.spec.allowed_namespaces.as_ref();
    allowed.is_some_and(|allowed| admits(allowed, &namespace.name_any(), namespace.labels()))
}

/// A tenant learns nothing about an archive that is not for his namespace.
fn judge(asked: &Asked<'_>, archive: &NfsArchive) -> Result<(ArchiveSource, RestoreMode), PlannedCondition> {
    let (name, spec) = (archive.name_any(), &archive.spec);
    let which = archive_ref(archive).ok_or_else(|| not_found(&name))?;
    let came_from = is_where_it_came_from(asked.namespace, archive);
    let listed = is_listed(asked.namespace, archive);
    let by_name = asked.by_name && is_namesake(asked.namespace, archive);
    if !came_from && !listed && !by_name {
        return Err(not_allowed(&name));
    }
    let origin = ArchiveSource {
        backend: spec.backend.clone(),
        export_id: spec.export_id.clone(),
        which,
    };
    match asked.begun {
        Some(RestoreMode::Move) if came_from => return Ok((origin, RestoreMode::Move)),
        Some(RestoreMode::Copy) => return Ok((origin, RestoreMode::Copy)),
        _ => {}
    }
    available(asked, archive)?;
    Ok((origin, way(asked, archive, came_from)?))
}

/// By name, and not by uid: perhaps the same people's in a cluster that was built anew, perhaps somebody else's.
fn is_namesake(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> bool {
    let name = &archive.spec.claim.namespace;
    !name.is_empty() && namespace.name_any() == *name && !is_where_it_came_from(namespace, archive)
}

/// By uid: a namespace that was made anew under the same name is somebody else's.
fn is_where_it_came_from(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> bool {
    let claim = &archive.spec.claim;
    !claim.namespace_uid.is_empty()
        && namespace.metadata.uid.as_ref() == Some(&claim.namespace_uid)
        && namespace.name_any() == claim.namespace
}

fn available(asked: &Asked<'_>, archive: &NfsArchive) -> Result<(), PlannedCondition> {
    let name = archive.name_any();
    if archive.metadata.deletion_timestamp.is_some() {
        return Err(PlannedCondition::fails(
            Reason::ArchiveBusy,
            format!("NfsArchive {name} is being deleted"),
        ));
    }
    if let Some(why) = asked.due.as_ref().filter(|_| !archive.spec.legal_hold) {
        let message =
            format!("NfsArchive {name} has expired, {why}: an administrator can still set spec.expiresAt later");
        return Err(PlannedCondition::fails(Reason::ArchiveExpired, message));
    }
    let size = archive.spec.size.as_deref().and_then(quantity::bytes);
    if size.is_some_and(|size| asked.request.bytes < size) {
        let message = format!(
            "NfsArchive {name} was a volume of {}: ask for that much at least",
            archive.spec.size.as_deref().unwrap_or_default()
        );
        return Err(PlannedCondition::fails(Reason::ClaimTooSmall, message));
    }
    Ok(())
}

/// An archive is moved only where nobody can be left who holds a handle to it and should not: a rename revokes none.
fn way(asked: &Asked<'_>, archive: &NfsArchive, came_from: bool) -> Result<RestoreMode, PlannedCondition> {
    let lies_on = archive.spec.backend.as_str();
    let reached = class_permits(&asked.request.parameters, lies_on, asked.labels)
        && asked.alias.is_none_or(|alias| alias == lies_on);
    match asked.claim.annotations().get(RESTORE).map(String::as_str) {
        Some("copy") => Ok(RestoreMode::Copy),
        // A backup is there for more than one bad day.
        None if archive.is_on_demand() => Ok(RestoreMode::Copy),
        None | Some("move") if came_from && reached && !archive.spec.legal_hold => Ok(RestoreMode::Move),
        None | Some("move") => Ok(RestoreMode::Copy),
        Some(other) => Err(PlannedCondition::fails(
            Reason::InvalidOverride,
            format!("annotation {RESTORE} is {other:?}: move or copy"),
        )),
    }
}

#[cfg(test)]
mod tests;
