//! Compares a new list of a watch with the objects that were indexed before. Does no I/O.

use std::collections::HashSet;

/// Names of the objects that were indexed before a list, and of those in it.
#[derive(Default)]
pub struct RelistDiff {
    before: HashSet<String>,
    listed: HashSet<String>,
}

impl RelistDiff {
    /// Starts a comparison when a list is requested.
    pub fn begin(before: HashSet<String>) -> Self {
        let listed = HashSet::new();
        Self { before, listed }
    }

    /// Adds an object of the list.
    pub fn insert(&mut self, name: String) {
        self.listed.insert(name);
    }

    /// Returns the deleted objects at the end of the list. An object created after the request is not among them: no page
    /// of the list contains it, and it was not indexed before. The watch reports it.
    pub fn deleted(&mut self) -> Vec<String> {
        let Self { before, listed } = std::mem::take(self);
        before.into_iter().filter(|name| !listed.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_are_not_in_the_list_are_deleted_but_not_those_created_meanwhile() {
        let mut indexed: HashSet<String> = ["stays", "deleted"].map(str::to_owned).into();
        let mut relist = RelistDiff::begin(indexed.clone());
        relist.insert("stays".to_owned());
        indexed.insert("created meanwhile".to_owned());
        assert_eq!(relist.deleted(), ["deleted"]);
        assert!(relist.deleted().is_empty(), "each is reported once");
    }
}
