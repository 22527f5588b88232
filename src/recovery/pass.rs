//! One pass over a backend's records: recreates the volume of each live record that has none.
//!
//! An interrupted pass does no harm: the next one finds the volumes that exist and continues with the others.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::volume::{ClusterView, Ownership, SkipReason, is_same_volume, ownership, volume_object};
use crate::api::names::READOPT;
use crate::api::{AbandonedVolumes, NfsBackend, RecoveryRequest};
use crate::decide::placement::is_namespace_allowed;
use crate::runtime::api_error::api_error_text;
use crate::runtime::reads;
use crate::runtime::writes;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::recovery::{BackendRevision, ClaimName, MissingDependency, RecoveryOutcome};
use crate::state::volume_indexer::index_volume;
use export_store::{ClaimRef, ExportError, ExportStore, Holder, RecordedVolume, Recoverability};

/// Maximum number of records processed concurrently: enough to hide round trips, with little load on both servers.
const MAX_CONCURRENT: usize = 8;
/// Maximum number of left-out volumes named in the log.
const MAX_LOGGED: u64 = 1000;

/// Reason why a pass was interrupted.
#[derive(Debug, thiserror::Error)]
pub(super) enum PassError {
    /// The export cannot be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A request to the API server failed, or its outcome is unknown.
    #[error("the API server: {}", api_error_text(.0))]
    Api(#[from] Box<kube::Error>),
}

/// The result for one record.
enum RecoveryResult {
    /// There is nothing to recover.
    Nothing,
    /// The volume exists.
    Exists,
    /// The volume was recreated.
    Recreated,
    /// The volume is left out for this reason; the claim, if any, has to wait.
    Skipped(String, Option<ClaimName>),
    /// The volume is left out until an object exists.
    Missing(String, ClaimName, MissingDependency),
}

/// One pass over the records of a backend.
pub(super) struct RecoveryPass<'a> {
    pub(super) ctx: &'a Context,
    pub(super) backend: &'a Backend,
    pub(super) object: &'a NfsBackend,
    pub(super) export: &'a ExportStore,
    pub(super) request: &'a RecoveryRequest,
    /// The UID of this cluster's kube-system namespace.
    pub(super) cluster_uid: &'a str,
}

impl RecoveryPass<'_> {
    /// Processes all requested records.
    pub(super) async fn run(&self) -> Result<RecoveryOutcome, PassError> {
        let mut records = self.export.recorded_volumes(&|_| false).await?;
        // An administrator who gave volumes up may still request all others.
        let abandoned = AbandonedVolumes::of(self.object);
        let is_requested =
            |volume: &str| self.request.names.contains(volume) || (self.request.all && !abandoned.includes(volume));
        records.retain(|volume| is_requested(volume));
        let mut named = records.clone();
        named.retain(|volume| self.request.names.contains(volume));
        let (counts, counts_of_named) = (&self.count_claims(&records).await?, &self.count_claims(&named).await?);
        let mut outcome = RecoveryOutcome {
            revision: BackendRevision::of(self.object),
            ..RecoveryOutcome::default()
        };
        let total = records.len() as u64;
        let results = stream::iter(records.clone()).map(|volume: String| async move {
            // An administrator who names one of several volumes has decided.
            let counts = match self.request.names.contains(&volume) {
                true => counts_of_named,
                false => counts,
            };
            let result = self.recover(&volume, counts).await?;
            Ok::<_, PassError>((volume, result))
        });
        let mut results = results.buffer_unordered(MAX_CONCURRENT);
        let mut done = 0;
        while let Some((volume, result)) = results.try_next().await? {
            done += 1;
            self.backend.recovery.set_progress(done, total);
            self.add(&mut outcome, &volume, result);
        }
        self.report_unrecorded(&mut outcome, &records);
        self.report_other_clusters(&mut outcome, records.is_empty()).await?;
        Ok(outcome)
    }

    /// Counts the live volumes of each claim name: if a claim has two, only an administrator knows which one is intended.
    async fn count_claims(&self, records: &[String]) -> Result<ClaimCounts, PassError> {
        let reads = stream::iter(records.to_vec());
        let reads = reads.map(|volume: String| async move { self.export.recorded_claim(&volume).await });
        let mut reads = reads.buffer_unordered(MAX_CONCURRENT);
        let mut counts = ClaimCounts::default();
        while let Some(claim) = reads.try_next().await? {
            counts.add(claim.as_ref());
        }
        Ok(counts)
    }

    async fn recover(&self, volume: &str, counts: &ClaimCounts) -> Result<RecoveryResult, PassError> {
        if self.ctx.path_reservations.knows(&Holder::Volume(volume.to_owned())) {
            return Ok(RecoveryResult::Exists);
        }
        let recorded = match self.export.recoverability(volume).await? {
            Recoverability::Nothing => return Ok(RecoveryResult::Nothing),
            Recoverability::Elsewhere { backend, claim } => return Ok(self.other_backend(backend, &claim)),
            Recoverability::Unfit { claim, why: reason } => {
                return Ok(RecoveryResult::Skipped(reason, claim.as_ref().map(name_of)));
            }
            Recoverability::Volume(recorded) => recorded,
        };
        let claim = &recorded.record.claim;
        // In a rebuilt cluster, no claim is the recorded one.
        let found = match recorded.metadata.cluster == self.cluster_uid {
            true => self.read_claim(claim).await?,
            false => None,
        };
        let namespace = self.ctx.namespace(&claim.namespace);
        let view = ClusterView {
            cluster_uid: self.cluster_uid,
            namespace_uid: namespace
                .as_ref()
                .and_then(|namespace| namespace.metadata.uid.as_deref()),
            namespace_allowed: namespace.as_ref().is_some_and(|namespace| {
                let allowed = self.object.spec.allowed_namespaces.as_ref();
                allowed.is_none_or(|allowed| is_namespace_allowed(allowed, &claim.namespace, namespace.labels()))
            }),
            claim: found.as_ref(),
            provisioner_served: self.ctx.settings.serves(&recorded.metadata.provisioner),
            requested_by_name: self.request.names.contains(volume),
        };
        match ownership(&recorded, &view) {
            Ok(Ownership::Provisioning) => Ok(RecoveryResult::Nothing),
            Ok(Ownership::ClaimName) if counts.get(claim) > 1 => {
                let reason = format!(
                    "another live record is for claim {}/{} too: name the intended volume in the annotation {READOPT}",
                    claim.namespace, claim.name
                );
                Ok(RecoveryResult::Skipped(reason, Some(name_of(claim))))
            }
            Ok(ownership) => self.recreate(&recorded, &ownership).await,
            Err(reason @ SkipReason::NoNamespace(_)) => {
                let missing = MissingDependency::Namespace(claim.namespace.clone());
                Ok(RecoveryResult::Missing(reason.to_string(), name_of(claim), missing))
            }
            Err(reason) => Ok(RecoveryResult::Skipped(reason.to_string(), Some(name_of(claim)))),
        }
    }

    /// Returns the result for a volume of another backend, which recovers it. If that backend does not exist, it may
    /// have another name now, perhaps the name of this backend: the claim is not provisioned until the administrator
    /// decides.
    fn other_backend(&self, backend: String, claim: &ClaimRef) -> RecoveryResult {
        if self.ctx.stores.backends.get(&ObjectRef::new(&backend)).is_some() {
            return RecoveryResult::Nothing;
        }
        let reason = format!(
            "it is recorded for backend {backend}, which does not exist: create that backend, with this server and path if it \
             is called {} now",
            self.backend.name
        );
        RecoveryResult::Missing(reason, name_of(claim), MissingDependency::Backend(backend))
    }

    /// Creates the volume. If the name already exists, the existing volume may be a different one.
    async fn recreate(&self, recorded: &RecordedVolume, ownership: &Ownership) -> Result<RecoveryResult, PassError> {
        let skipped = |reason: String| Ok(RecoveryResult::Skipped(reason, Some(name_of(&recorded.record.claim))));
        let wanted = match volume_object(recorded, ownership, self.object) {
            Ok(wanted) => wanted,
            Err(reason) => return skipped(reason),
        };
        let api: Api<PersistentVolume> = Api::all(self.ctx.clients.calls.clone());
        let (volume, result) = match api.create(&PostParams::default(), &wanted).await {
            Ok(created) => (created, RecoveryResult::Recreated),
            Err(error) if writes::http_status(&error) == Some(409) => {
                match reads::get_opt(&api, &recorded.record.volume).await.map_err(Box::new)? {
                    Some(existing) if is_same_volume(&existing, &wanted) => (existing, RecoveryResult::Exists),
                    Some(_) => return skipped("another volume has its name".to_owned()),
                    // The volume was deleted in the meantime: the next pass decides.
                    None => return Err(Box::new(error).into()),
                }
            }
            Err(error) if is_refused(&error) => {
                return skipped(format!("the API server refuses it: {}", api_error_text(&error)));
            }
            Err(error) => return Err(Box::new(error).into()),
        };
        let ctx = self.ctx;
        index_volume(&volume, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
        ctx.recovery_holds.observe(&volume);
        self.backend.remove_pending(&recorded.record.volume);
        Ok(result)
    }

    async fn read_claim(&self, claim: &ClaimRef) -> Result<Option<PersistentVolumeClaim>, PassError> {
        let found = reads::get_claim(&self.ctx.clients.calls, &claim.namespace, &claim.name).await;
        Ok(found.map_err(Box::new)?)
    }

    fn add(&self, outcome: &mut RecoveryOutcome, volume: &str, result: RecoveryResult) {
        match result {
            RecoveryResult::Nothing => {}
            RecoveryResult::Exists => outcome.existing += 1,
            RecoveryResult::Recreated => {
                tracing::info!(backend = self.backend.name, volume, "recreated the volume");
                outcome.existing += 1;
                outcome.recreated += 1;
            }
            RecoveryResult::Skipped(reason, claim) => {
                if outcome.skipped < MAX_LOGGED {
                    tracing::warn!(
                        backend = self.backend.name,
                        volume,
                        "left out of the recovery: {reason}"
                    );
                }
                outcome.skipped_named += u64::from(self.request.names.contains(volume));
                outcome.skip(volume, reason, claim);
            }
            RecoveryResult::Missing(reason, claim, missing) => {
                outcome.missing.insert(missing);
                self.add(outcome, volume, RecoveryResult::Skipped(reason, Some(claim)));
            }
        }
    }

    /// Reports the volumes that are requested by name and have no record.
    fn report_unrecorded(&self, outcome: &mut RecoveryOutcome, records: &[String]) {
        for name in self
            .request
            .names
            .iter()
            .filter(|name| records.binary_search(name).is_err())
        {
            let reason = "there is no record of it".to_owned();
            self.add(outcome, name, RecoveryResult::Skipped(reason, None));
        }
    }

    /// Reports the volumes that are recorded for other clusters, if the cluster's own folder is new or has
    /// `no_records`: the earlier volumes may be in the folder of another cluster identity. Claims with the same names
    /// are not provisioned until the administrator decides.
    async fn report_other_clusters(&self, outcome: &mut RecoveryOutcome, no_records: bool) -> Result<(), PassError> {
        let restored_identity = self.ctx.cluster_id != self.cluster_uid && !no_records;
        if restored_identity || !self.request.all {
            return Ok(());
        }
        let abandoned = AbandonedVolumes::of(self.object);
        let mut foreign = self.export.foreign_directories().await?;
        foreign.retain(|foreign| !abandoned.includes(&foreign.volume));
        for foreign in foreign {
            let reason = format!(
                "it is recorded for cluster {}: restore that cluster's Secret before the operator's first start",
                foreign.cluster
            );
            let result = RecoveryResult::Skipped(reason, Some(name_of(&foreign.claim)));
            self.add(outcome, &foreign.volume, result);
        }
        Ok(())
    }
}

/// Number of volumes by claim. The keys are hashes, because there may be tens of thousands of names.
#[derive(Default)]
struct ClaimCounts {
    hasher: RandomState,
    counts: HashMap<u64, u32>,
}

impl ClaimCounts {
    fn add(&mut self, claim: Option<&ClaimRef>) {
        if let Some(claim) = claim {
            let hash = self.hash(claim);
            *self.counts.entry(hash).or_default() += 1;
        }
    }

    fn get(&self, claim: &ClaimRef) -> u32 {
        self.counts.get(&self.hash(claim)).copied().unwrap_or_default()
    }

    fn hash(&self, claim: &ClaimRef) -> u64 {
        self.hasher.hash_one((&claim.namespace, &claim.name))
    }
}

fn name_of(claim: &ClaimRef) -> ClaimName {
    (claim.namespace.clone(), claim.name.clone())
}

/// Returns true if the API server refuses the request for a reason that a retry does not resolve.
fn is_refused(error: &kube::Error) -> bool {
    matches!(writes::http_status(error), Some(400 | 403 | 422))
}
