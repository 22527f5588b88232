//! Writes to the Kubernetes API that more than one reconciler makes, and what their refusals mean.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::runtime::retry::{Backoff, jittered};

/// A write that the API server did not answer is tried again after this long, whatever it was.
pub const AFTER_ERROR: Duration = Duration::from_secs(5);

/// How often a finalizer is tried to be dropped while others write to the object too.
const FINALIZER_TRIES: usize = 5;

/// Why a write to an object did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The object is gone, or another object has its name now: nothing is left to write to.
    #[error("the object is gone")]
    NotFound,
    /// It changed since it was read: it will be looked at again.
    #[error("the object changed meanwhile")]
    Conflict,
    /// Anything else.
    #[error("cannot {action}: {cause}")]
    Api {
        /// What was tried.
        action: &'static str,
        /// The API server's answer, or none.
        #[source]
        cause: Box<kube::Error>,
    },
}

impl WriteError {
    /// What a call was for that the API server refused or did not answer: for `map_err`.
    pub fn action(action: &'static str) -> impl Fn(kube::Error) -> Self + Copy {
        move |cause| Self::Api {
            action,
            cause: Box::new(cause),
        }
    }
}

/// How long an object waits after a write failed. A refusal is the object's own failure; without an answer, the API
/// server is not well, and that is nobody's.
pub fn pause_after(error: &WriteError, retries: &Backoff, uid: &str) -> Duration {
    let refused = match error {
        WriteError::Api { cause, .. } => {
            http_status(cause).is_some_and(|code| (400..500).contains(&code) && code != 429)
        }
        WriteError::NotFound | WriteError::Conflict => false,
    };
    if refused {
        retries.record_failure(uid)
    } else {
        jittered(AFTER_ERROR)
    }
}

/// The HTTP status of an answer of the API server; none when there was no answer.
pub fn http_status(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Applies `fields` to an object of a user's, with its uid: without it, an apply would make or hit a successor of the
/// same name. 404, 409 and a 422 about the uid mean that the object is gone.
pub async fn apply<K>(
    api: &Api<K>,
    object: &K,
    manager: &str,
    mut fields: Value,
    status: bool,
    action: &'static str,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let name = object.name_any();
    merge(
        &mut fields,
        json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": name, "namespace": object.namespace(), "uid": object.uid()},
        }),
    );
    let params = PatchParams::apply(manager).force();
    let written = if status {
        api.patch_status(&name, &params, &Patch::Apply(&fields)).await.map(drop)
    } else {
        api.patch(&name, &params, &Patch::Apply(&fields)).await.map(drop)
    };
    written.map_err(|cause| match &cause {
        kube::Error::Api(answer) if matches!(answer.code, 404 | 409) => WriteError::NotFound,
        kube::Error::Api(answer) if answer.code == 422 && answer.message.contains("metadata.uid") => {
            WriteError::NotFound
        }
        _ => WriteError::action(action)(cause),
    })
}

/// Sets an object's finalizers to `finalizers`, if the object is still as it was read.
pub async fn set_finalizers<K>(api: &Api<K>, object: &K, finalizers: &[String]) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let fields = json!({"metadata": {"finalizers": finalizers}});
    patch_as_read(api, object, fields, false, "set the finalizers").await
}

/// Takes an annotation of somebody else's off an object, if the object is still as it was read.
pub async fn remove_annotation_if_unchanged<K>(
    api: &Api<K>,
    object: &K,
    annotation: &str,
    action: &'static str,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    patch_as_read(
        api,
        object,
        json!({"metadata": {"annotations": {annotation: null}}}),
        false,
        action,
    )
    .await
}

/// Merges `fields` into an object, if it is still as it was read ([`WriteError::Changed`] when not).
pub async fn patch_as_read<K>(
    api: &Api<K>,
    object: &K,
    mut fields: Value,
    status: bool,
    action: &'static str,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let precondition = json!({"metadata": {"uid": object.uid(), "resourceVersion": object.resource_version()}});
    merge(&mut fields, precondition);
    let (name, params, patch) = (object.name_any(), PatchParams::default(), Patch::Merge(&fields));
    let patched = if status {
        api.patch_status(&name, &params, &patch).await.map(drop)
    } else {
        api.patch(&name, &params, &patch).await.map(drop)
    };
    patched.map_err(|cause| match http_status(&cause) {
        Some(404) => WriteError::NotFound,
        Some(409) => WriteError::Conflict,
        _ => WriteError::action(action)(cause),
    })
}

/// Removes an annotation, if the object is the same and the annotation still has this value.
pub async fn remove_annotation<K>(api: &Api<K>, object: &K, annotation: &str, value: &str) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let path = format!(
        "/metadata/annotations/{}",
        annotation.replace('~', "~0").replace('/', "~1")
    );
    let failed = WriteError::action("remove an annotation");
    let operations = serde_json::from_value(json!([
        {"op": "test", "path": "/metadata/uid", "value": object.uid()},
        {"op": "test", "path": path, "value": value},
        {"op": "remove", "path": path},
    ]))
    .map_err(|cause| failed(kube::Error::SerdeError(cause)))?;
    let patch: Patch<()> = Patch::Json(operations);
    match api.patch(&object.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        // 422: a test failed, so it was changed or removed already.
        Err(error) if matches!(http_status(&error), Some(404 | 409 | 422)) => Ok(()),
        Err(cause) => Err(failed(cause)),
    }
}

/// Adds a finalizer to an object unless it is being deleted. If the object changed or is gone, its next event adds it.
pub async fn add_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    if object.meta().deletion_timestamp.is_some() {
        return Ok(());
    }
    let Some(finalizers) = with_finalizer(object.meta(), finalizer, true) else {
        return Ok(());
    };
    match set_finalizers(api, object, &finalizers).await {
        Err(WriteError::Conflict | WriteError::NotFound) => Ok(()),
        written => written,
    }
}

/// Drops a finalizer from an object, which may be written by others meanwhile; done when the object is gone.
pub async fn drop_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    for _ in 0..FINALIZER_TRIES {
        let now = api.get_opt(&object.name_any()).await;
        let now = now.map_err(WriteError::action("read an object before it is let go"))?;
        let Some(now) = now.filter(|now| now.uid() == object.uid()) else {
            return Ok(());
        };
        let Some(finalizers) = with_finalizer(now.meta(), finalizer, false) else {
            return Ok(());
        };
        match set_finalizers(api, &now, &finalizers).await {
            Err(WriteError::Conflict) => {}
            Err(WriteError::NotFound) => return Ok(()),
            written => return written,
        }
    }
    Err(WriteError::Conflict)
}

/// The object's finalizers with or without one, or `None` when that is so already.
pub fn with_finalizer(metadata: &ObjectMeta, finalizer: &str, wanted: bool) -> Option<Vec<String>> {
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    let there = finalizers.iter().any(|name| name == finalizer);
    match (there, wanted) {
        (false, true) => finalizers.push(finalizer.to_owned()),
        (true, false) => finalizers.retain(|name| name != finalizer),
        _ => return None,
    }
    Some(finalizers)
}

/// Takes the fields of `from` into those of `into`.
pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finalizer_is_added_once_and_taken_off_beside_others() {
        let with = |names: Option<&[&str]>, wanted| {
            let names = names.map(|names| names.iter().map(|&name| name.to_owned()).collect());
            let metadata = ObjectMeta {
                finalizers: names,
                ..ObjectMeta::default()
            };
            with_finalizer(&metadata, "ours", wanted).map(|names| names.join(" "))
        };
        for (what, names, added, removed) in [
            ("none", None, Some("ours"), None),
            ("an empty list", Some(&[] as &[_]), Some("ours"), None),
            ("ours alone", Some(&["ours"]), None, Some("")),
            ("another's alone", Some(&["a"]), Some("a ours"), None),
            ("ours among others", Some(&["a", "ours", "b"]), None, Some("a b")),
        ] {
            assert_eq!(with(names, true).as_deref(), added, "add to {what}");
            assert_eq!(with(names, false).as_deref(), removed, "remove from {what}");
        }
    }
}
