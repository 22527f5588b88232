//! What `kubectl explain` shows of our kinds: it breaks a description where the text has a line's end, and it shows no
//! defaults.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use serde_json::Value;

/// The definition with descriptions of one line a paragraph, which name the defaults of what users write.
pub(super) fn explained(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        let root = version.schema.as_mut();
        if let Some(root) = root.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            join_lines(root);
            for (name, part) in root.properties.iter_mut().flatten() {
                explain(part, name == "spec");
            }
        }
    }
    definition
}

fn explain(schema: &mut JSONSchemaProps, written_by_users: bool) {
    join_lines(schema);
    if written_by_users {
        name_default(schema);
    }
    for part in schema.properties.iter_mut().flat_map(|parts| parts.values_mut()) {
        explain(part, written_by_users);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        explain(items, written_by_users);
    }
}

fn join_lines(schema: &mut JSONSchemaProps) {
    if let Some(text) = &mut schema.description {
        let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
}

/// Objects are left out: what they consist of has defaults of its own.
fn name_default(schema: &mut JSONSchemaProps) {
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
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_description_is_one_line_a_paragraph_and_names_the_default() {
        for (text, default, users, explained) in [
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
            explain(&mut schema, users);
            assert_eq!(schema.description.as_deref(), Some(explained));
        }
    }
}
