//! What is made of something else and kept in the repository is up to date. `make chart` writes it anew.

mod reference;
mod schema;

use std::fs;

use rig::operator::repository_root;

use crate::Failure;
use crate::Test;

/// A text that is made, and the file it belongs into.
struct Made {
    path: &'static str,
    text: String,
}

fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(repository_root().join(path)).map_err(|error| format!("{path}: {error}").into())
}

fn copy(from: &str, path: &'static str) -> Result<Made, Failure> {
    Ok(Made {
        path,
        text: read(from)?,
    })
}

/// All that is made.
fn made() -> Result<Vec<Made>, Failure> {
    let crds = read("crds/nfs-operator.yaml")?;
    let schema = "config/helm/nfs-operator/values.schema.json";
    let guide = "docs/install.md";
    Ok(vec![
        // Neither Helm nor kustomize reads a file outside its folder.
        copy(
            "crds/nfs-operator.yaml",
            "config/helm/nfs-operator/crds/nfs-operator.yaml",
        )?,
        copy("crds/nfs-operator.yaml", "config/crd/nfs-operator.yaml")?,
        copy(
            "config/prometheus/rules.yaml",
            "config/helm/nfs-operator/files/rules.yaml",
        )?,
        copy(
            "config/prometheus/dashboard.json",
            "config/helm/nfs-operator/files/dashboard.json",
        )?,
        copy(
            "config/admission/archive_hold.yaml",
            "config/helm/nfs-operator/files/archive_hold.yaml",
        )?,
        copy(
            "config/security/admission-policy/inline_volumes.yaml",
            "config/helm/nfs-operator/files/admission-policy/inline_volumes.yaml",
        )?,
        copy(
            "config/security/admission-policy/foreign_volumes.yaml",
            "config/helm/nfs-operator/files/admission-policy/foreign_volumes.yaml",
        )?,
        Made {
            path: schema,
            text: schema::with_backend_spec(&read(schema)?, &crds)?,
        },
        Made {
            path: guide,
            text: reference::with_values(&read(guide)?, &read("config/helm/nfs-operator/values.yaml")?)?,
        },
    ])
}

#[test]
fn copies_schema_and_values_reference_are_made_of_what_they_are_made_of() -> Test {
    let write = std::env::var_os("WRITE").is_some();
    let mut stale = Vec::new();
    for Made { path, text } in made()? {
        if read(path).is_ok_and(|kept| kept == text) {
            continue;
        }
        if write {
            fs::write(repository_root().join(path), text)?;
        } else {
            stale.push(path);
        }
    }
    assert!(stale.is_empty(), "out of date, run `make chart`: {stale:?}");
    Ok(())
}
