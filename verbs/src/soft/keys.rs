//! The table of remote keys: what peers may reach, written by its owner, read by every initiator.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use super::layout::{ANY_QPN, KEY_SLOTS, KEYS_OFFSET, KeyEntry};
use super::random;
use crate::error::MemoryError;
use crate::memory::Segment;
use crate::sync::{Ordering, lock};
use crate::types::{Access, Rkey};

/// What a new key shall open.
#[derive(Clone, Debug)]
pub(crate) struct KeySpec {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) domain: u64,
    pub(crate) arena: Option<(u32, usize)>,
    pub(crate) bound_qpn: Option<u32>,
}

/// A key table: the owner's, or a peer's as mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyView {
    first: NonNull<KeyEntry>,
}

// SAFETY: it names atomics.
unsafe impl Send for KeyView {}
// SAFETY: as above.
unsafe impl Sync for KeyView {}

/// The owner's side: which slots are free.
pub(crate) struct KeyTable {
    view: KeyView,
    slots: Mutex<Slots>,
    _public: Arc<Segment>,
}

/// Which slots are taken, and random numbers for the next keys.
struct Slots {
    used: Vec<u64>,
    /// Drawn ahead, since a call for each key takes longer than all else of an exposure. It is the table's own, so that a
    /// process that forks and opens a device draws others than its parent.
    pool: [u16; POOL],
    left: usize,
}

/// A successful look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// Offset of the accessed range in the region's arena; unused if `arena` is 0.
    pub(crate) arena_offset: u64,
    pub(crate) arena: u32,
}

impl KeyView {
    /// The table in a public mapping; `None` if the mapping is too short.
    pub(crate) fn in_segment(public: &Segment) -> Option<Self> {
        // SAFETY: `KeyEntry` is made of atomics, and all access to the table is by them.
        unsafe { public.array::<KeyEntry>(KEYS_OFFSET, KEY_SLOTS) }.map(|first| KeyView { first })
    }

    fn entry(&self, slot: usize) -> &KeyEntry {
        debug_assert!(slot < KEY_SLOTS);
        // SAFETY: `slot` is below the number of entries, and the mapping outlives the view's users (links and nodes keep
        // the segment).
        unsafe { self.first.add(slot % KEY_SLOTS).as_ref() }
    }

    /// Checks one access. The caller is inside its hazard, so what is granted stays true until it leaves.
    #[inline(always)]
    pub(crate) fn check(&self, rkey: Rkey, addr: u64, len: u64, right: Access, domain: u64, qpn: u32) -> Option<Grant> {
        let entry = self.entry(slot_of(rkey));
        if entry.tag.load(Ordering::Acquire) != tag_of(rkey) {
            return None;
        }
        let start = entry.addr.load(Ordering::Relaxed);
        let within = addr.wrapping_sub(start);
        let size = entry.len.load(Ordering::Relaxed);
        let bound = entry.bound_qpn.load(Ordering::Relaxed);
        // What the entry says is its owner's to choose: a range that goes round the end is none.
        let fits = addr >= start && within <= size && len <= size - within && addr.checked_add(len).is_some();
        let may = entry.access.load(Ordering::Relaxed) & right.bits() == right.bits();
        if !fits || !may || entry.domain.load(Ordering::Relaxed) != domain || (bound != ANY_QPN && bound != qpn) {
            return None;
        }
        let arena_offset = entry.arena_offset.load(Ordering::Relaxed).wrapping_add(within);
        Some(Grant { arena_offset, arena: entry.arena.load(Ordering::Relaxed) })
    }
}

impl KeyView {
    /// True if the key is live and bound to that queue pair, which may withdraw it.
    pub(crate) fn is_bound(&self, rkey: Rkey, qpn: u32, domain: u64) -> bool {
        let entry = self.entry(slot_of(rkey));
        entry.tag.load(Ordering::Acquire) == tag_of(rkey)
            && entry.bound_qpn.load(Ordering::Relaxed) == qpn
            && entry.domain.load(Ordering::Relaxed) == domain
    }
}

impl KeyTable {
    pub(crate) fn new(public: Arc<Segment>) -> Option<Self> {
        let view = KeyView::in_segment(&public)?;
        Some(KeyTable { view, slots: Mutex::new(Slots::new()), _public: public })
    }

    /// Makes a key for `spec`. Slot and tag are random, so that all 32 bits are unpredictable.
    pub(crate) fn publish(&self, spec: &KeySpec) -> Result<Rkey, MemoryError> {
        let rkey = self.slots().take().ok_or(MemoryError::NoKeys { limit: KEY_SLOTS })?;
        let slot = slot_of(rkey);
        let entry = self.view.entry(slot);
        let (arena, offset) = spec.arena.unwrap_or((0, 0));
        entry.access.store(spec.access.bits(), Ordering::Relaxed);
        entry.domain.store(spec.domain, Ordering::Relaxed);
        entry.addr.store(spec.addr, Ordering::Relaxed);
        entry.len.store(spec.len, Ordering::Relaxed);
        entry.arena.store(arena, Ordering::Relaxed);
        entry.arena_offset.store(offset as u64, Ordering::Relaxed);
        entry.bound_qpn.store(spec.bound_qpn.unwrap_or(ANY_QPN), Ordering::Relaxed);
        entry.tag.store(tag_of(rkey), Ordering::Release);
        Ok(rkey)
    }

    /// The initiator's view.
    pub(crate) fn view(&self) -> KeyView {
        self.view
    }

    pub(crate) fn is_live(&self, rkey: Rkey) -> bool {
        self.view.entry(slot_of(rkey)).tag.load(Ordering::Acquire) == tag_of(rkey)
    }

    /// Makes the key dead. The slot stays taken until [`release`](KeyTable::release). True if it was live.
    pub(crate) fn kill(&self, rkey: Rkey) -> bool {
        let tag = &self.view.entry(slot_of(rkey)).tag;
        tag.compare_exchange(tag_of(rkey), 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Gives a killed key's slot back, once no initiator is in an access any more.
    pub(crate) fn release(&self, rkey: Rkey) {
        self.slots().give(slot_of(rkey));
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        lock(&self.slots)
    }
}

impl Slots {
    fn new() -> Self {
        Slots { used: vec![0; KEY_SLOTS / 64], pool: [0; POOL], left: 0 }
    }

    /// A free slot, and a tag for it.
    fn take(&mut self) -> Option<Rkey> {
        let start = usize::from(self.draw());
        let free = |slot: &usize| self.used[slot / 64] & 1 << (slot % 64) == 0;
        let slot = (0..KEY_SLOTS).map(|step| (start + step) % KEY_SLOTS).find(free)?;
        self.used[slot / 64] |= 1 << (slot % 64);
        Some(Rkey(slot as u32 | u32::from(self.draw()) << 16))
    }

    fn give(&mut self, slot: usize) {
        self.used[slot / 64] &= !(1 << (slot % 64));
    }

    fn draw(&mut self) -> u16 {
        if self.left == 0 {
            let bytes = random::bytes::<{ 2 * POOL }>();
            for (number, pair) in self.pool.iter_mut().zip(bytes.as_chunks().0) {
                *number = u16::from_le_bytes(*pair);
            }
            self.left = POOL;
        }
        self.left -= 1;
        self.pool[self.left]
    }
}

/// Random numbers drawn at once: two for each key.
const POOL: usize = 128;

fn slot_of(rkey: Rkey) -> usize {
    (rkey.0 & 0xffff) as usize
}

/// The tag of a live entry: the key's random half, and a bit that makes it differ from 0.
fn tag_of(rkey: Rkey) -> u32 {
    rkey.0 & 0xffff_0000 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Writers;
    use crate::soft::layout::PUBLIC_BYTES;

    fn table() -> KeyTable {
        let public = Segment::create("t", PUBLIC_BYTES, Writers::Owner).unwrap();
        KeyTable::new(Arc::new(public)).unwrap()
    }

    fn spec(addr: u64, len: u64) -> KeySpec {
        KeySpec { addr, len, access: Access::REMOTE_ALL, domain: 3, arena: Some((1, 100)), bound_qpn: None }
    }

    #[test]
    fn a_key_grants_its_range_and_no_more() {
        let table = table();
        let rkey = table.publish(&spec(1000, 64)).unwrap();
        let check = |addr, len, domain| {
            let grant = table.view().check(rkey, addr, len, Access::REMOTE_READ, domain, 7)?;
            Some((grant.arena, grant.arena_offset))
        };
        assert_eq!((check(1000, 64, 3), check(1010, 54, 3)), (Some((1, 100)), Some((1, 110))));
        for (addr, len, domain) in [(999, 1, 3), (1001, 64, 3), (1065, 0, 3), (u64::MAX, 2, 3), (1000, 64, 4)] {
            assert_eq!(check(addr, len, domain), None, "{len} bytes at {addr}");
        }
        assert!(table.kill(rkey) && !table.kill(rkey));
        assert_eq!(check(1000, 64, 3), None);
    }

    /// What a peer's table says is the peer's to choose; nothing of it may stop an initiator that is inside its hazard.
    #[test]
    fn nonsense_in_a_peers_table_does_no_harm() {
        let table = table();
        for fill in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let rkey = table.publish(&spec(fill, fill)).unwrap();
            table.view.entry(slot_of(rkey)).arena_offset.store(u64::MAX, Ordering::Relaxed);
            let rounds = table.view().check(rkey, fill.max(1), u64::MAX, Access::REMOTE_WRITE, 3, 7);
            assert!(rounds.is_none(), "it goes round the end");
            for addr in [0, 1, fill, fill.wrapping_add(1), fill.wrapping_add(fill), u64::MAX] {
                let grant = table.view().check(rkey, addr, 1, Access::REMOTE_WRITE, 3, 7);
                assert!(grant.is_none_or(|grant| grant.arena_offset == addr.wrapping_sub(fill).wrapping_sub(1)));
            }
        }
    }
}
