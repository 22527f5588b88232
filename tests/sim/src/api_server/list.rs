//! Reads: single objects, and lists in pages.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Refusal;
use super::request::{Parameters, Target};
use super::store::{Key, Store};
use crate::objects::at;

/// Reads an object.
pub fn get(store: &Store, target: &Target) -> Result<Arc<Value>, Refusal> {
    let name = target.name.clone().unwrap_or_default();
    let key = Key {
        plural: target.kind.plural,
        namespace: target.namespace.clone(),
        name,
    };
    match store.get(&key) {
        Some(stored) => Ok(Arc::clone(&stored.object)),
        None => Err(Refusal::not_found(target.kind, &key.name)),
    }
}

/// Reads a page of a list. All pages show the objects at the time of the first.
pub fn list(store: &mut Store, target: &Target, parameters: &Parameters) -> Result<Value, Refusal> {
    let (revision, mut objects) = match parameters.get("continue") {
        // A page can be read again.
        Some(token) => store.continued.get(token).cloned().ok_or_else(|| {
            Refusal::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new \
                 list without the continue parameter.",
            )
        })?,
        None => (store.revision(), store.list(target.kind, &target.namespace)),
    };
    if let Some(name) = parameters.selected_name() {
        objects.retain(|object| at(object, "/metadata/name").is_some_and(|found| found == name));
    }
    let limit = parameters
        .get("limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(0);
    let mut metadata = match target.kind.custom {
        true => json!({"resourceVersion": revision.to_string(), "continue": ""}),
        false => json!({"resourceVersion": revision.to_string()}),
    };
    if limit > 0 && objects.len() > limit {
        let rest = objects.split_off(limit);
        let token = store.uid();
        metadata = json!({"resourceVersion": revision.to_string(), "continue": token,
            "remainingItemCount": rest.len()});
        store.continued.insert(token, (revision, rest));
    }
    let items: Vec<Value> = objects.iter().map(|object| (**object).clone()).collect();
    Ok(json!({
        "kind": format!("{}List", target.kind.kind),
        "apiVersion": target.kind.api_version(),
        "metadata": metadata,
        "items": items,
    }))
}

/// Returns only the metadata of an object, or of those in a list.
pub fn metadata_of(object: &Value) -> Value {
    let Some(items) = object.get("items").and_then(Value::as_array) else {
        return json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object.get("metadata"),
        });
    };
    let items: Vec<Value> = items.iter().map(metadata_of).collect();
    let mut metadata = object.get("metadata").cloned().unwrap_or_default();
    if let Some(fields) = metadata.as_object_mut() {
        fields.retain(|_, value| *value != "");
    }
    json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        // null instead of an empty list.
        "items": Some(items).filter(|items| !items.is_empty()),
    })
}
