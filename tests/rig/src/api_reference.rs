//! Generates docs/reference.md: every field of the operator's kinds, as the CRDs describe them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{Error, Result, manifests::parse};

/// Fields whose contents are types of Kubernetes, which documents them.
const KUBERNETES_TYPES: [&str; 3] = ["conditions", "nodeAffinity", "selector"];

/// Maximum length of a line of prose, in columns.
const COLUMNS: usize = 100;

const INTRODUCTION: &str = "\
# Reference

This page lists every field of the operator's kinds. `make docs` generates it from
[`crds/`](../crds/nfs-operator.yaml); `kubectl explain nfsb.spec` shows the same for the version in
your cluster. `[]` stands for each item of a list. See also the parameters of StorageClasses and the
annotations of claims in [classes and claims](classes.md), the flags of the program in
[operations](operations.md), and the values of the chart in [installing](install.md).
";

/// Renders the page for CRDs that are given as YAML documents.
///
/// # Errors
/// [`Error::Failed`] if the input is not YAML, and [`Error::Usage`] if it contains something other than a CRD.
pub fn render(crds: &str) -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    for crd in parse(crds, "crds/")? {
        kind(&crd, &mut page).ok_or_else(|| Error::Usage("crds/ contains an object that is not a CRD".into()))?;
    }
    Ok(page)
}

/// Appends the section of a kind, with its spec and its status.
fn kind(crd: &Value, page: &mut String) -> Option<()> {
    let names = crd.pointer("/spec/names")?;
    let version = crd.pointer("/spec/versions/0")?;
    let (kind, scope) = (names.get("kind")?.as_str()?, crd.pointer("/spec/scope")?.as_str()?);
    let (group, version_name) = (crd.pointer("/spec/group")?.as_str()?, version.get("name")?.as_str()?);
    let short = names.pointer("/shortNames/0").and_then(Value::as_str).unwrap_or(kind);
    let _ = write!(
        page,
        "\n## {kind}\n\n`{group}/{version_name}`, {}, short name `{short}`.",
        if scope == "Cluster" {
            "cluster-scoped"
        } else {
            "namespaced"
        }
    );
    for part in ["spec", "status"] {
        let Some(schema) = version.pointer(&format!("/schema/openAPIV3Schema/properties/{part}")) else {
            continue;
        };
        let about = cell(schema.get("description").and_then(Value::as_str).unwrap_or_default());
        let _ = write!(page, "\n\n### {kind} {part}\n\n{}\n\n", wrap(&about));
        page.push_str("| field | type | default | |\n|---|---|---|---|\n");
        fields(schema, "", page);
        while page.ends_with('\n') {
            page.pop();
        }
    }
    page.push('\n');
    Some(())
}

/// Breaks a paragraph into lines of at most [`COLUMNS`] columns.
fn wrap(text: &str) -> String {
    let mut wrapped = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += width;
    }
    wrapped
}

/// Appends a row for each field of a schema.
fn fields(schema: &Value, prefix: &str, page: &mut String) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map_or_else(Vec::new, |names| names.iter().filter_map(Value::as_str).collect());
    for (name, field) in properties {
        let path = format!("{prefix}{name}");
        let default = match field.get("default") {
            // The fields of an object have rows with their own defaults.
            Some(Value::Object(_)) | None if required.contains(&name.as_str()) => "**required**".to_owned(),
            Some(Value::Object(_)) | None => String::new(),
            Some(Value::String(text)) => format!("`{text}`"),
            Some(other) => format!("`{other}`"),
        };
        let _ = writeln!(
            page,
            "| `{path}` | {} | {default} | {} |",
            type_of(field),
            description(field)
        );
        if KUBERNETES_TYPES.contains(&name.as_str()) {
            continue;
        }
        fields(field, &format!("{path}."), page);
        if let Some(items) = field.get("items") {
            fields(items, &format!("{path}[]."), page);
        }
    }
}

fn type_of(field: &Value) -> String {
    if let Some(items) = field.get("items") {
        return format!("list of {}", type_of(items));
    }
    if let Some(values) = field.get("enum").and_then(Value::as_array) {
        let values = values.iter().filter_map(Value::as_str);
        return values.map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    }
    let name = field.get("type").and_then(Value::as_str).unwrap_or("any");
    let bound = |key| field.get(key).and_then(Value::as_f64);
    match (bound("minimum"), bound("maximum")) {
        (Some(min), Some(max)) => format!("{name} {min}…{max}"),
        (Some(min), None) => format!("{name} ≥ {min}"),
        _ => name.to_owned(),
    }
}

/// Returns a field's description and its validation rules.
fn description(field: &Value) -> String {
    let text = cell(field.get("description").and_then(Value::as_str).unwrap_or_default());
    // `kubectl explain` does not show defaults, so descriptions contain them. Here they have a column.
    let mut text = match text.rfind("Default: `") {
        Some(at) if field.get("default").is_some() => text.get(..at).unwrap_or_default().trim_end().to_owned(),
        _ => text,
    };
    let rules = [
        field.get("x-kubernetes-validations"),
        field.pointer("/items/x-kubernetes-validations"),
    ];
    let rules = rules.into_iter().flatten().filter_map(Value::as_array).flatten();
    for message in rules.filter_map(|rule| rule.get("message").and_then(Value::as_str)) {
        let _ = write!(text, "<br>Rule: {}", cell(message));
    }
    text
}

/// Formats text as one table cell.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_field_has_a_row_with_its_type_default_description_and_rules() {
        let crd = r#"
spec:
  group: example.org
  scope: Cluster
  names: {kind: Thing, shortNames: [t]}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        properties:
          spec:
            description: What is wanted.
            required: [name]
            properties:
              name: {type: string, description: "Its | name.\nIn full."}
              sizes:
                type: array
                items: {type: object, properties: {of: {type: integer, minimum: 1.0, maximum: 3.0}}}
              mode:
                type: string
                description: 'In octal. Default: `0777`.'
                default: "0777"
                x-kubernetes-validations: [{message: octal, rule: "true"}]
"#;
        let page = render(crd).unwrap();
        for row in [
            "## Thing\n\n`example.org/v1`, cluster-scoped, short name `t`.",
            "| `name` | string | **required** | Its \\| name. In full. |",
            "| `sizes[].of` | integer 1…3 |  |  |",
            "| `mode` | string | `0777` | In octal.<br>Rule: octal |",
        ] {
            assert!(page.contains(row), "{row} is not in\n{page}");
        }
    }

    #[test]
    fn input_without_a_crd_is_an_error() {
        assert!(render("kind: Pod").is_err());
        assert!(render("{").is_err());
    }
}
