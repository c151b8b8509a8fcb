//! A step in as few bytes as it needs while it is kept.
//!
//! A step names at most a peer and one slice, or two slices as long as each other: that fits into half of what [`StepKind`]
//! takes. Plans may say otherwise, and are refused when they are proved; until then their steps are kept as they are.

use super::step::{Buffer, Slice, StepKind};

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Send,
    Recv,
    RecvReduce,
    Copy,
    Reduce,
    Finish,
}

impl Packed {
    /// That step; `None` if its slices are of two lengths, or have more elements than an `u32` counts.
    #[inline]
    pub(super) fn of(kind: &StepKind) -> Option<Self> {
        Some(match kind {
            StepKind::Send { peer, src } => Self::message(What::Send, *peer, src)?,
            StepKind::Recv { peer, dst } => Self::message(What::Recv, *peer, dst)?,
            StepKind::RecvReduce { peer, dst } => Self::message(What::RecvReduce, *peer, dst)?,
            StepKind::Copy { src, dst } => Self::local(What::Copy, src, dst)?,
            StepKind::Reduce { src, dst } => Self::local(What::Reduce, src, dst)?,
            StepKind::Finish { dst } => Self::local(What::Finish, dst, dst)?,
        })
    }

    fn message(what: What, peer: u32, slice: &Slice) -> Option<Self> {
        let len = u32::try_from(slice.len).ok()?;
        Some(Self { what, buffers: (slice.buffer, slice.buffer), len, from: peer.into(), at: slice.offset })
    }

    fn local(what: What, src: &Slice, dst: &Slice) -> Option<Self> {
        let len = u32::try_from(dst.len).ok().filter(|_| src.len == dst.len)?;
        Some(Self { what, buffers: (src.buffer, dst.buffer), len, from: src.offset, at: dst.offset })
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
