//! Access to this process's memory on behalf of a peer that can not reach it.

use super::link::Link;
use super::message::BounceOp;
use crate::error::GpuError;
use crate::gpu::Place;
use crate::memory::{Atomic, Spot};
use crate::soft::home::Home;
use crate::types::{Access, Rkey};

/// Carries out a bounce for a peer; the caller is inside the engine's hazard. `None` if it is refused.
pub(super) fn serve(home: &Home, link: &Link, op: BounceOp) -> Option<u64> {
    let granted = |qpn, rkey, addr, len: u32, right: Access| {
        let qp = home.member(qpn)?;
        let may = qp.is_peer(link.peer()) && qp.access().contains(right);
        home.keys().view().check(Rkey(rkey), addr, len.into(), right, qp.domain(), qpn).filter(|_| may)
    };
    let area = |slot: u32, len: u32| {
        // SAFETY: bytes have no invalid pattern.
        unsafe { link.shared().array::<u8>(slot as usize, len as usize) }.map(std::ptr::NonNull::as_ptr)
    };
    match op {
        BounceOp::Write { qpn, rkey, addr, len, slot } => {
            let grant = granted(qpn, rkey, addr, len, Access::REMOTE_WRITE)?;
            // SAFETY: the key grants `len` bytes at `addr` of this process until the engine's hazard is left.
            moved(unsafe { here(addr, grant.arena).copy_from(Spot::host(area(slot, len)?), len as usize) })
        }
        BounceOp::Read { qpn, rkey, addr, len, slot } => {
            let grant = granted(qpn, rkey, addr, len, Access::REMOTE_READ)?;
            // SAFETY: as above.
            moved(unsafe { Spot::host(area(slot, len)?).copy_from(here(addr, grant.arena), len as usize) })
        }
        BounceOp::Receive { qpn, receive, piece, offset, len, slot } => {
            let qp = home.member(qpn).filter(|qp| qp.is_peer(link.peer()))?;
            let (_filled, (to, room, arena)) = qp.fill(receive, piece)?;
            if u64::from(offset) + u64::from(len) > room {
                return None;
            }
            // The receive is posted. It stays so while it is marked, whatever the peer has its owner believe, and until the
            // engine's hazard is left, where the queue pair fails. The range was checked.
            let to = here(to + u64::from(offset), arena);
            // SAFETY: the receive has those bytes until then.
            moved(unsafe { to.copy_from(Spot::host(area(slot, len)?), len as usize) })
        }
        BounceOp::CompareSwap { qpn, rkey, addr, compare, swap } => {
            let grant = granted(qpn, rkey, addr, 8, Access::REMOTE_ATOMIC).filter(|_| addr.is_multiple_of(8))?;
            // SAFETY: the key grants 8 aligned bytes at `addr` until the engine's hazard is left.
            done(unsafe { here(addr, grant.arena).atomic(Atomic::CompareSwap(compare, swap)) })
        }
        BounceOp::FetchAdd { qpn, rkey, addr, add } => {
            let grant = granted(qpn, rkey, addr, 8, Access::REMOTE_ATOMIC).filter(|_| addr.is_multiple_of(8))?;
            // SAFETY: as above.
            done(unsafe { here(addr, grant.arena).atomic(Atomic::FetchAdd(add)) })
        }
    }
}

/// An address of this process, in an arena of that number.
fn here(addr: u64, arena: u32) -> Spot {
    Spot::new(addr as *mut u8, Place::of_arena(arena))
}

/// What is answered to the peer once bytes were moved.
fn moved(moved: Result<(), Box<GpuError>>) -> Option<u64> {
    done(moved.map(|()| 0))
}

/// What is answered to the peer.
fn done(result: Result<u64, Box<GpuError>>) -> Option<u64> {
    result.inspect_err(|error| tracing::error!(%error, "GPU memory was not accessed for a peer")).ok()
}
