//! Backends whose volumes are being made again from their records, and the claims that must not be provisioned meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::sync::Notify;

use crate::api::NfsBackend;
use crate::api::names::{VOLUME_BACKEND, VOLUME_READOPTED, volume_name};

/// Namespace and name of a claim.
pub type ClaimName = (String, String);

/// A volume that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedVolume {
    /// The volume.
    pub volume: String,
    /// Why, and the remedy.
    pub why: String,
}

/// What is not there, and a volume can't be made without.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// A namespace.
    Namespace(String),
    /// A backend.
    Backend(String),
}

/// Left-out volumes that the condition names; all are in the log.
const NAMED: usize = 10;

/// What an administrator says on a backend, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackendRevision {
    annotations: BTreeMap<String, String>,
    generation: Option<i64>,
}

impl BackendRevision {
    /// What the object says.
    pub fn of(object: &NfsBackend) -> Self {
        Self {
            annotations: object.annotations().clone(),
            generation: object.metadata.generation,
        }
    }
}

/// What one pass over a backend's records came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryOutcome {
    /// The administrator's word when the pass began: another one asks for another pass.
    pub revision: BackendRevision,
    /// Volumes in use that the records know, and that are there now.
    pub there: u64,
    /// Those of them that this pass made again.
    pub made: u64,
    /// How many were left out.
    pub left_out: u64,
    /// The first of them.
    pub first: Vec<SkippedVolume>,
    /// Claims whose volume was left out: provisioned anew, they would begin with nothing.
    pub claims: HashMap<ClaimName, String>,
    /// What some of those left out wait for.
    pub missing: BTreeSet<Missing>,
}

impl RecoveryOutcome {
    /// Notes a volume that was left out, and the claim that has to wait for a word about it.
    pub fn leave_out(&mut self, volume: &str, why: String, claim: Option<ClaimName>) {
        self.left_out += 1;
        if let Some(claim) = claim {
            self.claims.insert(claim, volume.to_owned());
        }
        if self.first.len() < NAMED {
            let volume = volume.to_owned();
            self.first.push(SkippedVolume { volume, why });
        }
    }
}

/// How far the re-adoption of a backend is.
#[derive(Debug, Clone, Default)]
pub struct RecoveryStage {
    /// Records looked at, and how many there are.
    pub progress: Option<(u64, u64)>,
    /// What the last pass came to that got to its end.
    pub outcome: Option<Arc<RecoveryOutcome>>,
    /// Why the last pass did not.
    pub trouble: Option<String>,
}

/// The re-adoption of one backend.
#[derive(Default)]
pub struct RecoveryState {
    stage: Mutex<RecoveryStage>,
    /// Rung when there is something to look at.
    pub requested: Arc<Notify>,
}

impl RecoveryState {
    /// How far it is.
    pub fn stage(&self) -> RecoveryStage {
        self.lock().clone()
    }

    /// What the last pass came to that got to its end, if it was asked by this word.
    pub fn outcome(&self, revision: &BackendRevision) -> Option<Arc<RecoveryOutcome>> {
        self.lock()
            .outcome
            .clone()
            .filter(|outcome| outcome.revision == *revision)
    }

    /// So many of so many records were looked at.
    pub fn set_progress(&self, done: u64, of: u64) {
        self.lock().progress = Some((done, of));
    }

    /// A pass came to its end. Answers whether it came to something else than the one before.
    pub fn finish(&self, outcome: RecoveryOutcome) -> bool {
        let mut stage = self.lock();
        let comparable = |outcome: &RecoveryOutcome| (outcome.left_out, outcome.first.clone(), outcome.made > 0);
        let news = stage.outcome.as_deref().map(comparable) != Some(comparable(&outcome));
        *stage = RecoveryStage {
            outcome: Some(Arc::new(outcome)),
            ..RecoveryStage::default()
        };
        news
    }

    /// Something is there: volumes that were left out may wait for it.
    pub fn object_appeared(&self, what: &Missing) {
        let outcome = self.lock().outcome.clone();
        if outcome.is_some_and(|outcome| outcome.missing.contains(what)) {
            self.requested.notify_one();
        }
    }

    /// A pass was cut off.
    pub fn fail(&self, trouble: String) {
        self.lock().trouble = Some(trouble);
    }

    /// Nobody asks for it any more.
    pub fn clear(&self) {
        *self.lock() = RecoveryStage::default();
    }

    fn lock(&self) -> MutexGuard<'_, RecoveryStage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The volumes that were made again, by the claim that each is kept for. As long as there is one for a claim, that claim is
/// not provisioned: the control plane may be about to bind it.
#[derive(Default)]
pub struct RecoveryHolds(Mutex<Pairs>);

#[derive(Default)]
struct Pairs {
    by_volume: HashMap<String, ClaimName>,
    by_claim: HashMap<ClaimName, String>,
    /// By the claim's uid, once the control plane gave the volume to it: the claim itself says so later, and the watch of
    /// claims may be later still. A uid never comes back, so these stay.
    bound: HashMap<String, String>,
}

impl Pairs {
    fn part(&mut self, volume: &str) {
        let claim = self.by_volume.remove(volume);
        // Of two volumes for one claim, the other one's word stands.
        if let Some(claim) = claim.filter(|claim| self.by_claim.get(claim).is_some_and(|other| other == volume)) {
            self.by_claim.remove(&claim);
        }
    }
}

impl RecoveryHolds {
    /// A volume was seen, or made.
    pub fn observe(&self, volume: &PersistentVolume) {
        let (mut pairs, name) = (self.lock(), volume.name_any());
        pairs.part(&name);
        if let Some(claim) = waits_for(volume) {
            pairs.by_claim.insert(claim.clone(), name.clone());
            pairs.by_volume.insert(name, claim);
        } else if let Some(uid) = bound_to(volume) {
            pairs.bound.insert(uid.to_owned(), name);
        }
    }

    /// A volume is gone.
    pub fn remove(&self, volume: &str) {
        self.lock().part(volume);
    }

    /// The volume that is kept for a claim of this name, or was given to the one with this uid.
    pub fn held_for(&self, claim: &ClaimName, uid: &str) -> Option<String> {
        let pairs = self.lock();
        pairs.bound.get(uid).or_else(|| pairs.by_claim.get(claim)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Pairs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The claim that a volume waits for: named, and of no uid yet.
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

/// The uid of the claim that has a volume of ours which was made for another one first.
fn bound_to(volume: &PersistentVolume) -> Option<&str> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let uid = claim.uid.as_deref().filter(|uid| !uid.is_empty())?;
    let again = volume.annotations().contains_key(VOLUME_BACKEND) && volume.name_any() != volume_name(uid);
    again.then_some(uid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(claim: Value, annotations: Value) -> PersistentVolume {
        let object = json!({"metadata": {"name": "pvc-1", "annotations": annotations}, "spec": {"claimRef": claim}});
        serde_json::from_value(object).unwrap()
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
    fn a_pass_that_comes_to_the_same_is_no_news() {
        let readoption = RecoveryState::default();
        let left = |why: &str| {
            let mut outcome = RecoveryOutcome::default();
            outcome.leave_out("pvc-1", why.to_owned(), Some(("team".into(), "data".into())));
            outcome
        };
        assert!(readoption.finish(left("a")));
        assert!(!readoption.finish(left("a")));
        assert!(readoption.finish(left("b")));
        readoption.fail("cut".into());
        let stage = readoption.stage();
        assert!(stage.outcome.is_some(), "what was known stays known");
        readoption.clear();
        assert!(readoption.stage().outcome.is_none());
    }
}
