//! The folders of `src` are layers: each uses only those below it. `cargo` enforces that between crates, this test between
//! the folders.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From the bottom to the top. A folder uses only itself and those before it.
const LAYERS: [&str; 10] = [
    "api",
    "decide",
    "runtime",
    "state",
    "compat",
    "background",
    "recovery",
    "controllers",
    "app",
    "cli",
];

/// Returns every source file below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the first `depth` names of every path that begins with `crate::` or `nfs_operator::` in a file's code.
fn used(text: &str, depth: usize) -> BTreeSet<Vec<String>> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut paths = BTreeSet::new();
    for root in ["crate::", "nfs_operator::"] {
        for rest in code.split(root).skip(1) {
            assert!(
                !rest.starts_with('{'),
                "write one path for each folder: {root}{{…}} hides them"
            );
            let names = rest
                .split("::")
                .map(|name| name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
                .take(depth);
            paths.insert(names.map(str::to_owned).collect());
        }
    }
    paths
}

/// Returns which folder below `root` uses which other one, each pair with a file that does.
fn edges(root: &Path, prefix: &[&str]) -> BTreeMap<(String, String), PathBuf> {
    let mut edges = BTreeMap::new();
    for file in sources(root) {
        let below = file.strip_prefix(root).unwrap();
        let own = below.components().next().unwrap().as_os_str().to_str().unwrap();
        let own = own.trim_end_matches(".rs").to_owned();
        for path in used(&std::fs::read_to_string(&file).unwrap(), prefix.len() + 1) {
            let (parents, name) = path.split_at(prefix.len().min(path.len() - 1));
            if parents == prefix && name[0] != own && own != "mod" {
                edges.insert((own.clone(), name[0].clone()), file.clone());
            }
        }
    }
    edges
}

#[test]
fn every_folder_uses_only_those_below_it() {
    let layer = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let wrong: Vec<String> = edges(Path::new("src"), &[])
        .into_iter()
        .filter(|((own, other), _)| match (layer(own), layer(other)) {
            (Some(own), Some(other)) => own < other,
            _ => false,
        })
        .map(|((own, other), file)| format!("{own} uses {other}, which stands above it: {}", file.display()))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_folder_of_src_is_a_layer() {
    for entry in std::fs::read_dir("src").unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            !path.is_dir() || LAYERS.contains(&name),
            "src/{name} has no place in LAYERS: add it where it belongs"
        );
    }
}

/// Returns the files of `src` that contain one of these calls, except for some files and folders.
fn files_that_call(calls: &[&str], exceptions: &[&str]) -> Vec<String> {
    sources(Path::new("src"))
        .into_iter()
        .filter(|path| !exceptions.iter().any(|exception| path.starts_with(exception)))
        .filter(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            calls.iter().any(|call| text.contains(call))
        })
        .map(|path| path.display().to_string())
        .collect()
}

/// A name from another object may be any text, such as `?limit=0`. `runtime::reads` checks it before it becomes part of the
/// path of a request.
#[test]
fn objects_are_read_only_by_names_that_were_checked() {
    let exceptions = [
        "src/runtime/reads.rs",
        // The names are settings and constants.
        "src/runtime/held_lease.rs",
        "src/runtime/records_secret.rs",
        // The command reads the objects that it created.
        "src/cli/check/steps.rs",
        // A test.
        "src/runtime/clients.rs",
    ];
    let calls = [".get_opt(", ".get_metadata(", ".get_metadata_opt(", "api.get("];
    let wrong = files_that_call(&calls, &exceptions);
    assert!(
        wrong.is_empty(),
        "read objects with `runtime::reads`: {}",
        wrong.join(", ")
    );
}

/// A tenant decides how large the objects of a namespace are. `runtime::reads` limits the bytes of a page.
#[test]
fn objects_are_listed_only_in_pages_of_limited_size() {
    let exceptions = [
        "src/runtime/reads.rs",
        // All lists of a command are paged.
        "src/cli",
        // The operator's own objects.
        "src/controllers/storage_capacity.rs",
        // Tests.
        "src/runtime/clients.rs",
        "src/runtime/list_pages.rs",
    ];
    let wrong = files_that_call(&[".list(&", ".list_metadata(&"], &exceptions);
    assert!(
        wrong.is_empty(),
        "list objects with `reads::each_metadata`: {}",
        wrong.join(", ")
    );
}

#[test]
fn no_controller_uses_another() {
    let wrong: Vec<String> = edges(Path::new("src/controllers"), &["controllers"])
        .into_iter()
        .map(|((own, other), file)| {
            format!(
                "the {own} controller uses {other}; what both need belongs below them: {}",
                file.display()
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
