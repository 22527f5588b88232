//! The steps of a copy that somebody asks for, in the cluster: what is copied, the copy in the background, and its end.

use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::super::{act, look};
use super::find::{Found, find};
use super::judge::{self, agrees, is_of};
use super::report::Outcome;
use crate::api::archive::NfsArchive;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::background::archive_objects::announce;
use crate::decide::archive_object::{archive_object, retention_terms};
use crate::runtime::events::Severity;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::copy_jobs::{CopyLabels, CopyResult};
use export_store::{ArchiveRequest, CopyError, Discarded, RecordedArchive, copy_to_archive};

/// Writes into the object what is copied, before anything is made: whoever deletes it then knows where to look.
pub(crate) async fn bind(ctx: &Context, object: &NfsArchive) -> Result<Outcome, WriteError> {
    let subject = match find(ctx, object).await? {
        Ok(found) => found.subject,
        Err(verdict) => return Ok(Outcome::Waiting(verdict)),
    };
    let spec = json!({
        "backend": subject.backend,
        "exportID": subject.export_id,
        "volume": subject.volume,
        "claim": {"uid": subject.claim.uid, "namespaceUID": subject.claim.namespace_uid},
    });
    said(
        writes::patch_as_read(
            &act::api(ctx),
            object,
            json!({ "spec": spec }),
            false,
            "write into the archive what is copied",
        )
        .await,
    )
}

/// Begins the copy, if what the object says is still so.
pub(crate) async fn begin(ctx: &Context, object: &NfsArchive) -> Result<Outcome, WriteError> {
    let found = match find(ctx, object).await? {
        Ok(found) => found,
        Err(verdict) => return Ok(Outcome::Waiting(verdict)),
    };
    if let Err(verdict) = agrees(&object.spec, &found.subject) {
        return Ok(Outcome::Waiting(verdict));
    }
    let live = act::api(ctx).get_opt(&object.name_any()).await;
    let live = live.map_err(WriteError::of("read the archive before it is made"))?;
    let Some(live) = live.filter(|live| live.uid() == object.uid() && live.metadata.deletion_timestamp.is_none())
    else {
        return Ok(Outcome::Gone);
    };
    copy(ctx, &live, found);
    let uid = live.uid().unwrap_or_default();
    let verdict = judge::progress(&live.spec.claim, &ctx.copy_jobs.progress(&uid));
    // It ended at once: its bell was rung.
    Ok(verdict.map_or(Outcome::Changed, Outcome::Copying))
}

fn copy(ctx: &Context, object: &NfsArchive, found: Found) {
    let Found { subject, located } = found;
    let request = ArchiveRequest {
        name: object.name_any(),
        asked_by: object.uid().unwrap_or_default(),
        claim: subject.claim,
        of: located.request,
        terms: retention_terms(object),
    };
    let of = CopyLabels {
        uid: request.asked_by.clone(),
        namespace: request.claim.namespace.clone(),
        claim: request.claim.name.clone(),
        archive: request.name.clone(),
    };
    let (export, bell, archive) = (
        located.export,
        ctx.archive_requests.clone(),
        ObjectRef::from_obj(object),
    );
    ctx.copy_jobs.begin(
        of,
        |budget, tally| async move {
            let copied = copy_to_archive(&export, &request, &budget, &tally);
            copied.await.map(|()| CopyResult::Archive)
        },
        // The receiver ends only with the operator.
        move || drop(bell.send(archive)),
    );
}

/// A copy that came to nothing: what there is of it goes into the trash, for it takes room.
pub(crate) async fn not_copied(ctx: &Context, object: &NfsArchive, error: &CopyError) -> Outcome {
    let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
    let (reason, backend) = (Reason::from(error.kind()), &object.spec.backend);
    if reason.is_backend_wide() {
        ctx.request_probe(backend);
    }
    let verdict = PlannedCondition::fails(reason, format!("backend {backend}: {error}"));
    if reason.is_connectivity() {
        return Outcome::Waiting(verdict);
    }
    if let Ok((backend, export)) = look::place(ctx, object) {
        match export.discard_asked(&name, &uid).await {
            // A reply was lost, and the copy was complete.
            Ok(Discarded::Complete) => return Outcome::Changed,
            Ok(Discarded::Gone) => backend.trash.notify_one(),
            Err(error) => tracing::warn!(archive = name, "what was copied stays until the next attempt: {error}"),
        }
    }
    Outcome::Failed(verdict)
}

/// Writes into the object where the copy lies: from now on it is an archive as any other.
pub(crate) async fn complete(
    ctx: &Context,
    object: &NfsArchive,
    backend: &Backend,
    kept: &RecordedArchive,
) -> Result<Outcome, WriteError> {
    if let Err(verdict) = is_of(object, kept) {
        return Ok(Outcome::Waiting(verdict));
    }
    backend.trash.notify_one();
    let wanted = archive_object(kept, &backend.name);
    let spec = json!({
        "directory": wanted.spec.directory,
        "fileID": wanted.spec.file_id,
        "size": wanted.spec.size,
        "storageClassName": wanted.spec.storage_class_name,
        "archivedAt": wanted.spec.archived_at,
    });
    let (api, fields) = (act::api(ctx), json!({ "spec": spec }));
    let written = writes::patch_as_read(&api, object, fields, false, "write into the archive where it lies").await;
    if written.is_ok() {
        let outcome = kept.note.copy.as_ref().and_then(|copy| copy.outcome.as_deref());
        let claim = &kept.claim;
        let note = format!(
            "claim {}/{} is copied to {}: {}",
            claim.namespace,
            claim.name,
            kept.note.target,
            outcome.unwrap_or_default()
        );
        let regarding = object.object_ref(&());
        ctx.events
            .publish(regarding, Severity::Normal, Reason::Archived, "Archive", &note);
        announce(ctx, &wanted);
    }
    said(written)
}

/// What a write to the object means: whatever it was, its next look tells.
fn said(written: Result<(), WriteError>) -> Result<Outcome, WriteError> {
    match written {
        Ok(()) | Err(WriteError::Conflict) => Ok(Outcome::Changed),
        Err(WriteError::NotFound) => Ok(Outcome::Gone),
        Err(error) => Err(error),
    }
}
