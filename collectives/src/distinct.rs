//! What several have in common, said once.

use std::collections::HashMap;
use std::hash::Hash;

/// Values, each once, in the order in which they came.
pub(crate) struct Distinct<T> {
    pub(crate) all: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Distinct { all: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    /// The number of a value among them.
    pub(crate) fn number(&mut self, value: T) -> u32 {
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(value.clone()).or_insert(next);
        if number == next {
            self.all.push(value);
        }
        number
    }
}
