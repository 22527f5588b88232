//! The files with which an administrator installs the operator. They are read once and applied without `kubectl`: there
//! are hundreds of test clusters, and half of the time to install the operator was that of its processes.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    error::{Result, ResultExt},
    objects::{Objects, merge},
};

/// The objects of an installation.
#[derive(Debug)]
pub(crate) struct Manifests {
    /// The definitions of the operator's kinds.
    definitions: Vec<Value>,
    /// Other objects. Those of each group are applied after those of the one before.
    groups: Vec<Vec<Value>>,
}

/// A kustomization as `config` has them. One with other fields cannot be read: it would be applied incompletely.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    labels: Vec<Labels>,
    resources: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Labels {
    pairs: BTreeMap<String, String>,
}

impl Manifests {
    /// Reads the definitions in a folder.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let action = || format!("list {}", folder.display());
        let mut definitions = Vec::new();
        for entry in fs::read_dir(folder).with_context(action)? {
            definitions.extend(read(&entry.with_context(action)?.path())?);
        }
        Ok(Self {
            definitions,
            groups: Vec::new(),
        })
    }

    /// Adds the files that a kustomization lists, with its labels.
    pub(crate) fn kustomization(mut self, folder: &Path) -> Result<Self> {
        let path = folder.join("kustomization.yaml");
        let action = || format!("read {}", path.display());
        let text = fs::read_to_string(&path).with_context(action)?;
        let kustomization: Kustomization = serde_norway::from_str(&text).with_context(action)?;
        let mut objects = Vec::new();
        for name in &kustomization.resources {
            objects.extend(read(&folder.join(name))?);
        }
        for object in &mut objects {
            for labels in &kustomization.labels {
                merge(object, &json!({"metadata": {"labels": labels.pairs}}));
            }
        }
        self.groups.push(objects);
        Ok(self)
    }

    /// Adds the objects in a text.
    pub(crate) fn text(mut self, text: &str) -> Result<Self> {
        self.groups.push(parse(text)?);
        Ok(self)
    }

    /// Applies all objects, and waits until the API server serves the kinds, at most for `timeout`.
    pub(crate) async fn apply(&self, objects: &Objects, timeout: Duration) -> Result<()> {
        apply_together(objects, &self.definitions).await?;
        for group in &self.groups {
            let is_namespace = |object: &&Value| object["kind"] == "Namespace";
            let (namespaces, others): (Vec<_>, Vec<_>) = group.iter().partition(is_namespace);
            apply_together(objects, namespaces).await?;
            apply_together(objects, others).await?;
        }
        for definition in &self.definitions {
            let established = objects.wait_condition(definition, "Established", "True", None, timeout);
            established.await?;
        }
        Ok(())
    }
}

async fn apply_together(client: &Objects, objects: impl IntoIterator<Item = &Value>) -> Result<()> {
    try_join_all(objects.into_iter().map(|object| client.apply(object)))
        .await
        .map(drop)
}

/// Reads the objects in a file.
fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    parse(&text)
}

/// Returns the objects in a text, of which `---` separates the documents.
fn parse(text: &str) -> Result<Vec<Value>> {
    let documents = serde_norway::Deserializer::from_str(text).map(Value::deserialize);
    let documents: std::result::Result<Vec<_>, _> = documents.collect();
    let mut objects = documents.with_context(|| "read a manifest".into())?;
    // A document that has only comments.
    objects.retain(|object| !object.is_null());
    Ok(objects)
}
