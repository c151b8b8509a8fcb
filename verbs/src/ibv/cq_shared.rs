//! A completion queue as its queue pairs know it, and who completes there.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use qpair_verbs_sys as sys;

use super::channel::Channel;
use super::device::Device;
use super::listeners::{CqFailure, CqListener};
use super::memlock;
use super::numbers::QueueId;
use super::qp::QpShared;
use super::recv_slots::RecvSlots;
use super::timed::create_timed;
use crate::error::CreateError;
use crate::sync::lock;
use crate::types::{QpType, Qpn};

/// A completion queue of the library. Queue pairs that complete there keep it.
#[derive(Debug)]
pub(crate) struct CqShared {
    cq: NonNull<sys::ibv_cq>,
    depth: u32,
    channel: Arc<Channel>,
    /// [`WORKS`], or the [`CqFailure`].
    failure: AtomicU8,
    members: Mutex<Members>,
    version: AtomicU32,
    device: Arc<Device>,
}

/// All who complete in a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    pub(super) all: Vec<Member>,
    /// Datagram queue pairs that take receives from a shared queue, or did: receives may be left of those that have gone,
    /// until another has their number.
    pub(super) datagrams: HashSet<Qpn>,
}

/// Who completes in a queue.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: QueueId,
    pub(super) queue: Completing,
}

#[derive(Clone, Debug)]
pub(super) enum Completing {
    /// All that a queue pair has posted, its receives where it has a queue of its own.
    Both(Arc<QpShared>),
    /// Its sends. A send that completes elsewhere is nonsense: one poller alone may empty the send queue.
    Sends(Arc<QpShared>),
    /// Its receives.
    Receives(Arc<QpShared>),
    /// Receives of a shared queue.
    Shared(Arc<RecvSlots>),
}

impl Completing {
    /// The queue pair that completes, in one way or the other; none for a shared queue.
    pub(super) fn qp(&self) -> Option<&Arc<QpShared>> {
        match self {
            Completing::Both(qp) | Completing::Sends(qp) | Completing::Receives(qp) => Some(qp),
            Completing::Shared(_) => None,
        }
    }
}

// SAFETY: the library's functions on a completion queue may be called from any thread.
unsafe impl Send for CqShared {}
// SAFETY: as above.
unsafe impl Sync for CqShared {}

impl CqShared {
    pub(super) fn create(
        device: &Arc<Device>,
        depth: u32,
        channel: Arc<Channel>,
        timed: bool,
    ) -> Result<Arc<Self>, CreateError> {
        let limit = device.attributes().max_cqe;
        if depth == 0 || depth > limit {
            return Err(CreateError::OutOfRange {
                what: "a completion queue",
                asked: depth.into(),
                limit: limit.into(),
            });
        }
        let handle = device.handle();
        let size = i32::try_from(depth).unwrap_or(i32::MAX);
        let vector = vector(device);
        let cq = channel
            .add(|channel, name| {
                if timed {
                    return create_timed(handle, (depth, vector), channel, name);
                }
                // SAFETY: context and channel are alive.
                unsafe { (handle.library.ibv_create_cq)(handle.ctx(), size, name, channel, vector.cast_signed()) }
            })
            .map_err(|source| {
                let limited = memlock::explain_queue("completion queue", &source);
                limited.unwrap_or(CreateError::System { what: "create a completion queue", source })
            })?;
        Ok(Arc::new_cyclic(|me| {
            device.hub().enter_cq(cq.as_ptr().cast(), me.clone() as _);
            CqShared {
                cq,
                // As deep as asked, or deeper.
                // SAFETY: just made.
                depth: depth.max(u32::try_from(unsafe { cq.as_ref() }.cqe).unwrap_or(depth)),
                channel,
                failure: AtomicU8::new(WORKS),
                members: Mutex::default(),
                version: AtomicU32::new(0),
                device: device.clone(),
            }
        }))
    }

    pub(super) fn cq(&self) -> NonNull<sys::ibv_cq> {
        self.cq
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_cq {
        self.cq.as_ptr()
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Enters who completes here.
    pub(super) fn join(&self, member: Member) {
        let mut members = lock(&self.members);
        match member.queue.qp() {
            Some(qp) if qp.qp_type == QpType::Ud && qp.receives.is_none() => drop(members.datagrams.insert(qp.qpn)),
            Some(qp) => drop(members.datagrams.remove(&qp.qpn)),
            None => {}
        }
        members.all.push(member);
        drop(members);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Takes who has that number out.
    pub(super) fn leave(&self, id: QueueId) {
        let gone = {
            let mut members = lock(&self.members);
            let place = members.all.iter().position(|member| member.id == id);
            let gone = place.map(|place| members.all.swap_remove(place));
            if !members.all.iter().any(|member| matches!(member.queue, Completing::Shared(_))) {
                members.datagrams.clear();
            }
            gone
        };
        self.version.fetch_add(1, Ordering::Release);
        // What it holds may come here when dropped: not under the lock.
        drop(gone);
    }

    /// Who completes here, and a count that tells when that changes.
    pub(super) fn snapshot(&self) -> (Members, u32) {
        let members = lock(&self.members);
        (members.clone(), self.version.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn has_failed(&self, why: CqFailure) -> bool {
        self.failure.load(Ordering::Relaxed) == why as u8
    }
}

impl CqListener for CqShared {
    fn fail(&self, why: CqFailure) {
        let _ = self.failure.compare_exchange(WORKS, why as u8, Ordering::Release, Ordering::Relaxed);
        for member in &lock(&self.members).all {
            if let Some(qp) = member.queue.qp() {
                qp.fail();
            }
        }
        // Who sleeps waits for a completion that may not come.
        self.channel.ring();
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.device.hub().leave_cq(self.cq.as_ptr().cast());
        if let Err(error) = self.channel.destroy(self.cq) {
            // Its channel and its device are in use as long as it is.
            std::mem::forget((self.channel.clone(), self.device.clone()));
            tracing::error!(%error, device = self.device.name(), "a completion queue is not given back");
        }
    }
}

/// The completion vector of the next queue: each is an interrupt, which one core serves. The queues of a process have all in turn,
/// and those of several processes do not all begin with the same.
fn vector(device: &Device) -> u32 {
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    std::process::id().wrapping_add(made) % device.attributes().completion_vectors.max(1)
}

/// Queues that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);
/// No [`CqFailure`].
const WORKS: u8 = 0;
