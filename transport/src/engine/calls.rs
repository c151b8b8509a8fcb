//! Requests that wait for their answers.

use slab::Slab;

use super::inbox::Peer;
use super::order::Order;

/// Calls by the number that goes over the wire: a slot and a serial number, so that a late answer is taken for no other's.
///
/// `P` is a payload that was sent.
#[derive(Debug)]
pub(crate) struct Calls<P> {
    slots: Slab<Call<P>>,
    order: Order,
    serial: u32,
}

/// A request that waits for its answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call<P> {
    pub(crate) op: u64,
    pub(crate) peer: Peer,
    /// What was sent, once it is back.
    pub(crate) payload: Option<P>,
    serial: u32,
}

impl<P> Calls<P> {
    pub(crate) fn new() -> Self {
        Calls { slots: Slab::new(), order: Order::default(), serial: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// A call begins. Gives its number.
    pub(crate) fn insert(&mut self, op: u64, peer: Peer) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        let key = self.slots.insert(Call { op, peer, payload: None, serial: self.serial });
        self.order.insert(op, key);
        key as u64 | u64::from(self.serial) << 32
    }

    /// The answer came, from that peer. `None` if nobody waits for it.
    pub(crate) fn answer(&mut self, id: u64, peer: Peer) -> Option<Call<P>> {
        let key = id as u32 as usize;
        let call = self.slots.get(key)?;
        (u64::from(call.serial) == id >> 32 && call.peer == peer).then(|| self.remove(key))
    }

    /// What was sent is back. Gives it again if that call does not wait any more.
    pub(crate) fn sent(&mut self, id: u64, payload: P) -> Result<(), P> {
        match self.slots.get_mut(id as u32 as usize) {
            Some(call) if u64::from(call.serial) == id >> 32 => {
                call.payload = Some(payload);
                Ok(())
            }
            _ => Err(payload),
        }
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn cancel(&mut self, op: u64) -> Option<Call<P>> {
        let key = self.order.find(op).filter(|&key| is_there(&self.slots, op, key))?;
        Some(self.remove(key))
    }

    /// A connection ends: its calls.
    pub(crate) fn drop_peer(&mut self, peer: Peer) -> Vec<Call<P>> {
        let of_peer = |(key, call): (usize, &Call<P>)| (call.peer == peer).then_some(key);
        let keys: Vec<_> = self.slots.iter().filter_map(of_peer).collect();
        keys.into_iter().map(|key| self.remove(key)).collect()
    }

    fn remove(&mut self, key: usize) -> Call<P> {
        let call = self.slots.remove(key);
        self.order.tidy(self.slots.len(), |op, key| is_there(&self.slots, op, key));
        call
    }
}

/// True if that call is in that slot.
fn is_there<P>(slots: &Slab<Call<P>>, op: u64, key: usize) -> bool {
    slots.get(key).is_some_and(|call| call.op == op)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once_and_from_the_peer_that_was_asked() {
        let mut calls = Calls::new();
        let first = calls.insert(1, Peer(7));
        assert_eq!(calls.answer(first, Peer(8)), None, "another peer");
        assert_eq!(calls.sent(first, 'a'), Ok(()));
        assert_eq!(calls.sent(first + 1, 'b'), Err('b'));
        assert_eq!(calls.answer(first, Peer(7)).map(|call| (call.op, call.payload)), Some((1, Some('a'))));
        assert_eq!(calls.answer(first, Peer(7)), None, "twice");
        let second = calls.insert(2, Peer(7));
        assert_ne!(first, second);
        assert_eq!(calls.answer(first, Peer(7)), None, "late");
        assert!(calls.cancel(2).is_some() && calls.cancel(2).is_none());
        calls.insert(3, Peer(7));
        calls.insert(4, Peer(8));
        assert_eq!(calls.drop_peer(Peer(7)).iter().map(|call| call.op).collect::<Vec<_>>(), [3]);
        assert_eq!(calls.len(), 1);
    }
}
