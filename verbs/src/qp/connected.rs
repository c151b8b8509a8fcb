//! A connected queue pair (RC or UC).

use std::ops::Range;

use crate::QpAddress;
use crate::calc::Calc;
use crate::error::{ModifyError, Rejected};
use crate::memory::{Bindable, Here, Local, MemoryWindow, RemoteSlice};
use crate::qp::{Borrowed, Op, OwnedQp, RecvRequest, SendRequest};
use crate::types::{Access, QpState, QpType, Qpn, Rkey};
use crate::wc::Completion;

/// A connected queue pair. One owner posts; completions come out of its completion queues.
///
/// Dropping it moves it to the error state and waits until the peer has left its memory, up to three seconds: what a
/// stopped peer sits in is leaked, not freed. Memory that was posted is free once its completion queues were polled again
/// or dropped. One that takes from a shared receive queue is best dropped once it [is settled](Self::is_settled) and its completion
/// queue was polled: else receives of the shared queue may be lost with it.
///
/// Requests are built and posted one at a time:
///
/// ```compile_fail,E0499
/// # fn f(qp: &mut qpair_verbs::QueuePair) {
/// let first = qp.send_inline(b"1");
/// let second = qp.send_inline(b"2"); // the first is not posted yet
/// first.post().unwrap();
/// second.post().unwrap();
/// # }
/// ```
#[derive(Debug)]
pub struct QueuePair {
    qp: OwnedQp,
}

impl QueuePair {
    pub(crate) fn new(qp: OwnedQp) -> Self {
        QueuePair { qp }
    }

    /// Sends `local` as one message into the peer's next receive.
    #[inline(always)]
    pub fn send(&mut self, local: impl Into<Local>) -> SendRequest<'_> {
        SendRequest::new(&mut self.qp, Op::Send, local.into(), Borrowed::default())
    }

    /// Sends a copy of `data`, taken when posted.
    #[inline(always)]
    pub fn send_inline<'a>(&'a mut self, data: &'a [u8]) -> SendRequest<'a> {
        SendRequest::new(&mut self.qp, Op::Send, Local::None, Borrowed { inline: Some(data), ..Borrowed::default() })
    }

    /// Writes `local` to the peer's memory. RC and UC.
    #[inline(always)]
    pub fn write(&mut self, local: impl Into<Local>, remote: RemoteSlice) -> SendRequest<'_> {
        SendRequest::new(&mut self.qp, Op::Write(remote), local.into(), Borrowed::default())
    }

    /// Writes a copy of `data`, taken when posted, to the peer's memory. RC and UC.
    #[inline(always)]
    pub fn write_inline<'a>(&'a mut self, data: &'a [u8], remote: RemoteSlice) -> SendRequest<'a> {
        SendRequest::new(
            &mut self.qp,
            Op::Write(remote),
            Local::None,
            Borrowed { inline: Some(data), ..Borrowed::default() },
        )
    }

    /// Reads the peer's memory into `local`. RC.
    #[inline(always)]
    pub fn read(&mut self, local: impl Into<Local>, remote: RemoteSlice) -> SendRequest<'_> {
        SendRequest::new(&mut self.qp, Op::Read(remote), local.into(), Borrowed::default())
    }

    /// Reads the peer's memory and combines it into `local`, element by element: `local = local op remote`.
    /// RC, on devices with [`read_reduce`](crate::DeviceAttributes::read_reduce).
    #[inline(always)]
    pub fn read_reduce(&mut self, local: impl Into<Local>, remote: RemoteSlice, calc: Calc) -> SendRequest<'_> {
        SendRequest::new(&mut self.qp, Op::ReadReduce(remote, calc), local.into(), Borrowed::default())
    }

    /// Compares the 8 bytes at `remote` with `compare` and, if equal, replaces them by `swap`; `local`, of 8 bytes,
    /// receives the value before. RC. `remote` must be a multiple of 8.
    #[inline(always)]
    pub fn compare_swap(
        &mut self,
        local: impl Into<Local>,
        remote: RemoteSlice,
        compare: u64,
        swap: u64,
    ) -> SendRequest<'_> {
        SendRequest::new(&mut self.qp, Op::CompareSwap { remote, compare, swap }, local.into(), Borrowed::default())
    }

    /// Adds `add` to the 8 bytes at `remote`; `local`, of 8 bytes, receives the value before. RC. `remote` must be a
    /// multiple of 8.
    #[inline(always)]
    pub fn fetch_add(&mut self, local: impl Into<Local>, remote: RemoteSlice, add: u64) -> SendRequest<'_> {
        SendRequest::new(&mut self.qp, Op::FetchAdd { remote, add }, local.into(), Borrowed::default())
    }

    /// Binds `window` to bytes `range` of `region`, with the rights `access`, for use over this queue pair. The window's
    /// former key is withdrawn on the software device; hardware takes a window that is free, so that its key has to be
    /// [invalidated](QueuePair::invalidate) first.
    pub fn bind<'a>(
        &'a mut self,
        window: &'a MemoryWindow,
        region: &'a impl Bindable,
        range: Range<usize>,
        access: Access,
    ) -> SendRequest<'a> {
        let op = Op::Bind { start: range.start, end: range.end, access };
        let with = Borrowed { bind: Some((window.window(), region.whole(Here(())).shared())), ..Borrowed::default() };
        SendRequest::new(&mut self.qp, op, Local::None, with)
    }

    /// Withdraws a window's key.
    pub fn invalidate(&mut self, rkey: Rkey) -> SendRequest<'_> {
        SendRequest::new(&mut self.qp, Op::Invalidate(rkey), Local::None, Borrowed::default())
    }

    /// A receive into `memory`.
    #[inline(always)]
    pub fn recv(&mut self, memory: impl Into<Local>) -> RecvRequest<'_> {
        RecvRequest::new(&self.qp, memory.into())
    }

    /// Posts the receive again that completed as `done`, with its memory and number, as `recv(done.into_memory()).id(..)` does.
    /// What it received is gone then: it can be read before, [in place](Completion::message).
    ///
    /// ```
    /// # use qpair_verbs::*;
    /// # fn f(qp: &mut QueuePair, cq: &mut CompletionQueue) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(done) = cq.poll()? {
    ///     done.ok()?;
    ///     println!("{:?}", done.message());
    ///     qp.repost(done)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Rejected`] with the memory, in which the message is; [`PostError::NotAReceive`](crate::PostError::NotAReceive) if
    /// `done` is of another operation.
    #[inline(always)]
    pub fn repost(&mut self, done: Completion<'_>) -> Result<(), Rejected> {
        self.qp.repost(done)
    }

    /// Queue pair number.
    pub fn number(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Service.
    pub fn qp_type(&self) -> QpType {
        self.qp.qp_type()
    }

    /// Address.
    pub fn address(&self) -> QpAddress {
        self.qp.address()
    }

    /// State as of now; the device moves it to [`QpState::Err`] by itself. Asks a device of libibverbs, by a system call: see
    /// [`known_state`](Self::known_state).
    #[inline(always)]
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// State as far as it is known without asking the device: from transitions, failed completions, and the device's events.
    /// A device that says nothing may have moved it to [`QpState::Err`] since. Costs no system call, for use while polling.
    #[inline(always)]
    pub fn known_state(&self) -> QpState {
        self.qp.known_state()
    }

    /// Packets of the peer that came so far, where the device tells: the software device on the network, of reliable
    /// connections. One that grows shows that the peer's device lives, also while nothing completes because packets get lost.
    /// Takes the device's lock: not for each poll.
    pub fn arrivals(&self) -> Option<u64> {
        self.qp.arrivals()
    }

    /// True once the queue pair has failed and its peer has left its memory: to drop it takes no wait then.
    ///
    /// One that takes from a shared receive queue is best dropped once that is so and its completion queue was polled until it gave
    /// nothing: what a device of libibverbs has written by then is the last, and some (mlx5) throw away what is not polled when
    /// the queue pair goes, receives of the shared queue with it.
    pub fn is_settled(&self) -> bool {
        self.qp.state() == QpState::Err && self.qp.try_settle()
    }

    /// Moves the queue pair to the error state: what is posted completes as flushed.
    ///
    /// # Errors
    /// [`ModifyError`] if the transition table forbids it.
    pub fn to_error(&mut self) -> Result<(), ModifyError> {
        self.qp.to_error()
    }

    /// Which wire carries this connection, and why.
    pub fn explain(&self) -> String {
        self.qp.explain()
    }
}
