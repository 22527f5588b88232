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
