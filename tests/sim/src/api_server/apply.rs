//! Server-side apply: which manager owns which field.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::answer::Refusal;
use super::fields::{self, Difference, Path, Segment, difference, leaves};
use super::kinds::Kind;

/// A field manager: name, whether it applies, and whether it writes the status subresource.
pub type Manager = (String, bool, bool);

/// The fields that each manager owns. Clones share them until they differ: most writes leave the owners as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ownership(BTreeMap<Manager, Arc<BTreeSet<Path>>>);

/// Removes a field of a manager.
fn disown(owned: &mut Arc<BTreeSet<Path>>, path: &Path) {
    if owned.contains(path) {
        Arc::make_mut(owned).remove(path);
    }
}

impl Ownership {
    /// Applies a configuration: sets its fields, and removes those that this manager applied before and no other owns.
    pub fn apply(
        &mut self,
        (kind, name): (&Kind, &str),
        object: &mut Value,
        configuration: &Value,
        manager: &Manager,
        force: bool,
    ) -> Result<(), Refusal> {
        let mut wanted = leaves(configuration);
        wanted.retain(|path, _| !is_identity(path));
        let contested = wanted
            .iter()
            .filter(|(path, value)| self.has_other(manager, path) && fields::leaf(object, path) != Some(value));
        let contested: Vec<&Path> = contested.map(|(path, _)| path).collect();
        if !force && let Some(path) = contested.iter().min_by(|path, other| path.compare_names(other)) {
            return Err(Refusal::apply_conflict(kind, name, &shown(path)));
        }
        for (_, owned) in self.0.iter_mut().filter(|(other, _)| *other != manager) {
            contested.iter().for_each(|path| disown(owned, path));
        }
        let before = self.0.remove(manager).unwrap_or_default();
        let removed = before
            .iter()
            .filter(|path| !wanted.contains_key(*path) && !self.has_other(manager, path));
        let mut removed: Vec<&Path> = removed.collect();
        // Items before the fields in them.
        removed.sort_by(|path, other| path.compare_names(other));
        for path in removed {
            if !fields::is_filled(object, path) {
                fields::remove(object, path);
            }
        }
        let changed = wanted.iter().filter(|(path, value)| {
            // An empty map leaves the fields of others alone.
            let is_current = fields::leaf(object, path) == Some(value);
            !(is_current || value.is_object() && fields::is_filled(object, path))
        });
        let mut changed: Vec<(&Path, &&Value)> = changed.collect();
        changed.sort_by(|(path, _), (other, _)| path.compare_names(other));
        for (path, value) in changed {
            fields::set(object, path, value);
        }
        fields::reorder(object, configuration);
        self.0.insert(manager.clone(), Arc::new(wanted.into_keys().collect()));
        self.0.retain(|_, owned| !owned.is_empty());
        Ok(())
    }

    /// Records a write that is no apply: the manager owns what it changed, and nobody owns what it removed.
    pub fn update(&mut self, before: &Value, after: &Value, manager: &Manager) {
        let Difference { removed, mut changed } = difference(before, after);
        changed.retain(|path| !is_identity(path));
        for (other, owned) in &mut self.0 {
            removed.iter().for_each(|path| disown(owned, path));
            if other != manager {
                changed.iter().for_each(|path| disown(owned, path));
            }
        }
        let owned = self.0.entry(manager.clone()).or_default();
        if !changed.iter().all(|path| owned.contains(path)) {
            Arc::make_mut(owned).extend(changed);
        }
        self.0.retain(|_, owned| !owned.is_empty());
    }

    /// Returns true if another manager owns a field.
    fn has_other(&self, manager: &Manager, path: &Path) -> bool {
        let mut others = self.0.iter().filter(|(other, _)| *other != manager);
        others.any(|(_, owned)| owned.contains(path))
    }
}

/// Returns a path as refusals show it.
fn shown(path: &[Segment]) -> String {
    let segments = path.iter().map(|segment| match segment {
        Segment::Field(name) => format!(".{}", &**name),
        Segment::Item(key, name) => format!("[{key}={:?}]", &**name),
        Segment::Member(member) => format!("[{:?}]", &**member),
    });
    segments.collect()
}

/// Returns true for the fields that identify an object, which nobody owns.
fn is_identity(path: &[Segment]) -> bool {
    let field = |index: usize| match path.get(index) {
        Some(Segment::Field(name)) => &**name,
        _ => "",
    };
    match field(0) {
        "apiVersion" | "kind" => true,
        "metadata" => matches!(
            field(1),
            "name" | "namespace" | "uid" | "resourceVersion" | "generation" | "creationTimestamp" | "managedFields"
        ),
        _ => false,
    }
}
