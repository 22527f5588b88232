//! Writes to the Kubernetes API that several reconcilers share, and the classification of their errors.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::response::reason;
use kube::core::{Request, Status};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use crate::runtime::api_error::api_error_text;
use crate::runtime::reads;
use crate::runtime::retry::{Backoff, jittered};

/// Pause before a write is retried that the API server did not answer.
pub const AFTER_ERROR: Duration = Duration::from_secs(5);
/// Pause after a write that the API server refused because the object had changed. A change alone need not reconcile the
/// object, and until the cache has it, each attempt is refused.
pub const AFTER_CONFLICT: Duration = Duration::from_secs(1);

/// Maximum number of attempts to remove a finalizer while others write to the object.
const FINALIZER_TRIES: usize = 5;

/// A write to an object failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The object was deleted.
    #[error("the object no longer exists")]
    NotFound,
    /// The object was deleted, and another object has its name. That one is reconciled on its own.
    #[error("the object no longer exists; another one has its name")]
    Replaced,
    /// The object changed since it was read, or others write to it at the same time. It will be reconciled again.
    #[error("the object was changed by another client")]
    Conflict,
    /// Anything else.
    #[error("cannot {action}: {}", api_error_text(cause))]
    Api {
        /// The action that failed.
        action: &'static str,
        /// The API server's answer, or the reason why there is none.
        #[source]
        cause: Box<kube::Error>,
    },
}

impl WriteError {
    /// Returns a function for `map_err` that adds the action that failed.
    pub fn action(action: &'static str) -> impl Fn(kube::Error) -> Self + Copy {
        move |cause| Self::Api {
            action,
            cause: Box::new(cause),
        }
    }

    /// Returns true if the API server would refuse the same write again.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Api { cause, .. } => http_status(cause).is_some_and(is_refusal),
            Self::NotFound | Self::Replaced | Self::Conflict => false,
        }
    }

    /// Returns a function for `map_err` that classifies the answer to a write with the object's UID.
    ///
    /// If another object has the name, the API server validates the write as an update of that object: built-in kinds
    /// reject the change of the UID, custom resources the missing resourceVersion. A resourceVersion in the write is
    /// checked before that, so such a write is a [`Conflict`](Self::Conflict).
    fn classify(action: &'static str) -> impl Fn(kube::Error) -> Self {
        move |cause| match &cause {
            kube::Error::Api(status) => match status.code {
                404 if is_not_found(&cause) => Self::NotFound,
                // An apply would create the object, which it must not with a UID.
                409 if status.message.contains("uid mismatch") => Self::NotFound,
                409 => Self::Conflict,
                422 if has_cause(status, &["metadata.uid", "metadata.resourceVersion"]) => Self::Replaced,
                _ => Self::action(action)(cause),
            },
            _ => Self::action(action)(cause),
        }
    }
}

/// Returns true if the API server rejected the value of one of these fields.
fn has_cause(status: &Status, fields: &[&str]) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| fields.contains(&cause.field.as_str()))
}

/// Returns the time to wait after a failed write. A refusal counts as a failure of the object. A missing answer does
/// not, because the API server is unhealthy.
pub fn pause_after(error: &WriteError, retries: &Backoff, uid: &str) -> Duration {
    if error.is_refusal() {
        retries.record_failure(uid)
    } else {
        jittered(AFTER_ERROR)
    }
}

/// Returns true for a status that ResourceQuotas, policies and webhooks refuse an object with: 403 or 422, 400 if a webhook gives
/// none, or another one that a policy names. The others say that the request was not authenticated, throttled or too early, or
/// that the namespace is gone.
pub fn is_refusal(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 401 | 404 | 408 | 409 | 425 | 429)
}

/// Returns the HTTP status of the API server's answer, or `None` without an answer.
pub fn http_status(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Returns true if the API server answered that there is no such object. A proxy that does not find the API server, and an
/// API server that does not know the kind, use the same HTTP status without this reason.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == reason::NOT_FOUND)
}

/// Applies `fields` to a user's object, with its UID. Without the UID, an apply might create or change another object
/// of the same name. The API server ignores the UID in an apply to the status of a custom resource; the finalizers of
/// this operator's kinds keep an object until its last status is written.
pub async fn apply<K>(
    api: &Api<K>,
    object: &K,
    manager: &str,
    fields: Value,
    action: &'static str,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone,
{
    apply_to(api, object, manager, fields, false, action).await
}

/// Applies the status of an object, like [`apply`]; if there is a `version`, only to this version of the object. It is
/// serialized when the result is first polled: often, it turns out that the object has it already.
pub async fn apply_status<K>(
    api: &Api<K>,
    object: &K,
    manager: &str,
    status: &impl Serialize,
    version: Option<String>,
    action: &'static str,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone,
{
    let mut fields = json!({"status": status});
    if let Some(version) = version {
        merge(&mut fields, json!({"metadata": {"resourceVersion": version}}));
    }
    apply_to(api, object, manager, fields, true, action).await
}

async fn apply_to<K>(
    api: &Api<K>,
    object: &K,
    manager: &str,
    mut fields: Value,
    status: bool,
    action: &'static str,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone,
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
    let written = send(api, &name, &params, Patch::Apply(fields), status).await;
    written.map_err(WriteError::classify(action))
}

/// Sends a patch whose result nobody needs, because the watch brings it, too: it is not decoded. While the request waits and
/// runs, only its bytes are in memory, not the fields that they are made of, which are several times as large.
async fn send<K>(
    api: &Api<K>,
    name: &str,
    params: &PatchParams,
    patch: Patch<Value>,
    status: bool,
) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone,
{
    let request = Request::new(api.resource_url());
    let request = match status {
        true => request.patch_subresource("status", name, params, &patch),
        false => request.patch(name, params, &patch),
    };
    drop(patch);
    let request = request.map_err(kube::Error::BuildRequest)?;
    let answer: Result<IgnoredAny, _> = api.clone().into_client().request(request).await;
    answer.map(drop)
}

/// Merges `fields` into the status of an object of a built-in kind, with its UID. Lists with a merge key are merged by it:
/// conditions by their type (strategic merge patch). An apply would do the same, and costs the API server about half
/// as much again. A resourceVersion in `fields` is a precondition.
pub async fn merge_status<K>(
    api: &Api<K>,
    object: &K,
    manager: &str,
    mut fields: Value,
    action: &'static str,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    merge(&mut fields, json!({"metadata": {"uid": object.uid()}}));
    let params = PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    let patched = send(api, &object.name_any(), &params, Patch::Strategic(fields), true).await;
    patched.map_err(WriteError::classify(action))
}

/// Sets an object's finalizers if the object has not changed since it was read.
pub async fn set_finalizers<K>(api: &Api<K>, object: &K, finalizers: &[String]) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let fields = json!({"metadata": {"finalizers": finalizers}});
    merge_as_read(api, object, fields, "set the finalizers").await
}

/// Removes another component's annotation from an object if the object has not changed since it was read.
pub async fn remove_annotation_if_unchanged<K>(
    api: &Api<K>,
    object: &K,
    annotation: &str,
    action: &'static str,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let fields = json!({"metadata": {"annotations": {annotation: null}}});
    merge_as_read(api, object, fields, action).await
}

/// Merges `fields` into an object, as [`patch_as_read`] does, and does not decode the result.
async fn merge_as_read<K>(api: &Api<K>, object: &K, fields: Value, action: &'static str) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone,
{
    let (params, patch) = (PatchParams::default(), Patch::Merge(as_read(object, fields)));
    let patched = send(api, &object.name_any(), &params, patch, false).await;
    patched.map_err(WriteError::classify(action))
}

/// Returns fields with the UID and the resourceVersion of an object: preconditions of a write.
fn as_read<K: Resource<DynamicType = ()>>(object: &K, mut fields: Value) -> Value {
    let precondition = json!({"metadata": {"uid": object.uid(), "resourceVersion": object.resource_version()}});
    merge(&mut fields, precondition);
    fields
}

/// Merges `fields` into an object if it has not changed since it was read, and returns it. If it has changed, or if another
/// object has its name, the error is [`WriteError::Conflict`].
pub async fn patch_as_read<K>(
    api: &Api<K>,
    object: &K,
    fields: Value,
    status: bool,
    action: &'static str,
) -> Result<K, WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let fields = as_read(object, fields);
    let (name, params, patch) = (object.name_any(), PatchParams::default(), Patch::Merge(&fields));
    let patched = if status {
        api.patch_status(&name, &params, &patch).await
    } else {
        api.patch(&name, &params, &patch).await
    };
    patched.map_err(WriteError::classify(action))
}

/// Deletes an object if it has not changed since it was read. If it has, or if another object has its name, the error is
/// [`WriteError::Conflict`]. Returns the object if finalizers keep it. Succeeds if it no longer exists.
pub async fn delete_as_read<K>(api: &Api<K>, object: &K, action: &'static str) -> Result<Option<K>, WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: object.uid(),
            resource_version: object.resource_version(),
        }),
        ..DeleteParams::default()
    };
    match api.delete(&object.name_any(), &params).await {
        Ok(deleted) => Ok(deleted.left()),
        Err(error) => match WriteError::classify(action)(error) {
            WriteError::NotFound => Ok(None),
            error => Err(error),
        },
    }
}

/// Removes an annotation if the object still exists and the annotation still has this value.
pub async fn remove_annotation<K>(api: &Api<K>, object: &K, annotation: &str, value: &str) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let path = format!(
        "/metadata/annotations/{}",
        annotation.replace('~', "~0").replace('/', "~1")
    );
    let removed = patch_if(api, object, &path, value).await;
    // Whatever it has now is not this value.
    removed.map(drop).map_err(WriteError::action("remove an annotation"))
}

/// Adds a finalizer to an object unless it is being deleted. Returns false if the object has changed, so that it is not known
/// whether it has the finalizer.
pub async fn add_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<bool, WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    if object.meta().deletion_timestamp.is_some() {
        return Ok(true);
    }
    let Some(finalizers) = with_finalizer(object.meta(), finalizer, true) else {
        return Ok(true);
    };
    match set_finalizers(api, object, &finalizers).await {
        Err(WriteError::Conflict | WriteError::NotFound | WriteError::Replaced) => Ok(false),
        written => written.map(|()| true),
    }
}

/// Removes a finalizer from an object if the object has not changed since it was read. Succeeds if the object no longer
/// exists.
pub async fn remove_finalizer_as_read<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let Some(finalizers) = with_finalizer(object.meta(), finalizer, false) else {
        return Ok(());
    };
    match set_finalizers(api, object, &finalizers).await {
        Err(WriteError::NotFound | WriteError::Replaced) => Ok(()),
        written => written,
    }
}

/// Removes a finalizer from an object, which may have changed since `object` was read: other controllers remove their
/// finalizers at the same time. Succeeds if the object no longer exists.
pub async fn drop_finalizer<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    if remove_finalizer_at(api, object, finalizer).await? {
        return Ok(());
    }
    for _ in 0..FINALIZER_TRIES {
        let current = reads::get_opt(api, &object.name_any()).await;
        let current = current.map_err(WriteError::action("read an object to remove its finalizer"))?;
        let Some(current) = current.filter(|current| current.uid() == object.uid()) else {
            return Ok(());
        };
        if remove_finalizer_at(api, &current, finalizer).await? {
            return Ok(());
        }
    }
    Err(WriteError::Conflict)
}

/// Removes a finalizer from where `object` has it, whatever else changed since. Returns false if it is somewhere else by
/// now, or if another object has the name.
async fn remove_finalizer_at<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<bool, WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let Some(index) = object.finalizers().iter().position(|name| name == finalizer) else {
        return Ok(true);
    };
    let path = format!("/metadata/finalizers/{index}");
    let failed = WriteError::action("remove a finalizer");
    match patch_if(api, object, &path, finalizer).await.map_err(failed)? {
        Patched::Yes | Patched::NotFound => Ok(true),
        Patched::Changed => Ok(false),
    }
}

/// Result of a patch with preconditions.
enum Patched {
    Yes,
    NotFound,
    /// A test failed.
    Changed,
}

/// Removes the field at `path` if it has this value and the object this UID. Needs no current version of the object.
async fn patch_if<K>(api: &Api<K>, object: &K, path: &str, value: &str) -> Result<Patched, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let operations = serde_json::from_value(json!([
        {"op": "test", "path": "/metadata/uid", "value": object.uid()},
        {"op": "test", "path": path, "value": value},
        {"op": "remove", "path": path},
    ]))
    .map_err(kube::Error::SerdeError)?;
    match send(
        api,
        &object.name_any(),
        &PatchParams::default(),
        Patch::Json(operations),
        false,
    )
    .await
    {
        Ok(()) => Ok(Patched::Yes),
        Err(error) => match http_status(&error) {
            Some(404) if is_not_found(&error) => Ok(Patched::NotFound),
            Some(409 | 422) => Ok(Patched::Changed),
            _ => Err(error),
        },
    }
}

/// Returns the object's finalizers with `finalizer` added or removed, or `None` if nothing changes.
pub fn with_finalizer(metadata: &ObjectMeta, finalizer: &str, wanted: bool) -> Option<Vec<String>> {
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    let present = finalizers.iter().any(|name| name == finalizer);
    match (present, wanted) {
        (false, true) => finalizers.push(finalizer.to_owned()),
        (true, false) => finalizers.retain(|name| name != finalizer),
        _ => return None,
    }
    Some(finalizers)
}

/// Merges the fields of `from` into `into`.
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
    use axum::http::{Request, Response};
    use k8s_openapi::api::core::v1::PersistentVolume;
    use kube::Client;
    use kube::client::Body;
    use tower::{BoxError, service_fn};

    use super::*;

    #[test]
    fn a_refusal_is_final_and_a_failure_is_not() {
        assert!([400, 403, 413, 422].into_iter().all(is_refusal));
        assert!(![401, 404, 409, 429, 500, 503].into_iter().any(is_refusal));
    }

    #[tokio::test]
    async fn an_object_that_changed_is_not_known_to_have_the_finalizer() {
        for (code, reason, expected) in [
            (200, "", Ok(true)),
            (404, "NotFound", Ok(false)),
            (404, "", Err(())),
            (409, "", Ok(false)),
            (500, "", Err(())),
        ] {
            let answer = move |_: Request<Body>| {
                let status = json!({"status": "Failure", "code": code, "message": "", "reason": reason});
                let answer = Response::builder()
                    .status(code)
                    .body(Body::from(status.to_string().into_bytes()));
                std::future::ready(answer.map_err(BoxError::from))
            };
            let api: Api<PersistentVolume> = Api::all(Client::new(service_fn(answer), "default"));
            let mut object = PersistentVolume::default();
            object.metadata.name = Some("pvc-1".to_owned());
            let added = add_finalizer(&api, &object, "ours").await;
            assert_eq!(added.map_err(drop), expected, "{code}");
            object.metadata.finalizers = Some(vec!["ours".to_owned()]);
            assert!(
                add_finalizer(&api, &object, "ours").await.is_ok_and(|has| has),
                "{code}"
            );
        }
    }

    /// Returns the answer of an API server. tests/e2e/faults/replaced_objects.rs provokes these answers.
    fn answer(code: u16, message: &str, fields: &[&str]) -> kube::Error {
        let causes: Vec<_> = fields
            .iter()
            .map(|field| json!({"reason": "FieldValueInvalid", "field": field}))
            .collect();
        let details = json!({"name": "data", "causes": causes});
        let reason = if message.ends_with("\" not found") {
            "NotFound"
        } else {
            ""
        };
        let status =
            json!({"status": "Failure", "code": code, "message": message, "reason": reason, "details": details});
        match serde_json::from_value::<Status>(status) {
            Ok(status) => kube::Error::Api(Box::new(status)),
            Err(error) => kube::Error::SerdeError(error),
        }
    }

    #[test]
    fn a_deleted_a_replaced_and_a_changed_object_are_distinguished() {
        let modified = "Operation cannot be fulfilled on persistentvolumeclaims \"data\": the object has been modified; \
                        please apply your changes to the latest version and try again";
        let missing = "Operation cannot be fulfilled on persistentvolumeclaims \"data\": uid mismatch: the provided \
                       object specified uid 1, and no existing object was found";
        for (code, message, fields, expected) in [
            (404, "persistentvolumeclaims \"data\" not found", &[][..], "NotFound"),
            (404, "404 page not found", &[], "Api"),
            (409, missing, &[], "NotFound"),
            (409, modified, &[], "Conflict"),
            (422, "field is immutable", &["metadata.uid", "metadata.uid"], "Replaced"),
            (
                422,
                "must be specified for an update",
                &["metadata.resourceVersion"],
                "Replaced",
            ),
            (422, "field is immutable", &["spec.volumeName"], "Api"),
            (422, "metadata.uid is not the cause", &[], "Api"),
            (403, "forbidden", &[], "Api"),
            (500, "uid mismatch", &[], "Api"),
        ] {
            let error = WriteError::classify("write")(answer(code, message, fields));
            let name = match &error {
                WriteError::NotFound => "NotFound",
                WriteError::Replaced => "Replaced",
                WriteError::Conflict => "Conflict",
                WriteError::Api { .. } => "Api",
            };
            assert_eq!(name, expected, "{code} {message} {fields:?}");
        }
    }

    #[test]
    fn a_finalizer_is_added_once_and_removed_from_among_others() {
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
