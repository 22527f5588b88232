//! The API server accepts every sample and keeps all its fields.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use rig::operator::repository_root;
use rig::{Objects, shared};
use serde_json::Value;

use crate::objects::{documents, file, kind_and_name};
use crate::{Failure, Test};

fn folder() -> PathBuf {
    repository_root().join("config/samples")
}

/// Returns the names of the samples' files.
fn files() -> Result<BTreeSet<String>, Failure> {
    let names = fs::read_dir(folder())?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Result<BTreeSet<String>, std::io::Error> = names.collect();
    let mut names = names?;
    assert!(names.remove("kustomization.yaml"));
    Ok(names)
}

/// Collects the fields that are missing or different after reading an object back.
fn find_losses(written: &Value, read: &Value, path: &str, found: &mut Vec<String>) {
    match (written, read) {
        (Value::Object(fields), Value::Object(_)) => {
            for (name, field) in fields {
                find_losses(field, &read[name], &format!("{path}.{name}"), found);
            }
        }
        (Value::Array(written), Value::Array(read)) if written.len() == read.len() => {
            for (number, (written, read)) in written.iter().zip(read).enumerate() {
                find_losses(written, read, &format!("{path}[{number}]"), found);
            }
        }
        _ if written == read => {}
        _ => found.push(format!("{path}: {written} is read as {read}")),
    }
}

#[tokio::test]
async fn every_sample_is_accepted_and_keeps_every_field() -> Test {
    let cluster = &shared().await?.cluster;
    let objects = Objects::new(cluster.client().await?);
    for name in files()? {
        let sample = folder().join(&name);
        // Unknown fields are an error.
        let strict = [
            "apply",
            "--server-side",
            "--validate=strict",
            "-f",
            &sample.display().to_string(),
        ]
        .map(str::to_owned);
        cluster
            .kubectl(strict)
            .await
            .map_err(|error| format!("{name}: {error}"))?;
        for written in file(&sample)? {
            let read = objects
                .get(&written)
                .await?
                .ok_or_else(|| format!("{name}: not found"))?;
            let mut found = Vec::new();
            find_losses(&written, &read, &kind_and_name(&written), &mut found);
            assert!(found.is_empty(), "{name}: {found:#?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn kustomize_knows_every_sample() -> Test {
    let cluster = &shared().await?.cluster;
    let listed = file(&folder().join("kustomization.yaml"))?;
    let listed: BTreeSet<String> = serde_json::from_value(listed[0]["resources"].clone())?;
    assert_eq!(listed, files()?);
    let built = cluster.kubectl(["kustomize", &folder().display().to_string()]).await?;
    let expected = files()?
        .into_iter()
        .map(|name| file(&folder().join(name)).map(|objects| objects.len()));
    let expected: Result<Vec<usize>, Failure> = expected.collect();
    assert_eq!(documents(&built)?.len(), expected?.iter().sum::<usize>());
    Ok(())
}
