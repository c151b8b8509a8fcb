//! Making, connecting and changing the state of a queue pair; closing it when its owner drops it.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, OnceLock};

use super::core::{Connected, Leaving, POSTER, Seats, SoftQp};
use crate::QpAddress;
use crate::device::preferred_gid;
use crate::error::{ConnectError, CreateError, ModifyError};
use crate::qp::check;
use crate::soft::at::At;
use crate::soft::block::Block;
use crate::soft::control::Askers;
use crate::soft::cq_shared::{Entry, Seat};
use crate::soft::exec::Sender;
use crate::soft::home::Home;
use crate::soft::layout::{Identity, QpPublic};
use crate::soft::peer::PeerView;
use crate::soft::random;
use crate::soft::receiver::Receiver;
use crate::soft::rest::Rest;
use crate::soft::ring::{Lines, Slot};
use crate::soft::roce::NetworkGid;
use crate::soft::seen::{Answer, Seen};
use crate::soft::send_queue::SendQueue;
use crate::soft::spec::QpSpec;
use crate::soft::srq::ClaimTable;
use crate::sync::{AtomicU32, Ordering, fence};
use crate::types::{Mtu, Psn, QpState, QpType};

/// The owner of a queue pair: closes it when dropped.
#[derive(Debug)]
pub(crate) struct OwnedQp(Arc<SoftQp>);

impl OwnedQp {
    pub(crate) fn new(qp: Arc<SoftQp>) -> Self {
        OwnedQp(qp)
    }
}

impl std::ops::Deref for OwnedQp {
    type Target = Arc<SoftQp>;

    #[inline(always)]
    fn deref(&self) -> &Arc<SoftQp> {
        &self.0
    }
}

impl Drop for OwnedQp {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl SoftQp {
    pub(crate) fn new(spec: QpSpec) -> Result<Arc<Self>, CreateError> {
        let full = || CreateError::Exhausted { what: "queue pair" };
        let home = spec.node.home().clone();
        let place = place(&home, spec.options.port, spec.options.gid_index)?;
        if let Some(pkey) = spec.options.pkey.filter(|pkey| (pkey ^ DEFAULT_PKEY) << 1 != 0) {
            return Err(CreateError::NoPkey { port: spec.options.port, pkey, keys: vec![DEFAULT_PKEY] });
        }
        let most = place.as_ref().map_or(Mtu::B4096, |place| place.mtu);
        let mtu = spec.options.mtu.map_or(most, |mtu| mtu.min(most));
        let receiver = Receiver::new(&spec)?;
        let claims = if spec.options.qp_type == QpType::Ud {
            Some(ClaimTable::new(&home, receiver.ring_lines())?)
        } else {
            None
        };
        // SAFETY: `QpPublic` is made of atomics.
        let public = unsafe { Block::public(&home, 1) }.ok_or_else(full)?;
        // SAFETY: the ring's protocol rules all access to it.
        let ring = |lines| unsafe { Block::<Slot>::shared(&home, lines) };
        let ring = receiver.ring_lengths().find_map(ring).ok_or_else(full)?;
        if ring.count() < receiver.ring_lines() {
            let (lines, wanted) = (ring.count(), receiver.ring_lines());
            tracing::debug!(
                lines,
                wanted,
                "the device has little memory left: fewer messages may wait for a queue pair"
            );
        }
        // SAFETY: the queue pair keeps the block longer than the receiver.
        let lines = unsafe { Lines::new(ring.first(), ring.count()) };
        let seats = seats(&spec, &public).ok_or_else(full)?;
        let qp = home.add(|qpn| {
            Arc::new(SoftQp {
                who: Identity { qpn, life: random::u32().max(1) },
                psn: Psn::new(random::u32()),
                state: AtomicU32::new(QpState::Init.code()),
                public,
                ring,
                send: Arc::new(SendQueue::new(spec.options.send_depth)),
                sender: UnsafeCell::new(Sender::new()),
                carrier: AtomicU8::new(POSTER),
                progress: Mutex::new(()),
                seats,
                receiver: receiver.with_ring(lines),
                claims,
                askers: Askers::default(),
                peer: OnceLock::new(),
                place,
                mtu,
                net: OnceLock::new(),
                leaving: Mutex::new(Leaving::Inside),
                settled: AtomicBool::new(false),
                visits: Arc::default(),
                spec,
            })
        });
        let qp = qp.ok_or_else(full)?;
        let view = qp.public();
        view.domain.store(qp.spec.domain, Ordering::Relaxed);
        view.access.store(qp.spec.options.access.bits(), Ordering::Relaxed);
        view.qkey.store(qp.spec.options.qkey, Ordering::Relaxed);
        let pause = u32::try_from(qp.spec.options.min_rnr_timer.as_micros()).unwrap_or(u32::MAX);
        view.rnr_timer_us.store(pause, Ordering::Relaxed);
        view.gate.store(qp.who.gate(QpState::Init.code()), Ordering::Release);
        let Seats { send, recv } = &qp.seats;
        let same = Arc::ptr_eq(send, recv);
        let entry = |seat: &Arc<Seat>, sends, receives| Entry { qp: qp.clone(), seat: seat.clone(), sends, receives };
        qp.spec.send_cq.join(entry(send, true, same));
        if !same {
            qp.spec.recv_cq.join(entry(recv, false, true));
        }
        Ok(qp)
    }

    /// Links to the peer and goes to RTR. `found`: what the peer was asked before, if it was.
    pub(crate) fn connect(self: &Arc<Self>, address: &QpAddress, found: Option<Answer>) -> Result<(), ConnectError> {
        let (ours, theirs) = (self.spec.options.qp_type, address.qp_type);
        if ours != theirs || ours == QpType::Ud {
            return Err(ConnectError::TypeMismatch { ours, theirs });
        }
        check(ours, self.state(), QpState::Rtr)?;
        if !self.spec.node.is_here(address) {
            self.connect_by_network(address, found)?;
            return Ok(self.modify(QpState::Rtr)?);
        }
        let found = found.unwrap_or_else(|| self.spec.node.find(address))?;
        let Seen { link, info, rope, filler } = found.here()?;
        let view = PeerView::new(link.clone(), Some(self.who), &info, rope, filler)?;
        let public = NonNull::from(view.public());
        self.public().peer.store(info.who.word(), Ordering::Release);
        // SAFETY: nothing is posted before RTS, so nobody carries out requests yet; set-up is by one owner.
        unsafe { (*self.sender.get()).peer = Some(view) };
        let connected = Connected { link: link.clone(), node: link.peer(), who: info.who, public };
        if self.peer.set(connected).is_err() {
            return Err(ConnectError::BadAnswer { why: "the queue pair is connected already" });
        }
        // Who withdraws a key sees the peer, or the peer, whom the gate is opened to next, sees that the key is gone.
        fence(Ordering::SeqCst);
        self.modify(QpState::Rtr)?;
        // Had the link ended before the peer was entered above, nobody would tell this queue pair.
        if link.is_over() {
            self.fail();
        }
        Ok(())
    }

    /// Brings a datagram queue pair to RTS.
    pub(crate) fn activate(self: &Arc<Self>) -> Result<(), ConnectError> {
        self.spec.node.check()?;
        self.modify(QpState::Rtr)?;
        self.join_network();
        Ok(self.modify(QpState::Rts)?)
    }

    /// Changes the state, if the table allows it.
    pub(crate) fn modify(&self, to: QpState) -> Result<(), ModifyError> {
        let from = self.state();
        check(self.spec.options.qp_type, from, to)?;
        if to == QpState::Err {
            self.fail();
            return Ok(());
        }
        let moved = self.state.compare_exchange(from.code(), to.code(), Ordering::AcqRel, Ordering::Acquire);
        if moved.is_err() {
            return Err(ModifyError {
                qp_type: self.spec.options.qp_type,
                from: self.state(),
                to,
                detail: ": it failed meanwhile",
            });
        }
        // Unless it failed meanwhile: a gate that is closed stays so.
        let [before, after] = [from, to].map(|state| self.who.gate(state.code()));
        let _ = self.public().gate.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }
}

/// Places in the completion queues of a queue pair that is made.
fn seats(spec: &QpSpec, public: &Block<QpPublic>) -> Option<Seats> {
    let rest = |which: usize| {
        let offset = public.offset() + offset_of!(QpPublic, rests) + which * size_of::<Rest>();
        // SAFETY: the type is an atomic.
        unsafe { At::new(spec.node.home().public(), offset) }
    };
    let recv = spec.recv_cq.seat(rest(0)?);
    let same = Arc::ptr_eq(&spec.send_cq, &spec.recv_cq);
    let send = if same { recv.clone() } else { spec.send_cq.seat(rest(1)?) };
    Some(Seats { send, recv })
}

/// The address on the network that a row of the GID table stands for; by default the one that a port prefers. `None`: it is
/// the row of this host's shared memory.
fn place(home: &Home, port: u8, index: Option<u32>) -> Result<Option<NetworkGid>, CreateError> {
    let mut rows = home.network_gids();
    let index = match index {
        Some(index) => index,
        None => {
            let entries: Vec<_> = rows.iter().map(NetworkGid::entry).collect();
            preferred_gid(&entries, None).map_or(0, |row| row.index)
        }
    };
    match index.checked_sub(1) {
        None => Ok(None),
        Some(place) if (place as usize) < rows.len() => Ok(Some(rows.swap_remove(place as usize))),
        Some(_) => Err(CreateError::EmptyGid { port, index, rows: (0..=rows.len() as u32).collect() }),
    }
}

/// The partition that all ports are in, but for its uppermost bit.
const DEFAULT_PKEY: u16 = 0xffff;
