//! What a program sets of how collectives go.

use serde::{Deserialize, Serialize};

/// What a program sets of how collectives go. The same on all ranks, or their plans differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tuning {
    /// Bytes of a segment.
    pub segment: u64,
    /// Whether results are not to depend on the algorithm, on timing, or on how messages are split: reductions are then
    /// combined in [the canonical order](crate::Proof::canonical). What can not is refused.
    pub deterministic: bool,
    /// Messages of up to so many bytes are copied from rank to rank, if all of a plan are; what is longer goes straight from
    /// memory to memory. `None`: 8 KiB where ranks are on one node, 16 KiB there where data
    /// [goes one way](crate::Collective::goes_one_way), 64 KiB where they are on several; by the software device 256 KiB.
    pub eager: Option<u64>,
}

impl Default for Tuning {
    /// For shared memory, by measurement on two cores of a Xeon (Sapphire Rapids), medians in us of f32:
    ///
    /// | broadcast, 4 ranks | 1 KiB | 4 KiB |
    /// |---|---|---|
    /// | flat, copied | 1.1 | 1.6 |
    /// | flat, straight | 5.6 | 4.1 |
    ///
    /// Where one gives and others get, or the other way round, giving is over at once with what is copied, which counts the more
    /// the more ranks share a core. On two cores of a Xeon, copied and straight, in us, of 16 KiB a message, by the algorithm that
    /// is chosen (an all-to-all of 4 ranks takes 1.2 times as long copied, an all-gather of 8 1.4 times; and a broadcast of 32 KiB
    /// on 8, where that much is let be copied, 1.2 times):
    ///
    /// | | 2 ranks | 4 ranks | 8 ranks |
    /// |---|---|---|---|
    /// | broadcast | 3.7, 4.5 | 6.4, 9.2 | 18, 24 |
    /// | reduce | 1.9, 3.2 | 5.4, 10.6 | 18, 35 |
    /// | scatter | 2.2, 2.8 | 5.1, 9.1 | 15, 24 |
    /// | gather | 2.0, 3.2 | 5.8, 13.4 | 24, 40 |
    ///
    /// Between nodes a copy costs less than the words by which ranks tell each other what may be read.
    ///
    /// Segments of 64 to 256 KiB differ by less than 10 % from 1 to 16 MiB on two ranks; 1 MiB loses 15 % at 4 MiB, where
    /// the second-level cache overflows. Command: `cargo bench -p qpair-collectives --bench all_reduce -- -n 4`, with
    /// `--algorithm`, `--segment` or `--eager`; of the second table `qpair bench reduce -n 4 -b 16K -e 16K --eager 8K` and the like,
    /// against `--eager 16K`.
    fn default() -> Self {
        Self { deterministic: false, segment: 128 << 10, eager: None }
    }
}
