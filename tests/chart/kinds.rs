//! The kinds explain themselves.

use rig::operator::repository_root;
use serde_json::Value;

use crate::objects::{file, named};
use crate::{Failure, Test};

fn kinds() -> Result<Vec<Value>, Failure> {
    file(&repository_root().join("crds/nfs-operator.yaml"))
}

/// Names every field without a description, and every one whose description says no more than its name.
fn undescribed(schema: &Value, path: &str, found: &mut Vec<String>) {
    let said = schema["description"].as_str().unwrap_or_default();
    if said.len() < 5 || said.contains("Auto-generated") {
        found.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        undescribed(field, &format!("{path}.{name}"), found);
    }
    let items = &schema["items"];
    if items["properties"].is_object() {
        undescribed(items, &format!("{path}[]"), found);
    }
}

#[test]
fn every_field_of_every_kind_has_a_description() -> Test {
    let kinds = kinds()?;
    assert!(!kinds.is_empty());
    let mut found = Vec::new();
    for kind in &kinds {
        for version in kind["spec"]["versions"].as_array().ok_or("no versions")? {
            let schema = &version["schema"]["openAPIV3Schema"];
            undescribed(schema, &named(kind), &mut found);
        }
    }
    assert!(found.is_empty(), "no description: {found:#?}");
    Ok(())
}

/// The fields below `spec` that a person writes, by path; what Kubernetes' own kinds bring is theirs.
fn written<'a>(schema: &'a Value, path: &str, found: &mut Vec<(String, &'a Value)>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if ["selector", "nodeAffinity"].contains(&name.as_str()) {
            continue;
        }
        if field["properties"].is_object() {
            written(field, &path, found);
        } else {
            found.push((path, field));
        }
    }
}

#[test]
fn every_text_without_a_choice_of_words_has_an_example() -> Test {
    let mut without = Vec::new();
    for kind in kinds()?
        .iter()
        .filter(|kind| kind["spec"]["names"]["kind"] == "NfsBackend")
    {
        let spec = kind.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
        let mut fields = Vec::new();
        written(spec.ok_or("no spec")?, "spec", &mut fields);
        assert!(fields.len() > 15, "{fields:?}");
        let free = |field: &Value| field["type"] == "string" && field["enum"].is_null();
        without.extend(
            fields
                .into_iter()
                .filter(|(_, field)| free(field) && field["example"].is_null())
                .map(|(path, _)| path),
        );
    }
    assert!(without.is_empty(), "no example: {without:?}");
    Ok(())
}

#[tokio::test]
async fn kubectl_explains_fields_with_their_choices_and_defaults() -> Test {
    let cluster = &rig::shared().await?.cluster;
    for (field, words) in [
        ("nfsb", &["An NFS export that claims are provisioned on"][..]),
        (
            "nfsb.spec.archivePolicy",
            &[
                "What becomes of a volume's data",
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
        let told = cluster.kubectl(["explain", field]).await?;
        for word in words {
            assert!(told.contains(word), "{field} does not say {word:?}:\n{told}");
        }
    }
    Ok(())
}
