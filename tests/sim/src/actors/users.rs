//! Users: they create, clone, restore, expand and delete claims.

use serde_json::{Value, json};

use crate::actors::administrator::BACKENDS;
use crate::actors::volumes;
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::objects::{claim_path, is_deleting, name, namespace, text, uid};
use crate::trace::Trace;

/// Namespaces of users.
pub const NAMESPACES: [&str; 2] = ["team", "other"];
/// Number of names that users give their claims: few, so that names are used again.
const NAMES: u64 = 6;
/// Maximum size of a claim, in MiB. A claim with a data source requests as much.
const MAX_SIZE: u64 = 64;

/// The users.
#[derive(Debug)]
pub struct Users {
    api: ApiServer,
    chance: Chance,
    trace: Trace,
    classes: Vec<String>,
}

impl Users {
    /// Returns users who use these classes.
    pub fn new(seed: u64, api: ApiServer, trace: Trace, classes: Vec<String>) -> Self {
        Self {
            api,
            chance: Chance::new(seed, "users"),
            trace,
            classes,
        }
    }

    /// Does one thing.
    pub fn act(&self) {
        match self.chance.below(20) {
            0..11 => self.create(),
            11..13 => self.expand(),
            _ => self.delete(),
        }
    }

    fn create(&self) {
        let (Some(namespace), Some(class)) = (self.chance.choose(&NAMESPACES), self.chance.choose(&self.classes))
        else {
            return;
        };
        let claim = format!("data-{}", self.chance.below(NAMES));
        let size = 1 + self.chance.below(MAX_SIZE);
        let mut object = json!({
            "metadata": {"name": claim, "annotations": self.annotations()},
            "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": class,
                "resources": {"requests": {"storage": format!("{size}Mi")}}},
        });
        let source = match self.chance.below(10) {
            0..2 => self.claim_as_source(namespace),
            2..4 => self.archive_as_source(),
            _ => None,
        };
        if let Some((field, source)) = &source
            && let Some(spec) = object.pointer_mut("/spec").and_then(Value::as_object_mut)
        {
            spec.insert((*field).to_owned(), source.clone());
            let size = json!({"requests": {"storage": format!("{}Mi", 4 * MAX_SIZE)}});
            spec.insert("resources".to_owned(), size);
        }
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        if let Ok(created) = self.api.call("user", "POST", &path, &object) {
            let from = source.map_or_else(String::new, |(_, source)| {
                format!(" from {} {}", text(&source, "/kind"), name_of_source(&source))
            });
            self.trace.record(
                "user",
                format_args!(
                    "creates claim {namespace}/{claim} of class {class}{from}: {}",
                    uid(&created)
                ),
            );
        }
    }

    /// Returns annotations that a user sets on a claim.
    fn annotations(&self) -> Value {
        match self.chance.below(12) {
            0 => json!({"nfs-operator.io/restore": "copy"}),
            1 => json!({"nfs-operator.io/restore": "move"}),
            2 => json!({"nfs-operator.io/on-delete": "delete"}),
            3 => json!({"nfs-operator.io/on-delete": "archive"}),
            4 => json!({"nfs-operator.io/backend": self.chance.choose(&BACKENDS)}),
            _ => json!({}),
        }
    }

    /// Returns a claim of the namespace as the source of a clone.
    fn claim_as_source(&self, of: &str) -> Option<(&'static str, Value)> {
        let mut claims = self.api.all("persistentvolumeclaims");
        claims.retain(|claim| namespace(claim) == of);
        let claim = self.chance.choose(&claims)?;
        let source = json!({"kind": "PersistentVolumeClaim", "name": name(claim)});
        Some(("dataSource", source))
    }

    /// Returns any archive as the source of a restore: also one of another namespace, which a user may try.
    fn archive_as_source(&self) -> Option<(&'static str, Value)> {
        let archives = self.api.all("nfsarchives");
        let archive = self.chance.choose(&archives)?;
        let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": name(archive)});
        Some(("dataSourceRef", source))
    }

    /// Requests more for a claim.
    fn expand(&self) {
        let mut claims = self.api.all("persistentvolumeclaims");
        claims.retain(|claim| !is_deleting(claim) && text(claim, "/status/phase") == "Bound");
        let Some(claim) = self.chance.choose(&claims) else {
            return;
        };
        let size = format!("{}Mi", 4 * MAX_SIZE + self.chance.below(4 * MAX_SIZE));
        let path = claim_path(namespace(claim), name(claim));
        let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        if self.api.call("user", "PATCH", &path, &patch).is_ok() {
            self.trace.record(
                "user",
                format_args!("expands claim {}/{} to {size}", namespace(claim), name(claim)),
            );
        }
    }

    fn delete(&self) {
        let mut claims = self.api.all("persistentvolumeclaims");
        claims.retain(|claim| !is_deleting(claim));
        let Some(claim) = self.chance.choose(&claims) else {
            return;
        };
        let path = claim_path(namespace(claim), name(claim));
        if self.api.call("user", "DELETE", &path, &json!({})).is_ok() {
            self.trace.record(
                "user",
                format_args!("deletes claim {}/{}", namespace(claim), name(claim)),
            );
        }
    }

    /// Uses the name of a deleted claim again whose volume still exists: creates a claim, or deletes the one that has the
    /// name now.
    pub fn use_name_again(&self, chance: &Chance) {
        let volumes = volumes::released(&self.api);
        let Some(volume) = chance.choose(&volumes) else {
            return;
        };
        let (namespace, claim) = (
            text(volume, "/spec/claimRef/namespace"),
            text(volume, "/spec/claimRef/name"),
        );
        let path = claim_path(namespace, claim);
        if self.api.call("user", "DELETE", &path, &json!({})).is_ok() {
            self.trace
                .record("user", format_args!("deletes claim {namespace}/{claim}"));
            return;
        }
        let class = text(volume, "/spec/storageClassName");
        let object = json!({
            "metadata": {"name": claim},
            "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": class,
                "resources": {"requests": {"storage": format!("{MAX_SIZE}Mi")}}},
        });
        let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        if let Ok(created) = self.api.call("user", "POST", &claims, &object) {
            self.trace.record(
                "user",
                format_args!(
                    "creates claim {namespace}/{claim} of class {class} again: {}",
                    uid(&created)
                ),
            );
        }
    }

    /// Deletes all claims.
    pub fn delete_all(&self) {
        for claim in self.api.all("persistentvolumeclaims") {
            let path = claim_path(namespace(&claim), name(&claim));
            let _already_deleted = self.api.call("user", "DELETE", &path, &json!({}));
        }
    }
}

fn name_of_source(source: &Value) -> &str {
    text(source, "/name")
}
