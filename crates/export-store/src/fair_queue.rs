//! A queue that is fair by namespace. Does no I/O.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

/// Objects that wait, without duplicates. The namespaces take turns: an object waits for at most one object of each
/// other namespace, and for the objects of its own namespace that came before it.
#[derive(Debug)]
pub struct FairQueue<R> {
    by_namespace: HashMap<String, BTreeMap<u64, R>>,
    /// Namespaces with waiting objects, the next one first.
    turns: VecDeque<String>,
    positions: HashMap<R, (String, u64)>,
    last: u64,
}

impl<R> Default for FairQueue<R> {
    fn default() -> Self {
        Self {
            by_namespace: HashMap::new(),
            turns: VecDeque::new(),
            positions: HashMap::new(),
            last: 0,
        }
    }
}

impl<R: Eq + Hash + Clone> FairQueue<R> {
    /// Adds an object to the end of its namespace's queue, unless it already waits.
    pub fn push(&mut self, object: R, namespace: &str) {
        if self.positions.contains_key(&object) {
            return;
        }
        self.last += 1;
        self.positions.insert(object.clone(), (namespace.to_owned(), self.last));
        if let Some(objects) = self.by_namespace.get_mut(namespace) {
            objects.insert(self.last, object);
        } else {
            self.turns.push_back(namespace.to_owned());
            self.by_namespace
                .insert(namespace.to_owned(), BTreeMap::from([(self.last, object)]));
        }
    }

    /// Removes and returns the next object.
    pub fn pop(&mut self) -> Option<R> {
        let namespace = self.turns.pop_front()?;
        let objects = self.by_namespace.get_mut(&namespace)?;
        let (_, object) = objects.pop_first()?;
        if objects.is_empty() {
            self.by_namespace.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        self.positions.remove(&object);
        Some(object)
    }

    /// Removes an object.
    pub fn remove(&mut self, object: &R) {
        let Some((namespace, position)) = self.positions.remove(object) else {
            return;
        };
        let Some(objects) = self.by_namespace.get_mut(&namespace) else {
            return;
        };
        objects.remove(&position);
        if objects.is_empty() {
            self.by_namespace.remove(&namespace);
            self.turns.retain(|other| *other != namespace);
        }
    }

    /// Returns the number of objects that wait.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Returns true if no object waits.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Returns the number of objects of a namespace that wait.
    pub fn len_of(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).map_or(0, BTreeMap::len)
    }

    /// Returns true if the object waits.
    pub fn contains(&self, object: &R) -> bool {
        self.positions.contains_key(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns_and_objects_of_one_keep_their_order() {
        let mut queue = FairQueue::default();
        for number in 0..1000 {
            queue.push(("large", number), "large");
        }
        queue.push(("small", 0), "small");
        queue.push(("small", 1), "small");
        queue.push(("small", 0), "small");
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order.len(), 1002, "no object waits twice");
        let expected = [("large", 0), ("small", 0), ("large", 1), ("small", 1), ("large", 2)];
        assert!(order.starts_with(&expected), "{:?}", order.get(..5));
        assert!(order.iter().skip(4).is_sorted());
    }

    #[test]
    fn a_removed_object_leaves_nothing_behind() {
        let mut queue = FairQueue::default();
        for name in ["a", "b", "c"] {
            queue.push(name, "one");
        }
        queue.push("d", "two");
        queue.remove(&"b");
        queue.remove(&"d");
        queue.remove(&"d");
        assert!(!queue.contains(&"b") && queue.contains(&"c"));
        queue.push("b", "one");
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["a", "c", "b"]);
        assert!(queue.by_namespace.is_empty() && queue.turns.is_empty() && queue.positions.is_empty());
    }
}
