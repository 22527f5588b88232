//! The table of faults in docs/reliability.md lists exactly the tests of faults.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Files with tests of faults. A directory includes its files.
const SOURCES: &[&str] = &[
    "crates/nfs-client/src/v3/mount_tests.rs",
    "crates/nfs-client/src/v3/tests.rs",
    "crates/nfs-client/src/v4/fault_tests.rs",
    "crates/nfs-client/src/v4/recovery_tests.rs",
    "crates/nfs-client/src/v4/wire_tests.rs",
    "crates/nfs-client/tests/live/faults",
    "crates/nfs-client/tests/memory.rs",
    "crates/export-store/tests/store/faults",
];

fn files() -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for source in SOURCES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                files.push(entry?.path());
            }
        } else {
            files.push(path);
        }
    }
    files.retain(|file| file.is_file());
    Ok(files)
}

/// Returns the names of functions that are tests, and of properties.
fn tests(source: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut marked = false;
    for line in source.lines().map(str::trim) {
        marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(function) = function.filter(|_| marked) {
            names.extend(function.split('(').next().map(str::to_owned));
            marked = false;
        }
    }
    names
}

/// Returns the tests in the last column of the table.
fn rows(page: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|section| section.starts_with("Faults"));
    let rows = section
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("| "));
    rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next())
        .flat_map(|tests| tests.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_table_of_faults_and_the_tests_of_faults_are_the_same_list() -> io::Result<()> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.md"))?;
    let mut tested = BTreeSet::new();
    for file in files()? {
        tested.extend(tests(&fs::read_to_string(file)?));
    }
    let listed = rows(&page);
    assert!(listed.len() > 50, "the table was not found: {listed:?}");
    let unlisted: Vec<_> = tested.difference(&listed).collect();
    let untested: Vec<_> = listed.difference(&tested).collect();
    assert!(unlisted.is_empty(), "tests without a row: {unlisted:#?}");
    assert!(untested.is_empty(), "rows without a test: {untested:#?}");
    Ok(())
}
