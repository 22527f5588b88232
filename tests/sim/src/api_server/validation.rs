//! Validation of changes: the fields of built-in kinds that may not change. The schemas of custom kinds are not checked.

use serde_json::Value;

use super::answer::Refusal;
use super::kinds::Kind;

/// Checks that a change of an object is allowed.
pub fn check_update(kind: &Kind, name: &str, before: &Value, after: &Value) -> Result<(), Refusal> {
    let immutable = |path: &str| match before.pointer(path) == after.pointer(path) {
        true => Ok(()),
        false => {
            let field = path.trim_start_matches('/').replace('/', ".");
            Err(Refusal::invalid(kind, name, &field, "field is immutable"))
        }
    };
    match kind.plural {
        "persistentvolumes" => {
            immutable("/spec/nfs")?;
            immutable("/spec/volumeMode")
        }
        "persistentvolumeclaims" => {
            // The whole spec, except for the requests and a volume that was not chosen yet.
            let fixed = |object: &Value| {
                let mut spec = object.get("spec").cloned().unwrap_or_default();
                if let Some(fields) = spec.as_object_mut() {
                    // A bound volume may grow.
                    if before.pointer("/status/phase").is_some_and(|phase| phase == "Bound") {
                        fields.remove("resources");
                    }
                    if before.pointer("/spec/volumeName").is_none() {
                        fields.remove("volumeName");
                    }
                }
                spec
            };
            match fixed(before) == fixed(after) {
                true => Ok(()),
                false => Err(Refusal::invalid(kind, name, "spec", "spec is immutable after creation")),
            }
        }
        "storageclasses" => {
            immutable("/provisioner")?;
            immutable("/parameters")?;
            immutable("/reclaimPolicy")
        }
        "secrets" if before.get("immutable") == Some(&Value::Bool(true)) => immutable("/data"),
        _ => Ok(()),
    }
}

/// An object that is being deleted gets no more finalizers.
pub fn check_finalizers(kind: &Kind, name: &str, before: &Value, after: &Value) -> Result<(), Refusal> {
    if before.pointer("/metadata/deletionTimestamp").is_none() {
        return Ok(());
    }
    let finalizers = |object: &Value| {
        object
            .pointer("/metadata/finalizers")
            .and_then(Value::as_array)
            .cloned()
    };
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
