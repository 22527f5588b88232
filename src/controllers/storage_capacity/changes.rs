//! What to create, update and delete. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::storage::v1::CSIStorageCapacity;

use crate::decide::quantity;
use crate::decide::storage_capacity::Segment;

/// The planned objects.
#[derive(Default)]
pub(super) struct Plan {
    /// By object name.
    wanted: BTreeMap<String, Segment>,
    /// Classes whose objects stay as they are.
    undecided: BTreeSet<String>,
}

/// Differences between the existing objects and the planned ones, by object name.
pub(super) struct Changes<'a> {
    pub(super) create: Vec<(String, &'a Segment)>,
    pub(super) update: Vec<(String, &'a Segment)>,
    pub(super) delete: Vec<String>,
}

impl Plan {
    /// Adds a class, with its segments if they are decided.
    pub(super) fn add(&mut self, class: &str, segments: Option<Vec<Segment>>) {
        match segments {
            Some(segments) => {
                let named = segments.into_iter().map(|segment| (segment.object_name(), segment));
                self.wanted.extend(named);
            }
            None => drop(self.undecided.insert(class.to_owned())),
        }
    }

    /// Returns true if no class needs an object.
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.undecided.is_empty()
    }
}

/// Compares the existing objects with the plan.
pub(super) fn changes<'a>(plan: &'a Plan, existing: &BTreeMap<String, CSIStorageCapacity>) -> Changes<'a> {
    let (mut create, mut update) = (Vec::new(), Vec::new());
    for (name, segment) in &plan.wanted {
        match existing.get(name) {
            None => create.push((name.clone(), segment)),
            Some(object) if has_capacity(object, segment.capacity) => {}
            Some(_) => update.push((name.clone(), segment)),
        }
    }
    let unwanted = existing.iter().filter(|(name, object)| {
        !plan.wanted.contains_key(*name) && !plan.undecided.contains(&object.storage_class_name)
    });
    Changes {
        create,
        update,
        delete: unwanted.map(|(name, _)| name.clone()).collect(),
    }
}

fn has_capacity(object: &CSIStorageCapacity, bytes: u64) -> bool {
    let [capacity, maximum] = [&object.capacity, &object.maximum_volume_size]
        .map(|quantity| quantity.as_ref().and_then(|quantity| quantity::bytes(&quantity.0)));
    capacity == Some(u128::from(bytes)) && maximum == capacity
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;

    fn segment(class: &str, driver: &str, capacity: u64) -> Segment {
        Segment {
            class: class.to_owned(),
            driver: driver.to_owned(),
            nodes: LabelSelector::default(),
            capacity,
        }
    }

    fn existing(segments: &[Segment]) -> BTreeMap<String, CSIStorageCapacity> {
        let object = |segment: &Segment| CSIStorageCapacity {
            storage_class_name: segment.class.clone(),
            capacity: Some(segment.quantity()),
            maximum_volume_size: Some(segment.quantity()),
            ..CSIStorageCapacity::default()
        };
        segments
            .iter()
            .map(|segment| (segment.object_name(), object(segment)))
            .collect()
    }

    /// Returns the classes to create and to update, and the number of objects to delete.
    fn changed(plan: &Plan, existing: &BTreeMap<String, CSIStorageCapacity>) -> (Vec<String>, Vec<String>, usize) {
        let Changes { create, update, delete } = changes(plan, existing);
        let classes = |list: Vec<(String, &Segment)>| list.into_iter().map(|(_, one)| one.class.clone()).collect();
        (classes(create), classes(update), delete.len())
    }

    #[test]
    fn only_differences_are_written() {
        let mut plan = Plan::default();
        for (class, capacity) in [("new", 1), ("same", 2), ("larger", 3)] {
            plan.add(class, Some(vec![segment(class, "d", capacity)]));
        }
        let exist = existing(&[
            segment("same", "d", 2),
            segment("larger", "d", 1),
            segment("gone", "d", 1),
        ]);
        assert_eq!(changed(&plan, &exist), (vec!["new".into()], vec!["larger".into()], 1));
    }

    #[test]
    fn the_objects_of_an_undecided_class_stay() {
        let mut plan = Plan::default();
        plan.add("undecided", None);
        let exist = existing(&[segment("undecided", "d", 2)]);
        assert_eq!(changed(&plan, &exist), (vec![], vec![], 0));
        assert!(!plan.is_empty());
    }

    #[test]
    fn a_class_with_another_provisioner_has_other_objects() {
        let mut plan = Plan::default();
        plan.add("class", Some(vec![segment("class", "new", 1)]));
        let exist = existing(&[segment("class", "old", 1)]);
        assert_eq!(changed(&plan, &exist), (vec!["class".into()], vec![], 1));
    }

    #[test]
    fn a_maximum_size_that_somebody_else_set_is_corrected() {
        let mut plan = Plan::default();
        plan.add("class", Some(vec![segment("class", "d", 2)]));
        let mut exist = existing(&[segment("class", "d", 2)]);
        let object = exist.values_mut().next().unwrap();
        object.maximum_volume_size = Some(Quantity("1".into()));
        assert_eq!(changed(&plan, &exist), (vec![], vec!["class".into()], 0));
    }
}
