//! One step of a rank, and the memory it names.

use serde::{Deserialize, Serialize};

use super::loops::Repeats;
use super::packed::Packed;

/// Memory of a rank that steps name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffer {
    /// The user's vector that is only read, where what a rank gives and what it gets are two vectors.
    Input,
    /// The user's vector that is written; in place it is the input too.
    Data,
    /// Memory of the executor, as large as the plan declares; undefined at the start.
    Scratch,
}

/// A range of elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The buffer.
    pub buffer: Buffer,
    /// The first element.
    pub offset: u64,
    /// The number of elements.
    pub len: u64,
}

impl Slice {
    /// No elements: what a barrier's signals carry.
    pub const EMPTY: Slice = Slice::data(0, 0);

    /// `len` elements of the user's input from `offset`.
    pub const fn input(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Input, offset, len }
    }

    /// `len` elements of the user's vector from `offset`.
    pub const fn data(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Data, offset, len }
    }

    /// `len` elements of scratch from `offset`.
    pub const fn scratch(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Scratch, offset, len }
    }

    /// The element after the last one; `None` if that is no `u64`.
    pub const fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// Whether the two share an element.
    pub fn overlaps(&self, other: &Slice) -> bool {
        self.buffer == other.buffer
            && self.len > 0
            && other.len > 0
            && self.offset < other.offset.saturating_add(other.len)
            && other.offset < self.offset.saturating_add(self.len)
    }
}

/// What a step does.
///
/// Messages match by order: the k-th [`Send`](Self::Send) of rank a to rank b, in a's program
/// order, is the k-th receive at b from a, in b's program order. Their lengths are equal; zero is
/// a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum StepKind {
    /// Gives `src` to `peer`. The receiver may read `src` at any time from the step's start to its
    /// completion, which comes when the data has been taken; or it is copied out at once.
    Send {
        /// The receiving rank.
        peer: u32,
        /// What is sent.
        src: Slice,
    },
    /// Fills `dst` with a message. `dst` may be written at any time from start to completion.
    Recv {
        /// The sending rank.
        peer: u32,
        /// Where the message goes.
        dst: Slice,
    },
    /// Combines a message into `dst`: each element becomes `dst op received`.
    RecvReduce {
        /// The sending rank.
        peer: u32,
        /// The first operand, and the result.
        dst: Slice,
    },
    /// Copies `src` to `dst`.
    Copy {
        /// What is read.
        src: Slice,
        /// What is written.
        dst: Slice,
    },
    /// Combines `src` into `dst`: each element becomes `dst op src`.
    Reduce {
        /// The second operand.
        src: Slice,
        /// The first operand, and the result.
        dst: Slice,
    },
    /// Finishes elements that all contributions are in, once: divides the sum of an average.
    Finish {
        /// What is finished.
        dst: Slice,
    },
}

impl StepKind {
    /// The other rank, if the step is one side of a message.
    pub const fn peer(&self) -> Option<u32> {
        match self {
            Self::Send { peer, .. } | Self::Recv { peer, .. } | Self::RecvReduce { peer, .. } => Some(*peer),
            Self::Copy { .. } | Self::Reduce { .. } | Self::Finish { .. } => None,
        }
    }

    /// What the step reads and leaves as it is.
    pub const fn src(&self) -> Option<Slice> {
        match self {
            Self::Send { src, .. } | Self::Copy { src, .. } | Self::Reduce { src, .. } => Some(*src),
            Self::Recv { .. } | Self::RecvReduce { .. } | Self::Finish { .. } => None,
        }
    }

    /// What the step writes.
    pub const fn dst(&self) -> Option<Slice> {
        match self {
            Self::Recv { dst, .. }
            | Self::RecvReduce { dst, .. }
            | Self::Copy { dst, .. }
            | Self::Reduce { dst, .. }
            | Self::Finish { dst } => Some(*dst),
            Self::Send { .. } => None,
        }
    }

    /// The number of elements that the step moves or combines.
    pub const fn elements(&self) -> u64 {
        match self {
            Self::Send { src, .. } => src.len,
            Self::Recv { dst, .. }
            | Self::RecvReduce { dst, .. }
            | Self::Copy { dst, .. }
            | Self::Reduce { dst, .. }
            | Self::Finish { dst } => dst.len,
        }
    }

    /// Whether the step sends a message.
    pub const fn is_send(&self) -> bool {
        matches!(self, Self::Send { .. })
    }

    /// Whether the step takes a message.
    pub const fn is_recv(&self) -> bool {
        matches!(self, Self::Recv { .. } | Self::RecvReduce { .. })
    }

    /// Whether the step calculates.
    pub const fn is_reduction(&self) -> bool {
        matches!(self, Self::RecvReduce { .. } | Self::Reduce { .. })
    }
}

/// How far a step is from one that does the same elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stride {
    peer: u32,
    src: u64,
    dst: u64,
}

impl Slice {
    /// How far `next` is, if it is the same elsewhere in the buffer.
    fn stride(&self, next: &Slice) -> Option<u64> {
        (self.buffer == next.buffer && self.len == next.len).then(|| next.offset.wrapping_sub(self.offset))
    }

    fn moved(&self, by: u64, times: u32) -> Self {
        Self { offset: self.offset.wrapping_add(by.wrapping_mul(times.into())), ..*self }
    }
}

impl Repeats for StepKind {
    type Stride = Stride;
    type Packed = Packed;

    #[inline]
    fn pack(&self) -> Option<Packed> {
        Packed::of(self)
    }

    #[inline]
    fn unpack(packed: &Packed) -> Self {
        packed.kind()
    }

    #[inline]
    fn stride(&self, next: &Self) -> Option<Stride> {
        let apart = |a: u32, b: u32| b.wrapping_sub(a);
        let (peer, src, dst) = match (self, next) {
            (Self::Send { peer, src }, Self::Send { peer: to, src: next }) => (apart(*peer, *to), src.stride(next)?, 0),
            (Self::Recv { peer, dst }, Self::Recv { peer: to, dst: next })
            | (Self::RecvReduce { peer, dst }, Self::RecvReduce { peer: to, dst: next }) => {
                (apart(*peer, *to), 0, dst.stride(next)?)
            }
            (Self::Copy { src, dst }, Self::Copy { src: next_src, dst: next_dst })
            | (Self::Reduce { src, dst }, Self::Reduce { src: next_src, dst: next_dst }) => {
                (0, src.stride(next_src)?, dst.stride(next_dst)?)
            }
            (Self::Finish { dst }, Self::Finish { dst: next }) => (0, 0, dst.stride(next)?),
            _ => return None,
        };
        Some(Stride { peer, src, dst })
    }

    #[inline]
    fn moved(&self, by: &Stride, times: u32) -> Self {
        let to = |peer: u32| peer.wrapping_add(by.peer.wrapping_mul(times));
        let (from, into) = (|src: &Slice| src.moved(by.src, times), |dst: &Slice| dst.moved(by.dst, times));
        match self {
            Self::Send { peer, src } => Self::Send { peer: to(*peer), src: from(src) },
            Self::Recv { peer, dst } => Self::Recv { peer: to(*peer), dst: into(dst) },
            Self::RecvReduce { peer, dst } => Self::RecvReduce { peer: to(*peer), dst: into(dst) },
            Self::Copy { src, dst } => Self::Copy { src: from(src), dst: into(dst) },
            Self::Reduce { src, dst } => Self::Reduce { src: from(src), dst: into(dst) },
            Self::Finish { dst } => Self::Finish { dst: into(dst) },
        }
    }
}
