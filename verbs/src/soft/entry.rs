//! What the producer of a [ring](super::ring) says of a message, and how many lines of it a message takes.

/// What the producer says of a message. In front of the body of its first line.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `KIND_*`.
    pub(crate) kind: u8,
    /// `FLAG_*`.
    pub(crate) flags: u8,
    /// Lines that the message takes, at least 1.
    pub(crate) lines: u8,
    pub(crate) reserved: u8,
    /// Bytes of the message.
    pub(crate) byte_len: u32,
    /// Immediate data, or the rkey to invalidate.
    pub(crate) imm: u32,
    /// Which receive it takes, as a running count.
    pub(crate) receive: u32,
    /// Sending queue pair (UD).
    pub(crate) src_qpn: u32,
}

pub(crate) const KIND_SEND: u8 = 1;
pub(crate) const KIND_WRITE_IMM: u8 = 2;
/// The sender took a receive and could not fill it (UD).
pub(crate) const KIND_VOID: u8 = 3;
pub(crate) const FLAG_IMM: u8 = 1;
pub(crate) const FLAG_INVALIDATE: u8 = 2;
pub(crate) const FLAG_SOLICITED: u8 = 4;
/// The bytes are in the ring, not in the receive yet.
pub(crate) const FLAG_INLINE: u8 = 8;

impl Entry {
    /// True if a device that works could have written it.
    #[inline(always)]
    pub(crate) fn is_sound(&self) -> bool {
        match self.kind {
            KIND_SEND if self.flags & FLAG_INLINE != 0 => {
                let len = self.byte_len as usize;
                len <= RING_INLINE && lines_for(len) == u32::from(self.lines)
            }
            KIND_SEND | KIND_WRITE_IMM | KIND_VOID => self.lines == 1,
            _ => false,
        }
    }

    /// True if it is of a message all of whose bytes are in the ring, and there is nothing else to it: it is sound then.
    #[inline(always)]
    pub(crate) fn is_short(&self) -> bool {
        let len = self.byte_len as usize;
        let is_plain = self.kind == KIND_SEND && self.flags & !FLAG_SOLICITED == FLAG_INLINE;
        is_plain && len <= RING_INLINE && u32::from(self.lines) == lines_for(len)
    }
}

/// Bytes of a line beside its stamp.
pub(crate) const BODY: usize = 60;
/// Bytes of an entry.
pub(crate) const HEAD: usize = size_of::<Entry>();
/// Bytes of a message that its first line holds.
pub(crate) const FIRST: usize = BODY - HEAD;
/// Lines of the longest message inside the ring.
pub(crate) const MAX_LINES: usize = 10;
/// Longest message that travels inside the ring: 580 bytes in ten lines, so that one of 512 with a header does. They arrive in
/// little more than the time of one, since their reader fetches them ahead; a message placed directly costs two more round
/// trips of lines, and its reader more where the bytes are. A broadcast of 512 bytes takes 0.29 us so, and 0.36 placed
/// directly, or 0.67 and 0.93 where cores are far apart; a tagged message that nobody reads as long as before, and in a stream, which does not wait,
/// it goes by 3 percent less often. With 18 lines one of 1,024 bytes takes half as long again.
pub(crate) const RING_INLINE: usize = FIRST + (MAX_LINES - 1) * BODY;
/// Longest message of two lines.
pub(crate) const SHORT: usize = FIRST + BODY;

const _: () = assert!(HEAD == 20);

/// Lines that `len` bytes of inline data take.
#[inline(always)]
pub(crate) const fn lines_for(len: usize) -> u32 {
    if len <= FIRST { 1 } else { 1 + (len - FIRST).div_ceil(BODY) as u32 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_no_device_writes_is_told_apart() {
        let inline = Entry { kind: KIND_SEND, flags: FLAG_INLINE, lines: 1, byte_len: 8, ..Entry::default() };
        assert!(inline.is_sound());
        for wrong in [
            Entry { kind: 0, ..inline },
            Entry { kind: 77, ..inline },
            Entry { lines: 0, ..inline },
            Entry { lines: 2, ..inline },
            Entry { byte_len: RING_INLINE as u32 + 1, lines: MAX_LINES as u8, ..inline },
            Entry { kind: KIND_WRITE_IMM, flags: 0, lines: 3, ..inline },
        ] {
            assert!(!wrong.is_sound() && !wrong.is_short(), "{wrong:?}");
        }
        let longest = Entry { byte_len: RING_INLINE as u32, lines: MAX_LINES as u8, ..inline };
        assert!(longest.is_sound() && longest.is_short());
        // What is not short has something else to it, or is not in the ring.
        assert!(inline.is_short() && Entry { flags: FLAG_INLINE | FLAG_SOLICITED, ..inline }.is_short());
        for other in [
            Entry { flags: FLAG_INLINE | FLAG_IMM, ..inline },
            Entry { flags: FLAG_INLINE | FLAG_INVALIDATE, ..inline },
            Entry { flags: 0, ..inline },
            Entry { kind: KIND_WRITE_IMM, flags: FLAG_IMM, ..inline },
        ] {
            assert!(other.is_sound() && !other.is_short(), "{other:?}");
        }
    }
}
