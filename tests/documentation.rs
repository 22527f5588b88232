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

/// The names of all tests: every function that is marked as one.
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

/// The names in backticks in the last cell of each row.
fn named_tests(page: &str) -> Vec<&str> {
    let rows = page.lines().filter_map(|line| line.trim_end().strip_suffix('|'));
    rows.filter_map(|row| row.rsplit('|').next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_test_that_a_page_names_exists() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    for folder in ["src", "tests"] {
        tests_below(&root.join(folder), &mut tests)?;
    }
    for (page, at_least) in [("docs/parity.md", 80), ("docs/security.md", 30)] {
        let text = fs::read_to_string(root.join(page))?;
        let named = named_tests(&text);
        assert!(named.len() > at_least, "{page} names only {}", named.len());
        let missing: Vec<_> = named.iter().filter(|name| !tests.contains(**name)).collect();
        assert!(missing.is_empty(), "{page} names tests that do not exist: {missing:?}");
    }
    Ok(())
}
