//! The claims that exist or existed, and what their users asked for.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::trees::TreeKey;
use crate::actors::administrator::{ADOPTING, policy_of_class};
use crate::actors::nodes::DataFile;
use crate::api_server::ApiServer;
use crate::objects::{name, namespace, text, uid};

/// A claim that exists or existed.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Namespace and name, for messages.
    pub shown: String,
    pub namespace: String,
    /// UID of the namespace: the tenant.
    pub tenant: String,
    /// What the class or the claim says about the data after the claim is deleted.
    pub policy: Option<String>,
    /// The class takes directories that exist.
    pub adopts: bool,
    /// An administrator chose the volume.
    pub chose_volume: bool,
    /// What the claim is to begin with.
    pub source: Option<Source>,
    /// The claim exists.
    pub exists: bool,
    /// The content that it began with was checked.
    pub is_checked: bool,
}

/// The data source of a claim, or of a backup.
#[derive(Debug, Clone)]
pub struct Source {
    /// The claim that is copied, by UID; empty for an archive.
    pub claim: String,
    /// The directory of the source, if it existed when it was named.
    pub tree: Option<TreeKey>,
    /// What the source contained then.
    pub files: BTreeSet<DataFile>,
}

impl Claim {
    /// Returns true if the volume of this claim may contain what was not written through it.
    pub fn may_have_more(&self) -> bool {
        self.source.is_some() || self.adopts || self.chose_volume
    }
}

/// The claims, by UID.
#[derive(Debug, Default)]
pub struct Claims(BTreeMap<String, Claim>);

impl Claims {
    /// Returns a claim.
    pub fn get(&self, uid: &str) -> Option<&Claim> {
        self.0.get(uid)
    }

    /// Returns a claim, to change it.
    pub fn get_mut(&mut self, uid: &str) -> Option<&mut Claim> {
        self.0.get_mut(uid)
    }

    /// Returns true if a claim exists.
    pub fn exists(&self, uid: &str) -> bool {
        self.get(uid).is_some_and(|claim| claim.exists)
    }

    /// Returns the UID of the claim that has a name now.
    pub fn named(&self, shown: &str) -> Option<&str> {
        let found = self.0.iter().find(|(_, claim)| claim.exists && claim.shown == shown);
        found.map(|(uid, _)| uid.as_str())
    }

    /// Returns true for the directory of a clone or restore whose claim was deleted before it was bound.
    pub fn is_unused_copy(&self, directory: &str) -> bool {
        self.0.iter().any(|(uid, claim)| {
            let is_of_claim = directory.ends_with(uid.as_str()) || claim.adopts && directory == claim.shown;
            !claim.exists && !claim.is_checked && claim.source.is_some() && is_of_claim
        })
    }

    /// Returns true for the directory of a clone or restore that was complete when its source went away, just before the
    /// volume was created. It is kept as long as the claim exists, because a volume may have existed.
    pub fn is_copy_without_source(&self, directory: &str) -> bool {
        let mut claims = self.0.iter();
        claims.any(|(uid, claim)| {
            claim.exists && !claim.is_checked && claim.source.is_some() && directory.ends_with(uid.as_str())
        })
    }

    /// Returns how messages show a claim.
    pub fn shown(&self, uid: &str) -> String {
        let claim = self.get(uid).map_or("a stranger", |claim| claim.shown.as_str());
        format!("{claim} ({uid})")
    }

    /// Records which claims exist. Returns those that are new.
    pub fn observe(&mut self, api: &ApiServer) -> Vec<String> {
        let existing = api.all("persistentvolumeclaims");
        let uids: BTreeSet<&str> = existing.iter().map(|claim| uid(claim)).collect();
        for (uid, claim) in &mut self.0 {
            claim.exists = uids.contains(uid.as_str());
        }
        let mut new = Vec::new();
        for claim in &existing {
            if !self.0.contains_key(uid(claim)) {
                let tenant = tenant(api, namespace(claim)).unwrap_or_default();
                self.0.insert(uid(claim).to_owned(), described(claim, tenant));
                new.push(uid(claim).to_owned());
            }
        }
        new
    }
}

/// Returns what a new claim is.
fn described(claim: &Value, tenant: String) -> Claim {
    let class = text(claim, "/spec/storageClassName");
    let annotation = text(claim, "/metadata/annotations/nfs-operator.io~1on-delete");
    let annotated = Some(annotation.to_owned()).filter(|policy| !policy.is_empty());
    Claim {
        shown: format!("{}/{}", namespace(claim), name(claim)),
        namespace: namespace(claim).to_owned(),
        tenant,
        policy: annotated.or_else(|| policy_of_class(class).map(str::to_owned)),
        adopts: class == ADOPTING,
        chose_volume: !text(claim, "/spec/volumeName").is_empty(),
        source: None,
        exists: true,
        is_checked: false,
    }
}

/// Returns the UID of the namespace that has a name now.
pub fn tenant(api: &ApiServer, name_of_namespace: &str) -> Option<String> {
    let namespaces = api.all("namespaces");
    let found = namespaces.iter().find(|found| name(found) == name_of_namespace);
    found.map(|found| uid(found).to_owned())
}
