//! A sorted list of numbers, whose order is that of the things which they stand for.

use std::cmp::Ordering;

/// Maximum length of a chunk. An insertion moves half a chunk, and 2 KiB are moved in less time than their place is found.
const CHUNK: usize = 512;

/// Sorted numbers in chunks. All operations get a function that compares a number of the list with what is searched.
/// There are two entries for each volume of the cluster: a tree of keys would need several times the memory.
#[derive(Debug, Default)]
pub(crate) struct SortedChunks(Vec<Vec<u32>>);

impl SortedChunks {
    /// Inserts a number before the first one that is not less.
    pub(crate) fn insert(&mut self, number: u32, mut compare: impl FnMut(u32) -> Ordering) {
        let (mut chunk, mut at) = self.position(&mut compare);
        let previous = chunk.checked_sub(1);
        if at == 0
            && let Some(previous) = previous
        {
            // At the end of the previous chunk, so that numbers inserted in their order fill it.
            chunk = previous;
            at = self.0.get(previous).map_or(0, Vec::len);
        }
        let is_last = chunk + 1 >= self.0.len();
        let Some(numbers) = self.0.get_mut(chunk) else {
            self.0.push(vec![number]);
            return;
        };
        if numbers.len() < CHUNK {
            numbers.insert(at, number);
            return;
        }
        if at == CHUNK && is_last {
            self.0.push(vec![number]);
            return;
        }
        let mut second = numbers.split_off(CHUNK / 2);
        numbers.shrink_to_fit();
        match at.checked_sub(CHUNK / 2) {
            Some(at) => second.insert(at, number),
            None => numbers.insert(at, number),
        }
        self.0.insert(chunk + 1, second);
    }

    /// Removes the number that compares as equal.
    pub(crate) fn remove(&mut self, mut compare: impl FnMut(u32) -> Ordering) {
        let (chunk, at) = self.position(&mut compare);
        let Some(numbers) = self.0.get_mut(chunk) else { return };
        if numbers.get(at).is_none_or(|&number| compare(number) != Ordering::Equal) {
            return;
        }
        numbers.remove(at);
        if numbers.is_empty() {
            self.0.remove(chunk);
        } else if numbers.len() < numbers.capacity() / 4 {
            numbers.shrink_to(numbers.len() * 2);
            self.merge(chunk);
        }
    }

    /// Merges a chunk with the next one, if both are small.
    fn merge(&mut self, chunk: usize) {
        let length = |chunk: usize| self.0.get(chunk).map(Vec::len);
        if let (Some(one), Some(other)) = (length(chunk), length(chunk + 1))
            && one + other <= CHUNK / 2
        {
            let mut next = self.0.remove(chunk + 1);
            if let Some(numbers) = self.0.get_mut(chunk) {
                numbers.append(&mut next);
            }
        }
    }

    /// Returns the numbers that are not less, in order.
    pub(crate) fn range_from(&self, mut compare: impl FnMut(u32) -> Ordering) -> impl Iterator<Item = u32> {
        let (chunk, at) = self.position(&mut compare);
        self.0.iter().skip(chunk).flatten().skip(at).copied()
    }

    /// Returns chunk and index of the first number that is not less. The index is that after the last number of the last
    /// chunk if there is none.
    fn position(&self, compare: &mut impl FnMut(u32) -> Ordering) -> (usize, usize) {
        let mut is_less = |number: u32| compare(number) == Ordering::Less;
        let chunk = self
            .0
            .partition_point(|numbers| numbers.last().is_some_and(|&last| is_less(last)));
        match self.0.get(chunk) {
            Some(numbers) => (chunk, numbers.partition_point(|&number| is_less(number))),
            None => {
                let last = self.0.len().saturating_sub(1);
                (last, self.0.get(last).map_or(0, Vec::len))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(list: &SortedChunks, from: u32) -> Vec<u32> {
        list.range_from(|number| number.cmp(&from)).collect()
    }

    #[test]
    fn numbers_inserted_in_their_order_fill_the_chunks() {
        let mut list = SortedChunks::default();
        for number in 0..10_000 {
            list.insert(number, |other| other.cmp(&number));
        }
        assert_eq!(list.0.len(), 10_000_usize.div_ceil(CHUNK));
        assert_eq!(numbers(&list, 9_990), (9_990..10_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_list_that_was_long_takes_little_memory() {
        let mut list = SortedChunks::default();
        for number in 0..100_000 {
            list.insert(number, |other| other.cmp(&number));
        }
        for number in (0..100_000).filter(|number| number % 100 != 0) {
            list.remove(|other| other.cmp(&number));
        }
        let capacity: usize = list.0.iter().map(Vec::capacity).sum();
        assert!(capacity < 10_000, "{capacity}");
    }

    proptest! {
        #[test]
        fn a_list_has_what_was_inserted_and_not_removed_in_order(
            operations in prop::collection::vec((0..3000_u32, 0..3_u8), 0..4000),
            from in 0..3000_u32,
        ) {
            let (mut list, mut model) = (SortedChunks::default(), BTreeSet::new());
            for (number, operation) in operations {
                if operation == 0 {
                    model.remove(&number);
                    list.remove(|other| other.cmp(&number));
                } else if model.insert(number) {
                    list.insert(number, |other| other.cmp(&number));
                }
            }
            prop_assert_eq!(numbers(&list, 0), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(numbers(&list, from), model.range(from..).copied().collect::<Vec<_>>());
        }
    }
}
