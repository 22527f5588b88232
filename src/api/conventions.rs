//! Tests that the generated definitions follow the conventions of docs/api.md.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use serde_json::Value;

use super::{custom_resource_definitions, to_value};

/// A schema, and the path to it, such as `spec.mountOptions[]`.
type Part = (String, Value);

/// Returns all parts of the schemas of all kinds, without `metadata`.
fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for definition in custom_resource_definitions() {
        let value = to_value(&definition).unwrap();
        let kind = value["spec"]["names"]["kind"].as_str().unwrap().to_owned();
        for version in value["spec"]["versions"].as_array().unwrap() {
            collect(&kind, &version["schema"]["openAPIV3Schema"], &mut parts);
        }
    }
    assert!(parts.len() > 100, "only {} parts", parts.len());
    parts
}

fn collect(path: &str, schema: &Value, parts: &mut Vec<Part>) {
    parts.push((path.to_owned(), schema.clone()));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        collect(&format!("{path}.{name}"), field, parts);
    }
    for (inner, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[inner].is_object() {
            collect(&format!("{path}{suffix}"), &schema[inner], parts);
        }
    }
}

#[test]
fn every_list_has_a_type_and_a_limit() {
    for (path, schema) in parts() {
        if schema["type"] != "array" {
            continue;
        }
        assert!(schema["maxItems"].is_u64(), "{path} has no maxItems");
        match schema["x-kubernetes-list-type"].as_str() {
            Some("atomic" | "set") => {}
            Some("map") => assert!(
                schema["x-kubernetes-list-map-keys"][0].is_string(),
                "{path} has no keys"
            ),
            other => panic!("{path} has the list type {other:?}"),
        }
    }
}

#[test]
fn nothing_is_nullable_and_limits_are_whole_numbers() {
    for (path, schema) in parts() {
        assert!(schema["nullable"].is_null(), "{path} is nullable");
        for limit in ["minimum", "maximum"] {
            assert!(
                schema[limit].is_null() || schema[limit].is_i64(),
                "{path}: {limit} {}",
                schema[limit]
            );
        }
        assert_ne!(schema["type"], "number", "{path}");
    }
}

#[test]
fn enums_are_camel_case_but_for_versions_of_nfs() {
    for (path, schema) in parts() {
        for value in schema["enum"].as_array().into_iter().flatten() {
            let value = value.as_str().unwrap();
            let is_camel_case =
                value.starts_with(|c: char| c.is_ascii_uppercase()) && value.chars().all(|c| c.is_ascii_alphanumeric());
            assert!(
                is_camel_case || path == "NfsBackend.spec.nfs.version",
                "{path}: {value}"
            );
        }
    }
}

#[test]
fn every_rule_has_a_message_that_names_the_field() {
    for (path, schema) in parts() {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let message = rule["message"].as_str().unwrap_or_default();
            let field = path.rsplit('.').next().unwrap().trim_end_matches("[]");
            let is_kind = !path.contains('.') || path.ends_with(".spec");
            assert!(!message.is_empty(), "{path}: {rule}");
            assert!(is_kind || message.contains(field), "{path}: {message}");
        }
    }
}

#[test]
fn names_of_times_end_with_time() {
    for (path, schema) in parts() {
        assert!(schema["format"] != "date-time" || path.ends_with("Time"), "{path}");
    }
}

#[test]
fn every_field_has_a_description() {
    for (path, schema) in parts() {
        let is_field = path.contains('.') && !path.ends_with("[]") && !path.ends_with("{}");
        let is_described = schema["description"].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_described || !is_field || path.ends_with(".metadata"), "{path}");
    }
}
