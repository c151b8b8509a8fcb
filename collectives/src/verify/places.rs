//! Where a fault is.

use super::error::VerifyError;

impl VerifyError {
    /// The steps to look at, as rank and step: the one at fault first, then those that it is at odds with. None where the
    /// fault is no step's.
    ///
    /// ```
    /// use qpair_collectives::VerifyError;
    ///
    /// let error = VerifyError::Dependency { rank: 2, step: 5, dep: 7 };
    /// assert_eq!(error.places(), [(2, 5)]);
    /// ```
    pub fn places(&self) -> Vec<(u32, u32)> {
        match self {
            Self::Format { .. }
            | Self::Programs { .. }
            | Self::Root { .. }
            | Self::Size { .. }
            | Self::Counts { .. } => Vec::new(),
            Self::Scratch { .. } | Self::NoPart { .. } | Self::Output { .. } | Self::Barrier { .. } => Vec::new(),
            Self::Dependency { rank, step, .. }
            | Self::Peer { rank, step, .. }
            | Self::Bounds { rank, step, .. }
            | Self::Operands { rank, step, .. }
            | Self::InputWritten { rank, step, .. }
            | Self::Finish { rank, step, .. }
            | Self::Unmatched { rank, step, .. }
            | Self::Reads { rank, step, .. }
            | Self::Searches { rank, step, .. }
            | Self::Sets { rank, step, .. }
            | Self::Undefined { rank, step, .. }
            | Self::Misplaced { rank, step, .. }
            | Self::Duplicate { rank, step, .. } => vec![(*rank, *step)],
            Self::MessageLength { rank, step, peer, peer_step, .. } => vec![(*rank, *step), (*peer, *peer_step)],
            Self::Race { rank, step, other, .. } => vec![(*rank, *step), (*rank, *other)],
            Self::Deadlock { rank, step, cycle } => {
                // The cycle ends with the step itself.
                let others = cycle.iter().copied().filter(|place| *place != (*rank, *step));
                [(*rank, *step)].into_iter().chain(others).collect()
            }
        }
    }

    /// The rank to look at, where the fault is one rank's.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Self::Scratch { rank, .. }
            | Self::NoPart { rank, .. }
            | Self::Output { rank, .. }
            | Self::Barrier { rank, .. } => Some(*rank),
            _ => self.places().first().map(|place| place.0),
        }
    }
}
