//! A step in as few bytes as it needs while it is kept.
//!
//! A step names at most a peer and one slice, or two slices as long as each other: that fits into half of what [`StepKind`]
//! takes. Plans may say otherwise, and are refused when they are proved; until then their steps are kept as they are.

use super::step::{Buffer, Slice, StepKind};
use super::what::What;

/// A step that [`Packed::of`] had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Packed {
    what: What,
    /// Of the source, and of the target.
    buffers: (Buffer, Buffer),
    len: u32,
    /// The peer, or where the source begins.
    from: u64,
    /// Where the slice of a message begins, or the target.
    at: u64,
}

impl Packed {
    /// That step; `None` if its slices are of two lengths, or have more elements than an `u32` counts.
    #[inline]
    pub(super) fn of(kind: &StepKind) -> Option<Self> {
        let (from, src, dst) = match kind {
            StepKind::Send { peer, src: slice }
            | StepKind::Recv { peer, dst: slice }
            | StepKind::RecvReduce { peer, dst: slice } => (u64::from(*peer), slice, slice),
            StepKind::Copy { src, dst } | StepKind::Reduce { src, dst } => (src.offset, src, dst),
            StepKind::Finish { dst } => (dst.offset, dst, dst),
        };
        let len = u32::try_from(dst.len).ok().filter(|_| src.len == dst.len)?;
        Some(Self { what: What::of(kind), buffers: (src.buffer, dst.buffer), len, from, at: dst.offset })
    }

    /// The step that it was made of.
    #[inline]
    pub(super) fn kind(&self) -> StepKind {
        let slice = |buffer, offset| Slice { buffer, offset, len: self.len.into() };
        let (src, dst) = (slice(self.buffers.0, self.from), slice(self.buffers.1, self.at));
        let peer = self.from as u32;
        match self.what {
            What::Send => StepKind::Send { peer, src: dst },
            What::Recv => StepKind::Recv { peer, dst },
            What::RecvReduce => StepKind::RecvReduce { peer, dst },
            What::Copy => StepKind::Copy { src, dst },
            What::Reduce => StepKind::Reduce { src, dst },
            What::Finish => StepKind::Finish { dst },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_out_as_they_went_in() {
        let slices =
            [Slice::EMPTY, Slice::input(7, 3), Slice::data(u64::MAX, u32::MAX.into()), Slice::scratch(1 << 40, 3)];
        let (mut kept, mut refused) = (0, 0);
        for (src, dst) in slices.iter().flat_map(|src| slices.iter().map(|dst| (*src, *dst))) {
            let peer = u32::MAX;
            for kind in [
                StepKind::Send { peer, src },
                StepKind::Recv { peer, dst },
                StepKind::RecvReduce { peer: 0, dst },
                StepKind::Copy { src, dst },
                StepKind::Reduce { src, dst },
                StepKind::Finish { dst },
            ] {
                let fits = !matches!(kind, StepKind::Copy { .. } | StepKind::Reduce { .. }) || src.len == dst.len;
                assert_eq!(Packed::of(&kind).map(|packed| packed.kind()), fits.then_some(kind));
                if fits { kept += 1 } else { refused += 1 }
            }
        }
        assert_eq!((kept, refused), (16 * 4 + 6 * 2, 10 * 2));
        let long = Slice::data(0, 1 << 32);
        assert_eq!(Packed::of(&StepKind::Finish { dst: long }), None);
        assert_eq!(Packed::of(&StepKind::Send { peer: 0, src: long }), None);
    }
}
