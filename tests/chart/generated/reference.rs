//! The reference of the chart's values in docs/install.md, made of the comments in values.yaml.

use serde_json::Value;

use crate::Failure;
use crate::objects::documents;

const BEGIN: &str = "<!-- values: made by `make chart` of the comments in values.yaml -->\n";
const END: &str = "<!-- end of values -->";

/// The page with its table of values.
pub fn with_values(page: &str, values: &str) -> Result<String, Failure> {
    let (before, rest) = page.split_once(BEGIN).ok_or("the page has no place for the values")?;
    let (_, after) = rest.split_once(END).ok_or("the place for the values has no end")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", table(values)?))
}

/// A key of values.yaml with its comment.
struct Row {
    path: Vec<String>,
    meaning: String,
}

fn table(values: &str) -> Result<String, Failure> {
    let rows = rows(values);
    let parsed = documents(values)?.pop().ok_or("no values")?;
    let mut undescribed = Vec::new();
    leaves(&parsed, &mut Vec::new(), &mut |path| {
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

/// The rows: a comment that begins with `# --`, and the key below it.
fn rows(values: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    // The keys that the present line lies in, with their indentation.
    let mut within: Vec<(usize, String)> = Vec::new();
    let mut meaning: Option<String> = None;
    for line in values.lines() {
        let text = line.trim_start();
        let indentation = line.len() - text.len();
        if let Some(begun) = text.strip_prefix("# -- ") {
            meaning = Some(begun.to_owned());
        } else if let (Some(meaning), Some(more)) = (&mut meaning, text.strip_prefix("# ")) {
            *meaning += " ";
            *meaning += more;
        } else if let Some((key, _)) = text.split_once(':').filter(|_| !text.starts_with('#')) {
            within.retain(|(outer, _)| *outer < indentation);
            within.push((indentation, key.to_owned()));
            let path = within.iter().map(|(_, key)| key.clone()).collect();
            rows.extend(meaning.take().map(|meaning| Row { path, meaning }));
        }
    }
    rows
}

fn leaves(value: &Value, path: &mut Vec<String>, found: &mut impl FnMut(&[String])) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                path.push(key.clone());
                leaves(value, path, found);
                path.pop();
            }
        }
        _ => found(path),
    }
}
