//! What a message's tag says: who sends it, in which operation, by which plan, and which message of that plan it is.

use qpair_transport::Tag;

/// The fields of a tag: kind 3 bits, rank 12, plan 12, operation 16, message 21.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) kind: Kind,
    /// The sender.
    pub(super) rank: u32,
    /// The sender's number of its plan, which an [`Announce`](Kind::Announce) has told.
    pub(super) plan: u16,
    /// What a message carries of the operation's number, see [`Number`](super::numbers::Number).
    pub(super) sequence: u16,
    /// Which message of the plan it is, among those between the two ranks in this direction.
    pub(super) message: u32,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message of an operation, or part of one that goes by slots; or that it may be read, or was written.
    Data = 0,
    /// The first message of a connection: who connects, and to which communicator.
    Hello = 1,
    /// What a plan number stands for.
    Announce = 2,
    /// The sender has begun an operation: where its memory is.
    Begin = 3,
    /// The receiver has read a message.
    Read = 4,
    /// The sender does nothing more to the receiver's memory in this operation.
    End = 5,
    /// The sender is ready for a message that goes by slots.
    Want = 6,
    /// The sender has waited for the receiver for long: the receiver looks whether both do the same.
    Waits = 7,
}

impl Fields {
    #[inline]
    pub(super) fn encode(self) -> Tag {
        Tag((self.kind as u64) << 61
            | u64::from(self.rank) << 49
            | u64::from(self.plan) << 37
            | u64::from(self.sequence) << 21
            | u64::from(self.message))
    }

    /// `None` for a kind that this version does not know.
    #[inline]
    pub(super) fn decode(tag: Tag) -> Option<Fields> {
        let kind = match tag.0 >> 61 {
            0 => Kind::Data,
            1 => Kind::Hello,
            2 => Kind::Announce,
            3 => Kind::Begin,
            4 => Kind::Read,
            5 => Kind::End,
            6 => Kind::Want,
            _ if tag.0 as u32 & (MAX_MESSAGES - 1) == 0 => Kind::Waits,
            _ => return None,
        };
        Some(Fields {
            kind,
            rank: (tag.0 >> 49) as u32 & (MAX_RANKS - 1),
            plan: (tag.0 >> 37) as u16 & (MAX_PLANS - 1),
            sequence: (tag.0 >> 21) as u16,
            message: tag.0 as u32 & (MAX_MESSAGES - 1),
        })
    }
}

/// Ranks that a tag can name.
pub(crate) const MAX_RANKS: u32 = 1 << 12;
/// Plans that a tag can name.
pub(super) const MAX_PLANS: u16 = 1 << 12;
/// Messages between two ranks, in one direction, that a tag can tell apart.
pub(super) const MAX_MESSAGES: u32 = 1 << 21;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_round_trip() {
        for kind in
            [Kind::Data, Kind::Hello, Kind::Announce, Kind::Begin, Kind::Read, Kind::End, Kind::Want, Kind::Waits]
        {
            for (rank, plan, sequence, message) in
                [(0, 0, 0, 0), (4095, 0, u16::MAX, 0), (0, 4095, 0, MAX_MESSAGES - 1), (7, 9, 1, 2)]
            {
                let message = if kind == Kind::Waits { 0 } else { message };
                let fields = Fields { kind, rank, plan, sequence, message };
                assert_eq!(Fields::decode(fields.encode()), Some(fields));
            }
        }
        assert_eq!(Fields::decode(Tag(u64::MAX)), None);
    }
}
