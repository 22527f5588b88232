//! Claims that ask for an archive's data (`dataSourceRef`): whether they may have them, and how.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::guard::Request;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{Reason, Verdict};
use crate::api::names::{RESTORE, volume_name};
use crate::controllers::archive::{due, which};
use crate::export::ArchiveRef;
use crate::operator::context::Context;
use crate::operator::writes::WriteError;
use crate::placement::{admits, quantity};

/// Where a claim's data come from.
#[derive(Debug)]
pub struct Origin {
    /// The backend that the archive lies on: a move goes nowhere else.
    pub backend: String,
    /// The archive.
    pub which: ArchiveRef,
}

/// How a claim gets an archive's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The archive's directory becomes the volume's.
    Move,
    /// The archive stays, for this reason.
    Copy(&'static str),
}

/// What the judgement rests on, besides the objects.
struct Asked<'a> {
    claim: &'a PersistentVolumeClaim,
    request: &'a Request,
    namespace: &'a PartialObjectMeta<Namespace>,
    /// Why the archive may be purged, if it may.
    due: Option<String>,
    /// The one backend that the class's provisioner name reaches, when it is an alias.
    alias: Option<&'a str>,
    /// The restore was begun: what was judged then holds.
    begun: bool,
}

/// The archive that a claim asks for, if it may have it now. Archive and namespace are read live: what follows gives a
/// tenant data.
pub async fn origin(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    request: &Request,
    name: &str,
) -> Result<Result<Origin, Verdict>, WriteError> {
    let failed = |cause| WriteError::Api {
        action: "read what the claim is to be restored from",
        cause: Box::new(cause),
    };
    let client = ctx.clients.calls.clone();
    let archives: Api<NfsArchive> = Api::all(client.clone());
    let namespaces: Api<Namespace> = Api::all(client);
    let in_namespace = claim.namespace().unwrap_or_default();
    let namespace = namespaces.get_metadata_opt(&in_namespace).await.map_err(failed)?;
    let Some(namespace) = namespace else {
        let message = format!("namespace {in_namespace} is not there");
        return Ok(Err(Verdict::no(Reason::ArchiveNotAllowed, message)));
    };
    let Some(archive) = archives.get_opt(name).await.map_err(failed)? else {
        return Ok(Err(not_found(name)));
    };
    let volume = volume_name(&claim.uid().unwrap_or_default());
    let asked = Asked {
        claim,
        request,
        namespace: &namespace,
        due: due(ctx, &archive, jiff::Timestamp::now()),
        alias: ctx.settings.aliases.get(&request.provisioner).map(String::as_str),
        begun: ctx.backends.all().iter().any(|backend| backend.is_open(&volume)),
    };
    Ok(judge(&asked, &archive))
}

fn not_found(name: &str) -> Verdict {
    let message = format!("NfsArchive {name} does not exist: correct the name; or it was restored or purged meanwhile");
    Verdict::no(Reason::ArchiveNotFound, message)
}

/// A tenant learns nothing about an archive that is not for his namespace.
fn judge(asked: &Asked<'_>, archive: &NfsArchive) -> Result<Origin, Verdict> {
    let (name, spec) = (archive.name_any(), &archive.spec);
    let which = which(archive).ok_or_else(|| not_found(&name))?;
    let came_from = is_where_it_came_from(asked.namespace, archive);
    let listed = spec
        .allowed_namespaces
        .as_ref()
        .is_some_and(|allowed| admits(allowed, &asked.namespace.name_any(), asked.namespace.labels()));
    if !came_from && !listed {
        let message = format!(
            "NfsArchive {name} did not come from this namespace, by its uid: an administrator can let the namespace have \
             it by spec.allowedNamespaces of the archive"
        );
        return Err(Verdict::no(Reason::ArchiveNotAllowed, message));
    }
    let origin = Origin {
        backend: spec.backend.clone(),
        which,
    };
    if asked.begun && came_from {
        return Ok(origin);
    }
    available(asked, archive)?;
    match way(asked, archive, came_from)? {
        Way::Move => Ok(origin),
        Way::Copy(why) => Err(Verdict::no(
            Reason::CopyNotSupported,
            format!("NfsArchive {name} would have to be copied, which is not supported yet: {why}"),
        )),
    }
}

/// By uid: a namespace that was made anew under the same name is somebody else's.
fn is_where_it_came_from(namespace: &PartialObjectMeta<Namespace>, archive: &NfsArchive) -> bool {
    let claim = &archive.spec.claim;
    !claim.namespace_uid.is_empty()
        && namespace.metadata.uid.as_ref() == Some(&claim.namespace_uid)
        && namespace.name_any() == claim.namespace
}

fn available(asked: &Asked<'_>, archive: &NfsArchive) -> Result<(), Verdict> {
    let name = archive.name_any();
    if archive.metadata.deletion_timestamp.is_some() {
        return Err(Verdict::no(
            Reason::ArchiveBusy,
            format!("NfsArchive {name} is being deleted"),
        ));
    }
    if let Some(why) = asked.due.as_ref().filter(|_| !archive.spec.legal_hold) {
        let message =
            format!("NfsArchive {name} has expired, {why}: an administrator can still set spec.expiresAt later");
        return Err(Verdict::no(Reason::ArchiveExpired, message));
    }
    let size = archive.spec.size.as_deref().and_then(quantity::bytes);
    if size.is_some_and(|size| asked.request.bytes < size) {
        let message = format!(
            "NfsArchive {name} was a volume of {}: ask for that much at least",
            archive.spec.size.as_deref().unwrap_or_default()
        );
        return Err(Verdict::no(Reason::ClaimTooSmall, message));
    }
    Ok(())
}

fn way(asked: &Asked<'_>, archive: &NfsArchive, came_from: bool) -> Result<Way, Verdict> {
    let (backends, lies_on) = (&asked.request.parameters.backends, archive.spec.backend.as_str());
    let elsewhere = !backends.is_empty() && !backends.iter().any(|backend| backend == lies_on);
    Ok(match asked.claim.annotations().get(RESTORE).map(String::as_str) {
        Some("copy") => Way::Copy("the claim asks for a copy"),
        Some(other) if other != "move" => {
            return Err(Verdict::no(
                Reason::InvalidOverride,
                format!("annotation {RESTORE} is {other:?}: move or copy"),
            ));
        }
        _ if !came_from => {
            Way::Copy("whoever had it may still hold handles to it, so it is not moved to another namespace")
        }
        _ if archive.spec.legal_hold => Way::Copy("it is held, so it stays where it is"),
        _ if elsewhere || asked.alias.is_some_and(|alias| alias != lies_on) => {
            Way::Copy("it lies on a backend that the claim's class does not reach")
        }
        _ => Way::Move,
    })
}

/// The archive that a claim asks for.
pub fn asked_archive(claim: &PersistentVolumeClaim) -> Option<&str> {
    let source = claim.spec.as_ref()?.data_source_ref.as_ref()?;
    let ours = source.api_group.as_deref() == Some(crate::api::names::GROUP) && source.kind == "NfsArchive";
    (ours && source.namespace.as_deref().is_none_or(str::is_empty)).then_some(source.name.as_str())
}

/// An archive changed: claims that ask for it may get it now.
pub fn archive_changed(ctx: &Context, archive: &str) {
    for claim in ctx.stores.claims.state() {
        if asked_archive(&claim) == Some(archive) {
            ctx.waiting.wake(ObjectRef::from_obj(claim.as_ref()));
        }
    }
}

#[cfg(test)]
mod tests;
