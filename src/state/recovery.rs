//! Recovery of volumes from the records on their backends, and the claims that must not be provisioned in the meantime.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::api::NfsBackend;
use crate::api::names::{VOLUME_BACKEND, VOLUME_READOPTED, volume_name};
use crate::decide::reclaim::is_released;

/// Namespace and name of a claim.
pub type ClaimName = (String, String);

/// Volume that was skipped by a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedVolume {
    /// Name of the volume.
    pub volume: String,
    /// Reason, and the remedy.
    pub reason: String,
}

/// Missing object that a volume requires before it can be recovered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissingDependency {
    /// A namespace.
    Namespace(String),
    /// A backend.
    Backend(String),
}

/// Maximum number of skipped volumes in the condition; all are in the log.
const NAMED: usize = 10;

/// Annotations and generation of a backend object at one point in time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackendRevision {
    annotations: BTreeMap<String, String>,
    generation: Option<i64>,
}

impl BackendRevision {
    /// Returns the revision of a backend object.
    pub fn of(object: &NfsBackend) -> Self {
        Self {
            annotations: object.annotations().clone(),
            generation: object.metadata.generation,
        }
    }
}

/// Result of one pass over the records of a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryOutcome {
    /// Revision of the backend when the pass began. Another revision requires another pass.
    pub revision: BackendRevision,
    /// Number of recorded volumes in use that exist now.
    pub existing: u64,
    /// Number of those that were recreated, by this pass and by those before it with this revision.
    pub recreated: u64,
    /// Number of skipped volumes.
    pub skipped: u64,
    /// Number of skipped volumes that the administrator named.
    pub skipped_named: u64,
    /// The first skipped volumes.
    pub first: Vec<SkippedVolume>,
    /// Claims whose volume was skipped, with the name of that volume. A new volume for such a claim would be empty.
    pub claims: HashMap<ClaimName, String>,
    /// Missing objects that skipped volumes wait for.
    pub missing: BTreeSet<MissingDependency>,
}

impl RecoveryOutcome {
    /// Records a skipped volume, and the claim that must not be provisioned because of it.
    pub fn skip(&mut self, volume: &str, reason: String, claim: Option<ClaimName>) {
        self.skipped += 1;
        if let Some(claim) = claim {
            self.claims.insert(claim, volume.to_owned());
        }
        if self.first.len() < NAMED {
            let volume = volume.to_owned();
            self.first.push(SkippedVolume { volume, reason });
        }
    }
}

/// Progress of the recovery of a backend.
#[derive(Debug, Clone, Default)]
pub struct RecoveryProgress {
    /// Number of processed records, and total number of records.
    pub processed: Option<(u64, u64)>,
    /// Result of the last completed pass.
    pub outcome: Option<Arc<RecoveryOutcome>>,
    /// Error that interrupted the last pass.
    pub error: Option<String>,
}

/// State of the recovery of a backend.
#[derive(Default)]
pub struct RecoveryState {
    progress: Mutex<RecoveryProgress>,
    /// Notified when a pass is requested.
    pub requested: Arc<Notify>,
}

impl RecoveryState {
    /// Returns the current progress.
    pub fn progress(&self) -> RecoveryProgress {
        self.progress.lock().clone()
    }

    /// Returns the result of the last completed pass if it began with this revision.
    pub fn outcome(&self, revision: &BackendRevision) -> Option<Arc<RecoveryOutcome>> {
        self.progress
            .lock()
            .outcome
            .clone()
            .filter(|outcome| outcome.revision == *revision)
    }

    /// Records the number of processed records and the total.
    pub fn set_progress(&self, done: u64, of: u64) {
        self.progress.lock().processed = Some((done, of));
    }

    /// Records a completed pass. Returns its outcome if it differs from the previous one.
    pub fn finish(&self, mut outcome: RecoveryOutcome) -> Option<Arc<RecoveryOutcome>> {
        let mut progress = self.progress.lock();
        if let Some(former) = progress
            .outcome
            .as_ref()
            .filter(|former| former.revision == outcome.revision)
        {
            outcome.recreated += former.recreated;
        }
        let comparable = |outcome: &RecoveryOutcome| (outcome.skipped, outcome.first.clone(), outcome.recreated > 0);
        let changed = progress.outcome.as_deref().map(comparable) != Some(comparable(&outcome));
        let outcome = Arc::new(outcome);
        *progress = RecoveryProgress {
            outcome: Some(Arc::clone(&outcome)),
            ..RecoveryProgress::default()
        };
        changed.then_some(outcome)
    }

    /// Requests a pass if skipped volumes wait for this object.
    pub fn object_appeared(&self, what: &MissingDependency) {
        let outcome = self.progress.lock().outcome.clone();
        if outcome.is_some_and(|outcome| outcome.missing.contains(what)) {
            self.requested.notify_one();
        }
    }

    /// Records the error that interrupted a pass.
    pub fn fail(&self, error: String) {
        self.progress.lock().error = Some(error);
    }

    /// Clears the state when recovery is no longer requested.
    pub fn clear(&self) {
        *self.progress.lock() = RecoveryProgress::default();
    }
}

/// Volume in use according to its signed record, whose object does not exist: the API server was restored from a backup,
/// or the object was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostVolume {
    /// Name of the volume.
    pub volume: String,
    /// Backend on whose export the record was found.
    pub backend: Arc<str>,
    /// UID of the claim in the record.
    pub claim_uid: String,
}

/// Lost volumes. After the loss of a cluster, these are all volumes: each name is stored once, or twice if it is a key.
#[derive(Default)]
struct LostVolumes {
    /// By the claim in the record, sorted by volume.
    by_claim: HashMap<Arc<ClaimName>, Vec<LostVolume>>,
    /// By volume.
    claims: HashMap<String, Arc<ClaimName>>,
}

impl LostVolumes {
    fn insert(&mut self, claim: ClaimName, lost: LostVolume) {
        self.remove(&lost.volume);
        let claim = Arc::new(claim);
        self.claims.insert(lost.volume.clone(), Arc::clone(&claim));
        let of_claim = self.by_claim.entry(claim).or_insert_with(|| Vec::with_capacity(1));
        let place = of_claim.partition_point(|other| other.volume < lost.volume);
        of_claim.insert(place, lost);
    }

    fn remove(&mut self, volume: &str) {
        let Some(claim) = self.claims.remove(volume) else {
            return;
        };
        if let Some(of_claim) = self.by_claim.get_mut(&claim) {
            of_claim.retain(|lost| lost.volume != volume);
            if of_claim.is_empty() {
                self.by_claim.remove(&claim);
            }
        }
    }

    fn remove_of_backend(&mut self, backend: &str) {
        self.by_claim.retain(|_, of_claim| {
            for lost in of_claim.extract_if(.., |lost| *lost.backend == *backend) {
                self.claims.remove(&lost.volume);
            }
            !of_claim.is_empty()
        });
    }
}

/// Volumes by the claim that must not be provisioned because of them: recovered volumes, which the control plane may be
/// about to bind, and lost volumes, whose data a new volume would not have.
#[derive(Default)]
pub struct RecoveryHolds(Mutex<Pairs>);

#[derive(Default)]
struct Pairs {
    by_volume: HashMap<String, ClaimName>,
    by_claim: HashMap<ClaimName, String>,
    lost: LostVolumes,
    /// Recovered volumes by the UID of the claim that the control plane bound them to. The claim object is updated
    /// later, and the watch of claims may be later still, so an entry remains until the claim is gone.
    bound: HashMap<String, String>,
}

impl Pairs {
    /// Removes a volume, and returns the claim that it was reserved for.
    fn part(&mut self, volume: &str) -> Option<ClaimName> {
        let claim = self.by_volume.remove(volume)?;
        // If two volumes are reserved for one claim, the entry of the other one remains.
        if self.by_claim.get(&claim).is_some_and(|other| other == volume) {
            self.by_claim.remove(&claim);
        }
        Some(claim)
    }
}

impl RecoveryHolds {
    /// Replaces the lost volumes of a backend, each with the claim in its record.
    pub fn set_lost(&self, backend: &str, volumes: impl IntoIterator<Item = (ClaimName, LostVolume)>) {
        let mut pairs = self.0.lock();
        pairs.lost.remove_of_backend(backend);
        for (claim, lost) in volumes {
            pairs.lost.insert(claim, lost);
        }
    }

    /// Forgets a volume that is not lost, or whose record was removed.
    pub fn forget_lost(&self, volume: &str) {
        self.0.lock().lost.remove(volume);
    }

    /// Returns the lost volumes of a claim of this name. A claim that is recorded by its UID is still being provisioned, and
    /// gets its own volume.
    pub fn lost_of(&self, claim: &ClaimName, uid: &str) -> Vec<LostVolume> {
        let pairs = self.0.lock();
        let volumes = pairs.lost.by_claim.get(claim).into_iter().flatten();
        volumes.filter(|lost| lost.claim_uid != uid).cloned().collect()
    }

    /// Records a volume that was observed or recreated.
    pub fn observe(&self, volume: &PersistentVolume) {
        let (mut pairs, name) = (self.0.lock(), volume.name_any());
        pairs.part(&name);
        pairs.lost.remove(&name);
        if let Some(claim) = waits_for(volume) {
            pairs.by_claim.insert(claim.clone(), name.clone());
            pairs.by_volume.insert(name, claim);
        } else if let Some(uid) = bound_to(volume) {
            match is_released(volume) {
                // The watch of claims may have been disconnected when the claim was deleted.
                true => drop(pairs.bound.remove(uid)),
                false => drop(pairs.bound.insert(uid.to_owned(), name)),
            }
        }
    }

    /// Forgets a deleted claim.
    pub fn forget_claim(&self, uid: &str) {
        self.0.lock().bound.remove(uid);
    }

    /// Forgets a deleted volume, and returns the claim that it was reserved for.
    pub fn remove(&self, volume: &str) -> Option<ClaimName> {
        self.0.lock().part(volume)
    }

    /// Returns the volume that is reserved for a claim of this name, or bound to the claim with this UID.
    pub fn held_for(&self, claim: &ClaimName, uid: &str) -> Option<String> {
        let pairs = self.0.lock();
        pairs.bound.get(uid).or_else(|| pairs.by_claim.get(claim)).cloned()
    }
}

/// Returns the claim that a recovered volume is reserved for: its claim reference has a name and no UID yet.
fn waits_for(volume: &PersistentVolume) -> Option<ClaimName> {
    if !volume.annotations().contains_key(VOLUME_READOPTED) || volume.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    if claim.uid.as_ref().is_some_and(|uid| !uid.is_empty()) {
        return None;
    }
    Some((claim.namespace.clone()?, claim.name.clone()?))
}

/// Returns the UID of the bound claim of a volume of this operator that was provisioned for another claim.
fn bound_to(volume: &PersistentVolume) -> Option<&str> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let uid = claim.uid.as_deref().filter(|uid| !uid.is_empty())?;
    let again = volume.annotations().contains_key(VOLUME_BACKEND) && volume.name_any() != volume_name(uid);
    again.then_some(uid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeStatus;
    use serde_json::{Value, json};

    use super::*;

    fn volume(claim: Value, annotations: Value) -> PersistentVolume {
        let object = json!({"metadata": {"name": "pvc-1", "annotations": annotations}, "spec": {"claimRef": claim}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_repeated_pass_does_not_hide_what_an_earlier_one_recreated() {
        let state = RecoveryState::default();
        let pass = |generation: i64, recreated: u64| RecoveryOutcome {
            revision: BackendRevision {
                annotations: BTreeMap::new(),
                generation: Some(generation),
            },
            existing: 4,
            recreated,
            ..RecoveryOutcome::default()
        };
        let recreated = || state.progress().outcome.map(|outcome| outcome.recreated);
        assert!(state.finish(pass(1, 3)).is_some());
        assert_eq!(state.finish(pass(1, 0)), None, "nothing new");
        assert_eq!(recreated(), Some(3));
        state.finish(pass(1, 1));
        assert_eq!(recreated(), Some(4));
        state.finish(pass(2, 0));
        assert_eq!(recreated(), Some(0), "another request");
    }

    #[test]
    fn a_volume_is_kept_for_its_claim_until_it_is_bound_or_gone() {
        let (reserved, claim) = (RecoveryHolds::default(), ("team".to_owned(), "data".to_owned()));
        let name = json!({"namespace": "team", "name": "data"});
        let (ours, handed_over) = (
            json!({VOLUME_READOPTED: "u", VOLUME_BACKEND: "main"}),
            json!({VOLUME_BACKEND: "main"}),
        );
        reserved.observe(&volume(name.clone(), json!({})));
        assert_eq!(reserved.held_for(&claim, "v"), None, "not made again by us");
        reserved.observe(&volume(name.clone(), ours.clone()));
        assert_eq!(reserved.held_for(&claim, "v").as_deref(), Some("pvc-1"));
        assert_eq!(reserved.held_for(&("team".into(), "other".into()), "v"), None);
        let bound = json!({"namespace": "team", "name": "data", "uid": "v"});
        for annotations in [ours.clone(), handed_over.clone()] {
            reserved.observe(&volume(bound.clone(), annotations));
            let its = reserved.held_for(&claim, "v");
            assert_eq!(its.as_deref(), Some("pvc-1"), "the claim may not know it yet");
            assert_eq!(
                reserved.held_for(&claim, "w"),
                None,
                "the next one of that name has no part in it"
            );
        }
        let own = json!({"namespace": "team", "name": "other", "uid": "1"});
        reserved.observe(&volume(own, handed_over));
        assert_eq!(
            reserved.held_for(&("team".into(), "other".into()), "1"),
            None,
            "made for it in the first place"
        );
        reserved.observe(&volume(name, ours));
        reserved.remove("pvc-1");
        assert_eq!(reserved.held_for(&claim, "w"), None);
    }

    #[test]
    fn of_a_claim_that_is_gone_nothing_is_kept() {
        let bound = json!({"namespace": "team", "name": "data", "uid": "v"});
        let bound = volume(bound, json!({VOLUME_BACKEND: "main"}));
        let mut released = bound.clone();
        let phase = Some("Released".to_owned());
        released.status = Some(PersistentVolumeStatus {
            phase,
            ..PersistentVolumeStatus::default()
        });
        let holds = RecoveryHolds::default();
        let kept = || holds.0.lock().bound.len();
        holds.observe(&bound);
        assert_eq!(kept(), 1);
        holds.forget_claim("v");
        assert_eq!(kept(), 0, "the watch reported its deletion");
        holds.observe(&bound);
        holds.observe(&released);
        assert_eq!(kept(), 0, "the control plane did");
    }

    #[test]
    fn a_lost_volume_holds_the_claims_of_its_name_until_it_exists_again() {
        let (holds, claim) = (RecoveryHolds::default(), ("team".to_owned(), "data".to_owned()));
        let lost = |volume: &str, backend: &str| {
            let lost = LostVolume {
                volume: volume.to_owned(),
                backend: backend.into(),
                claim_uid: volume.trim_start_matches("pvc-").to_owned(),
            };
            (claim.clone(), lost)
        };
        let held = |uid: &str| -> Vec<String> {
            let held = holds.lost_of(&claim, uid);
            held.into_iter().map(|lost| lost.volume).collect()
        };
        holds.set_lost("main", [lost("pvc-1", "main"), lost("pvc-2", "main")]);
        holds.set_lost("other", [lost("pvc-3", "other")]);
        assert_eq!(held("new"), ["pvc-1", "pvc-2", "pvc-3"]);
        assert_eq!(held("1"), ["pvc-2", "pvc-3"], "its own volume is being provisioned");
        assert!(holds.lost_of(&("team".into(), "other".into()), "new").is_empty());
        holds.observe(&volume(json!({}), json!({})));
        assert_eq!(held("new"), ["pvc-2", "pvc-3"], "pvc-1 exists");
        holds.forget_lost("pvc-3");
        holds.set_lost("main", []);
        assert!(held("new").is_empty());
        let left = holds.0.lock().lost.claims.len();
        assert_eq!(left, 0);
    }

    #[test]
    fn a_pass_that_comes_to_the_same_is_no_news() {
        let readoption = RecoveryState::default();
        let left = |reason: &str| {
            let mut outcome = RecoveryOutcome::default();
            outcome.skip("pvc-1", reason.to_owned(), Some(("team".into(), "data".into())));
            outcome
        };
        assert!(readoption.finish(left("a")).is_some());
        assert!(readoption.finish(left("a")).is_none());
        assert!(readoption.finish(left("b")).is_some());
        readoption.fail("cut".into());
        let progress = readoption.progress();
        assert!(progress.outcome.is_some(), "what was known stays known");
        readoption.clear();
        assert!(readoption.progress().outcome.is_none());
    }
}
