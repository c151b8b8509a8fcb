//! The other end of a connection, as an initiator sees it: where its rings, receives and keys lie.

use std::ptr::NonNull;
use std::sync::Arc;

use super::at::At;
use super::bell::Rope;
use super::claims::{Claims, NoClaim, Taker};
use super::control::Link;
use super::cq_shared::call;
use super::entry::RING_INLINE;
use super::filler::Filler;
use super::layout::{ClaimInfo, CqPublic, Identity, QpInfo, QpPublic, Receives, RecvWqe, slot_of};
use super::rest::Board;
use super::ring::{Lines, Producer, Slot};
use crate::error::ConnectError;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::types::{QpState, Rkey};

/// A peer's queue pair.
#[derive(Debug)]
pub(crate) struct PeerView {
    pub(crate) link: Arc<Link>,
    pub(crate) who: Identity,
    /// Whose peer it is to be, if it has one.
    me: Option<Identity>,
    pub(crate) lines: Lines,
    pub(crate) producer: Producer,
    public: NonNull<QpPublic>,
    receives: NonNull<Receives>,
    wqes: NonNull<RecvWqe>,
    wqe_count: u32,
    /// Lines kept for messages placed directly, so that each posted receive has one.
    reserve: u32,
    claims: Option<Claims>,
    order: Option<NonNull<AtomicU64>>,
    cq: NonNull<CqPublic>,
    /// For which arming of it the bell was rung last.
    rung: AtomicU32,
    bell: Rope,
    /// Where it is called while its owner's polls pass it by, and for which rest it was called last.
    board: Option<(At<Board>, u32)>,
    called: AtomicU32,
    /// Gate words of the two states in which it takes requests.
    gates: [u64; 2],
    /// Receives taken so far (own queue), and the count known to be posted.
    taken: u32,
    posted: u32,
    /// By how much the shortest of them is shorter than what travels inside the ring.
    short_by: u32,
    /// A receive that was claimed and not used yet.
    claimed: Option<Receive>,
    /// Properties that hold once the peer was seen ready; `None` before.
    settled: Option<Settled>,
    /// Of a queue pair of this process.
    filler: Option<Filler>,
}

// SAFETY: the pointers name atomics in mappings that `link` keeps.
unsafe impl Send for PeerView {}
// SAFETY: as above; what is not atomic changes by `&mut` only.
unsafe impl Sync for PeerView {}

/// A receive that the next message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receive {
    /// Running number.
    pub(crate) index: u32,
    /// Where it is described; not looked up for a message that travels in the ring.
    pub(crate) slot: u32,
}

/// Properties of a peer that do not change while it is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub(crate) domain: u64,
    pub(crate) access: u32,
}

/// What the gate says of a peer.
pub(crate) enum Gate {
    /// It takes requests.
    Open(Settled),
    /// Not yet.
    NotYet,
    /// Not any more.
    Closed,
    /// This side has failed: it begins no access any more.
    Failed,
}

impl PeerView {
    /// Checks what the peer says of its queue pair against its mappings. It is to be connected to `me`, but for one of datagrams.
    /// One of this process has a `filler`.
    pub(crate) fn new(
        link: Arc<Link>,
        me: Option<Identity>,
        info: &QpInfo,
        bell: Rope,
        filler: Option<Filler>,
    ) -> Result<Self, ConnectError> {
        if !info.wqe_count.is_power_of_two() || !info.ring_lines.is_power_of_two() {
            return Err(bad("a queue's size is no power of two"));
        }
        let (public, shared) = (link.public().clone(), link.shared().clone());
        // SAFETY: every type here is made of atomics, and all access is by them or by the ring's protocol.
        let (qp, receives, wqes, cq, ring) = unsafe {
            (
                public.at::<QpPublic>(info.public).ok_or_else(short)?,
                public.at::<Receives>(info.receives).ok_or_else(short)?,
                public.array::<RecvWqe>(info.wqes, info.wqe_count as usize).ok_or_else(short)?,
                public.at::<CqPublic>(info.cq).ok_or_else(short)?,
                shared.array::<Slot>(info.ring, info.ring_lines as usize).ok_or_else(short)?,
            )
        };
        let claims = info.claims.as_ref().map(|info| claims(&link, info)).transpose()?;
        let order = match info.order {
            None => None,
            Some(offset) => {
                // SAFETY: as above.
                let entries = unsafe { public.array::<AtomicU64>(offset, info.wqe_count as usize) };
                Some(entries.ok_or_else(short)?)
            }
        };
        let board = match info.place {
            None => None,
            // SAFETY: as above.
            Some(info) => Some((unsafe { At::new(&shared, info.board) }.ok_or_else(short)?, info.place)),
        };
        // SAFETY: `link` keeps the mapping as long as this view; the count was checked.
        let lines = unsafe { Lines::new(ring, info.ring_lines) };
        let gates = [QpState::Rts, QpState::Rtr].map(|state| info.who.gate(state.code()));
        Ok(PeerView {
            link,
            who: info.who,
            me,
            lines,
            producer: Producer::new(lines),
            public: qp,
            receives,
            wqes,
            wqe_count: info.wqe_count,
            reserve: (info.wqe_count * 2).min(info.ring_lines / 2),
            claims,
            order,
            cq,
            rung: AtomicU32::new(0),
            bell,
            board,
            called: AtomicU32::new(0),
            gates,
            taken: 0,
            posted: 0,
            short_by: 0,
            claimed: None,
            settled: None,
            filler,
        })
    }

    #[inline(always)]
    pub(crate) fn public(&self) -> &QpPublic {
        // SAFETY: mapped as long as `link` lives.
        unsafe { self.public.as_ref() }
    }

    #[inline(always)]
    fn receives(&self) -> &Receives {
        // SAFETY: mapped as long as `link` lives.
        unsafe { self.receives.as_ref() }
    }

    /// The posted receive in `slot`.
    pub(crate) fn wqe(&self, slot: u32) -> &RecvWqe {
        // SAFETY: the slot is reduced to the ring's size; mapped as long as `link` lives.
        unsafe { self.wqes.add((slot & (self.wqe_count - 1)) as usize).as_ref() }
    }

    /// The slot of the receive with running number `index`.
    fn slot(&self, index: u32) -> Option<u32> {
        match self.order {
            None => Some(index),
            Some(order) => {
                // SAFETY: the index is reduced to the ring's size; mapped as long as `link` lives.
                let entry = unsafe { order.add((index & (self.wqe_count - 1)) as usize).as_ref() };
                slot_of(entry.load(Ordering::Acquire), index)
            }
        }
    }

    /// Whether the peer takes requests now of who is in `state`. The caller is inside its hazard: who has it fail sees that, or is
    /// seen here.
    #[inline(always)]
    pub(crate) fn gate(&mut self, state: &AtomicU32) -> Gate {
        let word = self.public().gate.load(Ordering::Acquire);
        if has_failed(state) {
            Gate::Failed
        } else if word == self.gates[0] || word == self.gates[1] {
            match self.settled {
                Some(settled) => Gate::Open(settled),
                None => self.settle(),
            }
        } else if self.settled.is_none() && word == self.who.gate(QpState::Init.code()) {
            Gate::NotYet
        } else {
            Gate::Closed
        }
    }

    /// The peer's properties, if it was seen ready before and takes requests now of who is in `state`. The caller is inside its
    /// hazard.
    #[inline(always)]
    pub(crate) fn settled(&self, state: &AtomicU32) -> Option<Settled> {
        let word = self.public().gate.load(Ordering::Acquire);
        self.settled.filter(|_| (word == self.gates[0] || word == self.gates[1]) && !has_failed(state))
    }

    /// True if a datagram queue pair takes datagrams now. The caller is inside its hazard.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.gates.contains(&self.public().gate.load(Ordering::Acquire))
    }

    #[cold]
    fn settle(&mut self) -> Gate {
        let public = self.public();
        if self.me.is_none_or(|me| public.peer.load(Ordering::Acquire) != me.word()) {
            return Gate::Closed;
        }
        let settled =
            Settled { domain: public.domain.load(Ordering::Relaxed), access: public.access.load(Ordering::Relaxed) };
        self.settled = Some(settled);
        Gate::Open(settled)
    }

    /// Makes sure of a receive for the next message, unless none is posted. Where it is described is looked up only if
    /// `described`: that costs a cache line which the owner wrote last.
    #[inline(always)]
    pub(crate) fn next_receive(&mut self, taker: u32, described: bool) -> Result<Receive, NoClaim> {
        match self.claims {
            None => {
                let receive = Receive { index: self.taken, slot: self.taken };
                if self.taken != self.posted || self.refresh() { Ok(receive) } else { Err(NoClaim::Empty) }
            }
            Some(claims) => {
                if let Some(receive) = self.claimed {
                    return Ok(receive);
                }
                let (index, slot) = claims.claim(taker, |index| {
                    // Posted counts run ahead of claims by at most the ring's size.
                    let known = self.posted.wrapping_sub(index).wrapping_sub(1) < self.wqe_count;
                    let posted = known || {
                        self.refresh();
                        self.posted.wrapping_sub(index).wrapping_sub(1) < self.wqe_count
                    };
                    if !posted {
                        return None;
                    }
                    // Overtaken: the place tells of a later receive, and the compare-and-swap will fail.
                    Some(if described { self.slot(index).unwrap_or(0) } else { index })
                })?;
                let receive = Receive { index, slot };
                self.claimed = Some(receive);
                Ok(receive)
            }
        }
    }

    /// Running number of the receive that the next message takes, if one is known to be posted, of the peer's own queue.
    #[inline(always)]
    pub(crate) fn known_receive(&self) -> Option<u32> {
        (self.claims.is_none() && self.taken != self.posted).then_some(self.taken)
    }

    /// The same receive with its slot looked up, unless its place is used again already. A message that then has to wait finds it
    /// so.
    #[cold]
    pub(crate) fn described(&mut self, receive: Receive) -> Option<Receive> {
        let found = Receive { slot: self.slot(receive.index)?, ..receive };
        if self.claimed.is_some() {
            self.claimed = Some(found);
        }
        Some(found)
    }

    /// Claims a receive of a datagram queue pair, without memory of earlier ones; none unless `usable` says so of it.
    pub(crate) fn claim_now(&self, taker: u32, mut usable: impl FnMut(&RecvWqe) -> bool) -> Result<u32, NoClaim> {
        let claims = self.claims.ok_or(NoClaim::Closed)?;
        let posted = |index: u32| {
            let posted = self.receives().posted.load(Ordering::Acquire);
            let is_posted = posted.wrapping_sub(index).wrapping_sub(1) < self.wqe_count;
            (is_posted && usable(self.wqe(index))).then_some(())
        };
        claims.claim(taker, posted).map(|(index, ())| index)
    }

    /// Marks a receive before anything is written to it. False if nothing may be: only peers that lie bring that about.
    #[inline(always)]
    pub(crate) fn begin_filling(&self, receive: Receive) -> bool {
        self.filler.as_ref().is_none_or(|filler| filler.begin(receive))
    }

    /// Nothing is written to the receive any more.
    #[inline(always)]
    pub(crate) fn end_filling(&self, receive: Receive) {
        if let Some(filler) = &self.filler {
            filler.end(receive);
        }
    }

    /// Notes that the message took the receive.
    #[inline(always)]
    pub(crate) fn took_receive(&mut self) {
        self.claimed = None;
        self.taken = self.taken.wrapping_add(1);
    }

    /// Looks how many receives are posted; true if the next is.
    fn refresh(&mut self) -> bool {
        let receives = self.receives();
        // The count is loaded first: what is short among the receives that it covers is known after that.
        let posted = receives.posted.load(Ordering::Acquire);
        let short_by = receives.short_by.load(Ordering::Relaxed);
        self.posted = posted;
        self.short_by = self.short_by.max(short_by);
        self.taken != self.posted
    }

    /// True if a message of that length may travel inside the ring: it is short, and every receive can take it.
    #[inline(always)]
    pub(crate) fn takes_inside(&self, len: usize) -> bool {
        len <= RING_INLINE.saturating_sub(self.short_by as usize)
    }

    /// True if a message may withdraw that key: it is bound to the peer's queue pair.
    pub(crate) fn may_withdraw(&self, rkey: Rkey) -> bool {
        self.settled.is_some_and(|settled| self.link.keys().is_bound(rkey, self.who.qpn, settled.domain))
    }

    /// Room for a message inside the ring, besides the reserve.
    #[inline(always)]
    pub(crate) fn has_room_inside(&mut self, lines: u32) -> bool {
        self.has_room(lines + self.reserve)
    }

    /// Room for `lines` more in the inbound ring.
    #[inline(always)]
    pub(crate) fn has_room(&mut self, lines: u32) -> bool {
        // SAFETY: mapped as long as `link` lives. (Not through `public()`: `producer` is borrowed mutably.)
        let consumed = unsafe { &self.public.as_ref().consumed.0 };
        self.producer.has_room(lines, consumed)
    }

    /// Wakes the peer if it sleeps, and calls the queue pair if it rests. After a barrier that orders the message before the
    /// looks at the two.
    #[inline(always)]
    pub(crate) fn wake(&self, solicited: bool) {
        super::barrier::light(self.link.asymmetric());
        if self.public().rests[0].must_call(&self.called) {
            self.call();
        }
        // SAFETY: mapped as long as `link` lives.
        if unsafe { self.cq.as_ref() }.arming.must_ring(solicited, &self.rung) {
            self.ring_bell();
        }
    }

    #[cold]
    fn call(&self) {
        if let Some((board, place)) = &self.board {
            call(board, *place);
        }
    }

    #[cold]
    fn ring_bell(&self) {
        self.bell.ring();
    }
}

#[inline(always)]
fn has_failed(state: &AtomicU32) -> bool {
    state.load(Ordering::Relaxed) == QpState::Err.code()
}

/// Checks what the peer says of a claim table.
fn claims(link: &Link, info: &ClaimInfo) -> Result<Claims, ConnectError> {
    if !info.count.is_power_of_two() {
        return Err(bad("a claim table's size is no power of two"));
    }
    let shared = link.shared();
    // SAFETY: the types are atomics, and all access is by them.
    let (head, takers) =
        unsafe { (shared.at::<AtomicU64>(info.head), shared.array::<Taker>(info.takers, info.count as usize)) };
    let (Some(head), Some(takers)) = (head, takers) else { return Err(short()) };
    // SAFETY: the link's holder keeps the mapping as long as the claims; the count was checked.
    Ok(unsafe { Claims::new(head, takers, info.count) })
}

fn bad(why: &'static str) -> ConnectError {
    ConnectError::BadAnswer { why }
}

fn short() -> ConnectError {
    bad("a queue lies outside of its memory")
}
