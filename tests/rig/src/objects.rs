//! API objects as JSON: the rig knows none of the operator's types, so that a test sees what a user sees.

use std::time::Duration;

use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    error::{Error, Result, ResultExt},
    wait,
};

/// The field manager of what tests apply.
const MANAGER: &str = "rig";

/// A client for objects of any kind. Every method takes an object of which only `apiVersion`, `kind`,
/// `metadata.name` and, for namespaced kinds, `metadata.namespace` need to be there, such as [`reference`] makes.
#[derive(Clone)]
pub struct Objects {
    client: Client,
}

impl Objects {
    /// With that client's rights.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The client itself.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    fn api(&self, object: &Value) -> Result<Api<DynamicObject>> {
        let api_version = text(object, "/apiVersion")?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text(object, "/kind")?));
        Ok(match object.pointer("/metadata/namespace").and_then(Value::as_str) {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        })
    }

    /// Creates it.
    pub async fn create(&self, object: &Value) -> Result<Value> {
        let action = || format!("create {}", named(object));
        let made: DynamicObject = serde_json::from_value(object.clone()).with_context(action)?;
        value(
            self.api(object)?
                .create(&PostParams::default(), &made)
                .await
                .with_context(action)?,
        )
    }

    /// Applies it server-side.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        let params = PatchParams::apply(MANAGER).force();
        self.patched(object, &params, &Patch::Apply(object)).await
    }

    /// Patches it with a JSON merge patch (RFC 7396).
    pub async fn patch(&self, object: &Value, patch: Value) -> Result<Value> {
        self.patched(object, &PatchParams::default(), &Patch::Merge(&patch))
            .await
    }

    /// Patches its status with a JSON merge patch: what a controller of the cluster says of it.
    pub async fn patch_status(&self, object: &Value, patch: Value) -> Result<Value> {
        let api = self.api(object)?;
        let params = PatchParams::default();
        let patched = api
            .patch_status(text(object, "/metadata/name")?, &params, &Patch::Merge(patch))
            .await;
        value(patched.with_context(|| format!("patch the status of {}", named(object)))?)
    }

    async fn patched(&self, object: &Value, params: &PatchParams, patch: &Patch<&Value>) -> Result<Value> {
        let patched = self
            .api(object)?
            .patch(text(object, "/metadata/name")?, params, patch)
            .await;
        value(patched.with_context(|| format!("patch {}", named(object)))?)
    }

    /// Reads it; absent when it is not there.
    pub async fn get(&self, object: &Value) -> Result<Option<Value>> {
        let found = self.api(object)?.get_opt(text(object, "/metadata/name")?).await;
        found
            .with_context(|| format!("read {}", named(object)))?
            .map(value)
            .transpose()
    }

    /// Everything of its kind, in its namespace if it has one.
    pub async fn list(&self, like: &Value) -> Result<Vec<Value>> {
        let listed = self.api(like)?.list(&ListParams::default()).await;
        let items = listed.with_context(|| format!("list like {}", named(like)))?.items;
        // In a list they don't say what they are; each of them can be used as an object by itself this way.
        let kind = json!({ "apiVersion": text(like, "/apiVersion")?, "kind": text(like, "/kind")? });
        let complete = items.into_iter().map(|item| {
            let mut item = value(item)?;
            merge(&mut item, &kind);
            Ok(item)
        });
        complete.collect()
    }

    /// Asks for its deletion; that it is not there is no error.
    pub async fn delete(&self, object: &Value) -> Result<()> {
        match self
            .api(object)?
            .delete(text(object, "/metadata/name")?, &DeleteParams::default())
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            asked => asked.with_context(|| format!("delete {}", named(object))).map(drop),
        }
    }

    /// Waits until `look` is content with it; what `look` says instead is in the error.
    pub async fn wait<T>(
        &self,
        object: &Value,
        what: &str,
        timeout: Duration,
        look: impl Fn(&Value) -> Result<T, String>,
    ) -> Result<T> {
        let what = format!("{} {what}", named(object));
        wait::until(&what, timeout, async || match self.get(object).await {
            Ok(Some(found)) => look(&found).map_err(|instead| format!("{instead}: {}", brief(&found))),
            Ok(None) => Err("it is not there".into()),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// Waits until it is gone.
    pub async fn wait_gone(&self, object: &Value, timeout: Duration) -> Result<()> {
        let what = format!("{} to be gone", named(object));
        wait::until(&what, timeout, async || match self.get(object).await {
            Ok(None) => Ok(()),
            Ok(Some(found)) => Err(brief(&found)),
            Err(error) => Err(error.to_string()),
        })
        .await
    }

    /// Waits for a condition with that status (`True`, `False`) and, if given, reason; gives back the condition.
    pub async fn wait_condition(
        &self,
        object: &Value,
        kind: &str,
        status: &str,
        reason: Option<&str>,
        timeout: Duration,
    ) -> Result<Value> {
        let what = format!("to say {kind}={status} {}", reason.unwrap_or_default());
        self.wait(object, what.trim_end(), timeout, |found| match condition(found, kind) {
            Some(found) if found["status"] == status && reason.is_none_or(|reason| found["reason"] == reason) => {
                Ok(found.clone())
            }
            Some(_) => Err("another state".into()),
            None => Err("no such condition".into()),
        })
        .await
    }

    /// The events about it, oldest first.
    pub async fn events(&self, object: &Value) -> Result<Vec<Value>> {
        // Those of cluster-scoped objects are in the namespace `default`.
        let namespace = object
            .pointer("/metadata/namespace")
            .and_then(Value::as_str)
            .unwrap_or("default");
        let events = self
            .list(&reference("events.k8s.io/v1", "Event", Some(namespace), "any"))
            .await?;
        let about = |event: &Value| {
            let of = |pointer| {
                (
                    event.pointer(&format!("/regarding/{pointer}")),
                    object.pointer(&format!("/{pointer}")),
                )
            };
            let (kind, name) = (of("kind"), event.pointer("/regarding/name"));
            kind.0 == kind.1 && name == object.pointer("/metadata/name")
        };
        let mut events: Vec<Value> = events.into_iter().filter(about).collect();
        events.sort_by_key(|event| event.pointer("/metadata/creationTimestamp").map(Value::to_string));
        Ok(events)
    }

    /// Waits for an event with that reason about it, and gives it back.
    pub async fn wait_event(&self, object: &Value, reason: &str, timeout: Duration) -> Result<Value> {
        let what = format!("an event {reason} about {}", named(object));
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

/// An object's condition of that type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object
        .pointer("/status/conditions")?
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// Names an object without saying more about it.
pub fn reference(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Value {
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name } });
    if let Some(namespace) = namespace {
        merge(&mut object, &json!({ "metadata": { "namespace": namespace } }));
    }
    object
}

/// Merges `patch` into `object` as RFC 7396 says: objects by key, `null` removes, everything else replaces.
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

fn text<'a>(object: &'a Value, pointer: &str) -> Result<&'a str> {
    let found = object.pointer(pointer).and_then(Value::as_str);
    found.ok_or_else(|| Error::Usage(format!("{pointer} is missing in {object}")))
}

fn value(object: DynamicObject) -> Result<Value> {
    serde_json::to_value(object).with_context(|| "read an object".into())
}

fn named(object: &Value) -> String {
    let part = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", part("/kind"), part("/metadata/name"))
}

/// What an error shows of an object.
fn brief(object: &Value) -> String {
    let metadata = &object["metadata"];
    json!({
        "annotations": metadata["annotations"],
        "finalizers": metadata["finalizers"],
        "deletionTimestamp": metadata["deletionTimestamp"],
        "status": object["status"],
    })
    .to_string()
}
