//! Rendezvous, sender's side: payloads that were offered and wait until the peer has read them.

use slab::Slab;

use super::order::Order;
use super::step::Readable;
use super::violation::Violation;
use super::wire::Envelope;

/// Payloads by message id. An id is a slot and a serial number, so that a stale one is not taken for another message.
#[derive(Debug)]
pub(crate) struct Exposures<P> {
    slots: Slab<Exposure<P>>,
    order: Order,
    serial: u16,
}

#[derive(Debug)]
struct Exposure<P> {
    serial: u16,
    readable: Readable,
    /// The peer wants its parts.
    wanted: bool,
    /// The peer was asked to let go of it.
    cancelled: bool,
    exposed: Exposed<P>,
}

/// A payload that the peer was to read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exposed<P> {
    pub(crate) op: u64,
    pub(crate) envelope: Envelope,
    pub(crate) payload: P,
    /// The application waits for it.
    pub(crate) awaited: bool,
    /// The peer has read it.
    pub(crate) was_read: bool,
}

impl<P> Exposed<P> {
    /// One that was not read, and is awaited.
    pub(crate) fn new(op: u64, envelope: Envelope, payload: P) -> Self {
        Exposed { op, envelope, payload, awaited: true, was_read: false }
    }

    /// True if it is an operation of the application's, whose end it awaits.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited && !self.envelope.is_own()
    }
}

impl<P> Exposures<P> {
    pub(crate) fn new() -> Self {
        Exposures { slots: Slab::new(), order: Order::default(), serial: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if there is place for no more than `room`.
    pub(crate) fn is_full(&self, room: usize) -> bool {
        self.slots.len() + room >= LIMIT
    }

    /// Keeps a payload; the caller has seen that there is room. Gives its message id.
    pub(crate) fn insert(&mut self, op: u64, envelope: Envelope, readable: Readable, payload: P) -> u32 {
        debug_assert!(!self.is_full(0));
        self.serial = self.serial.wrapping_add(1);
        let exposed = Exposed::new(op, envelope, payload);
        let (serial, wanted, cancelled) = (self.serial, false, false);
        let key = self.slots.insert(Exposure { serial, readable, wanted, cancelled, exposed });
        // Messages go out in the order of their numbers, parts before others.
        self.order.insert(op, key);
        id(key, self.serial)
    }

    /// The peer has read `len` bytes of message `id`.
    pub(crate) fn finish(&mut self, id: u64, len: u64) -> Result<Exposed<P>, Violation> {
        let found = self.remove(id, |exposure| exposure.readable.len() == len)?;
        Ok(Exposed { was_read: true, ..found })
    }

    /// The peer will not read message `id`, as it was asked.
    pub(crate) fn withdraw(&mut self, id: u64) -> Result<Exposed<P>, Violation> {
        self.remove(id, |exposure| exposure.cancelled)
    }

    /// The peer wants the parts of message `id`. Gives its length.
    pub(crate) fn want(&mut self, id: u64) -> Result<u64, Violation> {
        let found = self.slots.get_mut(id as usize & (LIMIT - 1)).filter(|found| u64::from(found.serial) == id >> 16);
        match found {
            Some(Exposure { readable: Readable::InParts(len), wanted, .. }) if !*wanted => {
                *wanted = true;
                Ok(*len)
            }
            _ => Err(Violation::Wanted { id }),
        }
    }

    /// The payload of message `id`.
    pub(crate) fn get(&self, id: u32) -> Option<&P> {
        let found = self.slots.get(id as usize & (LIMIT - 1))?;
        (u32::from(found.serial) == id >> 16).then_some(&found.exposed.payload)
    }

    /// The message id of a payload that is no longer wanted, and whether that is new.
    pub(crate) fn cancel(&mut self, op: u64) -> Option<(u32, bool)> {
        let key = self.find(op)?;
        let found = self.slots.get_mut(key)?;
        let first = !std::mem::replace(&mut found.cancelled, true);
        Some((id(key, found.serial), first))
    }

    /// The application does not wait for it any more. False if it did not before.
    pub(crate) fn disown(&mut self, op: u64) -> bool {
        let found = self.find(op).and_then(|key| self.slots.get_mut(key));
        found.is_some_and(|exposure| std::mem::replace(&mut exposure.exposed.awaited, false))
    }

    /// The least operation number.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.order.oldest()
    }

    /// All that is left, when the connection ends.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Exposed<P>> + '_ {
        self.order.clear();
        self.slots.drain().map(|exposure| exposure.exposed)
    }

    fn remove(&mut self, id: u64, is_due: impl FnOnce(&Exposure<P>) -> bool) -> Result<Exposed<P>, Violation> {
        let key = id as usize & (LIMIT - 1);
        match self.slots.get(key) {
            Some(found) if u64::from(found.serial) == id >> 16 && is_due(found) => {
                let exposed = self.slots.remove(key).exposed;
                self.order.tidy(self.slots.len(), |op, key| is_there(&self.slots, op, key));
                Ok(exposed)
            }
            _ => Err(Violation::Finished { id }),
        }
    }

    fn find(&self, op: u64) -> Option<usize> {
        self.order.find(op).filter(|&key| is_there(&self.slots, op, key))
    }
}

/// True if that operation is in that slot.
fn is_there<P>(slots: &Slab<Exposure<P>>, op: u64, key: usize) -> bool {
    slots.get(key).is_some_and(|exposure| exposure.exposed.op == op)
}

/// A message id: a slot and its serial number.
fn id(key: usize, serial: u16) -> u32 {
    key as u32 | u32::from(serial) << 16
}

/// Payloads of one side that may be offered at once: what an id has room for.
pub(super) const LIMIT: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Envelope = Envelope::bare(0);
    const OF_100: Readable = Readable::InParts(100);

    #[test]
    fn ids_are_not_reused_at_once() {
        let mut exposures = Exposures::new();
        let first = u64::from(exposures.insert(1, NOTHING, OF_100, 'a'));
        assert_eq!(exposures.finish(first, 99), Err(Violation::Finished { id: first }));
        assert_eq!(exposures.finish(first, 100), Ok(Exposed { was_read: true, ..Exposed::new(1, NOTHING, 'a') }));
        let second = u64::from(exposures.insert(2, NOTHING, OF_100, 'b'));
        assert_ne!(first, second);
        assert_eq!(exposures.finish(first, 100), Err(Violation::Finished { id: first }));
        assert_eq!(exposures.finish(second | 1 << 40, 100), Err(Violation::Finished { id: second | 1 << 40 }));
        assert_eq!(exposures.finish(second, 100), Ok(Exposed { was_read: true, ..Exposed::new(2, NOTHING, 'b') }));
        assert!(exposures.is_empty());
    }

    #[test]
    fn only_what_was_cancelled_is_withdrawn() {
        let mut exposures = Exposures::new();
        let first = exposures.insert(7, NOTHING, OF_100, 'a');
        let id = u64::from(first);
        assert_eq!(exposures.withdraw(id), Err(Violation::Finished { id }));
        assert_eq!((exposures.cancel(8), exposures.cancel(7)), (None, Some((first, true))));
        assert_eq!(exposures.cancel(7), Some((first, false)), "once is enough");
        assert!(exposures.disown(7) && !exposures.disown(7) && !exposures.disown(8));
        assert_eq!(exposures.withdraw(id), Ok(Exposed { awaited: false, ..Exposed::new(7, NOTHING, 'a') }));
        assert_eq!(exposures.finish(id, 100), Err(Violation::Finished { id }));
    }
}
