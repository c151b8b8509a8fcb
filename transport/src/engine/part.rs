//! What a part of a stream is, as the port of its message says.

use super::wire::{Class, Envelope};

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// More follows.
    Data,
    /// The last one.
    Finish,
    /// The last one, and empty: the sender gives up, for this reason.
    Reset(u16),
    /// It stands for a part that was taken back, which perhaps was the last.
    Missing { last: bool },
}

impl Part {
    /// Reasons are less than this.
    pub(crate) const REASONS: u16 = 1 << (u16::BITS - FLAG_BITS);

    pub(crate) fn of(envelope: Envelope) -> Part {
        let value = envelope.port >> FLAG_BITS;
        match envelope.port & FLAG_MASK {
            DATA => Part::Data,
            FINISH => Part::Finish,
            RESET => Part::Reset(value),
            _ => Part::Missing { last: value > 0 },
        }
    }

    pub(crate) fn port(self) -> u16 {
        match self {
            Part::Data => DATA,
            Part::Finish => FINISH,
            Part::Reset(reason) => RESET | reason << FLAG_BITS,
            Part::Missing { last } => MISSING | u16::from(last) << FLAG_BITS,
        }
    }

    /// True if none follows.
    pub(crate) fn is_last(self) -> bool {
        !matches!(self, Part::Data | Part::Missing { last: false })
    }
}

impl Envelope {
    /// True if the message is no operation of the application's: it stands for one that was taken back.
    pub(crate) fn is_stand_in(self) -> bool {
        self.class == Class::Stream && self.port & FLAG_MASK == MISSING
    }

    /// Of a message that takes the place of this part of a stream.
    pub(crate) fn stand_in(self) -> Envelope {
        Envelope { port: Part::Missing { last: Part::of(self).is_last() }.port(), ..self }
    }
}

const FLAG_BITS: u32 = 2;
const FLAG_MASK: u16 = (1 << FLAG_BITS) - 1;
const DATA: u16 = 0;
const FINISH: u16 = 1;
const RESET: u16 = 2;
const MISSING: u16 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_round_trip() {
        let missing = [false, true].map(|last| Part::Missing { last });
        for part in
            [Part::Data, Part::Finish, Part::Reset(0), Part::Reset(Part::REASONS - 1)].into_iter().chain(missing)
        {
            let envelope = Envelope { class: Class::Stream, port: part.port(), tag: 9 };
            assert_eq!(Part::of(envelope), part);
            let stand_in = envelope.stand_in();
            assert!(stand_in.is_stand_in() && stand_in.tag == 9);
            assert_eq!(Part::of(stand_in).is_last(), part.is_last());
            assert_eq!(envelope.is_stand_in(), matches!(part, Part::Missing { .. }));
        }
        let tagged = Envelope { class: Class::Active, port: MISSING, tag: 9 };
        assert!(!tagged.is_stand_in());
    }
}
