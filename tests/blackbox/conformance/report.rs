//! What came out, on disk and in docs/reliability.md.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nfs_operator::nfs::Protocol;

use super::CASES;

/// Writes what came out to `target/conformance/<server>-<version>.json`, and gives back where.
pub fn write(server: &str, version: Protocol, outcomes: &BTreeMap<&'static str, String>) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .unwrap()
        .join("conformance");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{}-{version}.json", server.replace(' ', "-")));
    let rows: Vec<_> = CASES
        .iter()
        .filter_map(|(operation, _)| outcomes.get(operation).map(|outcome| (operation, outcome)))
        .map(|(operation, outcome)| {
            serde_json::json!({
                "server": server, "version": version.to_string(), "operation": operation, "outcome": outcome,
            })
        })
        .collect();
    std::fs::write(&file, serde_json::to_vec_pretty(&rows).unwrap()).unwrap();
    file
}

/// The outcomes that docs/reliability.md promises for a server and a version: the rows of the table below the heading
/// `### <server>`, in the column with the version's name. A cell with `–` promises nothing.
pub fn column(page: &str, server: &str, version: Protocol) -> BTreeMap<String, String> {
    let heading = format!("### {server}");
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    let mut rows = lines
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let head = rows.next().unwrap_or_default();
    let version = version.to_string();
    let Some(place) = head.iter().position(|cell| *cell == version) else {
        return BTreeMap::new();
    };
    // The line below the head only draws the table.
    let rows = rows.skip(1).filter(|row| row[place] != "–");
    rows.map(|row| (row[0].to_owned(), row[place].to_owned())).collect()
}

/// Panics unless the page promises what came out, all of it and nothing else.
pub fn check_table(server: &str, version: Protocol, outcomes: &BTreeMap<&'static str, String>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reliability.md");
    let page = std::fs::read_to_string(file).unwrap();
    let promised = column(&page, server, version);
    let found: BTreeMap<_, _> = outcomes
        .iter()
        .map(|(operation, outcome)| ((*operation).to_owned(), outcome.clone()))
        .collect();
    let differ: Vec<_> = CASES
        .iter()
        .map(|(operation, _)| *operation)
        .filter(|operation| promised.get(*operation) != found.get(*operation))
        .map(|operation| {
            format!(
                "{operation}: the page says {:?}, the run {:?}",
                promised.get(operation),
                found.get(operation)
            )
        })
        .chain(
            promised
                .keys()
                .filter(|row| !CASES.iter().any(|(operation, _)| operation == row))
                .map(|row| format!("{row}: no case is called so")),
        )
        .collect();
    assert!(
        differ.is_empty(),
        "docs/reliability.md, {server}, {version}: {differ:#?}"
    );
}

#[test]
fn the_table_is_read_by_server_and_version() {
    let page = "# x\n### a\n\n| operation | 4.2 | 3 |\n|---|---|---|\n| link | yes | – |\n### b\n| operation | 3 |\n|---|---|\n| link | no |\n";
    let cell = |server, version| column(page, server, version).get("link").cloned();
    assert_eq!(cell("a", Protocol::V4_2).as_deref(), Some("yes"));
    assert_eq!(cell("a", Protocol::V4_1), None);
    assert_eq!(cell("c", Protocol::V4_2), None);
}
