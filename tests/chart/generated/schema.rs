//! The part of values.schema.json that comes from the CRD: a backend's spec.

use serde_json::{Map, Value, json};

use crate::Failure;
use crate::objects::documents;

/// Returns the schema with the definition `backendSpec` from the CRD.
pub fn with_backend_spec(schema: &str, crds: &str) -> Result<String, Failure> {
    let mut schema: Value = serde_json::from_str(schema)?;
    let is_backend = |crd: &&Value| crd["metadata"]["name"] == "nfsbackends.nfs-operator.io";
    let crds = documents(crds)?;
    let backend = crds.iter().find(is_backend).ok_or("no CRD of backends")?;
    let spec = backend
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .ok_or("no spec")?;
    schema["definitions"]["backendSpec"] = strict(spec);
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}

/// Converts the schema of a CRD to JSON schema. Objects accept no other fields.
fn strict(schema: &Value) -> Value {
    let mut strict_schema = Map::new();
    for (key, value) in schema.as_object().into_iter().flatten() {
        let converted = match key.as_str() {
            "properties" => strict_each(value),
            "items" => strict(value),
            "additionalProperties" if value.is_object() => strict(value),
            // The CRD has numbers such as 1.0.
            "minimum" | "maximum" => json!(value.as_f64().unwrap_or_default() as i64),
            "type" | "enum" | "required" | "pattern" | "minLength" | "maxLength" | "minItems" | "maxItems" => {
                value.clone()
            }
            "x-kubernetes-validations" => {
                strict_schema.extend(find_pattern(value).map(|pattern| ("pattern".to_owned(), json!(pattern))));
                continue;
            }
            // Long descriptions of Kubernetes' own types would be most of the file.
            "description" if value.as_str().is_some_and(|text| text.len() < 280) => value.clone(),
            _ => continue,
        };
        strict_schema.insert(key.clone(), converted);
    }
    if strict_schema.contains_key("properties") {
        strict_schema.insert("additionalProperties".to_owned(), json!(false));
    }
    Value::Object(strict_schema)
}

fn strict_each(properties: &Value) -> Value {
    let properties = properties.as_object().into_iter().flatten();
    properties.map(|(name, field)| (name.clone(), strict(field))).collect()
}

/// Returns the regular expression of a validation rule that consists of one.
fn find_pattern(rules: &Value) -> Option<String> {
    let rules = rules.as_array()?.iter().filter_map(|rule| rule["rule"].as_str());
    let mut single = rules.filter_map(|rule| rule.strip_prefix("self.matches('")?.strip_suffix("')"));
    single
        .find(|pattern| !pattern.contains('\''))
        .map(|pattern| pattern.replace("\\\\", "\\"))
}
