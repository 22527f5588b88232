//! Validation of changes: the fields of built-in kinds that may not change. The schemas of custom kinds are not checked.

use nfs_operator::decide::quantity;
use serde_json::Value;

use super::answer::Refusal;
use super::kinds::Kind;
use crate::objects::{at, text};

/// Checks that a change of an object is allowed.
pub fn check_update(kind: &Kind, name: &str, before: &Value, after: &Value) -> Result<(), Refusal> {
    let immutable_as = |path: &str, field: &str| match at(before, path) == at(after, path) {
        true => Ok(()),
        false => Err(Refusal::invalid(kind, name, field, "field is immutable")),
    };
    let immutable = |path: &str| immutable_as(path, path.trim_start_matches('/'));
    match kind.plural {
        "persistentvolumes" => {
            immutable_as("/spec/nfs", "spec.persistentvolumesource")?;
            immutable_as("/spec/volumeMode", "volumeMode")
        }
        "persistentvolumeclaims" => {
            // The whole spec, except for the requests and a volume that was not chosen yet.
            let fixed = |object: &Value| {
                let mut spec = object.get("spec").cloned().unwrap_or_default();
                if let Some(fields) = spec.as_object_mut() {
                    // A bound volume may grow.
                    if at(before, "/status/phase").is_some_and(|phase| phase == "Bound") {
                        fields.remove("resources");
                    }
                    if at(before, "/spec/volumeName").is_none() {
                        fields.remove("volumeName");
                    }
                }
                spec
            };
            if fixed(before) != fixed(after) {
                return Err(Refusal::invalid(kind, name, "spec", "spec is immutable after creation"));
            }
            check_request(kind, name, before, after)
        }
        "storageclasses" => {
            immutable("/provisioner")?;
            immutable("/parameters")?;
            immutable("/reclaimPolicy")?;
            immutable("/volumeBindingMode")
        }
        "secrets" if before.get("immutable") == Some(&Value::Bool(true)) => {
            immutable("/immutable")?;
            immutable("/data")
        }
        _ => Ok(()),
    }
}

/// A claim requests less than before only while that is more than it has.
fn check_request(kind: &Kind, name: &str, before: &Value, after: &Value) -> Result<(), Refusal> {
    let request = "/spec/resources/requests/storage";
    let size = |object: &Value, path: &str| quantity::bytes(text(object, path)).unwrap_or(0);
    let (requested, had) = (size(after, request), size(before, "/status/capacity/storage"));
    match requested < size(before, request) && requested <= had {
        true => {
            let cause = "field can not be less than status.capacity";
            Err(Refusal::invalid(kind, name, "spec.resources.requests.storage", cause))
        }
        false => Ok(()),
    }
}

/// An object that is being deleted gets no more finalizers.
pub fn check_finalizers(kind: &Kind, name: &str, before: &Value, after: &Value) -> Result<(), Refusal> {
    if at(before, "/metadata/deletionTimestamp").is_none() {
        return Ok(());
    }
    let finalizers = |object: &Value| at(object, "/metadata/finalizers").and_then(Value::as_array).cloned();
    let known = finalizers(before).unwrap_or_default();
    match finalizers(after)
        .unwrap_or_default()
        .iter()
        .all(|finalizer| known.contains(finalizer))
    {
        true => Ok(()),
        false => Err(Refusal::invalid_metadata(kind, name, "metadata.finalizers")),
    }
}
