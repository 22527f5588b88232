//! Values that many entries have in common, by number.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use crate::compact_index::compact_index;

/// Values by number. They are never removed, so only values of which there are few belong here, for example servers and
/// exports.
#[derive(Debug)]
pub struct Interner<T> {
    values: Vec<Arc<T>>,
    numbers: HashMap<Arc<T>, u32>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// Returns the number of a value, which is stored if it is new.
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(&number) = self.numbers.get(&value) {
            return number;
        }
        let number = compact_index(self.values.len());
        let value = Arc::new(value);
        self.values.push(Arc::clone(&value));
        self.numbers.insert(value, number);
        number
    }

    /// Returns the number of a value, if it is known.
    pub fn number_of(&self, value: &T) -> Option<u32> {
        self.numbers.get(value).copied()
    }

    /// Returns the value with this number.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize).map(Arc::as_ref)
    }

    /// Returns the values with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..).zip(self.values.iter().map(Arc::as_ref))
    }
}
