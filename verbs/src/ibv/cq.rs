//! The owner's end of a completion queue: takes completions in batches, and hands them out one by one.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use qpair_verbs_sys as sys;

use super::channel::Channel;
use super::cq_shared::{Completing, CqShared, Member};
use super::device::Device;
use super::listeners::CqFailure;
use super::numbers::Tag;
use super::quirks;
use super::show::{Receiver, Sender, Shown, show_good_receive, show_oldest_send, show_receive, show_send};
use super::source::Source;
use crate::cq::Arm;
use crate::error::{CqError, CreateError};
use crate::soft;
use crate::types::{QpType, Qpn};
use crate::wc::Current;

/// A completion queue.
pub(crate) struct Cq {
    shared: Arc<CqShared>,
    ops: sys::HotOps,
    source: Source,
    /// True if its channel is its own.
    own_channel: bool,
    /// The device has not refused to arm it last.
    can_be_armed: bool,
    /// Flags of a completion whose message invalidated a key.
    invalidated: u32,
    version: u32,
    /// By queue number.
    queues: Vec<Option<Entry>>,
    /// The queue pairs among them, once more: what most completions are of.
    senders: Vec<Option<Sender>>,
    /// The queues of receives among them, once more, where what is received is surely a datagram or surely none.
    receivers: Vec<Option<Receiver>>,
    /// Datagram queue pairs that take receives from a shared queue, or did.
    datagrams: HashSet<Qpn>,
    /// Completions `next..count` were taken from the device and not handed out.
    batch: Box<[MaybeUninit<sys::ibv_wc>; BATCH]>,
    /// Their times, where the queue tells them.
    times: Box<[u64]>,
    next: usize,
    count: usize,
    /// The same, for the shortest way: none where each has a time.
    count_short: usize,
    current: Current,
}

/// Who completes here, by number.
struct Entry {
    generation: u32,
    queue: Completing,
}

// SAFETY: the completions in the batch hold no pointer; the rest is sent as it is.
unsafe impl Send for Cq {}
// SAFETY: nothing is changed but by `&mut self`.
unsafe impl Sync for Cq {}

impl Cq {
    pub(crate) fn create(
        device: &Arc<Device>,
        depth: u32,
        channel: Option<&Arc<Channel>>,
        timed: bool,
    ) -> Result<Self, CreateError> {
        let attributes = device.attributes();
        if timed && (attributes.timestamp_mask == 0 || !quirks::sound_extended_queues(attributes, device)) {
            return Err(CreateError::NoTimestamps { device: device.name().to_owned() });
        }
        let own_channel = channel.is_none();
        let channel = channel.map_or_else(|| Channel::create(device), |channel| Ok(channel.clone()))?;
        let (shared, ops) = (CqShared::create(device, depth, channel, timed)?, device.handle().ops);
        let source = if timed {
            let incomplete = || CreateError::NoTimestamps { device: device.name().to_owned() };
            // SAFETY: the queue was just made so.
            NonNull::new(shared.raw().cast()).and_then(|cq| unsafe { Source::timed(cq) }).ok_or_else(incomplete)?
        } else {
            Source::Plain(ops)
        };
        Ok(Cq {
            shared,
            ops,
            source,
            own_channel,
            can_be_armed: true,
            invalidated: quirks::invalidated_flags(attributes),
            version: 0,
            queues: Vec::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            datagrams: HashSet::new(),
            batch: Box::new([const { MaybeUninit::new(NOBODYS) }; BATCH]),
            times: vec![0; if timed { BATCH } else { 0 }].into(),
            next: 0,
            count: 0,
            count_short: 0,
            current: Current::default(),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    pub(crate) fn depth(&self) -> u32 {
        self.shared.depth()
    }

    #[inline(always)]
    pub(crate) fn current(&mut self) -> &mut Current {
        &mut self.current
    }

    /// Moves on to the next completion by the shortest way, which most go: of the oldest send of its queue pair, or of a
    /// receive, that went well. It polls the device if nothing is left. A completion of any other kind it leaves where it is,
    /// for [`advance`](Cq::advance).
    #[inline(always)]
    pub(crate) fn advance_short(&mut self) -> Result<Short, CqError> {
        if self.next >= self.count_short {
            match self.refill_short()? {
                Short::Completion => {}
                other => return Ok(other),
            }
        } else if !self.current.is_clear() {
            return Ok(Short::LongWay);
        }
        // SAFETY: below `count_short`, which is no more than the batch, and the device filled the batch up to there.
        let wc = unsafe { self.batch.get_unchecked(self.next).assume_init_ref() };
        if !show_oldest_send(&mut self.current, &self.senders, wc)
            && !show_good_receive(&mut self.current, &self.receivers, wc, self.invalidated)
        {
            return Ok(Short::LongWay);
        }
        self.next += 1;
        Ok(Short::Completion)
    }

    /// Takes what the device has, if nothing is left; tells whether there is a completion to go on with.
    #[inline(never)]
    fn refill_short(&mut self) -> Result<Short, CqError> {
        self.current.clear();
        Ok(match self.next == self.count {
            true if !self.refill()? => Short::Nothing,
            true if self.count_short > 0 => Short::Completion,
            _ => Short::LongWay,
        })
    }

    /// Moves on to the next completion; false if there is none.
    #[inline(never)]
    pub(crate) fn advance(&mut self) -> Result<bool, CqError> {
        self.current.clear();
        loop {
            if self.next == self.count && !self.refill()? {
                return Ok(false);
            }
            let Some(wc) = self.batch.get(self.next) else { return Ok(false) };
            // SAFETY: the device filled the batch up to `count`.
            let wc = unsafe { wc.assume_init_ref() };
            if show_oldest_send(&mut self.current, &self.senders, wc)
                || show_good_receive(&mut self.current, &self.receivers, wc, self.invalidated)
            {
                self.current.timestamp = self.times.get(self.next).copied();
                self.next += 1;
                return Ok(true);
            }
            let wc = *wc;
            match self.show(&wc) {
                Shown::Completion => {
                    self.current.timestamp = self.times.get(self.next).copied();
                    self.next += 1;
                    return Ok(true);
                }
                // Of a queue that is gone, or nonsense.
                Shown::Nothing => self.next += 1,
                Shown::Presently => return Ok(false),
            }
        }
    }

    /// True if a poll would give something, or find out that there is nothing behind a completion.
    pub(crate) fn has_completion(&mut self) -> Result<bool, CqError> {
        Ok(self.next != self.count || self.refill()?)
    }

    /// Takes what the device has; false if that is nothing.
    #[inline(always)]
    fn refill(&mut self) -> Result<bool, CqError> {
        if self.shared.has_failed(CqFailure::Overrun) {
            return Err(self.overrun());
        }
        (self.next, self.count, self.count_short) = (0, 0, 0);
        let count = self.source.poll(&self.shared, &mut self.batch, &mut self.times);
        // After polling, so that queue pairs that came before their completions did are known.
        self.look_at_members();
        self.count = count?;
        if self.times.is_empty() {
            self.count_short = self.count;
        }
        if self.count == 0 && self.shared.has_failed(CqFailure::DeviceGone) {
            return Err(CqError::DeviceGone);
        }
        Ok(self.count > 0)
    }

    /// The error of a queue that ran over. Nothing completes there any more: what queue pairs that have gone had posted is let go
    /// of.
    #[cold]
    fn overrun(&mut self) -> CqError {
        self.look_at_members();
        CqError::Overrun { depth: self.shared.depth() }
    }

    #[inline(always)]
    fn look_at_members(&mut self) {
        if self.version != self.shared.version() {
            self.reload();
        }
    }

    #[cold]
    fn reload(&mut self) {
        let (members, version) = self.shared.snapshot();
        self.version = version;
        self.queues.clear();
        self.senders.clear();
        self.receivers.clear();
        self.datagrams = members.datagrams;
        for Member { id, queue } in members.all {
            let place = id.number as usize;
            if self.queues.len() <= place {
                self.queues.resize_with(place + 1, || None);
                self.senders.resize_with(place + 1, || None);
                self.receivers.resize_with(place + 1, || None);
            }
            let key = |receive| Tag::key(Tag { queue: id, receive, own: 0 }.encode());
            if let Completing::Both(qp) | Completing::Sends(qp) = &queue {
                self.senders[place] = Some(Sender { key: key(false), qpn: qp.qpn, queue: qp.send.clone() });
            }
            let receives = match &queue {
                Completing::Both(qp) | Completing::Receives(qp) => {
                    qp.receives.clone().map(|receives| (qp.qp_type == QpType::Ud, receives))
                }
                Completing::Shared(receives) if self.datagrams.is_empty() => Some((false, receives.clone())),
                Completing::Sends(_) | Completing::Shared(_) => None,
            };
            self.receivers[place] =
                receives.map(|(datagrams, receives)| Receiver { key: key(true), datagrams, receives });
            self.queues[place] = Some(Entry { generation: id.generation, queue });
        }
    }

    /// Puts a completion where the owner sees it.
    #[inline(never)]
    fn show(&mut self, wc: &sys::ibv_wc) -> Shown {
        let tag = Tag::decode(wc.wr_id);
        let entry = match self.queues.get(tag.queue.number as usize) {
            Some(Some(entry)) if entry.generation == tag.queue.generation => entry,
            _ => return Shown::Nothing,
        };
        match (&entry.queue, tag.receive) {
            (Completing::Both(qp) | Completing::Sends(qp), false) => {
                show_send(&mut self.current, self.shared.device(), qp, wc, tag.own)
            }
            (Completing::Both(qp) | Completing::Receives(qp), true) => match &qp.receives {
                Some(receives) => {
                    let ud = qp.qp_type == QpType::Ud;
                    let shown = show_receive(&mut self.current, receives, wc, (tag.own, self.invalidated), ud);
                    self.after_receive(wc, &shown);
                    shown
                }
                None => Shown::Nothing,
            },
            (Completing::Shared(receives), true) => {
                let ud = self.datagrams.contains(&Qpn(wc.qp_num));
                let shown = show_receive(&mut self.current, receives, wc, (tag.own, self.invalidated), ud);
                self.after_receive(wc, &shown);
                shown
            }
            _ => Shown::Nothing,
        }
    }

    /// What a receive tells beside its contents.
    fn after_receive(&mut self, wc: &sys::ibv_wc, shown: &Shown) {
        if matches!(shown, Shown::Nothing) {
            return;
        }
        if wc.status == sys::IBV_WC_SUCCESS && wc.wc_flags & self.invalidated == 0 {
            return;
        }
        if let Some(rkey) = self.current.wc.invalidated {
            self.shared.device().hub().window_gone(rkey);
        }
        if wc.status != sys::IBV_WC_SUCCESS {
            // The queue pair has failed, or else would not complete so; whose receive it is does not matter for that.
            let mut qps = self.queues.iter().flatten().filter_map(|entry| entry.queue.qp());
            if let Some(qp) = qps.find(|qp| qp.qpn.0 == wc.qp_num) {
                qp.fail();
            }
        }
    }

    /// Asks for one event. A device that does not take that is polled: its owner is woken at once.
    pub(crate) fn arm(&mut self, which: Arm) {
        if !self.try_arm(which) {
            self.shared.channel().ring();
        }
    }

    /// The same; false if no event will come.
    fn try_arm(&mut self, which: Arm) -> bool {
        // SAFETY: the queue is alive.
        let status = unsafe { (self.ops.req_notify_cq)(self.shared.raw(), i32::from(which == Arm::Solicited)) };
        let armed = status == 0;
        if !armed && self.can_be_armed {
            tracing::error!(status, "the completion queue can not be armed; it is polled instead");
        }
        self.can_be_armed = armed;
        armed
    }

    /// Sleeps until a poll would give something, no longer than `limit`.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) -> Result<(), CqError> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let mut rings = self.own_channel;
            if rings {
                self.shared.channel().clear();
                rings = self.try_arm(Arm::Any);
            }
            if self.has_completion()? {
                return Ok(());
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(CqError::TimedOut(limit.unwrap_or_default()));
            }
            if rings {
                soft::wait(self.shared.channel(), left)?;
            } else {
                // Events of a shared channel are for its owner, and other queues ring there too.
                std::thread::sleep(left.unwrap_or(NAP).min(NAP));
            }
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Queue pairs may keep the queue; its events are for nobody.
        self.shared.channel().clear_of(self.shared.cq());
    }
}

/// How far the [shortest way](Cq::advance_short) led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// To a completion.
    Completion,
    /// There is none.
    Nothing,
    /// [`advance`](Cq::advance) is to be asked.
    LongWay,
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq")
            .field("shared", &self.shared)
            .field("waiting", &(self.count - self.next))
            .finish_non_exhaustive()
    }
}

/// What stands in the batch before the device has written there: it means no request.
const NOBODYS: sys::ibv_wc = sys::ibv_wc {
    wr_id: u64::MAX,
    status: sys::IBV_WC_GENERAL_ERR,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    __bindgen_anon_1: sys::ibv_wc__bindgen_ty_1 { imm_data: 0 },
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};
/// Completions taken at a time.
const BATCH: usize = 16;
/// Between looks at a queue whose channel is shared, or does not ring.
const NAP: Duration = Duration::from_micros(200);
