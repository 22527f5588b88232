//! Fields of objects by path, as server-side apply knows them: fields of maps, items of associative lists, and atomic
//! values (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy>).

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map, Value};

/// A name in paths. The names of a thread that are equal are one string, so that comparisons read few characters.
#[derive(Debug, Clone)]
pub struct Name {
    text: Arc<str>,
    hash: u64,
}

thread_local! {
    /// Always hashed in the same way: the random numbers of a run are not touched.
    static NAMES: RefCell<HashSet<Arc<str>, BuildHasherDefault<DefaultHasher>>> =
        const { RefCell::new(HashSet::with_hasher(BuildHasherDefault::new())) };
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        let text = NAMES.with_borrow_mut(|names| {
            let known = names.get(name).cloned();
            known.unwrap_or_else(|| {
                let new = Arc::<str>::from(name);
                names.insert(Arc::clone(&new));
                new
            })
        });
        let hash = name.bytes().fold(0, |hash, byte| mixed(hash, byte.into()));
        Self { text, hash }
    }
}

/// A step of a hash (FxHash).
fn mixed(hash: u64, more: u64) -> u64 {
    (hash.rotate_left(5) ^ more).wrapping_mul(0x517c_c1b7_2722_0a95)
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        match Arc::ptr_eq(&self.text, &other.text) {
            true => Ordering::Equal,
            false => self.text.cmp(&other.text),
        }
    }
}

/// A step from a value to a part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// A field of a map.
    Field(Name),
    /// The item of an associative list whose key has this value.
    Item(&'static str, Name),
    /// An item of a set.
    Member(Name),
}

/// A path from an object to one of its fields. Paths are ordered by a hash first: each write compares many, and most of
/// them begin with the same names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    hash: u64,
    segments: Arc<[Segment]>,
}

impl From<&[Segment]> for Path {
    fn from(segments: &[Segment]) -> Self {
        let hash = segments.iter().fold(0, |hash, segment| match segment {
            Segment::Field(name) => mixed(hash, name.hash),
            Segment::Item(_, name) => mixed(hash, name.hash ^ 1),
            Segment::Member(name) => mixed(hash, name.hash ^ 2),
        });
        Self {
            hash,
            segments: segments.into(),
        }
    }
}

impl Deref for Path {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        &self.segments
    }
}

impl Path {
    /// Compares paths by their names: what leads to a field comes before it.
    pub fn compare_names(&self, other: &Self) -> Ordering {
        self.segments.cmp(&other.segments)
    }
}

/// The value of the item of an associative list, as a leaf.
static ITEM: Value = Value::Null;

/// How the items of a list are merged.
enum ListType {
    /// The list is replaced as a whole.
    Atomic,
    /// Items are merged by the value of a field.
    Map(&'static str),
    /// Items are scalars, each at most once.
    Set,
}

fn list_type(field: &str) -> ListType {
    match field {
        "conditions" => ListType::Map("type"),
        "ownerReferences" => ListType::Map("uid"),
        "finalizers" => ListType::Set,
        _ => ListType::Atomic,
    }
}

/// Returns all leaves of a value with their paths. The item of an associative list is a leaf of its own, because it exists
/// or not.
pub fn leaves(value: &Value) -> BTreeMap<Path, &Value> {
    let mut found = BTreeMap::new();
    collect(value, &mut Vec::new(), &mut found);
    found
}

fn collect<'a>(value: &'a Value, path: &mut Vec<Segment>, found: &mut BTreeMap<Path, &'a Value>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                path.push(Segment::Field(name.as_str().into()));
                collect(value, path, found);
                path.pop();
            }
        }
        Value::Array(items) => match list_type_at(path) {
            ListType::Map(key) => collect_items(items, key, path, found),
            ListType::Set => {
                for item in items {
                    path.push(Segment::Member(item.as_str().unwrap_or_default().into()));
                    found.insert(path.as_slice().into(), item);
                    path.pop();
                }
            }
            ListType::Atomic => {
                found.insert(path.as_slice().into(), value);
            }
        },
        leaf => {
            found.insert(path.as_slice().into(), leaf);
        }
    }
}

fn collect_items<'a>(
    items: &'a [Value],
    key: &'static str,
    path: &mut Vec<Segment>,
    found: &mut BTreeMap<Path, &'a Value>,
) {
    for item in items {
        let name = item.get(key).and_then(Value::as_str).unwrap_or_default();
        path.push(Segment::Item(key, name.into()));
        found.insert(path.as_slice().into(), &ITEM);
        collect(item, path, found);
        path.pop();
    }
}

/// Returns how the items of the list at a path are merged.
fn list_type_at(path: &[Segment]) -> ListType {
    match path.last() {
        Some(Segment::Field(field)) => list_type(field),
        _ => ListType::Atomic,
    }
}

/// The leaves in which two values differ.
#[derive(Debug, Default)]
pub struct Difference {
    /// Leaves of the first that the second does not have.
    pub removed: Vec<Path>,
    /// Leaves of the second that the first does not have, or with another value.
    pub changed: Vec<Path>,
}

/// Returns the leaves in which two values differ.
pub fn difference(before: &Value, after: &Value) -> Difference {
    let mut found = Difference::default();
    compare(before, after, &mut Vec::new(), &mut found);
    found
}

fn compare(before: &Value, after: &Value, path: &mut Vec<Segment>, found: &mut Difference) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) if !old.is_empty() && !new.is_empty() => {
            let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
            for name in names {
                let (old, new) = (old.get(name), new.get(name));
                if old == new {
                    continue;
                }
                path.push(Segment::Field(name.as_str().into()));
                match (old, new) {
                    (Some(old), Some(new)) => compare(old, new, path, found),
                    (old, new) => compare_leaves(old, new, path, found),
                }
                path.pop();
            }
        }
        (before, after) => compare_leaves(Some(before), Some(after), path, found),
    }
}

/// Returns the leaves of the value at a path.
fn leaves_below<'a>(value: Option<&'a Value>, path: &mut Vec<Segment>) -> BTreeMap<Path, &'a Value> {
    let mut found = BTreeMap::new();
    if let Some(value) = value {
        collect(value, path, &mut found);
    }
    found
}

fn compare_leaves(before: Option<&Value>, after: Option<&Value>, path: &mut Vec<Segment>, found: &mut Difference) {
    let (before, after) = (leaves_below(before, path), leaves_below(after, path));
    let removed = before.keys().filter(|path| !after.contains_key(*path));
    found.removed.extend(removed.cloned());
    let changed = after.iter().filter(|(path, value)| before.get(*path) != Some(value));
    found.changed.extend(changed.map(|(path, _)| path.clone()));
}

/// Returns the leaf at a path.
pub fn leaf<'a>(root: &'a Value, path: &[Segment]) -> Option<&'a Value> {
    let mut found = root;
    for (index, segment) in path.iter().enumerate() {
        found = match segment {
            Segment::Field(name) => found.as_object()?.get(&**name)?,
            Segment::Item(key, name) => {
                let items = found.as_array()?;
                let has_name = |item: &&Value| item.get(*key).and_then(Value::as_str) == Some(&**name);
                let item = items.iter().find(has_name)?;
                match index + 1 == path.len() {
                    true => return Some(&ITEM),
                    false => item,
                }
            }
            Segment::Member(member) => {
                let items = found.as_array()?;
                return items.iter().find(|item| item.as_str() == Some(&**member));
            }
        };
    }
    let is_leaf = match found {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(_) => matches!(list_type_at(path), ListType::Atomic),
        _ => true,
    };
    is_leaf.then_some(found)
}

/// Sets the field at a path; creates what leads to it.
pub fn set(root: &mut Value, path: &[Segment], value: &Value) {
    let Some((first, rest)) = path.split_first() else {
        *root = value.clone();
        return;
    };
    match first {
        Segment::Field(name) => {
            if !root.is_object() {
                *root = Value::Object(Map::new());
            }
            if let Some(fields) = root.as_object_mut() {
                if !fields.contains_key(&**name) {
                    fields.insert((**name).to_owned(), Value::Null);
                }
                if let Some(field) = fields.get_mut(&**name) {
                    set(field, rest, value);
                }
            }
        }
        Segment::Item(key, name) => {
            let Some(items) = items_of(root) else { return };
            let has_name = |item: &Value| item.get(*key).and_then(Value::as_str) == Some(&**name);
            if !items.iter().any(has_name) {
                let fields = Map::from_iter([((*key).to_owned(), Value::String((**name).to_owned()))]);
                items.push(Value::Object(fields));
            }
            // The item itself is a leaf without a value of its own.
            if let Some(item) = items
                .iter_mut()
                .find(|item| has_name(item))
                .filter(|_| !rest.is_empty())
            {
                set(item, rest, value);
            }
        }
        Segment::Member(_) => {
            let Some(items) = items_of(root) else { return };
            if !items.contains(value) {
                items.push(value.clone());
            }
        }
    }
}

/// Returns true if the value at a path is a map with fields.
pub fn is_filled(root: &Value, path: &[Segment]) -> bool {
    let found = path.iter().try_fold(root, |value, segment| match segment {
        Segment::Field(name) => value.get(&**name),
        Segment::Item(..) | Segment::Member(_) => None,
    });
    found
        .and_then(Value::as_object)
        .is_some_and(|fields| !fields.is_empty())
}

/// Brings the items of associative lists into the order that they have in a configuration. Items that are not in it keep
/// their places.
pub fn reorder(value: &mut Value, configuration: &Value) {
    let (Some(fields), Some(configured)) = (value.as_object_mut(), configuration.as_object()) else {
        return;
    };
    for (name, configured) in configured {
        let Some(value) = fields.get_mut(name) else { continue };
        match (list_type(name), value.as_array_mut(), configured.as_array()) {
            (ListType::Map(key), Some(items), Some(configured)) => reorder_items(items, key, configured),
            _ => reorder(value, configured),
        }
    }
}

fn reorder_items(items: &mut [Value], key: &str, configured: &[Value]) {
    let is_named = |item: &Value, other: &Value| item.get(key) == other.get(key);
    if items.len() == configured.len() && items.iter().zip(configured).all(|(item, other)| is_named(item, other)) {
        return;
    }
    let found = |other: &Value| items.iter().find(|item| is_named(item, other)).cloned();
    let mut ordered: VecDeque<Value> = configured.iter().filter_map(found).collect();
    for item in items.iter_mut() {
        if configured.iter().any(|other| is_named(item, other))
            && let Some(next) = ordered.pop_front()
        {
            *item = next;
        }
    }
}

/// Returns the items of a list, which replaces any other value.
fn items_of(value: &mut Value) -> Option<&mut Vec<Value>> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut()
}

/// Removes the field at a path.
pub fn remove(root: &mut Value, path: &[Segment]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    match first {
        Segment::Field(name) => {
            let Some(fields) = root.as_object_mut() else { return };
            if rest.is_empty() {
                fields.remove(&**name);
            } else if let Some(inner) = fields.get_mut(&**name) {
                remove(inner, rest);
                if inner.as_array().is_some_and(Vec::is_empty) {
                    fields.remove(&**name);
                }
            }
        }
        Segment::Item(key, name) => {
            let Some(items) = root.as_array_mut() else { return };
            let has_name = |item: &Value| item.get(*key).and_then(Value::as_str) == Some(&**name);
            if rest.is_empty() {
                items.retain(|item| !has_name(item));
            } else if let Some(item) = items.iter_mut().find(|item| has_name(item)) {
                remove(item, rest);
            }
        }
        Segment::Member(member) => {
            if let Some(items) = root.as_array_mut() {
                items.retain(|item| item.as_str() != Some(&**member));
            }
        }
    }
}
