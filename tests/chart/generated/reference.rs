//! The reference of the chart's values in docs/install.md, generated from the comments in values.yaml.

use serde_json::Value;

use crate::Failure;
use crate::objects::documents;

const BEGIN: &str = "<!-- values: made by `make chart` of the comments in values.yaml -->\n";
const END: &str = "<!-- end of values -->";

/// Returns the page with its table of values.
pub fn with_values(page: &str, values: &str) -> Result<String, Failure> {
    let (before, rest) = page.split_once(BEGIN).ok_or("the page has no section for the values")?;
    let (_, after) = rest.split_once(END).ok_or("the section for the values has no end")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", render_table(values)?))
}

/// A key of values.yaml with its comment.
struct Row {
    path: Vec<String>,
    meaning: String,
}

fn render_table(values: &str) -> Result<String, Failure> {
    let rows = parse_rows(values);
    let parsed = documents(values)?.pop().ok_or("no values")?;
    let mut undescribed = Vec::new();
    visit_leaves(&parsed, &mut Vec::new(), &mut |path| {
        if !rows.iter().any(|row| path.starts_with(&row.path)) {
            undescribed.push(path.join("."));
        }
    });
    if !undescribed.is_empty() {
        return Err(format!("values.yaml has no comment for {undescribed:?}").into());
    }
    let mut table = String::from("\n| value | default | |\n|---|---|---|\n");
    for Row { path, meaning } in &rows {
        let default = parsed.pointer(&format!("/{}", path.join("/"))).ok_or("no such value")?;
        let default = serde_json::to_string(default)?;
        table += &format!(
            "| `{}` | `{default}` | {} |\n",
            path.join("."),
            meaning.replace('|', "\\|")
        );
    }
    Ok(table + "\n")
}

/// Parses the rows: each is a comment that begins with `# --`, followed by the key.
fn parse_rows(values: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    // The keys that contain the current line, with their indentation.
    let mut parents: Vec<(usize, String)> = Vec::new();
    let mut meaning: Option<String> = None;
    for line in values.lines() {
        let text = line.trim_start();
        let indentation = line.len() - text.len();
        if let Some(first) = text.strip_prefix("# -- ") {
            meaning = Some(first.to_owned());
        } else if let (Some(meaning), Some(more)) = (&mut meaning, text.strip_prefix("# ")) {
            *meaning += " ";
            *meaning += more;
        } else if let Some((key, _)) = text.split_once(':').filter(|_| !text.starts_with('#')) {
            parents.retain(|(outer, _)| *outer < indentation);
            parents.push((indentation, key.to_owned()));
            let path = parents.iter().map(|(_, key)| key.clone()).collect();
            rows.extend(meaning.take().map(|meaning| Row { path, meaning }));
        }
    }
    rows
}

fn visit_leaves(value: &Value, path: &mut Vec<String>, found: &mut impl FnMut(&[String])) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                path.push(key.clone());
                visit_leaves(value, path, found);
                path.pop();
            }
        }
        _ => found(path),
    }
}
