//! How a vector is cut into one part per member of a group.

use std::sync::Arc;

use crate::plan::{Buffer, Counts, Slice, Spec};

/// The parts of a vector, one after the other.
#[derive(Debug, Clone)]
pub(super) enum Parts {
    /// Of lengths that differ by one unit at most.
    Split { whole: Slice, parts: u64, unit: u64 },
    /// Each of one length.
    Blocks { first: Slice, parts: u32 },
    /// Where each begins, and where the last ends.
    Ragged { buffer: Buffer, offsets: Arc<Vec<u64>> },
}

impl Parts {
    /// `whole` cut into `parts`. The unit is a cache line where parts are long, so that two ranks never write one line,
    /// else an element.
    pub(super) fn split(whole: Slice, parts: u32, element_size: u32) -> Self {
        let (parts, size) = (u64::from(parts.max(1)), u64::from(element_size));
        let line = if size > 0 && CACHE_LINE.is_multiple_of(size) { CACHE_LINE / size } else { 1 };
        let long = whole.len / parts >= line * LONG_PART_LINES;
        Self::Split { whole, parts, unit: if long { line } else { 1 } }
    }

    /// The blocks of a spec's vector, which begins at element `at` of `buffer`.
    pub(super) fn blocks(spec: &Spec, buffer: Buffer, at: u64) -> Self {
        let lengths = match &spec.counts {
            Counts::Even(len) => {
                return Self::Blocks { first: Slice { buffer, offset: at, len: *len }, parts: spec.ranks.0 };
            }
            Counts::Ragged(lengths) => lengths.as_slice(),
            Counts::Pairs(_) | Counts::Own { .. } => &[],
        };
        Self::of_lengths(buffer, at, lengths.iter().copied())
    }

    /// Parts of these lengths.
    pub(super) fn of_lengths(buffer: Buffer, at: u64, lengths: impl Iterator<Item = u64>) -> Self {
        let mut offsets = vec![at];
        let mut end = at;
        for len in lengths {
            end = end.saturating_add(len);
            offsets.push(end);
        }
        Self::Ragged { buffer, offsets: offsets.into() }
    }

    /// One part.
    pub(super) fn part(&self, index: u32) -> Slice {
        self.range(index, index + 1)
    }

    /// The parts from `start` up to `end`, which lie together.
    pub(super) fn range(&self, start: u32, end: u32) -> Slice {
        let (buffer, from, to) = match self {
            Self::Split { whole, parts, unit } => {
                let units = whole.len.div_ceil(*unit);
                let (each, longer) = (units / parts, units % parts);
                let begin = |i: u64| ((each * i + i.min(longer)).saturating_mul(*unit)).min(whole.len);
                (whole.buffer, whole.offset + begin(start.into()), whole.offset + begin(end.into()))
            }
            Self::Blocks { first, parts } => {
                let begin = |i: u32| first.offset.saturating_add(first.len.saturating_mul(i.min(*parts).into()));
                (first.buffer, begin(start), begin(end))
            }
            Self::Ragged { buffer, offsets } => {
                let begin = |i: u32| offsets.get(i as usize).or(offsets.last()).copied().unwrap_or(0);
                (*buffer, begin(start), begin(end))
            }
        };
        Slice { buffer, offset: from, len: to.saturating_sub(from) }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        match self {
            Self::Split { parts, .. } => *parts as u32,
            Self::Blocks { parts, .. } => *parts,
            Self::Ragged { offsets, .. } => offsets.len() as u32 - 1,
        }
    }

    /// The length of the longest.
    pub(super) fn longest(&self) -> u64 {
        match self {
            Self::Split { .. } | Self::Blocks { .. } => self.part(0).len,
            Self::Ragged { .. } => (0..self.count()).map(|i| self.part(i).len).max().unwrap_or(0),
        }
    }

    /// All of them.
    pub(super) fn whole(&self) -> Slice {
        self.range(0, self.count())
    }
}

/// Bytes between which CPUs share nothing.
const CACHE_LINE: u64 = 64;

/// Parts of this many lines are cut at lines; one line more or less is then little.
const LONG_PART_LINES: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_vector_once_and_in_order() {
        for len in [0, 1, 2, 6, 7, 8, 97, 1000, 65_537, 1 << 33] {
            for count in [1, 2, 3, 7, 24] {
                let parts = Parts::split(Slice::data(0, len), count, 4);
                let mut next = 0;
                for index in 0..count {
                    let part = parts.part(index);
                    assert_eq!(part.offset, next);
                    assert!(part.len <= parts.longest());
                    next += part.len;
                }
                assert_eq!((next, parts.whole()), (len, Slice::data(0, len)), "{count} parts");
            }
        }
    }

    #[test]
    fn long_parts_begin_at_cache_lines() {
        let parts = Parts::split(Slice::data(0, 10_001), 3, 4);
        assert!((0..3).all(|index| parts.part(index).offset.is_multiple_of(16)));
    }
}
