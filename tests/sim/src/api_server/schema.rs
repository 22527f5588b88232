//! Defaults, as the schemas of the kinds and the strategies of built-in kinds set them.

use std::sync::OnceLock;

use nfs_operator::api::{custom_resource_definitions, to_value};
use serde_json::{Map, Value, json};

use super::kinds::Kind;

/// Sets the fields that a new object has by default.
pub fn set_defaults(kind: &Kind, object: &mut Value) {
    match kind.plural {
        "persistentvolumeclaims" => {
            default(object, &["spec"], "volumeMode", json!("Filesystem"));
            default(object, &["status"], "phase", json!("Pending"));
            copy_data_source(object);
            protect(object, "kubernetes.io/pvc-protection");
        }
        "persistentvolumes" => {
            default(object, &["spec"], "volumeMode", json!("Filesystem"));
            default(object, &["spec"], "persistentVolumeReclaimPolicy", json!("Retain"));
            default(object, &["status"], "phase", json!("Pending"));
            protect(object, "kubernetes.io/pv-protection");
        }
        "namespaces" => {
            default(object, &["spec"], "finalizers", json!(["kubernetes"]));
            default(object, &["status"], "phase", json!("Active"));
            let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
            default(object, &["metadata", "labels"], "kubernetes.io/metadata.name", name);
        }
        "secrets" => default(object, &[], "type", json!("Opaque")),
        "storageclasses" => {
            default(object, &[], "reclaimPolicy", json!("Delete"));
            default(object, &[], "volumeBindingMode", json!("Immediate"));
        }
        "nfsbackends" | "nfsarchives" => {
            if let Some(schema) = schemas().get(kind.plural) {
                set_schema_defaults(schema, object);
            }
        }
        _ => {}
    }
}

/// Sets the fields that a changed object has by default.
pub fn set_defaults_on_update(kind: &Kind, object: &mut Value) {
    if kind.custom
        && let Some(schema) = schemas().get(kind.plural)
    {
        set_schema_defaults(schema, object);
    }
}

fn default(object: &mut Value, path: &[&str], field: &str, value: Value) {
    let mut at = object;
    for name in path {
        let Some(fields) = at.as_object_mut() else { return };
        at = fields
            .entry((*name).to_owned())
            .or_insert_with(|| Value::Object(Map::new()));
    }
    if let Some(fields) = at.as_object_mut() {
        fields.entry(field.to_owned()).or_insert(value);
    }
}

/// Copies the data source of a claim to the other field that can hold it: `dataSource` has no namespace. The API shows
/// the group of a source also if there is none.
fn copy_data_source(claim: &mut Value) {
    let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let (source, reference) = (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned());
    match (source, reference) {
        (Some(source), None) => spec.insert("dataSourceRef".to_owned(), source),
        (None, Some(reference)) if reference.get("namespace").is_none() => {
            spec.insert("dataSource".to_owned(), reference)
        }
        _ => None,
    };
    for field in ["dataSource", "dataSourceRef"] {
        if let Some(source) = spec.get_mut(field).and_then(Value::as_object_mut) {
            source.entry("apiGroup").or_insert(Value::Null);
        }
    }
}

/// Adds the finalizer that keeps an object while it is used.
fn protect(object: &mut Value, finalizer: &str) {
    default(object, &["metadata"], "finalizers", json!([]));
    let finalizers = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut);
    if let Some(finalizers) = finalizers
        && !finalizers.iter().any(|other| other == finalizer)
    {
        finalizers.push(json!(finalizer));
    }
}

/// Environment variable with [`schemas`], for processes that run one seed each: generating them takes as long as a good
/// part of a run.
pub const SCHEMAS: &str = "SIM_SCHEMAS";

/// Returns the schemas of the custom kinds, by plural: as far as they have defaults.
pub fn schemas() -> &'static Map<String, Value> {
    static SCHEMAS_OF_KINDS: OnceLock<Map<String, Value>> = OnceLock::new();
    SCHEMAS_OF_KINDS.get_or_init(|| {
        let given = std::env::var(SCHEMAS).ok();
        // What cannot be read is generated.
        let given = given.and_then(|given| serde_json::from_str(&given).ok());
        given.unwrap_or_else(generate)
    })
}

fn generate() -> Map<String, Value> {
    let definitions = custom_resource_definitions();
    let of_plurals = definitions.into_iter().filter_map(|definition| {
        let value = to_value(&definition).ok()?;
        let schema = value.pointer("/spec/versions/0/schema/openAPIV3Schema")?;
        Some((definition.spec.names.plural, with_defaults(schema)?))
    });
    of_plurals.collect()
}

/// Returns the parts of a schema that have defaults, or lead to them.
fn with_defaults(schema: &Value) -> Option<Value> {
    let mut parts = Map::new();
    if let Some(default) = schema.get("default") {
        parts.insert("default".to_owned(), default.clone());
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flatten();
    let properties: Map<String, Value> = properties
        .filter_map(|(name, property)| Some((name.clone(), with_defaults(property)?)))
        .collect();
    if !properties.is_empty() {
        parts.insert("properties".to_owned(), Value::Object(properties));
    }
    if let Some(items) = schema.get("items").and_then(with_defaults) {
        parts.insert("items".to_owned(), items);
    }
    (!parts.is_empty()).then_some(Value::Object(parts))
}

/// Sets the defaults of a structural schema
/// (<https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#defaulting>).
fn set_schema_defaults(schema: &Value, value: &mut Value) {
    if let (Some(properties), Some(fields)) = (
        schema.get("properties").and_then(Value::as_object),
        value.as_object_mut(),
    ) {
        for (name, property) in properties {
            if let Some(default) = property.get("default") {
                fields.entry(name.clone()).or_insert_with(|| default.clone());
            }
            if let Some(inner) = fields.get_mut(name) {
                set_schema_defaults(property, inner);
            }
        }
    }
    if let (Some(items), Some(list)) = (schema.get("items"), value.as_array_mut()) {
        for item in list {
            set_schema_defaults(items, item);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Returns the schema of a backend, as the API server has it.
    fn whole_schema() -> Value {
        let mut definitions = custom_resource_definitions().into_iter();
        let definition = definitions.find(|definition| definition.spec.names.plural == "nfsbackends");
        let definition = to_value(&definition.unwrap()).unwrap();
        let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema");
        schema.unwrap().clone()
    }

    #[test]
    fn the_parts_with_defaults_set_the_same_as_the_whole_schema() {
        let parts = schemas().get("nfsbackends").unwrap();
        let text = parts.to_string();
        assert!(text.len() < 10_000, "too long for an environment variable: {text}");
        for object in [
            json!({"spec": {"server": "nas", "path": "/"}}),
            json!({"spec": {"server": "nas", "path": "/", "nfs": {}, "directory": {}, "archivePolicy": {},
                "claimOverrides": [{}], "formerAddresses": [{}]}, "status": {"conditions": [{}], "export": {}}}),
        ] {
            let (mut short, mut long) = (object.clone(), object.clone());
            set_schema_defaults(parts, &mut short);
            set_schema_defaults(&whole_schema(), &mut long);
            assert_ne!(short, object);
            assert_eq!(short, long);
        }
    }
}
