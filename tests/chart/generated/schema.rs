//! The part of values.schema.json that the CRD decides: a backend's spec.

use serde_json::{Map, Value, json};

use crate::Failure;
use crate::objects::documents;

/// The schema with its definition `backendSpec` made of the CRD.
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

/// What a JSON schema says as the CRD does; objects take no other fields than those named.
fn strict(of: &Value) -> Value {
    let mut made = Map::new();
    for (key, value) in of.as_object().into_iter().flatten() {
        let kept = match key.as_str() {
            "properties" => map(value),
            "items" => strict(value),
            "additionalProperties" if value.is_object() => strict(value),
            // Numbers come as 1.0 from the CRD.
            "minimum" | "maximum" => json!(value.as_f64().unwrap_or_default() as i64),
            "type" | "enum" | "required" | "pattern" | "minLength" | "maxLength" | "minItems" | "maxItems" => {
                value.clone()
            }
            "x-kubernetes-validations" => {
                made.extend(pattern(value).map(|pattern| ("pattern".to_owned(), json!(pattern))));
                continue;
            }
            // Texts of Kubernetes' own kinds would be most of the file.
            "description" if value.as_str().is_some_and(|text| text.len() < 280) => value.clone(),
            _ => continue,
        };
        made.insert(key.clone(), kept);
    }
    if made.contains_key("properties") {
        made.insert("additionalProperties".to_owned(), json!(false));
    }
    Value::Object(made)
}

fn map(properties: &Value) -> Value {
    let properties = properties.as_object().into_iter().flatten();
    properties.map(|(name, field)| (name.clone(), strict(field))).collect()
}

/// A rule of the API server that is one regular expression.
fn pattern(rules: &Value) -> Option<String> {
    let rules = rules.as_array()?.iter().filter_map(|rule| rule["rule"].as_str());
    let mut single = rules.filter_map(|rule| rule.strip_prefix("self.matches('")?.strip_suffix("')"));
    single
        .find(|pattern| !pattern.contains('\''))
        .map(|pattern| pattern.replace("\\\\", "\\"))
}
