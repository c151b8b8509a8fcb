//! Rendezvous, sender's side: payloads that were offered and wait until the peer has read them.

use slab::Slab;

use super::violation::Violation;

/// Payloads by message id. An id is a slot and a serial number, so that a stale one is not taken for another message.
#[derive(Debug)]
pub(crate) struct Exposures<P> {
    slots: Slab<Exposure<P>>,
    serial: u16,
}

#[derive(Debug)]
struct Exposure<P> {
    serial: u16,
    op: u64,
    len: u64,
    payload: P,
}

impl<P> Exposures<P> {
    pub(crate) fn new() -> Self {
        Exposures { slots: Slab::new(), serial: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.slots.len() >= LIMIT
    }

    /// Keeps a payload; the caller has seen that there is room. Gives its message id.
    pub(crate) fn insert(&mut self, op: u64, len: u64, payload: P) -> u32 {
        debug_assert!(!self.is_full());
        self.serial = self.serial.wrapping_add(1);
        let key = self.slots.insert(Exposure { serial: self.serial, op, len, payload });
        key as u32 | u32::from(self.serial) << 16
    }

    /// The peer has read `len` bytes of message `id`.
    pub(crate) fn finish(&mut self, id: u64, len: u64) -> Result<(u64, P), Violation> {
        let key = id as usize & (LIMIT - 1);
        match self.slots.get(key) {
            Some(found) if u64::from(found.serial) == id >> 16 && found.len == len => {
                let found = self.slots.remove(key);
                Ok((found.op, found.payload))
            }
            _ => Err(Violation::Finished { id }),
        }
    }

    /// All that is left, when the connection ends.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (u64, P)> + '_ {
        self.slots.drain().map(|exposure| (exposure.op, exposure.payload))
    }
}

const LIMIT: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_not_reused_at_once() {
        let mut exposures = Exposures::new();
        let first = u64::from(exposures.insert(1, 100, 'a'));
        assert_eq!(exposures.finish(first, 99), Err(Violation::Finished { id: first }));
        assert_eq!(exposures.finish(first, 100), Ok((1, 'a')));
        let second = u64::from(exposures.insert(2, 100, 'b'));
        assert_ne!(first, second);
        assert_eq!(exposures.finish(first, 100), Err(Violation::Finished { id: first }));
        assert_eq!(exposures.finish(second | 1 << 40, 100), Err(Violation::Finished { id: second | 1 << 40 }));
        assert_eq!(exposures.finish(second, 100), Ok((2, 'b')));
        assert!(exposures.is_empty());
    }
}
