//! What is known of an archive: its object, its backend, and what is on the export.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};

use super::act::kind_going;
use super::due::due;
use super::object::{says_the_same, terms, which};
use super::plan::{Sight, Situation};
use crate::api::archive::{DeletionPolicy, NfsArchive};
use crate::api::conditions::{Reason, Verdict};
use crate::api::names::VOLUME_FILE_ID;
use crate::runtime::writes::WriteError;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{ArchiveRef, Destination, ExportError, KeptArchive, ManagedExport, Stage, Trust};

/// Where an archive lies.
pub struct Home {
    /// Its backend.
    pub backend: Arc<Backend>,
    /// Its export.
    pub export: Arc<ManagedExport>,
    /// What its object is about.
    pub which: ArchiveRef,
}

/// What a look found.
pub struct Look {
    /// Where it lies, if that can be reached.
    pub home: Option<Home>,
    /// What is known.
    pub situation: Situation,
}

/// Looks.
pub async fn look(ctx: &Context, object: &NfsArchive) -> Result<Look, WriteError> {
    let deleting = object.metadata.deletion_timestamp.is_some();
    let (home, sight) = match home(ctx, object) {
        Ok(home) => {
            let sight = sight(ctx, object, &home).await?;
            (Some(home), sight)
        }
        Err(verdict) => (None, Sight::Unseen(verdict)),
    };
    let situation = Situation {
        deleting,
        kind_going: deleting && kind_going(ctx).await?,
        delete: object.spec.deletion_policy == DeletionPolicy::Delete,
        held: object.spec.legal_hold,
        copied: home
            .as_ref()
            .is_some_and(|home| home.export.is_being_copied(&home.which.volume)),
        due: due(ctx, object, Timestamp::now()),
        sight,
    };
    Ok(Look { home, situation })
}

fn home(ctx: &Context, object: &NfsArchive) -> Result<Home, Verdict> {
    let Some(which) = which(object) else {
        return Err(Verdict::no(
            Reason::ArchiveMissing,
            "it is about no archive: its fileID is no number that a directory can have; delete this object",
        ));
    };
    let (backend, export) = place(ctx, object)?;
    Ok(Home { backend, export, which })
}

/// The backend that an object names, and its export, if that can be reached and is still the one that the object names.
pub fn place(ctx: &Context, object: &NfsArchive) -> Result<(Arc<Backend>, Arc<ManagedExport>), Verdict> {
    let name = &object.spec.backend;
    let Some(backend) = ctx.backends.get(name) else {
        return Err(Verdict::no(
            Reason::ReclaimBackendMissing,
            format!("backend {name:?} does not exist: create it again, or delete this object"),
        ));
    };
    let known = backend.known();
    let Some(export) = known.export.clone() else {
        return Err(known.ready.clone());
    };
    if known.identity.as_ref().map(|identity| &identity.id) != Some(&object.spec.export_id) {
        return Err(Verdict::no(
            Reason::IdentityMismatch,
            format!("backend {name} is on another export than the archive"),
        ));
    }
    Ok((backend, export))
}

async fn sight(ctx: &Context, object: &NfsArchive, home: &Home) -> Result<Sight, WriteError> {
    // Bounded for each backend: one that hangs holds up only its own archives.
    let _slot = home.backend.archives.acquire().await;
    let kept = match believed(object, home).await {
        Ok(Some(kept)) => kept,
        Ok(None) => return Ok(Sight::Unrecorded),
        Err(error) => return Ok(unusable(ctx, &home.backend, &error)),
    };
    let about = (kept.claim.uid.as_str(), kept.file_id, kept.of_volume());
    if about != (&home.which.claim_uid, home.which.file_id, &object.spec.volume) {
        return Ok(Sight::Unusable(Verdict::no(
            Reason::RecordUnusable,
            "the record on the export is about another claim or directory than this object: nothing is touched",
        )));
    }
    if kept.trust != Trust::Signed {
        return Ok(Sight::Unusable(Verdict::no(
            Reason::RecordUnusable,
            "this cluster did not sign the record on the export, and it says something else than this object: nothing is \
             touched",
        )));
    }
    let wanted = terms(object);
    if kept.stage == Stage::Kept
        && kept.note.terms != wanted
        && let Err(error) = home.export.keep_terms(&home.which, &wanted).await
    {
        return Ok(unusable(ctx, &home.backend, &error));
    }
    Ok(match kept.stage {
        Stage::Kept => Sight::Kept {
            there: kept.there,
            copy: kept.note.copy,
        },
        Stage::Purging => Sight::Purging { there: kept.there },
        Stage::Restoring(to) => {
            let done = has_it(ctx, &to, kept.file_id).await?;
            Sight::Restoring { to, done }
        }
    })
}

/// What the export keeps of the archive. Where the object says the same as a record that this cluster did not sign, it vouches
/// for it.
async fn believed(object: &NfsArchive, home: &Home) -> Result<Option<KeptArchive>, ExportError> {
    let (export, volume) = (&home.export, &home.which.volume);
    let kept = export.archive_kept(volume).await?;
    match &kept {
        Some(kept) if kept.trust != Trust::Signed && says_the_same(object, kept, &home.backend.name) => {
            export.vouch_for_archive(&home.which, &terms(object)).await?;
            export.archive_kept(volume).await
        }
        _ => Ok(kept),
    }
}

fn unusable(ctx: &Context, backend: &Backend, error: &ExportError) -> Sight {
    let verdict = Verdict::no(Reason::from(error.kind()), error.to_string());
    if Reason::from(error.kind()).is_of_the_backend() || error.outcome_unknown() {
        ctx.doubt(&backend.name);
        return Sight::Unseen(verdict);
    }
    Sight::Unusable(verdict)
}

/// Whether the volume that an archive is restored to is there and has the directory: read live, for then the archive is
/// none any more.
async fn has_it(ctx: &Context, to: &Destination, file_id: u64) -> Result<bool, WriteError> {
    let volumes: Api<PersistentVolume> = Api::all(ctx.clients.calls.clone());
    let volume = volumes
        .get_opt(&to.volume)
        .await
        .map_err(WriteError::of("read the volume that gets the archive"))?;
    Ok(volume.is_some_and(|volume| {
        let claim = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
        claim.as_ref() == Some(&to.claim.uid) && volume.annotations().get(VOLUME_FILE_ID) == Some(&file_id.to_string())
    }))
}
