//! A queue pair of the software device: its parts and set-up. Posting stands in `post`, failing and closing in `fail`.

mod fail;
mod post;

pub(crate) use fail::{OwnedQp, PeerSighting};

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::QpAddress;
use crate::address::NodeId;
use crate::error::{ConnectError, CreateError, ModifyError};
use crate::qp::check;
use crate::soft::control::QpInfo;
use crate::soft::eventfd::EventFd;
use crate::soft::exec::Sender;
use crate::soft::layout::{QpPublic, gate};
use crate::soft::link::Link;
use crate::soft::node::Node;
use crate::soft::peer::PeerView;
use crate::soft::random;
use crate::soft::receive::Receiver;
use crate::soft::ring::{Lines, RING_INLINE, Slot};
use crate::soft::send_queue::SendQueue;
use crate::soft::spec::QpSpec;
use crate::soft::srq::ClaimTable;
use crate::sync::{AtomicU32, Ordering};
use crate::types::{Access, Mtu, Psn, QpState, QpType, Qpn};

/// A queue pair.
///
/// Three parties use it: the poster (the owner of `QueuePair`, by `&mut`), the pollers (the owners of its completion
/// queues), and the control thread. Requests are carried out by the poster; once one has to wait, by whoever holds
/// `progress`, until none waits.
pub(crate) struct SoftQp {
    spec: QpSpec,
    qpn: u32,
    psn: Psn,
    state: AtomicU32,
    public: NonNull<QpPublic>,
    public_offset: usize,
    ring_offset: usize,
    ring_lines: u32,
    send: SendQueue,
    sender: UnsafeCell<Sender>,
    /// [`POSTER`] or [`PROGRESS`]: who carries requests out.
    carrier: AtomicU8,
    progress: Mutex<()>,
    pub(super) receiver: Receiver,
    pub(super) claims: Option<ClaimTable>,
    peer: OnceLock<Connected>,
    /// The peer as seen when this queue pair failed, until it has left our memory.
    leaving: Mutex<Option<PeerSighting>>,
    /// True once a failed queue pair's peer has left: receives may be flushed and memory freed.
    settled: AtomicBool,
}

// SAFETY: `sender` is used by the poster while `carrier` is POSTER, else under `progress`; `public` names atomics in a
// mapping that the node keeps; the receiver's contract is its own.
unsafe impl Send for SoftQp {}
// SAFETY: as above.
unsafe impl Sync for SoftQp {}

/// The other end, once connected.
struct Connected {
    link: Arc<Link>,
    node: NodeId,
    qpn: u32,
    public: NonNull<QpPublic>,
}

/// This side of a request: what the executor needs of its own queue pair.
pub(crate) struct Own<'a> {
    pub(crate) qp: &'a SoftQp,
}

impl Own<'_> {
    #[inline(always)]
    pub(crate) fn hazard(&self) -> &AtomicU32 {
        self.qp.hazard_word()
    }

    #[inline(always)]
    pub(crate) fn qpn(&self) -> u32 {
        self.qp.qpn
    }

    #[inline(always)]
    pub(crate) fn qp_type(&self) -> QpType {
        self.qp.spec.qp_type
    }
}

const POSTER: u8 = 0;
const PROGRESS: u8 = 1;

impl SoftQp {
    /// The count of RNR retries that means: without end.
    pub(crate) const RNR_FOREVER: u8 = 7;

    pub(crate) fn new(spec: QpSpec) -> Result<Arc<Self>, CreateError> {
        spec.check()?;
        let full = || CreateError::Exhausted { what: "queue pair" };
        let node = spec.node.clone();
        let receiver = Receiver::new(&spec)?;
        let claims =
            if spec.qp_type == QpType::Ud { Some(ClaimTable::new(&node, receiver.ring_lines())?) } else { None };
        let public_offset = node.take_public(size_of::<QpPublic>()).ok_or_else(full)?;
        // SAFETY: the type is made of atomics, and the block is ours.
        let public = unsafe { node.public().at::<QpPublic>(public_offset) }.ok_or_else(full)?;
        let ring_lines = receiver.ring_lines();
        let ring_offset = node.take_shared(ring_lines as usize * size_of::<Slot>()).ok_or_else(full)?;
        // SAFETY: the ring's protocol rules all access; the block is ours.
        let ring = unsafe { node.shared().array::<Slot>(ring_offset, ring_lines as usize) }.ok_or_else(full)?;
        // SAFETY: the mapping lives as long as the node, which the spec keeps.
        let lines = unsafe { Lines::new(ring, ring_lines) };
        let qp = node.add_qp(|qpn| {
            Arc::new(SoftQp {
                qpn,
                psn: Psn::new(random::u32()),
                state: AtomicU32::new(QpState::Init.code()),
                public,
                public_offset,
                ring_offset,
                ring_lines,
                send: SendQueue::new(spec.send_depth),
                sender: UnsafeCell::new(Sender::new()),
                carrier: AtomicU8::new(POSTER),
                progress: Mutex::new(()),
                receiver: receiver.with_ring(lines),
                claims,
                peer: OnceLock::new(),
                leaving: Mutex::new(None),
                settled: AtomicBool::new(false),
                spec,
            })
        });
        let view = qp.public();
        view.domain.store(qp.spec.domain, Ordering::Relaxed);
        view.access.store(qp.spec.access.bits(), Ordering::Relaxed);
        view.qkey.store(qp.spec.qkey, Ordering::Relaxed);
        let pause = u32::try_from(qp.spec.min_rnr_timer.as_micros()).unwrap_or(u32::MAX);
        view.rnr_timer_us.store(pause, Ordering::Relaxed);
        view.gate.store(gate(qp.qpn, QpState::Init.code()), Ordering::Release);
        let same = Arc::ptr_eq(&qp.spec.send_cq, &qp.spec.recv_cq);
        qp.spec.send_cq.join(&qp, true, same);
        if !same {
            qp.spec.recv_cq.join(&qp, false, true);
        }
        Ok(qp)
    }

    pub(crate) fn number(&self) -> u32 {
        self.qpn
    }

    pub(crate) fn qpn(&self) -> Qpn {
        Qpn(self.qpn)
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.spec.qp_type
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.spec.node
    }

    pub(crate) fn domain(&self) -> u64 {
        self.spec.domain
    }

    pub(crate) fn access(&self) -> Access {
        self.spec.access
    }

    pub(crate) fn recv_depth(&self) -> u32 {
        self.receiver.depth()
    }

    pub(crate) fn send_queue(&self) -> &SendQueue {
        &self.send
    }

    pub(crate) fn recv_bell(&self) -> &Arc<EventFd> {
        self.spec.recv_cq.bell()
    }

    #[inline(always)]
    pub(super) fn public(&self) -> &QpPublic {
        // SAFETY: mapped as long as the node lives, which the spec keeps.
        unsafe { self.public.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn hazard_word(&self) -> &AtomicU32 {
        &self.public().hazard.0
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> QpState {
        QpState::from_code(self.state.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn has_failed(&self) -> bool {
        self.state.load(Ordering::Acquire) == QpState::Err.code()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    pub(crate) fn address(&self) -> QpAddress {
        QpAddress {
            qp_type: self.spec.qp_type,
            qpn: self.qpn(),
            psn: self.psn,
            gid: self.spec.node.host().gid(),
            lid: 0,
            mtu: Mtu::B4096,
            qkey: self.spec.qkey,
            soft: Some(self.spec.node.address()),
        }
    }

    /// Where the parts of this queue pair lie, for peers.
    pub(crate) fn info(&self) -> QpInfo {
        let (receives, wqes, wqe_count) = match &self.spec.srq {
            Some(srq) => (srq.receives_offset(), srq.wqes().offset(), srq.wqes().count()),
            None => {
                let own = self.public_offset + std::mem::offset_of!(QpPublic, receives);
                let (offset, count) = self.receiver.wqe_ring().map_or((0, 1), |ring| (ring.offset(), ring.count()));
                (own, offset, count)
            }
        };
        let claims = match &self.spec.srq {
            Some(srq) => Some(srq.claim_info()),
            None => self.claims.as_ref().map(|table| table.info),
        };
        QpInfo {
            qpn: self.qpn,
            qp_type: self.spec.qp_type,
            public: self.public_offset,
            ring: self.ring_offset,
            ring_lines: self.ring_lines,
            receives,
            wqes,
            wqe_count,
            claims,
            cq: self.spec.recv_cq.offset(),
        }
    }

    /// Links to the peer and goes to RTR.
    pub(crate) fn connect(&self, address: &QpAddress) -> Result<(), ConnectError> {
        let (ours, theirs) = (self.spec.qp_type, address.qp_type);
        if ours != theirs || ours == QpType::Ud {
            return Err(ConnectError::TypeMismatch { ours, theirs });
        }
        check(ours, self.state(), QpState::Rtr)?;
        let soft = address.soft.as_ref().ok_or(ConnectError::NoRoute {
            why: "it is on a network, and this device reaches software devices of its own host only",
        })?;
        let link = self.spec.node.link_to(soft)?;
        let (info, bell) = link.query(address.qpn.0)?;
        if info.qpn != address.qpn.0 || info.qp_type != theirs {
            return Err(ConnectError::BadAnswer { why: "the peer's device speaks of another queue pair" });
        }
        let view = PeerView::new(link.clone(), &info, bell)?;
        let public = NonNull::from(view.public());
        self.public().peer_qpn.store(address.qpn.0, Ordering::Release);
        // SAFETY: nothing is posted before RTS, so nobody carries out requests yet; set-up is by one owner.
        unsafe { (*self.sender.get()).peer = Some(view) };
        let connected = Connected { link: link.clone(), node: link.peer(), qpn: address.qpn.0, public };
        if self.peer.set(connected).is_err() {
            return Err(ConnectError::BadAnswer { why: "the queue pair is connected already" });
        }
        self.modify(QpState::Rtr)?;
        // Had the peer died before it was entered above, nobody would tell this queue pair.
        if link.is_dead() {
            self.fail();
        }
        Ok(())
    }

    /// Changes the state, if the table allows it.
    pub(crate) fn modify(&self, to: QpState) -> Result<(), ModifyError> {
        let from = self.state();
        check(self.spec.qp_type, from, to)?;
        if to == QpState::Err {
            self.fail();
            return Ok(());
        }
        let moved = self.state.compare_exchange(from.code(), to.code(), Ordering::AcqRel, Ordering::Acquire);
        if moved.is_err() {
            return Err(ModifyError {
                qp_type: self.spec.qp_type,
                from: self.state(),
                to,
                detail: ": it failed meanwhile",
            });
        }
        self.public().gate.store(gate(self.qpn, to.code()), Ordering::Release);
        if self.has_failed() {
            self.public().gate.store(gate(self.qpn, QpState::Err.code()), Ordering::SeqCst);
        }
        Ok(())
    }

    pub(crate) fn is_peer(&self, node: NodeId) -> bool {
        self.peer.get().is_some_and(|peer| peer.node == node)
    }

    /// The piece of a posted receive that a peer may fill, as address and length.
    pub(crate) fn posted_piece(&self, receive: u32, piece: u32) -> Option<(u64, u64)> {
        let ring = match &self.spec.srq {
            Some(srq) => srq.is_outstanding(receive).then(|| srq.wqes())?,
            None => self.receiver.is_outstanding(receive).then(|| self.receiver.wqe_ring())??,
        };
        ring.piece(receive, piece)
    }

    /// Which wire carries the connection, and why.
    pub(crate) fn explain(&self) -> String {
        match self.peer.get() {
            None => "not connected".to_owned(),
            Some(peer) => {
                let where_ = if peer.link.is_local() { "in this process" } else { "in another process of this host" };
                let barrier = if peer.link.asymmetric() { "membarrier" } else { "fences" };
                format!(
                    "shm wire to queue pair {} of device {}: the peer is {where_} (same boot id and network \
                     namespace); messages up to {RING_INLINE} bytes travel in the ring; ordering by {barrier}",
                    Qpn(peer.qpn),
                    peer.node
                )
            }
        }
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        self.spec.node.remove_qp(self.qpn);
        let sender = self.sender.get_mut();
        sender.bounce_end();
        // Datagram senders come and go without a hazard of ours: their blocks are never used for anything else.
        if !self.is_settled() || self.claims.is_some() {
            if self.claims.is_none() {
                tracing::error!(qpn = %self.qpn(), "the peer sits in an access; the queue pair's memory is leaked");
                self.receiver.leak();
            }
            return;
        }
        let node = &self.spec.node;
        node.give_public(self.public_offset, size_of::<QpPublic>());
        node.give_shared(self.ring_offset, self.ring_lines as usize * size_of::<Slot>());
        if let Some(ring) = self.receiver.wqe_ring() {
            ring.free();
        }
    }
}

impl std::fmt::Debug for SoftQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftQp")
            .field("qpn", &self.qpn())
            .field("type", &self.spec.qp_type)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
