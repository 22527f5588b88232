//! Generated files in the repository are up to date. `make chart` generates them.

mod reference;
mod schema;

use std::fs;

use rig::operator::repository_root;

use crate::Failure;
use crate::Test;

/// The content of a generated file.
struct GeneratedFile {
    path: &'static str,
    text: String,
}

fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(repository_root().join(path)).map_err(|error| format!("{path}: {error}").into())
}

fn copy(from: &str, path: &'static str) -> Result<GeneratedFile, Failure> {
    Ok(GeneratedFile {
        path,
        text: read(from)?,
    })
}

/// Generates all files.
fn generate_all() -> Result<Vec<GeneratedFile>, Failure> {
    let crds = read("crds/nfs-operator.yaml")?;
    let schema = "config/helm/nfs-operator/values.schema.json";
    let guide = "docs/install.md";
    Ok(vec![
        // Neither Helm nor kustomize reads files outside its directory.
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
            "config/admission/operator_account.yaml",
            "config/helm/nfs-operator/files/operator_account.yaml",
        )?,
        copy(
            "config/security/admission-policy/inline_volumes.yaml",
            "config/helm/nfs-operator/files/admission-policy/inline_volumes.yaml",
        )?,
        copy(
            "config/security/admission-policy/foreign_volumes.yaml",
            "config/helm/nfs-operator/files/admission-policy/foreign_volumes.yaml",
        )?,
        GeneratedFile {
            path: schema,
            text: schema::with_backend_spec(&read(schema)?, &crds)?,
        },
        GeneratedFile {
            path: guide,
            text: reference::with_values(&read(guide)?, &read("config/helm/nfs-operator/values.yaml")?)?,
        },
    ])
}

#[test]
fn generated_files_are_up_to_date() -> Test {
    let write = std::env::var_os("WRITE").is_some();
    let mut stale = Vec::new();
    for GeneratedFile { path, text } in generate_all()? {
        if read(path).is_ok_and(|current| current == text) {
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
