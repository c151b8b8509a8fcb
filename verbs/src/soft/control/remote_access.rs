//! Access to this process's memory on behalf of a peer that can not reach it.

use super::link::Link;
use super::message::BounceOp;
use crate::error::GpuError;
use crate::gpu::Place;
use crate::memory::{Atomic, Spot};
use crate::soft::exec::AREA;
use crate::soft::home::Home;
use crate::soft::layout::FaultKind;
use crate::types::{Access, Rkey};

/// Carries out a bounce for a peer; the caller is inside the engine's hazard.
pub(super) fn serve(home: &Home, link: &Link, op: BounceOp) -> Result<u64, FaultKind> {
    let granted = |qpn, rkey, addr, len: u32, right: Access| {
        let qp = home.member(qpn).ok_or(FaultKind::Access)?;
        // One that fails waits for the engine's hazard, and for nobody who comes later.
        let may = qp.is_peer(link.peer()) && qp.access().contains(right) && !qp.is_failed();
        let grant = home.keys().view().check(Rkey(rkey), addr, len.into(), right, qp.domain(), qpn);
        grant.filter(|_| may).ok_or(FaultKind::Access)
    };
    let area = |slot: u32, len: u32| {
        // No more than a slot at once, however much is shared: others wait for it.
        if len as usize > AREA {
            return Err(FaultKind::Request);
        }
        // SAFETY: bytes have no invalid pattern.
        let found = unsafe { link.shared().array::<u8>(slot as usize, len as usize) };
        found.map(std::ptr::NonNull::as_ptr).ok_or(FaultKind::Access)
    };
    match op {
        BounceOp::Write { qpn, rkey, addr, len, slot } => {
            let from = Spot::host(area(slot, len)?);
            let grant = granted(qpn, rkey, addr, len, Access::REMOTE_WRITE)?;
            // SAFETY: the key grants `len` bytes at `addr` of this process until the engine's hazard is left.
            moved(unsafe { here(addr, grant.arena).copy_from(from, len as usize) })
        }
        BounceOp::Read { qpn, rkey, addr, len, slot } => {
            let into = Spot::host(area(slot, len)?);
            let grant = granted(qpn, rkey, addr, len, Access::REMOTE_READ)?;
            // SAFETY: as above.
            moved(unsafe { into.copy_from(here(addr, grant.arena), len as usize) })
        }
        BounceOp::Receive { qpn, receive, piece, offset, len, slot } => {
            let from = Spot::host(area(slot, len)?);
            let qp = home.member(qpn).filter(|qp| qp.is_peer(link.peer())).ok_or(FaultKind::Access)?;
            let (_filled, (to, room, arena)) = qp.fill(receive, piece).ok_or(FaultKind::Access)?;
            if u64::from(offset) + u64::from(len) > room {
                return Err(FaultKind::Access);
            }
            // The receive is posted. It stays so while it is marked, whatever the peer has its owner believe, and until the
            // engine's hazard is left, where the queue pair fails. The range was checked.
            let to = here(to + u64::from(offset), arena);
            // SAFETY: the receive has those bytes until then.
            moved(unsafe { to.copy_from(from, len as usize) })
        }
        BounceOp::CompareSwap { qpn, rkey, addr, compare, swap } => {
            let grant = granted(qpn, rkey, aligned(addr)?, 8, Access::REMOTE_ATOMIC)?;
            // SAFETY: the key grants 8 aligned bytes at `addr` until the engine's hazard is left.
            done(unsafe { here(addr, grant.arena).atomic(Atomic::CompareSwap(compare, swap)) })
        }
        BounceOp::FetchAdd { qpn, rkey, addr, add } => {
            let grant = granted(qpn, rkey, aligned(addr)?, 8, Access::REMOTE_ATOMIC)?;
            // SAFETY: as above.
            done(unsafe { here(addr, grant.arena).atomic(Atomic::FetchAdd(add)) })
        }
    }
}

/// An address of this process, in an arena of that number.
fn here(addr: u64, arena: u32) -> Spot {
    Spot::new(addr as *mut u8, Place::of_arena(arena))
}

/// The address of a word, if it is one.
fn aligned(addr: u64) -> Result<u64, FaultKind> {
    if addr.is_multiple_of(8) { Ok(addr) } else { Err(FaultKind::Access) }
}

/// What is answered to the peer once bytes were moved.
fn moved(moved: Result<(), Box<GpuError>>) -> Result<u64, FaultKind> {
    done(moved.map(|()| 0))
}

/// What is answered to the peer.
fn done(result: Result<u64, Box<GpuError>>) -> Result<u64, FaultKind> {
    result.map_err(|error| {
        tracing::error!(%error, "GPU memory was not accessed for a peer");
        FaultKind::Operation
    })
}

#[cfg(test)]
mod tests {
    use super::super::message::Message;
    use super::super::socket::pair;
    use super::super::{greet, listen};
    use super::*;

    #[test]
    fn a_peer_moves_no_more_than_a_slot_at_once() {
        let (home, peer) = (Home::new().unwrap(), Home::new().unwrap());
        let _door = listen(peer.id()).unwrap();
        let (ours, theirs) = pair();
        theirs.send(&Message::hello(peer.id()), &peer.mappings()).unwrap();
        let link = greet(&home, ours).expect("it is a greeting").link;
        let (qpn, rkey, addr, slot) = (9, 9, 0, 0);
        for (len, fault) in [(AREA as u32, FaultKind::Access), (AREA as u32 + 1, FaultKind::Request)] {
            let ops = [
                BounceOp::Write { qpn, rkey, addr, len, slot },
                BounceOp::Read { qpn, rkey, addr, len, slot },
                BounceOp::Receive { qpn, receive: 0, piece: 0, offset: 0, len, slot },
            ];
            for op in ops {
                assert_eq!(serve(&home, &link, op), Err(fault), "there is no such queue pair, and no room for more");
            }
        }
    }
}
