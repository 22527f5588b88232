//! Compares a new list of a watch with the objects that were indexed before. Does no I/O.

use export_store::UidMap;

/// Names of the objects that were indexed before a list and are not in it yet. Objects of the list that were not indexed
/// before need no memory: most volumes of a cluster may be those of other drivers.
pub struct RelistDiff {
    missing: UidMap<()>,
}

impl Default for RelistDiff {
    fn default() -> Self {
        let missing = UidMap::by_volume();
        Self { missing }
    }
}

impl RelistDiff {
    /// Adds an object that was indexed when the list was requested.
    pub fn expect(&mut self, name: &str) {
        self.missing.insert(name, ());
    }

    /// Adds an object of the list.
    pub fn insert(&mut self, name: &str) {
        self.missing.remove(name);
    }

    /// Returns the deleted objects at the end of the list. An object created after the request is not among them: no page
    /// of the list contains it, and it was not indexed before. The watch reports it.
    pub fn deleted(&mut self) -> Vec<String> {
        std::mem::take(self).missing.keys_where(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_are_not_in_the_list_are_deleted_but_not_those_created_meanwhile() {
        let mut relist = RelistDiff::default();
        for indexed in ["stays", "deleted"] {
            relist.expect(indexed);
        }
        relist.insert("stays");
        relist.insert("created meanwhile");
        assert_eq!(relist.deleted(), ["deleted"]);
        assert!(relist.deleted().is_empty(), "each is reported once");
    }
}
