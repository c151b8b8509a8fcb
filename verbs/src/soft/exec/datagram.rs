//! Datagrams: any sender claims a receive of the target and fills it.

use super::message::{NotPut, put, scatter};
use super::request::{Outcome, Own, Piece, Request};
use crate::address::NodeId;
use crate::memory::Local;
use crate::qp::{Borrowed, GRH_BYTES, Op};
use crate::soft::barrier;
use crate::soft::claims::NoClaim;
use crate::soft::hazard::Hazard;
use crate::soft::layout::gate;
use crate::soft::peer::PeerView;
use crate::soft::ring::{Entry, FLAG_IMM, FLAG_SOLICITED, KIND_SEND, KIND_VOID};
use crate::status::WcStatus;
use crate::sync::Ordering;
use crate::types::{Gid, QpState};

/// Where an address handle leads.
#[derive(Debug)]
pub(crate) struct UdTarget {
    view: PeerView,
    qkey: u32,
    source: NodeId,
    gids: [Gid; 2],
}

/// The name under which a device claims receives: 31 bits of its number, never 0.
pub(crate) fn taker(node: NodeId) -> u32 {
    let [a, b, c, d, ..] = node.0;
    u32::from_le_bytes([a, b, c, d]) & 0x7fff_ffff | 1
}

impl UdTarget {
    /// The queue pair behind `view`, from the device `source` to that with the second of `gids`.
    pub(crate) fn new(view: PeerView, qkey: u32, source: NodeId, gids: [Gid; 2]) -> Self {
        UdTarget { view, qkey, source, gids }
    }

    /// Sends one datagram; it succeeds whether or not it arrives.
    pub(crate) fn send(&self, own: &Own, hazard: &mut Hazard, request: &Request<'_>) -> Outcome {
        let len = request.len() as u32;
        hazard.enter_light(own.hazard);
        barrier::light(self.view.link.asymmetric());
        let delivered = self.deliver(own, hazard, request, len);
        hazard.leave(own.hazard);
        if delivered {
            self.view.wake(request.solicited);
        }
        Outcome::Done(WcStatus::SUCCESS, len)
    }

    /// Claims a receive and fills it. False if the datagram was dropped. Inside the hazard.
    fn deliver(&self, own: &Own, hazard: &mut Hazard, request: &Request<'_>, len: u32) -> bool {
        let public = self.view.public();
        let word = public.gate.load(Ordering::Acquire);
        let open = [QpState::Rtr, QpState::Rts].map(|state| gate(self.view.qpn, state.code())).contains(&word);
        if !open || public.qkey.load(Ordering::Relaxed) != self.qkey || self.view.link.is_dead() {
            return false;
        }
        let receive = match self.view.claim_now(taker(self.source)) {
            Ok(receive) => receive,
            Err(NoClaim::Empty | NoClaim::Closed) => return false,
        };
        let needed = u64::from(len) + GRH_BYTES as u64;
        let fits = needed <= u64::from(self.view.wqe(receive).total.load(Ordering::Relaxed));
        // A receive that is too short completes with a length error at its owner.
        let filled = !fits || self.fill(own, hazard, request, receive, len);
        let mut flags = if request.solicited { FLAG_SOLICITED } else { 0 };
        flags |= if request.imm.is_some() { FLAG_IMM } else { 0 };
        let entry = Entry {
            kind: if filled { KIND_SEND } else { KIND_VOID },
            flags,
            byte_len: len,
            imm: request.imm.unwrap_or(0),
            receive,
            src_qpn: own.qpn,
            ..Entry::default()
        };
        self.view.lines.place(receive, entry);
        true
    }

    /// Puts header and payload into a claimed receive. False if its memory can not be reached.
    fn fill(&self, own: &Own, hazard: &mut Hazard, request: &Request<'_>, receive: u32, len: u32) -> bool {
        let header = self.header(len);
        let op = Op::Send { invalidate: None };
        let head = Request {
            op: &op,
            local: &Local::None,
            range: None,
            with: &Borrowed { inline: Some(&header), to: None },
            imm: None,
            solicited: false,
        };
        for _ in 0..MAP_ATTEMPTS {
            let write = |to: (&_, u64), piece: Piece| {
                // SAFETY: the receive is claimed, so ours until its entry is placed; the pieces are posted memory.
                unsafe { put(&self.view, to, piece.ptr, piece.len) }
            };
            let result = scatter(&self.view, receive, 0, &head, write)
                .and_then(|()| scatter(&self.view, receive, GRH_BYTES as u64, request, write));
            match result {
                Ok(()) => return true,
                Err(NotPut::Pending) => {
                    // First use of the target's memory: its device sends the mapping. Outside the hazard, so that
                    // nobody waits for us.
                    hazard.leave(own.hazard);
                    std::thread::sleep(MAP_PAUSE);
                    hazard.enter_light(own.hazard);
                    barrier::light(self.view.link.asymmetric());
                }
                Err(NotPut::Bounce | NotPut::Fault) => return false,
            }
        }
        false
    }

    /// The global route header (InfiniBand architecture, volume 1, section 8.3).
    fn header(&self, len: u32) -> [u8; GRH_BYTES] {
        let mut header = [0; GRH_BYTES];
        header[0] = 0x60; // IP version 6
        header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        header[6] = 0x1b; // next header: InfiniBand transport
        header[7] = 64; // hop limit
        header[8..24].copy_from_slice(&self.gids[0].0);
        header[24..40].copy_from_slice(&self.gids[1].0);
        header
    }
}

const MAP_ATTEMPTS: u32 = 2000;
const MAP_PAUSE: std::time::Duration = std::time::Duration::from_micros(50);
