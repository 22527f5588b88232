//! Kubernetes objects in YAML.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rig::operator::repository_root;
use serde_json::{Map, Value};

use crate::Failure;

/// Returns the path of the chart.
pub fn chart() -> PathBuf {
    repository_root().join("config/helm/nfs-operator")
}

/// Parses YAML documents, without empty ones.
pub fn documents(text: &str) -> Result<Vec<Value>, Failure> {
    let parsed = serde_norway::Deserializer::from_str(text).map(serde::Deserialize::deserialize);
    let parsed: Result<Vec<Value>, _> = parsed.collect();
    Ok(parsed?.into_iter().filter(|document| !document.is_null()).collect())
}

/// Parses the documents of a file.
pub fn file(path: &Path) -> Result<Vec<Value>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    documents(&text)
}

/// Returns the kind and name of an object.
pub fn kind_and_name(object: &Value) -> String {
    let part = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", part("/kind"), part("/metadata/name"))
}

/// Collects the differences between two objects.
pub fn differences(one: &Value, other: &Value, path: &str, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(fields), Value::Object(others)) => {
            let names: BTreeSet<_> = fields.keys().chain(others.keys()).collect();
            for name in names {
                let of = |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                differences(&of(fields), &of(others), &format!("{path}.{name}"), found);
            }
        }
        (Value::Array(values), Value::Array(others)) if values.len() == others.len() => {
            for (number, (value, other)) in values.iter().zip(others).enumerate() {
                differences(value, other, &format!("{path}[{number}]"), found);
            }
        }
        _ if one == other => {}
        _ => found.push(format!("{path}: {one} and {other}")),
    }
}
