//! What the containers of pods printed.

use std::{fs, path::Path};

use crate::process::tail;

/// The ends of all logs in the kubelet's folder of logs: POD/CONTAINER/COUNT.log.
pub(super) fn read_tails(folder: &Path) -> String {
    let mut text = String::new();
    for pod in entries(folder) {
        for container in entries(&pod) {
            for log in entries(&container) {
                let name = log.strip_prefix(folder).unwrap_or(&log).display();
                text.push_str(&format!("the end of {name}:\n{}\n", tail(&log)));
            }
        }
    }
    text
}

/// What is in a folder, in the order of names; nothing when it is not there.
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
