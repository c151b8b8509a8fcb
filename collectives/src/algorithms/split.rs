//! How a vector is cut: into one block per rank, and blocks into segments.

use crate::plan::{Collective, Elements, FORMAT, Grain, Plan, Program, Ranks, Slice};

/// A vector cut into blocks, and those into segments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    len: u64,
    blocks: u64,
    /// Blocks begin at multiples of this.
    unit: u64,
    segment: u64,
}

impl Split {
    /// Cuts `len` elements into `blocks` blocks whose lengths differ by one unit at most. The unit
    /// is a cache line where blocks are long, so that two ranks never write one line, else an
    /// element.
    pub(super) fn new(len: Elements, blocks: u32, grain: Grain) -> Self {
        let (len, blocks) = (len.0, u64::from(blocks.max(1)));
        let size = u64::from(grain.element_size);
        let line = if size > 0 && CACHE_LINE.is_multiple_of(size) { CACHE_LINE / size } else { 1 };
        let long = len / blocks >= line * LONG_BLOCK_LINES;
        let unit = if long { line } else { 1 };
        let mut split = Self { len, blocks, unit, segment: 0 };
        let longest = split.block(0).1;
        let most = (MAX_SEGMENTS / blocks).max(1);
        split.segment = grain.segment.max(longest.div_ceil(most)).max(1);
        split
    }

    /// Elements of a segment: the grain's, or more where there would be too many.
    pub(super) fn segment_len(&self) -> u64 {
        self.segment
    }

    /// Offset and length of a block.
    fn block(&self, block: u32) -> (u64, u64) {
        let units = self.len.div_ceil(self.unit);
        let (each, longer) = (units / self.blocks, units % self.blocks);
        let start = |i: u64| ((each * i + i.min(longer)).saturating_mul(self.unit)).min(self.len);
        let block = u64::from(block);
        (start(block), start(block + 1) - start(block))
    }

    /// How many segments a block has; 0 if it is empty.
    pub(super) fn segments(&self, block: u32) -> u32 {
        self.block(block).1.div_ceil(self.segment) as u32
    }

    /// The most segments that a block has.
    pub(super) fn most_segments(&self) -> u32 {
        self.segments(0)
    }

    /// A segment of a block, as a slice of the vector; `None` past the block's last one.
    pub(super) fn segment(&self, block: u32, segment: u32) -> Option<Slice> {
        let (offset, len) = self.block(block);
        let at = u64::from(segment).checked_mul(self.segment)?;
        (at < len).then(|| Slice::data(offset + at, self.segment.min(len - at)))
    }
}

/// A plan in which `program` says what each rank does.
pub(super) fn plan(
    (collective, algorithm): (Collective, &str),
    (ranks, elements): (Ranks, Elements),
    grain: Grain,
    (segment, scratch): (u64, u64),
    program: impl Fn(u32) -> Program,
) -> Plan {
    Plan {
        format: FORMAT,
        collective,
        algorithm: algorithm.to_owned(),
        ranks,
        elements,
        element_size: grain.element_size,
        segment,
        scratch,
        programs: (0..ranks.0).map(program).collect(),
    }
}

/// Bytes between which CPUs share nothing.
const CACHE_LINE: u64 = 64;

/// Blocks of this many lines are cut at lines; one line more or less is then little.
const LONG_BLOCK_LINES: u64 = 32;

/// The most segments of all blocks together. It keeps a rank's program within some 16,000 steps,
/// about 1 MiB, however long the vector and short the segments asked for.
const MAX_SEGMENTS: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_the_vector_once_and_in_order() {
        for len in [0, 1, 2, 6, 7, 8, 97, 1000, 65_537, 1 << 33] {
            for blocks in [1, 2, 3, 7, 24] {
                for segment in [0, 1, 5, 4096] {
                    let grain = Grain { element_size: 4, segment };
                    let split = Split::new(Elements(len), blocks, grain);
                    let mut next = 0;
                    for block in 0..blocks {
                        for i in 0..split.segments(block) {
                            let slice = split.segment(block, i).unwrap();
                            assert_eq!(slice.offset, next);
                            assert!((1..=split.segment_len()).contains(&slice.len));
                            next += slice.len;
                        }
                        assert_eq!(split.segment(block, split.segments(block)), None);
                        assert!(split.segments(block) <= split.most_segments());
                    }
                    assert_eq!(next, len, "{blocks} blocks, segments of {segment}");
                    assert!(u64::from(split.most_segments()) * u64::from(blocks) <= MAX_SEGMENTS);
                }
            }
        }
    }

    #[test]
    fn long_blocks_begin_at_cache_lines() {
        let split = Split::new(Elements(10_001), 3, Grain::new(4, 1 << 20));
        for block in 0..3 {
            assert_eq!(split.segment(block, 0).unwrap().offset % 16, 0);
        }
    }
}
