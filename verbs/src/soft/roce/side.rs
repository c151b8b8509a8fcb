//! The device around the protocol: its memory and queues, as `qpair_roce` asks for them.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use qpair_roce::{
    AccessError, Cause, Change, Completion, Host, NumberTable, Outcome, Qpn, Receive, Remote, Right, Rkey,
};

use super::attached::{Attached, moved};
use super::memory::{Memory, Place};
use super::staging::{Bytes, ReadAhead, Source, WriteBehind};
use crate::memory::{Atomic, Spot};
use crate::soft::home::Home;
use crate::status::WcStatus;
use crate::types::Access;

/// The queue pairs of a device that are on the network, and its memory.
pub(super) struct Side {
    pub(super) home: Arc<Home>,
    pub(super) attached: NumberTable<Attached>,
    /// Queue pairs that the protocol gave up since they were looked at last.
    pub(super) failed: Vec<(Qpn, Cause)>,
    /// Queue pairs with requests that waited for others, which are over now.
    pub(super) freed: Vec<Qpn>,
    /// How long acknowledgments may wait for requests.
    pub(super) patience: Duration,
    /// Bytes of GPUs that are sent, and that came.
    ahead: RefCell<ReadAhead>,
    pub(super) behind: WriteBehind,
}

impl Side {
    pub(super) fn new(home: Arc<Home>) -> Self {
        Side {
            home,
            attached: NumberTable::new(),
            failed: Vec::new(),
            freed: Vec::new(),
            patience: Duration::ZERO,
            ahead: RefCell::new(ReadAhead::new()),
            behind: WriteBehind::new(),
        }
    }

    /// Waits for what is being read of memory that peers were granted, before the hazard is left.
    pub(super) fn end_reads(&mut self) {
        self.ahead.get_mut().end_accesses();
    }

    /// Lets a queue pair go.
    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Attached> {
        self.ahead.get_mut().forget_all(qpn);
        self.attached.remove(qpn)
    }

    /// Where memory lies that a peer may use so.
    fn reach(&self, qpn: Qpn, at: Remote, len: u64, right: Access) -> Result<Spot, AccessError> {
        let attached =
            self.attached.get(qpn).filter(|attached| attached.allows(right)).ok_or(AccessError::QueuePair)?;
        attached.reach(&self.home, at, len, right).ok_or(AccessError::Key)
    }
}

/// What is written and read here stays granted meanwhile: the engine handles and makes packets inside of its hazard
/// ([`Home::as_engine`]), which whoever withdraws a key waits for.
impl Host for Side {
    type Local = Memory;

    fn gather(&self, from: Memory, offset: u32, to: &mut [u8]) -> Result<(), AccessError> {
        let Place::Request(index) = from.place else { return Err(AccessError::Key) };
        let attached = self.attached.get(from.qpn).ok_or(AccessError::Key)?;
        attached.gather(index, offset, to, &self.ahead)
    }

    fn scatter(&mut self, to: Memory, offset: u32, bytes: &[u8]) -> Result<(), AccessError> {
        let attached = self.attached.get(to.qpn).ok_or(AccessError::Key)?;
        match to.place {
            Place::Request(index) => attached.answer(index, offset, bytes, &mut self.behind),
            Place::Receive(slot) => attached.fill(slot, offset, bytes, &mut self.behind),
        }
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn take_receive(&mut self, qpn: Qpn, room: u32) -> Option<Receive<Memory>> {
        self.attached.get_mut(qpn)?.take_receive(room)
    }

    fn check(&self, qpn: Qpn, at: Remote, len: u32, right: Right) -> Result<(), AccessError> {
        let right = access(right);
        if len == 0 {
            let allowed = self.attached.get(qpn).is_some_and(|attached| attached.allows(right));
            return if allowed { Ok(()) } else { Err(AccessError::QueuePair) };
        }
        self.reach(qpn, at, len.into(), right).map(|_| ())
    }

    fn write(&mut self, qpn: Qpn, at: Remote, bytes: &[u8]) -> Result<(), AccessError> {
        let to = self.reach(qpn, at, bytes.len() as u64, Access::REMOTE_WRITE)?;
        if let Some(spot) = to.on_gpu() {
            let bytes = Bytes { qpn, request: None, calc: None, bytes };
            // SAFETY: the key grants as many bytes there, and stays granted until the hazard is left, before which the engine
            // settles what is written behind.
            if let Some(put) = unsafe { self.behind.put(spot, bytes) } {
                return moved(put.map_err(Box::new));
            }
        }
        // SAFETY: the key grants as many bytes there, and stays granted; all access to exposed memory is by `device_copy`
        // or atomic.
        moved(unsafe { to.copy_from(Spot::host(bytes.as_ptr().cast_mut()), bytes.len()) })
    }

    fn read(&self, qpn: Qpn, at: Remote, to: &mut [u8]) -> Result<(), AccessError> {
        let from = self.reach(qpn, at, to.len() as u64, Access::REMOTE_READ)?;
        if let Some(spot) = from.on_gpu() {
            let left = self.attached.get(qpn).map_or(0, |attached| attached.left_of_answer(at.va));
            // Ahead is read what the key grants now, and not taken from its owner before the hazard is left.
            let rest = if self.reach(qpn, at, left, Access::REMOTE_READ).is_ok() { left as usize } else { 0 };
            let rest = rest.max(to.len());
            // SAFETY: the key grants `rest` bytes there, until the hazard is left, before which the engine ends such accesses.
            let taken = unsafe { self.ahead.borrow_mut().take(Source::Answer(qpn), spot, rest, to) };
            if let Some(taken) = taken {
                return moved(taken.map_err(Box::new));
            }
        }
        // SAFETY: as in `write`.
        moved(unsafe { Spot::host(to.as_mut_ptr()).copy_from(from, to.len()) })
    }

    fn begin_read(&mut self, qpn: Qpn, at: Remote, len: u32) {
        // What is left of an answer before is older than this READ.
        self.ahead.get_mut().forget(Source::Answer(qpn));
        if let Some(attached) = self.attached.get_mut(qpn) {
            attached.begin_answer(at.va.saturating_add(len.into()));
        }
    }

    fn atomic(&mut self, qpn: Qpn, at: Remote, change: Change) -> Result<u64, AccessError> {
        let word = self.reach(qpn, at, 8, Access::REMOTE_ATOMIC)?;
        if !at.va.is_multiple_of(8) {
            return Err(AccessError::QueuePair);
        }
        // What came before is there before it, or it is not done either.
        self.behind.settle();
        if self.behind.has_lost(qpn) {
            return Err(AccessError::Operation);
        }
        let operation = match change {
            Change::CompareSwap { compare, swap } => Atomic::CompareSwap(compare, swap),
            Change::FetchAdd(add) => Atomic::FetchAdd(add),
        };
        // SAFETY: the key grants 8 bytes there, and stays granted; the address is aligned, and all access to exposed
        // memory is atomic or by `device_copy`.
        unsafe { word.atomic(operation) }.map_err(|error| {
            tracing::error!(%error, "a word of GPU memory was not changed");
            AccessError::Operation
        })
    }

    fn invalidate(&mut self, qpn: Qpn, rkey: Rkey) -> Result<(), AccessError> {
        // The key is withdrawn where the message is polled, by who may wait for accesses that are under way.
        let may = self.attached.get(qpn).is_some_and(|attached| attached.may_withdraw(&self.home, rkey));
        if may { Ok(()) } else { Err(AccessError::Key) }
    }

    fn complete(&mut self, qpn: Qpn, completion: Completion<Memory>) {
        // Who is told of it looks at its memory, and has that of requests back.
        self.behind.settle();
        let is_lost = self.behind.has_lost(qpn);
        let but = |outcome| if is_lost && outcome == Outcome::Success { Outcome::LocalOperation } else { outcome };
        let Some(attached) = self.attached.get_mut(qpn) else { return };
        match completion {
            Completion::Sent { id, outcome, .. } => {
                self.ahead.get_mut().forget(Source::Request(qpn, id as u32));
                attached.finish(id as u32, status(but(outcome)));
                if attached.is_held_up() {
                    self.freed.push(qpn);
                }
            }
            Completion::Received { id, outcome, message, .. } => attached.received(id as u32, but(outcome), &message),
        }
    }

    fn failed(&mut self, qpn: Qpn, cause: Cause) {
        self.failed.push((qpn, cause));
    }
}

const fn access(right: Right) -> Access {
    match right {
        Right::Read => Access::REMOTE_READ,
        Right::Write => Access::REMOTE_WRITE,
        Right::Atomic => Access::REMOTE_ATOMIC,
    }
}

const fn status(outcome: Outcome) -> WcStatus {
    match outcome {
        Outcome::Success => WcStatus::SUCCESS,
        Outcome::LocalLength => WcStatus::LOC_LEN_ERR,
        Outcome::LocalProtection => WcStatus::LOC_PROT_ERR,
        Outcome::LocalOperation => WcStatus::LOC_QP_OP_ERR,
        Outcome::Flushed => WcStatus::WR_FLUSH_ERR,
        Outcome::BadResponse => WcStatus::BAD_RESP_ERR,
        Outcome::RemoteInvalidRequest => WcStatus::REM_INV_REQ_ERR,
        Outcome::RemoteAccess => WcStatus::REM_ACCESS_ERR,
        Outcome::RemoteOperation => WcStatus::REM_OP_ERR,
        Outcome::RetriesExceeded => WcStatus::RETRY_EXC_ERR,
        Outcome::RnrRetriesExceeded => WcStatus::RNR_RETRY_EXC_ERR,
    }
}
