//! The logs of pods.

use std::{fs, path::Path};

use crate::process::tail;

/// Returns the ends of all logs in the kubelet's directory: POD/CONTAINER/RESTARTS.log.
pub(super) fn read_tails(folder: &Path) -> String {
    let mut text = String::new();
    for pod in entries(folder) {
        for container in entries(&pod) {
            for log in entries(&container) {
                let name = log.strip_prefix(folder).unwrap_or(&log).display();
                text.push_str(&format!("end of {name}:\n{}\n", tail(&log)));
            }
        }
    }
    text
}

/// Returns the sorted paths in a directory; empty if it does not exist.
fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}
