//! The output of `make run`: conditions and directory trees.

use std::{fs, path::Path};

use rig::{Result, ResultExt as _};
use serde_json::Value;

/// Formats an object's conditions as a table.
pub fn conditions(object: &Value) -> String {
    let headings = ["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"].map(String::from);
    let listed = object.pointer("/status/conditions").and_then(Value::as_array);
    let cell = |condition: &Value, key: &str| condition[key].as_str().unwrap_or("-").to_owned();
    let rows = listed
        .into_iter()
        .flatten()
        .map(|condition| ["type", "status", "reason", "lastTransitionTime", "message"].map(|key| cell(condition, key)));
    table(std::iter::once(headings).chain(rows).collect())
}

/// Aligns the columns to their widest cell.
fn table<const COLUMNS: usize>(rows: Vec<[String; COLUMNS]>) -> String {
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: [String; COLUMNS]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.into_iter().map(line).map(|line| format!("  {line}\n")).collect()
}

/// Lists the contents of a directory. The operator's own directory is one line.
pub fn tree(root: &Path) -> Result<String> {
    let mut text = String::new();
    walk(root, 1, &mut text).with_context(|| format!("list {}", root.display()))?;
    Ok(text)
}

fn walk(folder: &Path, depth: usize, text: &mut String) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;

    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let metadata = entry.metadata()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let slash = if metadata.is_dir() { "/" } else { "" };
        let (mode, uid, gid) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
        let indent = "  ".repeat(depth);
        let is_operators = name == ".nfs-operator";
        let note = if is_operators {
            "   (identity and records of the operator)"
        } else {
            ""
        };
        text.push_str(&format!("{mode:05o} {uid}:{gid} {indent}{name}{slash}{note}\n"));
        if metadata.is_dir() && !is_operators {
            walk(&entry.path(), depth + 1, text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_aligned_in_columns() {
        let object = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": "Probed", "lastTransitionTime": "now", "message": "well"},
            {"type": "Reachable", "status": "True"},
        ]}});
        let shown = conditions(&object);
        let lines: Vec<&str> = shown.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "  Ready      True    Probed  now    well",
                "  Reachable  True    -       -      -"
            ]
        );
    }

    #[test]
    fn a_tree_hides_the_contents_of_the_operators_directory() {
        let run = rig::RunDir::new().unwrap();
        let export = run.dir("export").unwrap();
        fs::create_dir_all(export.join(".nfs-operator/records")).unwrap();
        fs::create_dir(export.join("volume")).unwrap();
        fs::write(export.join("volume/file"), "").unwrap();
        let tree = tree(&export).unwrap();
        assert!(tree.contains("volume/\n") && tree.contains("    file\n"), "{tree}");
        assert!(tree.contains(".nfs-operator/") && !tree.contains("records/"), "{tree}");
    }
}
