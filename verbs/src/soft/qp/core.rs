//! A queue pair of the software device: its parts, and what they say of it.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, OnceLock};

use super::on_network::OnNetwork;
use crate::QpAddress;
use crate::address::NodeId;
use crate::error::ConnectError;
use crate::qp::Target;
use crate::soft::bell::Rope;
use crate::soft::block::Block;
use crate::soft::control::{Askers, Link};
use crate::soft::cq_shared::Seat;
use crate::soft::entry::RING_INLINE;
use crate::soft::exec::Sender;
use crate::soft::hazard::Sighting;
use crate::soft::home::Home;
use crate::soft::layout::{Identity, QpPublic};
use crate::soft::receiver::Receiver;
use crate::soft::ring::Slot;
use crate::soft::roce::NetworkGid;
use crate::soft::seen::Answer;
use crate::soft::send_queue::SendQueue;
use crate::soft::spec::QpSpec;
use crate::soft::srq::{ClaimTable, SoftSrq};
use crate::soft::switches::no_shared_memory;
use crate::soft::ud::resolve;
use crate::soft::withdrawal::PeerSighting;
use crate::sync::{AtomicU32, Ordering};
use crate::types::{Mtu, Psn, QpState, QpType, Qpn};

/// A queue pair.
///
/// Three parties use it: the poster (the owner of `QueuePair`, by `&mut`), the pollers (the owners of its completion
/// queues), and the control thread. Requests are carried out by the poster; once one has to wait, by whoever holds
/// `progress`, until none waits.
pub(crate) struct SoftQp {
    pub(super) spec: QpSpec,
    pub(super) who: Identity,
    pub(super) psn: Psn,
    pub(super) state: AtomicU32,
    pub(super) public: Block<QpPublic>,
    pub(super) ring: Block<Slot>,
    pub(super) send: Arc<SendQueue>,
    pub(super) sender: UnsafeCell<Sender>,
    /// [`POSTER`], [`PROGRESS`] or [`NETWORK`]: who carries requests out.
    pub(super) carrier: AtomicU8,
    pub(super) progress: Mutex<()>,
    pub(super) seats: Seats,
    pub(super) receiver: Receiver,
    pub(super) claims: Option<ClaimTable>,
    /// Who may send it datagrams.
    pub(super) askers: Askers,
    pub(super) peer: OnceLock<Connected>,
    /// Its address on the network, unless that is of this host's shared memory alone.
    pub(super) place: Option<NetworkGid>,
    /// Greatest path MTU that it takes.
    pub(super) mtu: Mtu,
    pub(super) net: OnceLock<OnNetwork>,
    /// Who may be inside our memory still.
    pub(super) leaving: Mutex<Leaving>,
    /// [`Leaving::Left`]: receives may be flushed and memory freed.
    pub(super) settled: AtomicBool,
    /// Looks of its device at it that are under way.
    pub(super) visits: Arc<AtomicU32>,
}

// SAFETY: `sender` is used by the poster while `carrier` is POSTER, else under `progress`; `public` names atomics in a
// mapping that the node keeps; the receiver's contract is its own.
unsafe impl Send for SoftQp {}
// SAFETY: as above.
unsafe impl Sync for SoftQp {}

/// Its places in its completion queues; one and the same where that is one.
pub(super) struct Seats {
    pub(super) send: Arc<Seat>,
    pub(super) recv: Arc<Seat>,
}

/// How far a queue pair is with failing.
#[derive(Debug)]
pub(super) enum Leaving {
    /// It has not failed, or is about to: nobody was looked at yet.
    Inside,
    /// It has failed: the peer, and the control thread as initiator on behalf of peers, as seen when nobody could enter
    /// any more.
    Seen(Option<PeerSighting>, Sighting),
    /// Nobody is in our memory any more.
    Left,
}

/// The other end, once connected.
pub(super) struct Connected {
    pub(super) link: Arc<Link>,
    pub(super) node: NodeId,
    pub(super) who: Identity,
    pub(super) public: NonNull<QpPublic>,
}

pub(super) const POSTER: u8 = 0;
pub(super) const PROGRESS: u8 = 1;
/// The protocol of the network, for good.
pub(super) const NETWORK: u8 = 2;

impl SoftQp {
    pub(crate) fn number(&self) -> u32 {
        self.who.qpn
    }

    pub(crate) fn qpn(&self) -> Qpn {
        Qpn(self.who.qpn)
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.spec.options.qp_type
    }

    /// The device that it is of.
    pub(crate) fn device(&self) -> NodeId {
        self.home().id()
    }

    pub(super) fn home(&self) -> &Arc<Home> {
        self.spec.node.home()
    }

    pub(crate) fn domain(&self) -> u64 {
        self.spec.domain
    }

    /// Receives that its own queue holds; 0 with a shared one.
    pub(crate) fn own_recv_depth(&self) -> u32 {
        self.receiver.own_depth()
    }

    pub(crate) fn shared_receives(&self) -> Option<&Arc<SoftSrq>> {
        self.spec.srq.as_ref()
    }

    pub(crate) fn send_queue(&self) -> &Arc<SendQueue> {
        &self.send
    }

    pub(super) fn recv_rope(&self) -> &Rope {
        self.spec.recv_cq.bell().rope()
    }

    #[inline(always)]
    pub(super) fn public(&self) -> &QpPublic {
        self.public.get()
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
    pub(crate) fn has_failed(&self) -> bool {
        self.state.load(Ordering::Acquire) == QpState::Err.code()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// The way that datagrams take to a peer. `found`: what the peer was asked before, if it was.
    pub(crate) fn target(&self, peer: &QpAddress, found: Option<Answer>) -> Result<Target, ConnectError> {
        if self.spec.node.is_here(peer) {
            let target = resolve(&self.spec.node, self.spec.domain, peer, found)?;
            Ok(Target::Soft(Arc::new(target)))
        } else {
            Ok(Target::Network(Arc::new(self.network_target(peer, found)?)))
        }
    }

    pub(crate) fn address(&self) -> QpAddress {
        QpAddress {
            qp_type: self.spec.options.qp_type,
            qpn: self.qpn(),
            psn: self.psn,
            gid: self
                .net
                .get()
                .map(|on| &on.place)
                .or(self.place.as_ref())
                .map_or_else(|| self.home().host().gid(), NetworkGid::gid),
            lid: 0,
            mtu: self.mtu,
            qkey: self.spec.options.qkey,
            max_rd_atomic: self.max_reads(),
            ece: None,
            soft: (!no_shared_memory()).then(|| self.home().address()),
        }
    }

    /// A glance at the peer's hazard.
    pub(super) fn sight_peer(&self) -> Option<PeerSighting> {
        let peer = self.peer.get()?;
        let (memory, dead) = (peer.link.public().clone(), peer.link.dead_flag().clone());
        // SAFETY: what the peer shows lies in its public mapping.
        Some(unsafe { PeerSighting::take(memory, dead, peer.public, peer.who) })
    }

    /// Which wire carries the connection, and why.
    pub(crate) fn explain(&self) -> String {
        match self.peer.get() {
            None => self.explain_network().unwrap_or_else(|| "not connected".to_owned()),
            Some(peer) => {
                let where_ = if peer.link.is_local() { "in this process" } else { "in another process of this host" };
                let barrier = if peer.link.asymmetric() { "membarrier" } else { "fences" };
                format!(
                    "shm wire to queue pair {} of device {}: the peer is {where_} (same boot id and network \
                     namespace); messages up to {RING_INLINE} bytes travel in the ring; ordering by {barrier}",
                    Qpn(peer.who.qpn),
                    peer.node
                )
            }
        }
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        self.home().remove(self.who.qpn, self);
        let sender = self.sender.get_mut();
        sender.bounce_end();
        if let Some(srq) = self.spec.srq.as_ref().filter(|_| self.is_settled()) {
            // Its number is not another's yet: closed ones are not given out again for long.
            srq.take_back(self.number());
        }
        if !self.is_settled() {
            self.receiver.leak();
            self.receiver.keep();
            self.public.keep();
            self.ring.keep();
            std::mem::forget(self.claims.take());
            // Only now: what logs for the program may panic.
            tracing::error!(qpn = %self.qpn(), "a peer sits in an access; the queue pair's memory is leaked");
        } else if let Some(claims) = self.claims.take() {
            let blocks = (claims, self.receiver.hand_over(), self.public.hand_over(), self.ring.hand_over());
            self.spec.node.retire(Box::new(blocks), std::mem::take(&mut self.askers));
        }
    }
}

impl std::fmt::Debug for SoftQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftQp")
            .field("qpn", &self.qpn())
            .field("type", &self.spec.options.qp_type)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
