//! The two ways to hand a request to a provider: a structure by `ibv_post_send`, or call by call (`ibv_wr_*`), which spares
//! the provider to take the structure apart.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

use qpair_verbs_sys as sys;

use crate::ibv::ah::Ah;
use crate::ibv::handle::outcome;
use crate::ibv::pieces::Pieces;
use crate::memory::RemoteSlice;
use crate::qp::Op;
use crate::types::{QpType, Rkey};

/// How a queue pair is posted to.
pub(super) enum Submit {
    Plain(sys::HotOps),
    Extended(Extended),
}

/// What a request says beside its operation and its data.
pub(super) struct Submission<'a> {
    pub(super) wr_id: u64,
    pub(super) flags: u32,
    pub(super) imm: Option<u32>,
    pub(super) invalidate: Option<Rkey>,
    pub(super) to: Option<&'a Ah>,
}

/// The local side of a request. Where it is inline the request's flags say so too, in both ways: a provider may go by them alone
/// (libbnxt_re).
pub(super) enum Data<'a> {
    Inline(&'a [u8]),
    Pieces(&'a Pieces),
}

/// The calls of an extended queue pair, found present.
pub(super) struct Extended {
    qp: NonNull<sys::ibv_qp_ex>,
    start: Call,
    complete: unsafe extern "C" fn(*mut sys::ibv_qp_ex) -> i32,
    send: Call,
    send_imm: CallWith,
    send_inv: Option<CallWith>,
    write: Option<CallRemote>,
    write_imm: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u32)>,
    read: Option<CallRemote>,
    compare_swap: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u64, u64)>,
    fetch_add: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u64)>,
    bind: Option<Bind>,
    local_inv: Option<CallWith>,
    set_ud_addr: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, *mut sys::ibv_ah, u32, u32)>,
    set_sge: unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, u32),
    set_sge_list: unsafe extern "C" fn(*mut sys::ibv_qp_ex, usize, *const sys::ibv_sge),
    set_inline: unsafe extern "C" fn(*mut sys::ibv_qp_ex, *mut std::ffi::c_void, usize),
}

type Call = unsafe extern "C" fn(*mut sys::ibv_qp_ex);
type CallWith = unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32);
type CallRemote = unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64);
type Bind = unsafe extern "C" fn(*mut sys::ibv_qp_ex, *mut sys::ibv_mw, u32, *const sys::ibv_mw_bind_info);

impl Submit {
    /// The operations to ask an extended queue pair for.
    pub(super) fn operations(qp_type: QpType) -> u64 {
        let send = sys::IBV_QP_EX_WITH_SEND | sys::IBV_QP_EX_WITH_SEND_WITH_IMM;
        let write = sys::IBV_QP_EX_WITH_RDMA_WRITE | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        let rest = sys::IBV_QP_EX_WITH_RDMA_READ
            | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
            | sys::IBV_QP_EX_WITH_LOCAL_INV
            | sys::IBV_QP_EX_WITH_BIND_MW
            | sys::IBV_QP_EX_WITH_SEND_WITH_INV;
        u64::from(match qp_type {
            QpType::Rc => send | write | rest,
            QpType::Uc => send | write,
            QpType::Ud => send,
        })
    }

    /// The calls of a queue pair that was made with these operations; `None` if some are absent.
    ///
    /// # Safety
    /// `qp` is alive, and was made by `ibv_create_qp_ex` with [`operations`](Submit::operations) of its type.
    pub(super) unsafe fn extended(library: &sys::Ibverbs, qp: NonNull<sys::ibv_qp>, qp_type: QpType) -> Option<Self> {
        let convert = library.ibv_qp_to_qp_ex().ok()?;
        // SAFETY: alive, by the caller.
        let qp = NonNull::new(unsafe { convert(qp.as_ptr()) })?;
        // SAFETY: alive, by the caller; its calls are set once and for all.
        let calls = unsafe { qp.as_ref() };
        let connected = qp_type != QpType::Ud;
        let reliable = qp_type == QpType::Rc;
        Some(Submit::Extended(Extended {
            qp,
            start: calls.wr_start?,
            complete: calls.wr_complete?,
            send: calls.wr_send?,
            send_imm: calls.wr_send_imm?,
            send_inv: needed(calls.wr_send_inv, reliable)?,
            write: needed(calls.wr_rdma_write, connected)?,
            write_imm: needed(calls.wr_rdma_write_imm, connected)?,
            read: needed(calls.wr_rdma_read, reliable)?,
            compare_swap: needed(calls.wr_atomic_cmp_swp, reliable)?,
            fetch_add: needed(calls.wr_atomic_fetch_add, reliable)?,
            bind: needed(calls.wr_bind_mw, reliable)?,
            local_inv: needed(calls.wr_local_inv, reliable)?,
            set_ud_addr: needed(calls.wr_set_ud_addr, !connected)?,
            set_sge: calls.wr_set_sge?,
            set_sge_list: calls.wr_set_sge_list?,
            set_inline: calls.wr_set_inline_data?,
        }))
    }

    /// The function's name, for people.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Submit::Plain(_) => "ibv_post_send",
            Submit::Extended(_) => "ibv_wr_*",
        }
    }

    /// Hands one request that moves data to the device.
    ///
    /// # Errors
    /// What the device says.
    ///
    /// # Safety
    /// `qp` is the queue pair that this is for, alive and used by no other thread; the pieces are of memory that the device
    /// may use until the request is done.
    #[inline(always)]
    pub(super) unsafe fn request(
        &self,
        qp: NonNull<sys::ibv_qp>,
        op: &Op,
        submission: &Submission<'_>,
        data: &Data<'_>,
    ) -> io::Result<()> {
        match self {
            // SAFETY: passed on to the caller.
            Submit::Plain(ops) => unsafe { post_plain(ops, qp, op, submission, data) },
            // SAFETY: as above.
            Submit::Extended(calls) => unsafe { calls.post(op, submission, data) },
        }
    }

    /// Hands a request over that withdraws a key of this side's.
    ///
    /// # Safety
    /// As [`request`](Submit::request).
    pub(super) unsafe fn invalidate(
        &self,
        qp: NonNull<sys::ibv_qp>,
        wr_id: u64,
        flags: u32,
        rkey: Rkey,
    ) -> io::Result<()> {
        match self {
            Submit::Plain(ops) => {
                let mut wr = plain(wr_id, flags, sys::IBV_WR_LOCAL_INV);
                wr.__bindgen_anon_1.invalidate_rkey = rkey.0;
                // SAFETY: passed on to the caller.
                unsafe { post_one(ops, qp, &mut wr) }
            }
            Submit::Extended(calls) => {
                let local_inv = calls.local_inv.ok_or_else(absent)?;
                // SAFETY: as above.
                unsafe { calls.one(wr_id, flags, |qp| local_inv(qp, rkey.0)) }
            }
        }
    }

    /// Hands a request over that binds a window.
    ///
    /// # Safety
    /// As [`request`](Submit::request); window and region are alive.
    pub(super) unsafe fn bind(
        &self,
        qp: NonNull<sys::ibv_qp>,
        wr_id: u64,
        flags: u32,
        (mw, rkey): (*mut sys::ibv_mw, Rkey),
        bind: &sys::ibv_mw_bind_info,
    ) -> io::Result<()> {
        match self {
            Submit::Plain(ops) => {
                let mut wr = plain(wr_id, flags, sys::IBV_WR_BIND_MW);
                let bind_mw = sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey: rkey.0, bind_info: *bind };
                wr.__bindgen_anon_2.bind_mw = bind_mw;
                // SAFETY: passed on to the caller.
                unsafe { post_one(ops, qp, &mut wr) }
            }
            Submit::Extended(calls) => {
                let call = calls.bind.ok_or_else(absent)?;
                // SAFETY: as above.
                unsafe { calls.one(wr_id, flags, |qp| call(qp, mw, rkey.0, bind)) }
            }
        }
    }
}

impl Extended {
    /// One request that has no data.
    ///
    /// # Safety
    /// As [`Submit::request`].
    unsafe fn one(&self, wr_id: u64, flags: u32, call: impl FnOnce(*mut sys::ibv_qp_ex)) -> io::Result<()> {
        let qp = self.qp.as_ptr();
        // SAFETY: alive and ours, by the caller.
        unsafe {
            (self.start)(qp);
            (*qp).wr_id = wr_id;
            (*qp).wr_flags = flags;
        }
        call(qp);
        // SAFETY: as above; one request was begun.
        outcome(unsafe { (self.complete)(qp) })
    }

    /// # Safety
    /// As [`Submit::request`].
    #[inline(always)]
    unsafe fn post(&self, op: &Op, submission: &Submission<'_>, data: &Data<'_>) -> io::Result<()> {
        if !self.has(op, submission) {
            return Err(absent());
        }
        // SAFETY: passed on to the caller. Each call below is of a request that was begun, in the order that the library
        // asks for: operation, address, data.
        unsafe {
            self.one(submission.wr_id, submission.flags, |qp| {
                self.operation(qp, op, submission);
                if let (Some(to), Some(set)) = (submission.to, self.set_ud_addr) {
                    let (ah, qpn, qkey) = datagram(to);
                    set(qp, ah, qpn, qkey);
                }
                match data {
                    Data::Inline(data) => (self.set_inline)(qp, data.as_ptr().cast_mut().cast(), data.len()),
                    Data::Pieces(Pieces { pieces: [only, ..], count: 1 }) => {
                        (self.set_sge)(qp, only.lkey, only.addr, only.length);
                    }
                    Data::Pieces(list) => (self.set_sge_list)(qp, list.count as usize, list.pieces.as_ptr()),
                }
            })
        }
    }

    /// One request of one piece, a SEND, a WRITE or a READ; what the device says.
    ///
    /// # Safety
    /// As [`Submit::request`].
    #[inline(always)]
    pub(super) unsafe fn post_short(
        &self,
        opcode: u32,
        (remote_addr, rkey): (u64, u32),
        (wr_id, flags): (u64, u32),
        piece: &sys::ibv_sge,
        inline: Option<&[u8]>,
    ) -> i32 {
        let qp = self.qp.as_ptr();
        // SAFETY: passed on to the caller; in the order that the library asks for: operation, data.
        unsafe {
            (self.start)(qp);
            (*qp).wr_id = wr_id;
            (*qp).wr_flags = flags;
            match (opcode, self.write, self.read) {
                (sys::IBV_WR_RDMA_WRITE, Some(write), _) => write(qp, rkey, remote_addr),
                (sys::IBV_WR_RDMA_READ, _, Some(read)) => read(qp, rkey, remote_addr),
                _ => (self.send)(qp),
            }
            match inline {
                Some(data) => (self.set_inline)(qp, data.as_ptr().cast_mut().cast(), data.len()),
                None => (self.set_sge)(qp, piece.lkey, piece.addr, piece.length),
            }
            (self.complete)(qp)
        }
    }

    /// Whether there is a call for the operation; a request without one would be begun and hold nothing.
    #[inline(always)]
    fn has(&self, op: &Op, submission: &Submission<'_>) -> bool {
        match (op, submission.imm, submission.invalidate) {
            (Op::Send, None, Some(_)) => self.send_inv.is_some(),
            (Op::Write(_), Some(_), _) => self.write_imm.is_some(),
            (Op::Write(_), None, _) => self.write.is_some(),
            (Op::Read(_), ..) => self.read.is_some(),
            (Op::CompareSwap { .. }, ..) => self.compare_swap.is_some(),
            (Op::FetchAdd { .. }, ..) => self.fetch_add.is_some(),
            (Op::Send, ..) => submission.to.is_none() || self.set_ud_addr.is_some(),
            (Op::ReadReduce(..) | Op::Bind { .. } | Op::Invalidate(_), ..) => false,
        }
    }

    /// # Safety
    /// As [`Submit::request`], with a request begun that there is a [call](Extended::has) for.
    #[inline(always)]
    unsafe fn operation(&self, qp: *mut sys::ibv_qp_ex, op: &Op, submission: &Submission<'_>) {
        // SAFETY: passed on to the caller.
        unsafe {
            match (op, submission.imm, submission.invalidate) {
                (Op::Send, Some(imm), _) => (self.send_imm)(qp, imm.to_be()),
                (Op::Send, None, Some(rkey)) => {
                    if let Some(call) = self.send_inv {
                        call(qp, rkey.0);
                    }
                }
                (Op::Write(remote), Some(imm), _) => {
                    if let Some(call) = self.write_imm {
                        call(qp, key(remote.rkey), remote.addr, imm.to_be());
                    }
                }
                (Op::Write(remote), None, _) => {
                    if let Some(call) = self.write {
                        call(qp, key(remote.rkey), remote.addr);
                    }
                }
                (Op::Read(remote), ..) => {
                    if let Some(call) = self.read {
                        call(qp, key(remote.rkey), remote.addr);
                    }
                }
                (Op::CompareSwap { remote, compare, swap }, ..) => {
                    if let Some(call) = self.compare_swap {
                        call(qp, key(remote.rkey), remote.addr, *compare, *swap);
                    }
                }
                (Op::FetchAdd { remote, add }, ..) => {
                    if let Some(call) = self.fetch_add {
                        call(qp, key(remote.rkey), remote.addr, *add);
                    }
                }
                (Op::Send | Op::ReadReduce(..) | Op::Bind { .. } | Op::Invalidate(_), ..) => (self.send)(qp),
            }
        }
    }
}

/// A call that is needed for some services only.
#[allow(clippy::option_option, reason = "absent though needed is another thing than not needed")]
fn needed<F>(call: Option<F>, needed: bool) -> Option<Option<F>> {
    if needed && call.is_none() { None } else { Some(call) }
}

/// # Safety
/// As [`Submit::request`].
#[inline(always)]
unsafe fn post_plain(
    ops: &sys::HotOps,
    qp: NonNull<sys::ibv_qp>,
    op: &Op,
    submission: &Submission<'_>,
    data: &Data<'_>,
) -> io::Result<()> {
    let mut wr = plain(submission.wr_id, submission.flags, opcode(op, submission));
    let mut inline = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };
    match data {
        Data::Inline(data) => {
            inline.addr = data.as_ptr().expose_provenance() as u64;
            inline.length = data.len() as u32;
            (wr.sg_list, wr.num_sge) = (&raw mut inline, 1);
        }
        Data::Pieces(list) => (wr.sg_list, wr.num_sge) = (list.pieces.as_ptr().cast_mut(), list.count),
    }
    match (submission.imm, submission.invalidate) {
        (Some(imm), _) => wr.__bindgen_anon_1.imm_data = imm.to_be(),
        (None, Some(rkey)) => wr.__bindgen_anon_1.invalidate_rkey = rkey.0,
        (None, None) => {}
    }
    match op {
        Op::Write(remote) | Op::Read(remote) => {
            let rkey = key(remote.rkey);
            wr.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: remote.addr, rkey };
        }
        Op::CompareSwap { remote, compare, swap } => wr.wr.atomic = atomic(remote, *compare, *swap),
        Op::FetchAdd { remote, add } => wr.wr.atomic = atomic(remote, *add, 0),
        Op::Send | Op::ReadReduce(..) | Op::Bind { .. } | Op::Invalidate(_) => {}
    }
    if let Some(to) = submission.to {
        let (ah, remote_qpn, remote_qkey) = datagram(to);
        wr.wr.ud = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey };
    }
    // SAFETY: passed on to the caller.
    unsafe { post_one(ops, qp, &mut wr) }
}

/// # Safety
/// As [`Submit::request`].
#[inline(always)]
unsafe fn post_one(ops: &sys::HotOps, qp: NonNull<sys::ibv_qp>, wr: &mut sys::ibv_send_wr) -> io::Result<()> {
    let mut bad = null_mut();
    // SAFETY: the queue pair is alive, by the caller; the request is valid for the call.
    outcome(unsafe { (ops.post_send)(qp.as_ptr(), wr, &raw mut bad) })
}

#[inline(always)]
fn plain(wr_id: u64, flags: u32, opcode: u32) -> sys::ibv_send_wr {
    // SAFETY: all zeroes is a valid value: null pointers and plain numbers.
    let mut wr: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    (wr.wr_id, wr.send_flags, wr.opcode) = (wr_id, flags, opcode);
    wr
}

#[inline(always)]
fn opcode(op: &Op, submission: &Submission<'_>) -> u32 {
    match (op, submission.imm, submission.invalidate) {
        (Op::Send, Some(_), _) => sys::IBV_WR_SEND_WITH_IMM,
        (Op::Send, None, Some(_)) => sys::IBV_WR_SEND_WITH_INV,
        (Op::Write(_), Some(_), _) => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
        (Op::Write(_), None, _) => sys::IBV_WR_RDMA_WRITE,
        (Op::Read(_), ..) => sys::IBV_WR_RDMA_READ,
        (Op::CompareSwap { .. }, ..) => sys::IBV_WR_ATOMIC_CMP_AND_SWP,
        (Op::FetchAdd { .. }, ..) => sys::IBV_WR_ATOMIC_FETCH_AND_ADD,
        (Op::Send | Op::ReadReduce(..) | Op::Bind { .. } | Op::Invalidate(_), ..) => sys::IBV_WR_SEND,
    }
}

fn atomic(remote: &RemoteSlice, compare_add: u64, swap: u64) -> sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: remote.addr, compare_add, swap, rkey: key(remote.rkey) }
}

/// The key of a request's remote side.
#[inline(always)]
fn key(rkey: Rkey) -> u32 {
    rkey.0
}

/// The handle's parts that a datagram names.
#[inline(always)]
fn datagram(to: &Ah) -> (*mut sys::ibv_ah, u32, u32) {
    (to.raw(), to.qpn(), to.qkey())
}

fn absent() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

impl std::fmt::Debug for Submit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
