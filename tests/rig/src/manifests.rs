//! The files with which an administrator installs the operator. They are read once and applied without `kubectl`, which
//! takes two seconds for each of more than a hundred test clusters.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    error::{Error, Result, ResultExt},
    objects::{Objects, describe, merge},
    wait,
};

/// The objects of an installation.
#[derive(Debug)]
pub(crate) struct Manifests {
    /// The CRDs.
    crds: Vec<Value>,
    /// Other objects. Those of each group are applied after those of the one before.
    groups: Vec<Vec<Value>>,
}

/// A kustomization as `config` has them. One with other fields cannot be read: it would be applied incompletely.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Reads the CRDs in a folder.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let action = || format!("list {}", folder.display());
        let mut crds = Vec::new();
        for entry in fs::read_dir(folder).with_context(action)? {
            crds.extend(read(&entry.with_context(action)?.path())?);
        }
        Ok(Self {
            crds,
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
        self.groups.push(parse(text, "a manifest")?);
        Ok(self)
    }

    /// Replaces the objects that have the kind and the name of one in a text.
    pub(crate) fn replaced(mut self, text: &str) -> Result<Self> {
        for new in parse(text, "a manifest")? {
            let name = describe(&new);
            let former = self.groups.iter_mut().flatten().find(|object| describe(object) == name);
            *former.ok_or_else(|| Error::Usage(format!("there is no {name} to replace")))? = new;
        }
        Ok(self)
    }

    /// Applies all objects, and waits until the API server serves the CRDs. Each takes at most `timeout`.
    pub(crate) async fn apply(&self, objects: &Objects, timeout: Duration) -> Result<()> {
        apply_together(objects, &self.crds, timeout).await?;
        for group in &self.groups {
            let is_namespace = |object: &&Value| object["kind"] == "Namespace";
            let (namespaces, others): (Vec<_>, Vec<_>) = group.iter().partition(is_namespace);
            apply_together(objects, namespaces, timeout).await?;
            apply_together(objects, others, timeout).await?;
        }
        let established = |crd| objects.wait_condition(crd, "Established", "True", None, timeout);
        try_join_all(self.crds.iter().map(established)).await.map(drop)
    }
}

/// Applies objects at the same time. As kubectl does, repeats what the API server is too busy for.
async fn apply_together(client: &Objects, objects: impl IntoIterator<Item = &Value>, timeout: Duration) -> Result<()> {
    let apply = async |object: &Value| {
        let what = format!("{} to be applied", describe(object));
        let applied = wait::until(&what, timeout, async || {
            client.apply(object).await.map_err(|error| error.to_string())
        });
        applied.await.map(drop)
    };
    try_join_all(objects.into_iter().map(apply)).await.map(drop)
}

/// Reads the objects in a file.
fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    parse(&text, &path.display().to_string())
}

/// Returns the objects in a text, of which `---` separates the documents. An error names `source`.
pub(crate) fn parse(text: &str, source: &str) -> Result<Vec<Value>> {
    let documents = serde_norway::Deserializer::from_str(text).map(Value::deserialize);
    let documents: std::result::Result<Vec<_>, _> = documents.collect();
    let mut objects = documents.with_context(|| format!("parse {source}"))?;
    // A document that has only comments.
    objects.retain(|object| !object.is_null());
    Ok(objects)
}
