//! The results on disk and in docs/reliability.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nfs_client::Protocol;

use super::CASES;

const VERSIONS: [Protocol; 4] = [Protocol::V4_2, Protocol::V4_1, Protocol::V4_0, Protocol::V3];

/// Returns the file for the results of a server and a version.
fn file(server: &str, version: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let named = format!("{}-{version}.json", server.replace(' ', "-"));
    target.join("conformance").join(named)
}

fn page() -> String {
    std::fs::read_to_string(rig::operator::repository_root().join("docs/reliability.md")).unwrap()
}

/// Writes the results to `target/conformance/<server>-<version>.json`. Returns the path.
pub fn write(server: &str, version: Protocol, outcomes: &BTreeMap<&'static str, String>) -> PathBuf {
    let file = file(server, &version.to_string());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
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

/// Returns the results in docs/reliability.md for a server and a version: the rows of the table below the heading
/// `### <server>`, in the column of the version. A cell with `–` was not run.
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
    // The line below the header only draws the table.
    let rows = rows.skip(1).filter(|row| row[place] != "–");
    rows.map(|row| (row[0].to_owned(), row[place].to_owned())).collect()
}

/// Returns the columns of all tables: server and version.
fn columns(page: &str) -> BTreeSet<(String, String)> {
    let section = page
        .split("\n## ")
        .find(|section| section.starts_with("Versions, servers, operations"));
    let mut columns = BTreeSet::new();
    let mut server = None;
    for line in section.unwrap_or_default().lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            server = Some(heading.to_owned());
        } else if let Some(server) = server.as_ref().filter(|_| line.starts_with("| operation |")) {
            let versions = line.trim_matches('|').split('|').skip(1);
            columns.extend(versions.map(|version| (server.clone(), version.trim().to_owned())));
        }
    }
    columns
}

/// Returns the time when the results of a server and a version were last written.
fn recorded(server: &str, version: &str) -> Option<SystemTime> {
    std::fs::metadata(file(server, version))
        .and_then(|file| file.modified())
        .ok()
}

/// Panics unless the page lists exactly these results.
pub fn check_table(server: &str, version: Protocol, outcomes: &BTreeMap<&'static str, String>) {
    let promised = column(&page(), server, version);
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
                "{operation}: the page has {:?}, the run {:?}",
                promised.get(operation),
                found.get(operation)
            )
        })
        .chain(
            promised
                .keys()
                .filter(|row| !CASES.iter().any(|(operation, _)| operation == row))
                .map(|row| format!("{row}: no such case")),
        )
        .collect();
    assert!(
        differ.is_empty(),
        "docs/reliability.md, {server}, {version}: {differ:#?}"
    );
}

#[test]
fn a_column_of_the_table_is_found_by_server_and_version() {
    let page = "# x\n### a\n\n| operation | 4.2 | 3 |\n|---|---|---|\n| link | yes | – |\n### b\n| operation | 3 |\n|---|---|\n| link | no |\n";
    let cell = |server, version| column(page, server, version).get("link").cloned();
    assert_eq!(cell("a", Protocol::V4_2).as_deref(), Some("yes"));
    assert_eq!(cell("a", Protocol::V4_1), None);
    assert_eq!(cell("c", Protocol::V4_2), None);
}

#[test]
fn every_column_of_the_tables_is_found_and_has_a_known_version() {
    let columns = columns(&page());
    assert!(columns.len() >= 8, "{columns:?}");
    for (server, version) in &columns {
        let version = VERSIONS.iter().find(|known| known.to_string() == *version);
        let version = version.unwrap_or_else(|| panic!("{server}: unknown version: {columns:?}"));
        assert!(
            !column(&page(), server, *version).is_empty(),
            "{server}, {version}: no results"
        );
    }
    let page = "## Versions, servers, operations\n### a\n| operation | 3 |\n### b\n| operation | 4.2 | 4.1 |\n## Faults\n### c\n| operation | 3 |\n";
    let found = self::columns(&format!("# x\n{page}"));
    let found: Vec<_> = found
        .iter()
        .map(|(server, version)| format!("{server} {version}"))
        .collect();
    assert_eq!(found, ["a 3", "b 4.1", "b 4.2"]);
}

/// Each result is compared with its cell when it is written. This test checks that every column was run. A run of some
/// tests does not run them all, so this test is only for `make test`, which passes the time of its start.
#[test]
#[ignore = "checks the results of a complete run; the last step of `make test`"]
fn every_column_of_the_tables_was_run() {
    let began =
        std::env::var("CONFORMANCE_SINCE").expect("CONFORMANCE_SINCE: when the run began, in seconds since 1970");
    let began = SystemTime::UNIX_EPOCH + Duration::from_secs(began.parse().unwrap());
    // The kernel's server needs an emulator. If there is none, `make test` skips these columns with a notice.
    let without = std::env::var("CONFORMANCE_WITHOUT").unwrap_or_default();
    let mut missing = Vec::new();
    for (server, version) in columns(&page()) {
        if !without.is_empty() && server.contains(&without) {
            println!("skipped as requested: {server}, {version}");
        } else if recorded(&server, &version).is_none_or(|written| written < began) {
            missing.push(format!("{server}, {version}"));
        }
    }
    assert!(missing.is_empty(), "docs/reliability.md: not run: {missing:#?}");
}
