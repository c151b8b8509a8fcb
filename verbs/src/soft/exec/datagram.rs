//! Datagrams: any sender claims a receive of the target and fills it.

use std::sync::atomic::AtomicBool;

use super::message::{find, put, scatter};
use super::request::{Outcome, Own, Piece, Request, Wait};
use crate::address::NodeId;
use crate::error::GpuError;
use crate::memory::Spot;
use crate::qp::{Borrowed, GRH_BYTES};
use crate::soft::claims::NoClaim;
use crate::soft::control::Reach;
use crate::soft::entry::{Entry, FLAG_IMM, FLAG_SOLICITED, KIND_SEND, KIND_VOID};
use crate::soft::hazard::Hazard;
use crate::soft::layout::RecvWqe;
use crate::soft::peer::{PeerView, Receive};
use crate::soft::{barrier, vm};
use crate::status::WcStatus;
use crate::sync::Ordering;
use crate::types::Gid;

/// Where an address handle leads.
#[derive(Debug)]
pub(crate) struct UdTarget {
    view: PeerView,
    /// Protection domain of those who may send.
    domain: u64,
    qkey: u32,
    source: NodeId,
    gids: [Gid; 2],
    /// False once a datagram waited in vain, until the next is delivered.
    patient: AtomicBool,
}

/// The name under which a device claims receives: 31 bits of its number, never 0.
pub(crate) fn taker(node: NodeId) -> u32 {
    let [a, b, c, d, ..] = node.0;
    u32::from_le_bytes([a, b, c, d]) & 0x7fff_ffff | 1
}

impl UdTarget {
    /// The queue pair behind `view`, for senders of `domain`, from the device `source` to that with the second of `gids`.
    pub(crate) fn new(view: PeerView, domain: u64, qkey: u32, source: NodeId, gids: [Gid; 2]) -> Self {
        UdTarget { view, domain, qkey, source, gids, patient: AtomicBool::new(true) }
    }

    /// Sends one datagram; it succeeds whether or not it arrives.
    pub(crate) fn send(&self, own: &Own, hazard: &mut Hazard, request: &Request<'_>) -> Outcome {
        let len = request.len() as u32;
        hazard.enter_light(own.hazard);
        barrier::light(self.view.link.asymmetric());
        let fate = self.deliver(own, request, len);
        hazard.leave(own.hazard);
        match fate {
            Fate::Delivered { failed } => {
                self.view.wake(request.solicited || failed);
                if !self.patient.load(Ordering::Relaxed) {
                    self.patient.store(true, Ordering::Relaxed);
                }
            }
            Fate::NotYet if self.patient.load(Ordering::Relaxed) => return Outcome::Wait(Wait::Memory),
            Fate::NotYet | Fate::Dropped => {}
        }
        Outcome::Done(WcStatus::SUCCESS, len.into())
    }

    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// Datagrams that would have to wait are dropped, until one was delivered again: a target that is stopped holds up its
    /// senders once.
    pub(crate) fn lose_patience(&self) {
        self.patient.store(false, Ordering::Relaxed);
    }

    /// Claims a receive whose memory is within reach and fills it. Inside the hazard.
    fn deliver(&self, own: &Own, request: &Request<'_>, len: u32) -> Fate {
        let public = self.view.public();
        if !self.view.is_open() || public.qkey.load(Ordering::Relaxed) != self.qkey || self.view.link.is_over() {
            return Fate::Dropped;
        }
        let needed = u64::from(len) + GRH_BYTES as u64;
        let mut within = Within::Reach;
        let claimed = self.view.claim_now(taker(self.source), |wqe| {
            within = self.look(wqe, needed);
            within == Within::Reach
        });
        let receive = match claimed {
            Ok(receive) => receive,
            Err(NoClaim::Empty) if within == Within::Time => return Fate::NotYet,
            Err(NoClaim::Empty | NoClaim::Closed) => return Fate::Dropped,
        };
        let fits = needed <= u64::from(self.view.wqe(receive).total.load(Ordering::Relaxed));
        let place = Receive { index: receive, slot: receive };
        if !self.view.begin_filling(place) {
            return Fate::Dropped;
        }
        // A receive that is too short completes with a length error at its owner.
        let filled = !fits || self.fill(request, receive, len);
        self.view.end_filling(place);
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
        Fate::Delivered { failed: !fits || !filled }
    }

    /// Whether the first `needed` bytes of a posted receive can be written from here. Asked before the receive is claimed:
    /// whoever holds a claim holds up everybody behind.
    fn look(&self, wqe: &RecvWqe, needed: u64) -> Within {
        if needed > u64::from(wqe.total.load(Ordering::Relaxed)) {
            return Within::Reach; // nothing will be written
        }
        let mut left = needed;
        for piece in wqe.piece.iter().take(wqe.pieces.load(Ordering::Relaxed) as usize) {
            let len = left.min(piece.len.load(Ordering::Relaxed).into());
            if len == 0 {
                continue;
            }
            left -= len;
            match find(&self.view, (piece, 0), len) {
                (Reach::Mapped(..), _) => {}
                (Reach::Pending, _) => return Within::Time,
                (Reach::Unmapped, addr) if self.may_copy(addr) => {}
                (Reach::Unmapped, _) => return Within::Nothing,
            }
        }
        Within::Reach
    }

    /// Whether memory of the target at `addr`, which is not mapped here, can be written by system call: tried by reading.
    fn may_copy(&self, addr: u64) -> bool {
        let Some(pid) = self.view.link.vm_pid() else { return false };
        let mut byte = 0;
        // SAFETY: `byte` is writable.
        let tried = unsafe { vm::read(pid, &mut byte, addr, 1) };
        if let Err(error) = &tried
            && vm::is_refused(error)
        {
            self.view.link.vm_refused();
        }
        tried.is_ok()
    }

    /// Puts header and payload into a claimed receive. False if its memory can not be reached.
    fn fill(&self, request: &Request<'_>, receive: u32, len: u32) -> bool {
        let header = self.header(len, request.imm.is_some());
        let with = Borrowed { inline: Some(&header), ..Borrowed::default() };
        let head = Request::of_bytes(&with);
        let write = |to: (&_, u64), piece: Piece| {
            // SAFETY: the receive is claimed, so ours until its entry is placed, and in this process while it is marked,
            // whatever its owner is told; the pieces are posted memory.
            unsafe { put(&self.view, to, piece) }
        };
        let result = scatter(&self.view, receive, 0, &head, write)
            .and_then(|()| scatter(&self.view, receive, GRH_BYTES as u64, request, write));
        result.is_ok()
    }

    /// The global route header (InfiniBand architecture, volume 1, section 8.3).
    fn header(&self, len: u32, has_imm: bool) -> [u8; GRH_BYTES] {
        let mut header = [0; GRH_BYTES];
        header[0] = 0x60; // IP version 6
        // All behind it: base and datagram headers, immediate data, the padded payload, and the CRC.
        let behind = 12 + 8 + if has_imm { 4 } else { 0 } + len.next_multiple_of(4) + 4;
        header[4..6].copy_from_slice(&(behind as u16).to_be_bytes());
        header[6] = 0x1b; // next header: InfiniBand transport
        header[7] = 64; // hop limit
        header[8..24].copy_from_slice(&self.gids[0].0);
        header[24..40].copy_from_slice(&self.gids[1].0);
        header
    }
}

impl Request<'_> {
    /// Copies the local side, which is as long as `into`.
    ///
    /// # Errors
    /// What a GPU's driver says.
    pub(crate) fn copy_to(&self, into: &mut [u8]) -> Result<(), Box<GpuError>> {
        let failed = self.pieces(|offset, piece| {
            let to = Spot::host(into[offset..][..piece.len].as_mut_ptr());
            // SAFETY: as many bytes are there, and the piece is posted memory.
            unsafe { to.copy_from(piece.spot(), piece.len) }.err()
        });
        failed.map_or(Ok(()), Err)
    }
}

/// What becomes of a datagram.
enum Fate {
    /// It took a receive, which may have failed by it.
    Delivered {
        failed: bool,
    },
    Dropped,
    /// The target's memory is not mapped yet; its device was asked.
    NotYet,
}

/// Whether a receive's memory can be written from here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Reach,
    /// Once it is mapped.
    Time,
    Nothing,
}
