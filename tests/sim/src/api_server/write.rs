//! Creates, updates, patches and deletes.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answer::Refusal;
use super::apply::{Manager, Ownership};
use super::kinds::Kind;
use super::request::{Parameters, Target};
use super::store::{Key, Store};
use super::validation::{check_finalizers, check_update};
use super::{patch, schema};
use crate::objects::at;

/// Fields of the metadata that only the server sets.
const SERVER_METADATA: [&str; 7] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
];

/// The form of a patch, by its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    Merge,
    Strategic,
    Json,
    Apply,
}

/// A write, and who makes it.
pub struct Writer<'a> {
    pub store: &'a mut Store,
    pub target: &'a Target,
    pub parameters: &'a Parameters,
    /// Name of the client.
    pub by: &'a str,
}

/// A written object, with the status of the answer.
pub type Written = Result<(u16, Arc<Value>), Refusal>;

impl Writer<'_> {
    fn kind(&self) -> &'static Kind {
        self.target.kind
    }

    fn key(&self, name: &str) -> Key {
        Key {
            plural: self.kind().plural,
            namespace: self.target.namespace.clone(),
            name: name.to_owned(),
        }
    }

    fn manager(&self, applies: bool) -> Manager {
        let name = self.parameters.get("fieldManager").unwrap_or(self.by);
        (name.to_owned(), applies, self.target.status)
    }

    /// Creates an object.
    pub fn create(&mut self, object: Value) -> Written {
        if self.kind().plural == "selfsubjectreviews" {
            return Ok((201, Arc::new(self.review(object))));
        }
        let Some(name) = text(&object, "/metadata/name").map(str::to_owned) else {
            let message = "name or generateName is required";
            return Err(Refusal::invalid(self.kind(), "", "metadata.name", message));
        };
        if text(&object, "/metadata/resourceVersion").is_some() {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Refusal::new(500, "", message));
        }
        let key = self.key(&name);
        if self.store.get(&key).is_some() {
            return Err(Refusal::already_exists(self.kind(), &name));
        }
        self.check_namespace(&name)?;
        let manager = self.manager(false);
        self.insert(key, object, &manager).map(|object| (201, object))
    }

    /// Stores a new object.
    fn insert(&mut self, key: Key, mut object: Value, manager: &Manager) -> Result<Arc<Value>, Refusal> {
        let kind = self.kind();
        if kind.has_status
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        if let Some(fields) = object.as_object_mut() {
            fields.insert("apiVersion".to_owned(), json!(kind.api_version()));
            fields.insert("kind".to_owned(), json!(kind.kind));
        }
        let (_, applies, _) = manager;
        let named = applies.then(|| object.clone());
        schema::set_defaults(kind, &mut object);
        let (uid, time) = (self.store.uid(), self.store.time());
        let metadata = object
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .ok_or_else(|| Refusal::bad_request("the object has no metadata"))?;
        for field in SERVER_METADATA {
            metadata.remove(field);
        }
        metadata.insert("name".to_owned(), json!(key.name));
        if kind.namespaced {
            metadata.insert("namespace".to_owned(), json!(key.namespace));
        }
        metadata.insert("uid".to_owned(), json!(uid));
        metadata.insert("creationTimestamp".to_owned(), time);
        if kind.has_generation() {
            metadata.insert("generation".to_owned(), json!(1));
        }
        normalize(&mut object);
        let mut ownership = Ownership::default();
        // An apply owns what it names; any other create owns the defaults, too.
        ownership.update(&Value::Null, named.as_ref().unwrap_or(&object), manager);
        Ok(self.put(key, object, ownership))
    }

    /// Stores an object, unless the request is only checked.
    fn put(&mut self, key: Key, object: Value, ownership: Ownership) -> Arc<Value> {
        match self.parameters.get("dryRun") {
            Some(_) => Arc::new(object),
            None => self.store.put(key, object, ownership, self.by),
        }
    }

    /// Removes an object, unless the request is only checked. Returns its last state.
    fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        match self.parameters.get("dryRun") {
            Some(_) => self.store.get(key).map(|stored| Arc::clone(&stored.object)),
            None => self.store.remove(key, self.by),
        }
    }

    /// Objects are created in namespaces that exist and are not deleted.
    fn check_namespace(&self, name: &str) -> Result<(), Refusal> {
        let namespace = &self.target.namespace;
        if !self.kind().namespaced || namespace == "default" {
            return Ok(());
        }
        let key = Key {
            plural: "namespaces",
            namespace: String::new(),
            name: namespace.clone(),
        };
        match self.store.get(&key) {
            None => {
                let kind = Kind::named("Namespace").unwrap_or(self.kind());
                Err(Refusal::not_found(kind, namespace))
            }
            Some(found) if at(&found.object, "/metadata/deletionTimestamp").is_some() => {
                Err(Refusal::terminating(self.kind(), name, namespace))
            }
            Some(_) => Ok(()),
        }
    }

    /// Answers who asks, and when: an object that is not stored.
    fn review(&self, mut object: Value) -> Value {
        patch::merge(
            &mut object,
            &json!({
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "SelfSubjectReview",
                "metadata": {"creationTimestamp": self.store.time()},
                "status": {"userInfo": {"username": self.by}},
            }),
        );
        object
    }

    fn found(&self) -> Result<(Key, Arc<Value>), Refusal> {
        let name = self.target.name.as_deref().unwrap_or_default();
        let key = self.key(name);
        match self.store.get(&key) {
            Some(stored) => Ok((key, Arc::clone(&stored.object))),
            None => Err(Refusal::not_found(self.kind(), name)),
        }
    }

    /// Replaces an object.
    pub fn replace(&mut self, object: Value) -> Written {
        // Of the kinds here, only Leases are created by an update.
        if self.kind().plural == "leases" && self.found().is_err() {
            let name = self.target.name.as_deref().unwrap_or_default();
            self.check_namespace(name)?;
            let (key, manager) = (self.key(name), self.manager(false));
            return self.insert(key, object, &manager).map(|object| (201, object));
        }
        let (key, before) = self.found()?;
        if self.kind().custom && text(&object, "/metadata/resourceVersion").is_none() {
            let cause = "Invalid value: 0: must be specified for an update";
            return Err(Refusal::invalid(
                self.kind(),
                &key.name,
                "metadata.resourceVersion",
                cause,
            ));
        }
        let current = text(&before, "/metadata/uid").unwrap_or_default();
        if let Some(uid) = text(&object, "/metadata/uid").filter(|uid| *uid != current) {
            let cause = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {current}");
            return Err(Refusal::conflict(self.kind(), &key.name, &cause));
        }
        let manager = self.manager(false);
        self.update(key, &before, object, &manager)
    }

    /// Patches an object. An apply creates it if it does not exist.
    pub fn patch(&mut self, patch_type: PatchType, body: &Value) -> Written {
        let found = self.found();
        if patch_type == PatchType::Apply {
            return self.apply(found, body);
        }
        let (key, before) = found?;
        let mut after = (*before).clone();
        match patch_type {
            PatchType::Json => patch::json(&mut after, body)?,
            PatchType::Strategic => patch::strategic(&mut after, body),
            _ => patch::merge(&mut after, body),
        }
        let manager = self.manager(false);
        self.update(key, &before, after, &manager)
    }

    fn apply(&mut self, found: Result<(Key, Arc<Value>), Refusal>, configuration: &Value) -> Written {
        let manager = self.manager(true);
        let (key, before) = match found {
            Ok(found) => found,
            Err(refusal) if self.target.status => return Err(refusal),
            Err(_) => {
                let name = self.target.name.clone().unwrap_or_default();
                if let Some(uid) = text(configuration, "/metadata/uid") {
                    let cause = format!(
                        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                    );
                    return Err(Refusal::conflict(self.kind(), &name, &cause));
                }
                self.check_namespace(&name)?;
                let key = self.key(&name);
                let created = self.insert(key, configuration.clone(), &manager)?;
                return Ok((201, created));
            }
        };
        let mut after = (*before).clone();
        let owned = self.store.get(&key).map(|stored| stored.ownership.clone());
        let owned = owned.unwrap_or_default();
        let mut ownership = owned.clone();
        let force = self.parameters.is_set("force");
        let mut configuration = configuration.clone();
        self.restrict(&mut configuration);
        ownership.apply((self.kind(), &key.name), &mut after, &configuration, &manager, force)?;
        for field in ["uid", "resourceVersion"] {
            if let Some(value) = configuration.pointer(&format!("/metadata/{field}")) {
                patch::merge(&mut after, &json!({"metadata": {field: value}}));
            }
        }
        let changed_owners = ownership != owned;
        self.finish(key, &before, after, ownership, changed_owners)
    }

    /// Removes what a write to this subresource does not change.
    fn restrict(&self, configuration: &mut Value) {
        let Some(fields) = configuration.as_object_mut() else {
            return;
        };
        if self.target.status {
            fields.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
            // Of the metadata of a custom object, only the precondition counts.
            if self.kind().custom
                && let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut)
            {
                metadata.retain(|name, _| name == "resourceVersion");
            }
        } else if self.kind().has_status {
            fields.remove("status");
        }
    }

    fn update(&mut self, key: Key, before: &Arc<Value>, after: Value, manager: &Manager) -> Written {
        let stored = self.store.get(&key).map(|stored| stored.ownership.clone());
        let mut ownership = stored.unwrap_or_default();
        let after = self.merged_subresources(before, after);
        ownership.update(before, &after, manager);
        self.finish(key, before, after, ownership, false)
    }

    /// Takes the parts that this request may not change from the object as it was.
    fn merged_subresources(&self, before: &Value, mut after: Value) -> Value {
        let kind = self.kind();
        let keep = |after: &mut Value, field: &str| {
            let Some(fields) = after.as_object_mut() else { return };
            match before.get(field) {
                Some(value) => fields.insert(field.to_owned(), value.clone()),
                None => fields.remove(field),
            };
        };
        if self.target.status {
            keep(&mut after, "spec");
            if kind.custom {
                let resource_version = at(&after, "/metadata/resourceVersion").cloned();
                keep(&mut after, "metadata");
                set_metadata(&mut after, "resourceVersion", resource_version.as_ref());
            }
        } else if kind.has_status {
            keep(&mut after, "status");
        }
        after
    }

    /// Checks and stores a changed object. Removes it if it is being deleted and nothing keeps it. An object that is as
    /// before is stored again only if an apply changed who owns it.
    fn finish(
        &mut self,
        key: Key,
        before: &Arc<Value>,
        mut after: Value,
        ownership: Ownership,
        changed_owners: bool,
    ) -> Written {
        let kind = self.kind();
        let names_other = |path: &str| text(&after, path).is_some_and(|given| Some(given) != text(before, path));
        if names_other("/metadata/resourceVersion") {
            return Err(Refusal::modified(kind, &key.name));
        }
        if names_other("/metadata/uid") {
            return Err(Refusal::other_uid(kind, &key.name));
        }
        if let Some(metadata) = metadata_of(&mut after) {
            let before = before.get("metadata");
            for field in SERVER_METADATA {
                set_field(metadata, field, before.and_then(|before| before.get(field)));
            }
        }
        if kind.namespaced && text(&after, "/metadata/namespace") != Some(&key.namespace) {
            set_metadata(&mut after, "namespace", Some(&json!(key.namespace)));
        }
        check_finalizers(kind, &key.name, before, &after)?;
        schema::set_defaults_on_update(kind, &mut after);
        if !self.target.status {
            check_update(kind, &key.name, before, &after)?;
        }
        normalize(&mut after);
        if kind.has_generation() && !self.target.status && !has_same_desired_state(before, &after) {
            let generation = before
                .pointer("/metadata/generation")
                .and_then(Value::as_u64)
                .unwrap_or(0);
            patch::merge(&mut after, &json!({"metadata": {"generation": generation + 1}}));
        }
        if is_removable(&after) {
            self.remove(&key);
            return Ok((200, Arc::new(after)));
        }
        if after == **before && !changed_owners {
            return Ok((200, Arc::clone(before)));
        }
        Ok((200, self.put(key, after, ownership)))
    }

    /// Deletes an object: at once, or when its last finalizer is removed.
    pub fn delete(&mut self, options: &Value) -> Written {
        let (key, before) = self.found()?;
        let kind = self.kind();
        for (field, path) in [("UID", "uid"), ("ResourceVersion", "resourceVersion")] {
            let Some(wanted) = text(options, &format!("/preconditions/{path}")) else {
                continue;
            };
            let found = text(&before, &format!("/metadata/{path}")).unwrap_or_default();
            if wanted != found {
                let meta = if field == "UID" { "UID" } else { "ResourceVersion" };
                let cause =
                    format!("Precondition failed: {meta} in precondition: {wanted}, {meta} in object meta: {found}");
                return Err(Refusal::conflict(kind, &key.name, &cause));
            }
        }
        let mut after = (*before).clone();
        let is_deleting = at(&before, "/metadata/deletionTimestamp").is_some();
        if !is_deleting {
            let time = self.store.time();
            patch::merge(&mut after, &json!({"metadata": {"deletionTimestamp": time}}));
            let mark = match kind.plural {
                "namespaces" => json!({"status": {"phase": "Terminating"}}),
                _ => json!({"metadata": {"deletionGracePeriodSeconds": 0}}),
            };
            patch::merge(&mut after, &mark);
            if kind.has_generation() {
                let generation = before
                    .pointer("/metadata/generation")
                    .and_then(Value::as_u64)
                    .unwrap_or(0);
                patch::merge(&mut after, &json!({"metadata": {"generation": generation + 1}}));
            }
        }
        if is_removable(&after) {
            let removed = self.remove(&key).unwrap_or(before);
            return Ok((200, self.deleted(&key, removed)));
        }
        if is_deleting {
            return Ok((200, before));
        }
        let ownership = self.store.get(&key).map(|stored| stored.ownership.clone());
        Ok((200, self.put(key, after, ownership.unwrap_or_default())))
    }

    /// Returns the answer to the deletion of an object that was removed.
    fn deleted(&self, key: &Key, removed: Arc<Value>) -> Arc<Value> {
        let kind = self.kind();
        if matches!(
            kind.plural,
            "persistentvolumes" | "persistentvolumeclaims" | "storageclasses"
        ) {
            return removed;
        }
        let uid = removed.pointer("/metadata/uid").cloned();
        Arc::new(
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": {"name": key.name, "group": kind.group, "kind": kind.plural, "uid": uid}}),
        )
    }
}

/// Returns a string in an object; an empty one is none.
fn text<'a>(object: &'a Value, path: &str) -> Option<&'a str> {
    at(object, path)?.as_str().filter(|text| !text.is_empty())
}

/// Returns true if an object is being deleted and nothing keeps it.
fn is_removable(object: &Value) -> bool {
    let is_empty = |path: &str| {
        let list = at(object, path).and_then(Value::as_array);
        list.is_none_or(Vec::is_empty)
    };
    let is_namespace = object.get("kind").is_some_and(|kind| kind == "Namespace");
    at(object, "/metadata/deletionTimestamp").is_some()
        && is_empty("/metadata/finalizers")
        && (!is_namespace || is_empty("/spec/finalizers"))
}

/// Removes empty fields, which the API does not show in metadata and in the status of a claim, and adds those of
/// conditions that it always shows.
fn normalize(object: &mut Value) {
    remove_empty(object, "metadata");
    if object.get("kind").is_some_and(|kind| kind == "PersistentVolumeClaim") {
        remove_empty(object, "status");
        let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
            for time in ["lastProbeTime", "lastTransitionTime"] {
                condition.entry(time.to_owned()).or_insert(Value::Null);
            }
        }
    }
}

fn remove_empty(object: &mut Value, part: &str) {
    let Some(fields) = object.get_mut(part).and_then(Value::as_object_mut) else {
        return;
    };
    fields.retain(|_, value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    });
}

/// Returns true if two objects differ in nothing that the generation counts the changes of.
fn has_same_desired_state(before: &Value, after: &Value) -> bool {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else {
        return before == after;
    };
    let is_desired = |name: &&String| !matches!(name.as_str(), "metadata" | "status");
    let mut names = before.keys().chain(after.keys()).filter(is_desired);
    names.all(|name| before.get(name) == after.get(name))
}

/// Returns the metadata of an object, which has some afterwards.
fn metadata_of(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let fields = object.as_object_mut()?;
    if !fields.get("metadata").is_some_and(Value::is_object) {
        fields.insert("metadata".to_owned(), Value::Object(Map::new()));
    }
    fields.get_mut("metadata")?.as_object_mut()
}

/// Sets a field of the metadata, or removes it.
fn set_metadata(object: &mut Value, field: &str, value: Option<&Value>) {
    if let Some(metadata) = metadata_of(object) {
        set_field(metadata, field, value);
    }
}

/// Sets a field, or removes it.
fn set_field(fields: &mut Map<String, Value>, field: &str, value: Option<&Value>) {
    match value {
        None | Some(Value::Null) => drop(fields.remove(field)),
        Some(value) => match fields.get_mut(field) {
            Some(found) => found.clone_from(value),
            None => drop(fields.insert(field.to_owned(), value.clone())),
        },
    }
}
