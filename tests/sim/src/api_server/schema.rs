//! Defaults, as the schemas of the kinds and the strategies of built-in kinds set them.

use std::collections::BTreeMap;
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
            if let Some(schema) = schema(kind) {
                set_schema_defaults(schema, object);
            }
        }
        _ => {}
    }
}

/// Sets the fields that a changed object has by default.
pub fn set_defaults_on_update(kind: &Kind, object: &mut Value) {
    if kind.custom
        && let Some(schema) = schema(kind)
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

/// Returns the schema of a custom kind.
fn schema(kind: &Kind) -> Option<&'static Value> {
    static SCHEMAS: OnceLock<BTreeMap<String, Value>> = OnceLock::new();
    let schemas = SCHEMAS.get_or_init(|| {
        let definitions = custom_resource_definitions();
        let of_plurals = definitions.into_iter().filter_map(|definition| {
            let value = to_value(&definition).ok()?;
            let schema = value.pointer("/spec/versions/0/schema/openAPIV3Schema")?;
            Some((definition.spec.names.plural, schema.clone()))
        });
        of_plurals.collect()
    });
    schemas.get(kind.plural)
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
