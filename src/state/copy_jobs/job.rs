//! The copy that one claim or one archive object requests.

use std::fmt::Display;
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::slots::CopyBackend;
use super::{CopyLabels, CopyResult, SlotRequest, slots};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{
    ArchiveRequest, CopyError, CopyLimits, CopyProgress, CopyProgressSnapshot, CopySource, DirectoryRequest,
    ExportStore, MAX_COPIES, StagedLimit, copy_to_archive, copy_volume,
};

/// The copy that an object requests. The object's UID identifies it.
pub(crate) struct CopyJob<'a> {
    ctx: &'a Context,
    uid: String,
}

/// The source and the target of a copy.
pub(crate) enum CopyTask {
    /// Copies a volume or an archive to the new directory of a claim's volume.
    ToVolume {
        /// The source, and the export that has it.
        source: (Arc<ExportStore>, Box<CopySource>),
        /// The backend of the new volume.
        backend: Arc<Backend>,
        /// The backend's export.
        export: Arc<ExportStore>,
        /// The directory to create.
        request: Box<DirectoryRequest>,
        /// Size that the claim requests, in bytes: the copy may have at most as much content.
        max_bytes: u64,
        /// Limit that the server enforces on the copy.
        limit: Option<StagedLimit>,
    },
    /// Copies a volume to a new archive.
    ToArchive {
        /// The export of the volume.
        origin: Arc<ExportStore>,
        /// The export that gets the archive.
        export: Arc<ExportStore>,
        /// The volume, and the archive to create.
        request: Box<ArchiveRequest>,
        /// Maximum content of a backup that a tenant requested, in bytes. Unset for a backup that an administrator
        /// requested.
        tenant_limit: Option<u64>,
        /// Limit that the server enforces on the copy.
        limit: Option<StagedLimit>,
    },
}

/// A failed copy.
pub(crate) struct CopyFailure {
    /// The error.
    pub(crate) error: CopyError,
    /// The condition to report, with the backend of the target and the error.
    pub(crate) condition: PlannedCondition,
}

impl<'a> CopyJob<'a> {
    /// Returns the copy that an object requests.
    pub(crate) fn of(ctx: &'a Context, object: &impl ResourceExt) -> Self {
        Self {
            ctx,
            uid: object.uid().unwrap_or_default(),
        }
    }

    /// Returns true if the copy is queued or running, or has a result that was not taken.
    pub(crate) fn exists(&self) -> bool {
        self.ctx.copy_jobs.exists(&self.uid)
    }

    /// Returns the condition to report while `source` is copied, or `None` if no copy is queued or running.
    pub(crate) fn progress(&self, source: impl Display) -> Option<PlannedCondition> {
        self.ctx.copy_jobs.progress(&self.uid).condition(source)
    }

    /// Starts the copy unless it exists, and returns the condition to report. `None` means that the copy has already
    /// ended. The end of the copy requeues the object.
    pub(crate) fn start_or_progress(&self, task: CopyTask, source: impl Display) -> Option<PlannedCondition> {
        let requeue = task.requeue(self.ctx);
        let jobs = &self.ctx.copy_jobs;
        let is_prioritized = |namespace: &str| {
            let namespace = self.ctx.namespace(namespace);
            namespace.is_some_and(|namespace| slots::is_prioritized(namespace.labels()))
        };
        let max_copies = |backend: &str| {
            let backend = self.ctx.backends.get(backend);
            let settings = backend.and_then(|backend| backend.last_probe().object.spec.copies.clone());
            settings.and_then(|settings| usize::try_from(settings.max_concurrent?).ok())
        };
        let (labels, request) = (task.labels(), task.slot_request(is_prioritized, max_copies));
        jobs.start(labels, request, |limits, progress| task.run(limits, progress), requeue);
        self.progress(source)
    }

    /// Removes and returns the result of the copy, or `None` if it has not ended. Requests a probe of the backend that is
    /// the target if the failure affects the whole backend.
    pub(crate) fn take_result(&self, backend: &str) -> Option<Result<(CopyResult, CopyProgressSnapshot), CopyFailure>> {
        let (result, copied) = self.ctx.copy_jobs.take_result(&self.uid)?;
        Some(result.map(|result| (result, copied)).map_err(|error| {
            let reason = Reason::from(error.kind());
            if reason.is_backend_wide() {
                self.ctx.request_probe(backend);
            }
            let condition = PlannedCondition::fails(reason, format!("backend {backend}: {error}"));
            CopyFailure { error, condition }
        }))
    }

    /// Aborts the copy, and waits until its task has ended. Its partial data stays on the export.
    pub(crate) async fn abort(&self) {
        self.ctx.copy_jobs.abort_and_wait(&self.uid).await;
    }
}

impl CopyTask {
    /// Returns the identification of the copy: of the claim that gets the data, or of the claim that is archived.
    fn labels(&self) -> CopyLabels {
        let (uid, claim, archive) = match self {
            Self::ToVolume { request, .. } => (&request.claim.uid, &request.claim, ""),
            Self::ToArchive { request, .. } => (&request.requested_by, &request.claim, &*request.name),
        };
        CopyLabels {
            uid: uid.clone(),
            namespace: claim.namespace.clone(),
            claim: claim.name.clone(),
            archive: archive.to_owned(),
        }
    }

    /// Returns what decides when the copy gets a slot. `is_prioritized` is true for the namespaces that administrators
    /// selected, `max_copies` is the limit of a backend.
    fn slot_request(
        &self,
        is_prioritized: impl Fn(&str) -> bool,
        max_copies: impl Fn(&str) -> Option<usize>,
    ) -> SlotRequest {
        let backend = |export: &Arc<ExportStore>| CopyBackend {
            name: export.backend().to_owned(),
            max_copies: max_copies(export.backend()).unwrap_or(MAX_COPIES),
        };
        match self {
            Self::ToVolume {
                source: (origin, _),
                export,
                request,
                ..
            } => SlotRequest {
                namespace: request.claim.namespace.clone(),
                backends: [origin, export].map(backend),
                is_of_administrator: is_prioritized(&request.claim.namespace),
            },
            Self::ToArchive {
                origin,
                export,
                request,
                tenant_limit,
                ..
            } => SlotRequest {
                namespace: request.claim.namespace.clone(),
                backends: [origin, export].map(backend),
                is_of_administrator: tenant_limit.is_none() || is_prioritized(&request.claim.namespace),
            },
        }
    }

    /// Returns the function that requeues the object that requests the copy.
    fn requeue(&self, ctx: &Context) -> Box<dyn FnOnce() + Send> {
        match self {
            Self::ToVolume { request, .. } => {
                let waiting = Arc::clone(&ctx.waiting_claims);
                let claim = ObjectRef::new(&request.claim.name).within(&request.claim.namespace);
                Box::new(move || waiting.wake(claim))
            }
            Self::ToArchive { request, .. } => {
                let (requests, archive) = (ctx.archive_requests.clone(), ObjectRef::new(&request.name));
                // The receiver is dropped only at shutdown.
                Box::new(move || drop(requests.send(archive)))
            }
        }
    }

    async fn run(self, limits: CopyLimits, progress: Arc<CopyProgress>) -> Result<CopyResult, CopyError> {
        match self {
            Self::ToVolume {
                source: (origin, source),
                backend,
                export,
                request,
                max_bytes,
                limit,
            } => {
                let limits = limits.with_max_bytes(max_bytes).with_staged_limit(limit);
                // Garbage collection does not touch the directory while this is held.
                let Some(_pending) = backend.begin_work(&request.volume, &request.claim) else {
                    return Err(CopyError::ExportChanged);
                };
                let copied = copy_volume((&origin, &source), (&export, &request), &limits, &progress);
                copied.await.map(CopyResult::Directory)
            }
            Self::ToArchive {
                origin,
                export,
                request,
                tenant_limit,
                limit,
            } => {
                let limits = limits.with_staged_limit(limit);
                let limits = match tenant_limit {
                    Some(max_bytes) => limits.with_max_bytes(max_bytes),
                    None => limits,
                };
                let copied = copy_to_archive(&origin, (&export, &request), &limits, &progress);
                copied.await.map(|()| CopyResult::Archive)
            }
        }
    }
}
