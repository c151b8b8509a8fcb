//! What a plan is asked for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many ranks take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ranks(pub u32);

/// A number of elements of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Elements(pub u64);

/// What a plan does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Collective {
    /// Every rank's vector becomes the elementwise reduction of all ranks' vectors.
    AllReduce,
    /// Every rank's vector becomes the root's.
    Broadcast {
        /// The rank whose vector is taken.
        root: u32,
    },
    /// No rank leaves before every rank has entered. There are no elements.
    Barrier,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce => f.write_str("all-reduce"),
            Self::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Self::Barrier => f.write_str("barrier"),
        }
    }
}

/// The size of an element, and of the segments in which an algorithm pipelines.
///
/// ```
/// use qpair_collectives::Grain;
///
/// let grain = Grain::new(8, 64 << 10);
/// assert_eq!(grain.segment, 8192);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grain {
    /// Bytes of one element.
    pub element_size: u32,
    /// Elements of one segment; 0 counts as 1. An algorithm enlarges segments where there would
    /// be thousands.
    pub segment: u64,
}

impl Grain {
    /// Elements of `element_size` bytes, in segments of at most `segment_bytes` but at least one
    /// element.
    pub fn new(element_size: u32, segment_bytes: u64) -> Self {
        let segment = (segment_bytes / u64::from(element_size.max(1))).max(1);
        Self { element_size, segment }
    }
}

impl Default for Grain {
    /// Elements of 4 bytes, in segments of 128 KiB: a segment and its operand stay in the
    /// second-level cache of current CPUs between being reduced and being pulled.
    fn default() -> Self {
        Self::new(4, 128 << 10)
    }
}
