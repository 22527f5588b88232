//! JSON merge patches (RFC 7386) and JSON patches (RFC 6902).

use serde_json::{Map, Value};

use super::answer::Refusal;

/// Merges `patch` into `target`: null removes a field.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Executes the operations of a JSON patch.
pub fn json(target: &mut Value, operations: &Value) -> Result<(), Refusal> {
    let operations: json_patch::Patch = serde_json::from_value(operations.clone())
        .map_err(|error| Refusal::bad_request(&format!("the patch cannot be parsed: {error}")))?;
    json_patch::patch(target, &operations).map_err(|error| {
        let message = format!("the server rejected our request due to an error in our request: {error}");
        Refusal::new(422, "Invalid", &message)
    })
}
