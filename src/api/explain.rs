//! Finish of the generated definitions: descriptions of fields for `kubectl explain`, which keeps line breaks and does not
//! show defaults, and what the derived schemas lack.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use serde_json::{Value, json};

/// Maximum number of items of lists in types that Kubernetes defines, which have no limit of their own.
const MAX_EMBEDDED_ITEMS: i64 = 256;

/// Joins the lines of each paragraph in all descriptions, and adds the defaults to those of the spec. Removes `nullable`:
/// the API server drops a null, which then means unset. Gives each list a type and a limit. Applies the defaults in a status
/// to objects without one.
pub(super) fn finish(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        let root = version.schema.as_mut();
        if let Some(root) = root.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            join_lines(root);
            for (name, part) in root.properties.iter_mut().flatten() {
                rewrite(part, name == "spec");
                if name == "status" {
                    default_missing(part);
                }
            }
        }
    }
    definition
}

fn rewrite(schema: &mut JSONSchemaProps, in_spec: bool) {
    join_lines(schema);
    schema.nullable = None;
    if schema.type_.as_deref() == Some("array") {
        schema.max_items.get_or_insert(MAX_EMBEDDED_ITEMS);
        schema.x_kubernetes_list_type.get_or_insert_with(|| "atomic".to_owned());
    }
    if in_spec {
        append_default(schema);
    }
    for part in schema.properties.iter_mut().flat_map(|parts| parts.values_mut()) {
        rewrite(part, in_spec);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        rewrite(items, in_spec);
    }
}

/// Gives a status whose fields have defaults the default `{}`: the API server applies the defaults of fields only in an object
/// that exists, and an object that the operator has not seen yet has no status.
fn default_missing(status: &mut JSONSchemaProps) {
    let mut fields = status.properties.iter().flat_map(|fields| fields.values());
    if fields.any(|field| field.default.is_some()) {
        status.default = Some(JSON(json!({})));
    }
}

fn join_lines(schema: &mut JSONSchemaProps) {
    if let Some(text) = &mut schema.description {
        let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
}

/// Replaces floats without a fraction by integers.
pub(super) fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number
                .as_f64()
                .filter(|float| float.fract() == 0.0 && float.abs() < MAX_EXACT);
            if number.is_f64()
                && let Some(whole) = whole
            {
                #[allow(clippy::cast_possible_truncation, reason = "it is whole and in range")]
                let whole = whole as i64;
                *number = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

/// 2^53: smaller whole floats are exact.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Appends the default of a scalar. The fields of an object have defaults of their own.
fn append_default(schema: &mut JSONSchemaProps) {
    let default = match schema.default.as_ref().map(|default| &default.0) {
        Some(Value::String(text)) => text.clone(),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
        _ => return,
    };
    let text = schema.description.get_or_insert_default();
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(&format!("Default: `{default}`."));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_one_line_per_paragraph_and_the_default() {
        for (text, default, in_spec, expected) in [
            ("One\ntwo.\n\nThree.", None, true, "One two.\n\nThree."),
            ("One.", Some(json!("x")), true, "One. Default: `x`."),
            ("One.", Some(json!(2049)), true, "One. Default: `2049`."),
            ("One.", Some(json!({ "a": 1 })), true, "One."),
            ("One.", Some(json!(0)), false, "One."),
            ("", Some(json!(false)), true, "Default: `false`."),
        ] {
            let mut schema = JSONSchemaProps {
                description: Some(text.to_owned()),
                default: default.map(JSON),
                ..JSONSchemaProps::default()
            };
            rewrite(&mut schema, in_spec);
            assert_eq!(schema.description.as_deref(), Some(expected));
        }
    }
}
