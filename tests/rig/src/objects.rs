//! API objects as JSON. The rig does not use the operator's types, so that a test sees the API as a user does.

use std::time::Duration;

use kube::{
    Api, Client,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
        Preconditions,
    },
};
use serde_json::{Value, json};

use crate::{
    error::{Error, Result, ResultExt},
    wait,
};

/// The field manager of objects that tests apply.
const FIELD_MANAGER: &str = "rig";

/// Objects in a page of [`Objects::count`].
const PAGE: u32 = 500;

/// A client for objects of any kind. Its methods need only `apiVersion`, `kind`, `metadata.name` and, for namespaced
/// kinds, `metadata.namespace` of an object; see [`reference`].
#[derive(Clone)]
pub struct Objects {
    client: Client,
}

impl Objects {
    /// Creates a client that uses the permissions of `client`.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the underlying client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    fn api(&self, object: &Value) -> Result<Api<DynamicObject>> {
        let api_version = require_str(object, "/apiVersion")?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, require_str(object, "/kind")?));
        Ok(match object.pointer("/metadata/namespace").and_then(Value::as_str) {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        })
    }

    /// Creates an object.
    pub async fn create(&self, object: &Value) -> Result<Value> {
        let action = || format!("create {}", describe(object));
        let typed: DynamicObject = serde_json::from_value(object.clone()).with_context(action)?;
        to_value(
            self.api(object)?
                .create(&PostParams::default(), &typed)
                .await
                .with_context(action)?,
        )
    }

    /// Applies an object server-side.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        let params = PatchParams::apply(FIELD_MANAGER).force();
        self.patch_with(object, &params, &Patch::Apply(object)).await
    }

    /// Patches an object with a JSON merge patch (RFC 7396).
    pub async fn patch(&self, object: &Value, patch: Value) -> Result<Value> {
        self.patch_with(object, &PatchParams::default(), &Patch::Merge(&patch))
            .await
    }

    /// Patches an object with a strategic merge patch, as controllers in Go do.
    pub async fn strategic_patch(&self, object: &Value, patch: Value) -> Result<Value> {
        self.patch_with(object, &PatchParams::default(), &Patch::Strategic(&patch))
            .await
    }

    /// Patches an object with a JSON patch (RFC 6902).
    pub async fn json_patch(&self, object: &Value, operations: Value) -> Result<Value> {
        let operations = serde_json::from_value(operations).with_context(|| "read a JSON patch".into())?;
        self.patch_with(object, &PatchParams::default(), &Patch::Json(operations))
            .await
    }

    /// Patches an object's status with a JSON merge patch, as a controller of the cluster does.
    pub async fn patch_status(&self, object: &Value, patch: Value) -> Result<Value> {
        let api = self.api(object)?;
        let params = PatchParams::default();
        let patched = api
            .patch_status(require_str(object, "/metadata/name")?, &params, &Patch::Merge(patch))
            .await;
        to_value(patched.with_context(|| format!("patch the status of {}", describe(object)))?)
    }

    async fn patch_with(&self, object: &Value, params: &PatchParams, patch: &Patch<&Value>) -> Result<Value> {
        let patched = self
            .api(object)?
            .patch(require_str(object, "/metadata/name")?, params, patch)
            .await;
        to_value(patched.with_context(|| format!("patch {}", describe(object)))?)
    }

    /// Reads an object; `None` if it does not exist.
    pub async fn get(&self, object: &Value) -> Result<Option<Value>> {
        let found = self.api(object)?.get_opt(require_str(object, "/metadata/name")?).await;
        found
            .with_context(|| format!("read {}", describe(object)))?
            .map(to_value)
            .transpose()
    }

    /// Lists all objects of the same kind and namespace as `like`.
    pub async fn list(&self, like: &Value) -> Result<Vec<Value>> {
        let listed = self.api(like)?.list(&ListParams::default()).await;
        let items = listed
            .with_context(|| format!("list objects like {}", describe(like)))?
            .items;
        // List items lack their kind. Add it, so that each item can be passed to the methods of this client.
        let kind = json!({ "apiVersion": require_str(like, "/apiVersion")?, "kind": require_str(like, "/kind")? });
        let complete = items.into_iter().map(|item| {
            let mut item = to_value(item)?;
            merge(&mut item, &kind);
            Ok(item)
        });
        complete.collect()
    }

    /// Counts the objects of the same kind and namespace as `like` that match, page by page.
    pub(crate) async fn count(&self, like: &Value, matches: impl Fn(&Value) -> bool) -> Result<usize> {
        let (api, mut found) = (self.api(like)?, 0);
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let listed = api.list(&page).await;
            let listed = listed.with_context(|| format!("list objects like {}", describe(like)))?;
            for item in listed.items {
                found += usize::from(matches(&to_value(item)?));
            }
            match listed.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page.continue_token = Some(token),
                None => return Ok(found),
            }
        }
    }

    /// Deletes an object. It is no error if the object does not exist.
    pub async fn delete(&self, object: &Value) -> Result<()> {
        match self
            .api(object)?
            .delete(require_str(object, "/metadata/name")?, &DeleteParams::default())
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            result => result.with_context(|| format!("delete {}", describe(object))).map(drop),
        }
    }

    /// Removes an object without its finalizers, so that no controller sees it being deleted, as if it had been lost. Repeats
    /// that if a controller adds its finalizer again in between.
    pub async fn lose(&self, object: &Value, timeout: Duration) -> Result<()> {
        let what = format!("to lose {}", describe(object));
        let (api, name) = (self.api(object)?, require_str(object, "/metadata/name")?);
        wait::until(&what, timeout, async || {
            let finalizers = json!({"metadata": {"finalizers": null}});
            let stripped = self
                .patch(object, finalizers)
                .await
                .map_err(|error| error.to_string())?;
            let version = stripped.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            let unchanged = DeleteParams::default().preconditions(Preconditions {
                resource_version: version.map(str::to_owned),
                uid: None,
            });
            api.delete(name, &unchanged)
                .await
                .map(drop)
                .map_err(|error| error.to_string())
        })
        .await
    }

    /// Waits until at least `number` of the objects that [`count`](Self::count) looks at match.
    pub(crate) async fn wait_count(
        &self,
        like: &Value,
        what: &str,
        (number, timeout): (usize, Duration),
        matches: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        wait::until(what, timeout, async || match self.count(like, &matches).await {
            Ok(found) if found >= number => Ok(()),
            Ok(found) => Err(format!("{found} of {number}")),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// Waits until `check` returns `Ok` for an object. The error of a timeout contains the last `Err` of `check`.
    pub async fn wait<T>(
        &self,
        object: &Value,
        what: &str,
        timeout: Duration,
        check: impl Fn(&Value) -> Result<T, String>,
    ) -> Result<T> {
        let what = format!("{} {what}", describe(object));
        wait::until(&what, timeout, async || match self.get(object).await {
            Ok(Some(found)) => check(&found).map_err(|state| format!("{state}: {}", summarize(&found))),
            Ok(None) => Err("it does not exist".into()),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// Waits until a claim is Bound, and returns a reference to its volume.
    pub async fn wait_bound(&self, claim: &Value, timeout: Duration) -> Result<Value> {
        self.wait(claim, "to be Bound", timeout, |claim| {
            let text = |pointer| claim.pointer(pointer).and_then(Value::as_str);
            match (text("/status/phase"), text("/spec/volumeName")) {
                (Some("Bound"), Some(volume)) => Ok(reference("v1", "PersistentVolume", None, volume)),
                _ => Err("it is not Bound".into()),
            }
        })
        .await
    }

    /// Waits until a claim is Bound, and returns its volume.
    pub async fn wait_volume(&self, claim: &Value, timeout: Duration) -> Result<Value> {
        let volume = self.wait_bound(claim, timeout).await?;
        let found = self.get(&volume).await?;
        found.ok_or_else(|| Error::Usage(format!("the volume of a Bound claim does not exist: {volume}")))
    }

    /// Waits until an object does not exist.
    pub async fn wait_gone(&self, object: &Value, timeout: Duration) -> Result<()> {
        let what = format!("{} to be deleted", describe(object));
        wait::until(&what, timeout, async || match self.get(object).await {
            Ok(None) => Ok(()),
            Ok(Some(found)) => Err(summarize(&found)),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// Waits for a condition with a status (`True`, `False`) and an optional reason, and returns the condition.
    pub async fn wait_condition(
        &self,
        object: &Value,
        kind: &str,
        status: &str,
        reason: Option<&str>,
        timeout: Duration,
    ) -> Result<Value> {
        let what = format!("to have the condition {kind}={status} {}", reason.unwrap_or_default());
        self.wait(object, what.trim_end(), timeout, |found| match condition(found, kind) {
            Some(found) if found["status"] == status && reason.is_none_or(|reason| found["reason"] == reason) => {
                Ok(found.clone())
            }
            Some(_) => Err("the condition differs".into()),
            None => Err("no such condition".into()),
        })
        .await
    }

    /// Returns the events about an object, oldest first.
    pub async fn events(&self, object: &Value) -> Result<Vec<Value>> {
        // Events about cluster-scoped objects are in the namespace `default`.
        let namespace = object
            .pointer("/metadata/namespace")
            .and_then(Value::as_str)
            .unwrap_or("default");
        let events = self
            .list(&reference("events.k8s.io/v1", "Event", Some(namespace), "any"))
            .await?;
        let about = |event: &Value| {
            event.pointer("/regarding/kind") == object.pointer("/kind")
                && event.pointer("/regarding/name") == object.pointer("/metadata/name")
        };
        let mut events: Vec<Value> = events.into_iter().filter(about).collect();
        events.sort_by_key(|event| event.pointer("/metadata/creationTimestamp").map(Value::to_string));
        Ok(events)
    }

    /// Waits for an event about an object with a reason, and returns the event.
    pub async fn wait_event(&self, object: &Value, reason: &str, timeout: Duration) -> Result<Value> {
        let what = format!("an event {reason} about {}", describe(object));
        wait::until(&what, timeout, async || {
            let events = self.events(object).await.map_err(|error| error.to_string())?;
            let reasons: Vec<_> = events.iter().map(|event| event["reason"].to_string()).collect();
            events
                .into_iter()
                .find(|event| event["reason"] == reason)
                .ok_or_else(|| format!("events: {reasons:?}"))
        })
        .await
    }
}

/// Returns an object's condition of a type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object
        .pointer("/status/conditions")?
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// Returns an object that has only its kind, namespace and name.
pub fn reference(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Value {
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name } });
    if let Some(namespace) = namespace {
        merge(&mut object, &json!({ "metadata": { "namespace": namespace } }));
    }
    object
}

/// Returns an object with further fields, such as a [`reference`] with a spec. See [`merge`].
pub fn with_fields(mut object: Value, fields: Value) -> Value {
    merge(&mut object, &fields);
    object
}

/// Merges `patch` into `object` by RFC 7396: objects by key, `null` removes, everything else replaces.
pub fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        object.clone_from(patch);
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    if let Value::Object(object) = object {
        for (key, change) in patch {
            if change.is_null() {
                object.remove(key);
            } else {
                merge(object.entry(key).or_insert(Value::Null), change);
            }
        }
    }
}

fn require_str<'a>(object: &'a Value, pointer: &str) -> Result<&'a str> {
    let found = object.pointer(pointer).and_then(Value::as_str);
    found.ok_or_else(|| Error::Usage(format!("{pointer} is missing in {object}")))
}

fn to_value(object: DynamicObject) -> Result<Value> {
    serde_json::to_value(object).with_context(|| "convert an object".into())
}

pub(crate) fn describe(object: &Value) -> String {
    let part = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", part("/kind"), part("/metadata/name"))
}

/// Returns the part of an object that errors show.
fn summarize(object: &Value) -> String {
    let metadata = &object["metadata"];
    json!({
        "annotations": metadata["annotations"],
        "finalizers": metadata["finalizers"],
        "deletionTimestamp": metadata["deletionTimestamp"],
        "status": object["status"],
    })
    .to_string()
}
