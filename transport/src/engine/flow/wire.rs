//! What stands in front of every packet: 20 bytes, little-endian.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | the connection, in the receiver's numbering |
//! | 4 | 4 | its secret: whoever does not know it is no peer |
//! | 8 | 4 | bit 31: an acknowledgment alone; the rest, modulo 2^31: the packet's number, or that of the next |
//! | 12 | 4 | packets of the other side that came, modulo 2^31 |
//! | 16 | 4 | of those behind the first that is missing, a bit for each that came |

/// Bytes of a header, with the connection and its secret.
pub(crate) const FLOW_BYTES: usize = 20;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowKind {
    /// It has contents.
    Data,
    /// It acknowledges, and nothing else.
    Ack,
}

/// What a packet says, beside whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowHeader {
    pub(crate) kind: FlowKind,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    /// Bit `i`: the packet `acknowledged + 1 + i` came.
    pub(crate) beyond: u32,
}

impl FlowHeader {
    /// Whose a packet is, and what it says. `None`: too short for a packet.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(u32, u32, FlowHeader)> {
        let bytes = bytes.first_chunk::<FLOW_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let kind = if word(8) & ALONE == 0 { FlowKind::Data } else { FlowKind::Ack };
        let header = FlowHeader { kind, sequence: word(8) & MASK, acknowledged: word(12) & MASK, beyond: word(16) };
        Some((word(0), word(4), header))
    }

    /// True if contents follow.
    pub(crate) fn has_contents(&self) -> bool {
        self.kind == FlowKind::Data
    }

    pub(crate) fn emit(&self, connection: u32, secret: u32, into: &mut [u8; FLOW_BYTES]) {
        let alone = if self.kind == FlowKind::Ack { ALONE } else { 0 };
        let words = [connection, secret, self.sequence & MASK | alone, self.acknowledged & MASK, self.beyond];
        for (place, word) in into.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// How far `a` is behind `b`, modulo 2^31: positive if `b` comes later.
pub(super) fn distance(a: u32, b: u32) -> i32 {
    (b.wrapping_sub(a) << 1) as i32 >> 1
}

pub(super) fn after(sequence: u32, count: u32) -> u32 {
    sequence.wrapping_add(count) & MASK
}

pub(super) const MASK: u32 = ALONE - 1;
const ALONE: u32 = 1 << 31;
