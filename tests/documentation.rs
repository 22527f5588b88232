//! What the documentation promises to be complete is complete.

use std::{collections::BTreeSet, fs, io, path::Path};

use nfs_operator::api::Reason;

#[test]
fn every_reason_has_its_row_in_the_reference() -> io::Result<()> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reasons.md"))?;
    let missing: Vec<&Reason> = Reason::ALL
        .iter()
        .filter(|reason| !page.lines().any(|line| line.starts_with(&format!("| `{reason}` |"))))
        .collect();
    assert!(missing.is_empty(), "docs/reasons.md has no row for {missing:?}");
    Ok(())
}

/// The names of all tests: every function in a file of tests, or below the place where a file's tests begin.
fn tests_below(folder: &Path, names: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            tests_below(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let mut lines = text.lines().map(str::trim);
            while let Some(line) = lines.next() {
                if !line.starts_with("#[test]") && !line.starts_with("#[tokio::test") {
                    continue;
                }
                let function = lines
                    .find_map(|line| line.split_once("fn ")?.1.split_once('('))
                    .map(|(name, _)| name);
                names.extend(function.map(str::to_owned));
            }
        }
    }
    Ok(())
}

#[test]
fn every_test_that_the_page_of_parity_names_exists() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for folder in ["src", "tests/blackbox"] {
        tests_below(&root.join(folder), &mut tests)?;
    }
    let page = fs::read_to_string(root.join("docs/parity.md"))?;
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | "));
    let named: Vec<&str> = cells
        .flat_map(|(_, cell)| cell.split(", "))
        .filter_map(|name| name.trim().strip_prefix('`')?.strip_suffix('`'))
        .collect();
    assert!(
        named.len() > 80,
        "{} tests are named: is the table another?",
        named.len()
    );
    let missing: Vec<_> = named.iter().filter(|name| !tests.contains(**name)).collect();
    assert!(missing.is_empty(), "docs/parity.md names {missing:?}");
    Ok(())
}
