//! JSON merge patches (RFC 7386), strategic merge patches, and JSON patches (RFC 6902).

use serde_json::{Map, Value};

use super::answer::Refusal;
use crate::objects::at;

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

/// Merges `patch` into `target`, and conditions by their type. Other lists with a merge key are replaced: the operator
/// sends none.
pub fn strategic(target: &mut Value, patch: &Value) {
    let conditions = |object: &Value| at(object, "/status/conditions").and_then(Value::as_array).cloned();
    let before = conditions(target).unwrap_or_default();
    merge(target, patch);
    let Some((changes, merged)) = conditions(patch).zip(target.pointer_mut("/status/conditions")) else {
        return;
    };
    let mut after = before;
    for change in changes {
        let same = |condition: &Value| condition.get("type") == change.get("type");
        if change.get("$patch").is_some_and(|directive| directive == "delete") {
            after.retain(|condition| !same(condition));
        } else if let Some(found) = after.iter_mut().find(|condition| same(condition)) {
            merge(found, &change);
        } else {
            after.insert(0, change);
        }
    }
    *merged = Value::Array(after);
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
