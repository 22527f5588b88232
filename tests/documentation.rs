//! What the documentation promises to be complete is complete.

use std::{fs, io, path::Path};

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

/// The names in backticks in the last cell of each row.
fn named_tests(page: &str) -> Vec<&str> {
    let rows = page.lines().filter_map(|line| line.trim_end().strip_suffix('|'));
    rows.filter_map(|row| row.rsplit('|').next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

/// Every Rust source below a folder, as one text.
fn sources(folder: &Path, all: &mut String) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, all)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(path)?);
        }
    }
    Ok(())
}

#[test]
fn every_test_that_the_page_on_security_names_is_there() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/security.md"))?;
    let mut all = String::new();
    sources(&root.join("src"), &mut all)?;
    sources(&root.join("tests"), &mut all)?;
    let named = named_tests(&page);
    assert!(named.len() > 30, "only {} tests are named", named.len());
    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| !all.contains(&format!("fn {name}(")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/security.md names tests that do not exist: {missing:?}"
    );
    Ok(())
}
