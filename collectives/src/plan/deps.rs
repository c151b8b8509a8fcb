//! The steps that a step waits for.

use std::fmt;

/// Steps of the same program, ascending: those that one step waits for. Within a loop they move on from one time to the next, so
/// that they are calculated when they are asked for.
#[derive(Clone, Copy)]
pub struct Deps<'a> {
    numbers: &'a [u32],
    /// How far each moves from one time to the next; none where they stand for themselves.
    by: &'a [u32],
    turn: u32,
}

impl<'a> Deps<'a> {
    /// None.
    pub(super) const NONE: Deps<'static> = Deps::listed(&[]);

    /// Those.
    pub(super) const fn listed(numbers: &'a [u32]) -> Self {
        Self { numbers, by: &[], turn: 0 }
    }

    /// Those, each moved on so often by what goes with it.
    #[inline]
    pub(super) fn moved(numbers: &'a [u32], by: &'a [u32], turn: u32) -> Self {
        debug_assert_eq!(numbers.len(), by.len());
        Self { numbers, by, turn }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The one at `place`; `None` past the end.
    #[inline]
    pub fn get(&self, place: usize) -> Option<u32> {
        let number = *self.numbers.get(place)?;
        Some(number.wrapping_add(self.by.get(place).map_or(0, |by| by.wrapping_mul(self.turn))))
    }

    /// The only one, if it is.
    #[inline]
    pub fn only(&self) -> Option<u32> {
        if self.len() == 1 { self.get(0) } else { None }
    }

    /// One after the other.
    #[inline]
    pub fn iter(self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator + use<'a> {
        (0..self.len()).map(move |place| self.get(place).unwrap_or_default())
    }

    /// Whether `step` is one of them.
    #[inline]
    pub fn contains(&self, step: u32) -> bool {
        self.get(self.below(step)) == Some(step)
    }

    /// How many are less than `step`.
    #[inline]
    fn below(&self, step: u32) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.get(middle) {
                Some(dep) if dep < step => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// The last of those less than `step` that `is_it` says yes to.
    #[inline]
    pub(crate) fn last_below(&self, step: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        // Nearly always all of them are.
        let last = self.get(self.len().wrapping_sub(1))?;
        let count = if last < step { self.len() } else { self.below(step) };
        (0..count).rev().filter_map(|place| self.get(place)).find(|&dep| is_it(dep))
    }

    /// All of them, in a list.
    pub fn to_vec(&self) -> Vec<u32> {
        self.iter().collect()
    }
}

impl PartialEq<[u32]> for Deps<'_> {
    #[inline]
    fn eq(&self, other: &[u32]) -> bool {
        self.iter().eq(other.iter().copied())
    }
}

impl<const N: usize> PartialEq<[u32; N]> for Deps<'_> {
    fn eq(&self, other: &[u32; N]) -> bool {
        *self == other[..]
    }
}

impl fmt::Debug for Deps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_loop_are_those_of_a_list_moved_on() {
        let (numbers, by) = ([3, 5, u32::MAX], [1, 0, 2]);
        for turn in 0..9 {
            let (moved, listed) = (Deps::moved(&numbers, &by, turn), [3 + turn, 5, u32::MAX.wrapping_add(2 * turn)]);
            assert_eq!((moved.to_vec(), Deps::listed(&listed).to_vec()), (listed.to_vec(), listed.to_vec()));
            assert!(moved == listed && moved.iter().rev().eq(listed.into_iter().rev()));
            assert_eq!((moved.len(), moved.get(2), moved.get(3), moved.only()), (3, Some(listed[2]), None, None));
        }
        assert_eq!(Deps::moved(&[7], &[3], 2).only(), Some(13));
        assert!(Deps::NONE.is_empty() && Deps::NONE.only().is_none() && !Deps::NONE.contains(0));
    }

    #[test]
    fn what_is_among_them_is_found() {
        for len in 0..20_u32 {
            let (listed, by) = ((0..len).map(|at| 3 * at).collect::<Vec<_>>(), vec![1; len as usize]);
            for turn in 0..3 {
                let deps = Deps::moved(&listed, &by, turn);
                for step in 0..70 {
                    assert_eq!(deps.contains(step), listed.iter().any(|dep| dep + turn == step), "{len} {turn} {step}");
                    let is_even = |dep: u32| dep.is_multiple_of(2);
                    let last = listed.iter().map(|dep| dep + turn).rfind(|&dep| dep < step && is_even(dep));
                    assert_eq!(deps.last_below(step, is_even), last, "{len} {turn} {step}");
                }
            }
        }
    }
}
