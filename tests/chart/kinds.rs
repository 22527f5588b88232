//! The CRDs document their fields.

use rig::{TIMEOUT, operator::repository_root, wait};
use serde_json::Value;

use crate::objects::{file, kind_and_name};
use crate::{Failure, Test};

fn crds() -> Result<Vec<Value>, Failure> {
    file(&repository_root().join("crds/nfs-operator.yaml"))
}

/// Collects the fields without a useful description.
fn find_undescribed(schema: &Value, path: &str, found: &mut Vec<String>) {
    let description = schema["description"].as_str().unwrap_or_default();
    if description.len() < 5 || description.contains("Auto-generated") {
        found.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        find_undescribed(field, &format!("{path}.{name}"), found);
    }
    let items = &schema["items"];
    if items["properties"].is_object() {
        find_undescribed(items, &format!("{path}[]"), found);
    }
}

#[test]
fn every_field_of_every_kind_has_a_description() -> Test {
    let kinds = crds()?;
    assert!(!kinds.is_empty());
    let mut found = Vec::new();
    for kind in &kinds {
        for version in kind["spec"]["versions"].as_array().ok_or("no versions")? {
            let schema = &version["schema"]["openAPIV3Schema"];
            find_undescribed(schema, &kind_and_name(kind), &mut found);
        }
    }
    assert!(found.is_empty(), "no description: {found:#?}");
    Ok(())
}

/// Collects the fields that users set, except those of Kubernetes' own types.
fn collect_fields<'a>(schema: &'a Value, path: &str, found: &mut Vec<(String, &'a Value)>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if ["selector", "nodeAffinity"].contains(&name.as_str()) {
            continue;
        }
        if field["properties"].is_object() {
            collect_fields(field, &path, found);
        } else {
            found.push((path, field));
        }
    }
}

#[test]
fn every_free_text_has_an_example() -> Test {
    let mut missing = Vec::new();
    for kind in crds()?
        .iter()
        .filter(|kind| kind["spec"]["names"]["kind"] == "NfsBackend")
    {
        let spec = kind.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
        let mut fields = Vec::new();
        collect_fields(spec.ok_or("no spec")?, "spec", &mut fields);
        assert!(fields.len() > 15, "{fields:?}");
        let is_free_text = |field: &Value| field["type"] == "string" && field["enum"].is_null();
        missing.extend(
            fields
                .into_iter()
                .filter(|(_, field)| is_free_text(field) && field["example"].is_null())
                .map(|(path, _)| path),
        );
    }
    assert!(missing.is_empty(), "no example: {missing:?}");
    Ok(())
}

#[tokio::test]
async fn kubectl_explains_fields_with_their_values_and_defaults() -> Test {
    let cluster = &rig::shared().await?.cluster;
    // The API server publishes schemas some time after it reports their kinds as established: its aggregator looks for
    // them each second, and a minute after a failure, such as one while the API server starts.
    wait::until("the schema of NfsBackend", TIMEOUT, async || {
        cluster
            .kubectl(["explain", "nfsb"])
            .await
            .map_err(|error| error.to_string())
    })
    .await?;
    for (field, words) in [
        ("nfsb", &["an NFS export on which claims are provisioned"][..]),
        (
            "nfsb.spec.archivePolicy",
            &[
                "What happens to the data of a volume",
                "enum: Archive, Delete, Retain",
                "archived-",
            ],
        ),
        ("nfsb.spec.directory.mode", &["octal"]),
        ("nfsb.spec.nfs.port", &["Default: `2049`."]),
        (
            "nfsb.spec.nfs.version",
            &["ENUM:\n    Auto\n    4.2\n    4.1\n", "newest that works"],
        ),
        ("nfsb.spec.capacity", &["limit", "overcommitPercent", "reserve"]),
        ("nfsb.status.conditions", &["Ready, Reachable"]),
    ] {
        let output = cluster.kubectl(["explain", field]).await?;
        for word in words {
            assert!(output.contains(word), "{field} does not contain {word:?}:\n{output}");
        }
    }
    Ok(())
}
