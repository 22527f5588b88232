//! One pass over a backend's records: each that is live and has no volume object is judged, and the object made again.
//!
//! Whatever ends a pass early ends it without harm: the next one finds what is made and goes on with the rest.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::asked::RecoveryRequest;
use super::object::{ClusterView, Ownership, SkippedVolume, is_it, object, whose};
use crate::api::NfsBackend;
use crate::decide::placement::admits;
use crate::runtime::writes;
use crate::state::backends::Backend;
use crate::state::context::Context;
use crate::state::recovery::{ClaimName, Missing, Outcome, Word};
use crate::state::volume_indexer::index_volume;
use export_store::{ClaimRef, ExportError, ExportStore, Holder, RecordedVolume, Recoverability};

/// Records looked at side by side: enough to hide the round trips, few beside what servers and API servers bear.
const SIDE_BY_SIDE: usize = 8;
/// Volumes left out that are named in the log.
const LOGGED: u64 = 1000;

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The export could not be read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The API server could not be asked, or did not say whether it made a volume.
    #[error("the API server: {0}")]
    Api(#[from] Box<kube::Error>),
}

/// What became of one volume.
enum RecoveryResult {
    /// There is nothing to make a volume of.
    Nothing,
    /// Its object is there.
    There,
    /// Its object was made.
    Made,
    /// It is left out. With the claim that has to wait for a word about it.
    LeftOut(String, Option<ClaimName>),
    /// It is left out until something is there.
    Missing(String, ClaimName, Missing),
}

/// A pass on its way.
pub struct RecoveryPass<'a> {
    pub ctx: &'a Context,
    pub backend: &'a Backend,
    pub object: &'a NfsBackend,
    pub export: &'a ExportStore,
    pub asked: &'a RecoveryRequest,
    /// The uid of this cluster's kube-system namespace.
    pub home: &'a str,
}

impl RecoveryPass<'_> {
    /// Looks at all.
    pub async fn run(&self) -> Result<Outcome, PassError> {
        let mut records = self.export.recorded_volumes(&|_| false).await?;
        records.retain(|volume| self.asked.includes(volume));
        let claims = self.claims(&records).await?;
        let mut outcome = Outcome {
            word: Word::of(self.object),
            ..Outcome::default()
        };
        let of = records.len() as u64;
        let claims = &claims;
        let looks = stream::iter(records.clone()).map(|volume: String| async move {
            let fate = self.settle(&volume, claims).await?;
            Ok::<_, PassError>((volume, fate))
        });
        let mut looks = looks.buffer_unordered(SIDE_BY_SIDE);
        let mut done = 0;
        while let Some((volume, fate)) = looks.try_next().await? {
            done += 1;
            self.backend.readoption.progressed(done, of);
            self.note(&mut outcome, &volume, fate);
        }
        self.miss_named(&mut outcome, &records);
        self.leave_others(&mut outcome, records.is_empty()).await?;
        Ok(outcome)
    }

    /// How many live volumes each claim has, by a hash of its name: of two, nobody here can tell which one is meant.
    async fn claims(&self, records: &[String]) -> Result<Claims, PassError> {
        let reads = stream::iter(records.to_vec());
        let reads = reads.map(|volume: String| async move { self.export.recorded_claim(&volume).await });
        let mut reads = reads.buffer_unordered(SIDE_BY_SIDE);
        let mut claims = Claims::default();
        while let Some(claim) = reads.try_next().await? {
            claims.count(claim.as_ref());
        }
        Ok(claims)
    }

    async fn settle(&self, volume: &str, claims: &Claims) -> Result<RecoveryResult, PassError> {
        if self.ctx.path_reservations.knows(&Holder::Volume(volume.to_owned())) {
            return Ok(RecoveryResult::There);
        }
        let kept = match self.export.recoverability(volume).await? {
            Recoverability::Nothing => return Ok(RecoveryResult::Nothing),
            Recoverability::Elsewhere { backend, claim } => return Ok(self.elsewhere(backend, &claim)),
            Recoverability::Unfit { claim, why } => {
                return Ok(RecoveryResult::LeftOut(why, claim.as_ref().map(name_of)));
            }
            Recoverability::Volume(kept) => kept,
        };
        let claim = &kept.record.claim;
        // In a cluster that was built anew no claim is the one that it was.
        let found = match kept.note.cluster == self.home {
            true => self.claim(claim).await?,
            false => None,
        };
        let namespace = self.ctx.namespace(&claim.namespace);
        let there = ClusterView {
            home: self.home,
            namespace_uid: namespace
                .as_ref()
                .and_then(|namespace| namespace.metadata.uid.as_deref()),
            admitted: namespace.as_ref().is_some_and(|namespace| {
                let allowed = self.object.spec.allowed_namespaces.as_ref();
                allowed.is_none_or(|allowed| admits(allowed, &claim.namespace, namespace.labels()))
            }),
            claim: found.as_ref(),
            served: self.ctx.settings.serves(&kept.note.provisioner),
        };
        match whose(&kept, &there) {
            Ok(Ownership::Pending) => Ok(RecoveryResult::Nothing),
            Ok(Ownership::Named) if claims.of(claim) > 1 => {
                let why = format!(
                    "another live record is for claim {}/{} too: name the volume that is meant in the annotation",
                    claim.namespace, claim.name
                );
                Ok(RecoveryResult::LeftOut(why, Some(name_of(claim))))
            }
            Ok(whose) => self.make(&kept, &whose).await,
            Err(why @ SkippedVolume::NoNamespace(_)) => {
                let missing = Missing::Namespace(claim.namespace.clone());
                Ok(RecoveryResult::Missing(why.to_string(), name_of(claim), missing))
            }
            Err(why) => Ok(RecoveryResult::LeftOut(
                why.to_string(),
                why.holds().then(|| name_of(claim)),
            )),
        }
    }

    /// A volume of another backend is that backend's to make again. One that is not there may have another name by now, this
    /// one's perhaps: its claims are not to be provisioned anew before somebody said so.
    fn elsewhere(&self, backend: String, claim: &ClaimRef) -> RecoveryResult {
        if self.ctx.stores.backends.get(&ObjectRef::new(&backend)).is_some() {
            return RecoveryResult::Nothing;
        }
        let why = format!(
            "it is recorded for backend {backend}, which is not there: apply that one, with this server and path if it is \
             called {} by now",
            self.backend.name
        );
        RecoveryResult::Missing(why, name_of(claim), Missing::Backend(backend))
    }

    /// Makes the object, or finds that it is there: 409 is a question, not a success.
    async fn make(&self, kept: &RecordedVolume, whose: &Ownership) -> Result<RecoveryResult, PassError> {
        let left_out = |why: String| Ok(RecoveryResult::LeftOut(why, Some(name_of(&kept.record.claim))));
        let wanted = match object(kept, whose, self.object) {
            Ok(wanted) => wanted,
            Err(why) => return left_out(why),
        };
        let api: Api<PersistentVolume> = Api::all(self.ctx.clients.calls.clone());
        let (volume, fate) = match api.create(&PostParams::default(), &wanted).await {
            Ok(made) => (made, RecoveryResult::Made),
            Err(error) if writes::http_status(&error) == Some(409) => {
                match api.get_opt(&kept.record.volume).await.map_err(Box::new)? {
                    Some(there) if is_it(&there, &wanted) => (there, RecoveryResult::There),
                    Some(_) => return left_out("another volume has its name".to_owned()),
                    // It went in this moment: another look tells.
                    None => return Err(Box::new(error).into()),
                }
            }
            Err(error) if is_refused(&error) => return left_out(format!("the API server refuses it: {error}")),
            Err(error) => return Err(Box::new(error).into()),
        };
        let ctx = self.ctx;
        index_volume(&volume, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
        ctx.recovery_holds.see(&volume);
        self.backend.settled(&kept.record.volume);
        Ok(fate)
    }

    async fn claim(&self, claim: &ClaimRef) -> Result<Option<PersistentVolumeClaim>, PassError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.ctx.clients.calls.clone(), &claim.namespace);
        Ok(api.get_opt(&claim.name).await.map_err(Box::new)?)
    }

    fn note(&self, outcome: &mut Outcome, volume: &str, fate: RecoveryResult) {
        match fate {
            RecoveryResult::Nothing => {}
            RecoveryResult::There => outcome.there += 1,
            RecoveryResult::Made => {
                tracing::info!(backend = self.backend.name, volume, "made the volume again");
                outcome.there += 1;
                outcome.made += 1;
            }
            RecoveryResult::LeftOut(why, claim) => {
                if outcome.left_out < LOGGED {
                    tracing::warn!(backend = self.backend.name, volume, "not made again: {why}");
                }
                outcome.leave_out(volume, why, claim);
            }
            RecoveryResult::Missing(why, claim, missing) => {
                outcome.missing.insert(missing);
                self.note(outcome, volume, RecoveryResult::LeftOut(why, Some(claim)));
            }
        }
    }

    /// Volumes that are asked for by name and have no record.
    fn miss_named(&self, outcome: &mut Outcome, records: &[String]) {
        let RecoveryRequest::Volumes(names) = self.asked else {
            return;
        };
        for name in names.iter().filter(|name| records.binary_search(name).is_err()) {
            let why = "there is no record of it".to_owned();
            self.note(outcome, name, RecoveryResult::LeftOut(why, None));
        }
    }

    /// Where the cluster's own folder is a new one, or there is `nothing` in it, what was here before lies in another: a
    /// claim of the same name is not to be provisioned anew before somebody said so.
    async fn leave_others(&self, outcome: &mut Outcome, nothing: bool) -> Result<(), PassError> {
        let goes_on = self.ctx.cluster_id != self.home && !nothing;
        if goes_on || *self.asked != RecoveryRequest::All {
            return Ok(());
        }
        for theirs in self.export.foreign_directories().await? {
            let why = format!(
                "it is recorded for cluster {}: restore that cluster's Secret before the operator's first start",
                theirs.cluster
            );
            let fate = RecoveryResult::LeftOut(why, Some(name_of(&theirs.claim)));
            self.note(outcome, &theirs.volume, fate);
        }
        Ok(())
    }
}

/// Numbers of volumes by claim; a hash for each name, for there may be ten thousands.
#[derive(Default)]
struct Claims {
    hasher: RandomState,
    counts: HashMap<u64, u32>,
}

impl Claims {
    fn count(&mut self, claim: Option<&ClaimRef>) {
        if let Some(claim) = claim {
            let hash = self.hash(claim);
            *self.counts.entry(hash).or_default() += 1;
        }
    }

    fn of(&self, claim: &ClaimRef) -> u32 {
        self.counts.get(&self.hash(claim)).copied().unwrap_or_default()
    }

    fn hash(&self, claim: &ClaimRef) -> u64 {
        self.hasher.hash_one((&claim.namespace, &claim.name))
    }
}

fn name_of(claim: &ClaimRef) -> ClaimName {
    (claim.namespace.clone(), claim.name.clone())
}

/// A request that no repetition cures.
fn is_refused(error: &kube::Error) -> bool {
    matches!(writes::http_status(error), Some(400 | 403 | 422))
}
