//! Eager slabs: posted as receives, lent to the application, posted again.

use qpair_verbs::{
    Completion, Local, MemoryError, PostError, Prepared, ProtectionDomain, Rejected, SharedReceiveQueue, Slab,
};

use super::lent::{Lent, LentRing};
use crate::engine::RESERVED_SLOTS;
use crate::worker::endpoint::Endpoint;
use crate::worker::error::ResourceError;
use crate::worker::ids::EndpointId;
use crate::worker::work_id::{SHARED_RECEIVE, receive_id};

/// The slabs of one size. (One class; a further one is another of these, with queue pairs of its own.)
///
/// For every slot that a peer may take, and for its reserved ones, a slab is posted, to its queue pair or to the shared
/// receive queue: a message always finds a receive.
#[derive(Debug)]
pub(crate) struct EagerSlabs {
    pd: ProtectionDomain,
    shared: Option<SharedReceiveQueue>,
    size: usize,
    /// Slabs with the application, oldest first.
    lent: LentRing,
    /// Neither posted nor lent.
    spare: Vec<Slab>,
    /// Slabs in the shared receive queue beyond what peers may take: left by connections that ended.
    surplus: u32,
    /// Slabs in all, and how many there should be without the application keeping any.
    total: usize,
    wanted: usize,
}

/// How the slab stands that was lent first.
#[derive(Debug)]
pub(crate) enum Oldest {
    /// There is none.
    None,
    /// The application has dropped all of it: it can be posted again, for that connection if any.
    Free(Slab, Option<EndpointId>),
    /// The same, and another had taken its place.
    Spare(Slab, Option<EndpointId>),
    /// It is still in use, and counts as lent last now. Another may take its place, for that connection if any.
    Kept(Option<EndpointId>),
}

impl EagerSlabs {
    pub(crate) fn new(pd: &ProtectionDomain, shared: Option<SharedReceiveQueue>, size: usize) -> Self {
        EagerSlabs {
            pd: pd.clone(),
            shared,
            size,
            lent: LentRing::new(),
            spare: Vec::new(),
            surplus: 0,
            total: 0,
            wanted: 0,
        }
    }

    /// The shared receive queue, for queue pairs to take receives from, if there is one.
    pub(crate) fn queue(&self) -> Option<&SharedReceiveQueue> {
        self.shared.as_ref()
    }

    /// Posts slabs for the `count` slots of a queue pair, which is to be that endpoint's. `own`: it does not take from the
    /// shared receive queue, though there is one.
    pub(crate) fn reserve(
        &mut self,
        count: u32,
        qp: &mut Prepared,
        owner: EndpointId,
        own: bool,
    ) -> Result<(), ResourceError> {
        self.wanted += count as usize;
        for done in 0..count {
            if self.surplus > 0 && !own {
                self.surplus -= 1;
                continue;
            }
            let posted = self.another().map_err(ResourceError::Memory).and_then(|slab| {
                let posted = match &mut self.shared {
                    Some(shared) if !own => shared.post(slab, SHARED_RECEIVE),
                    _ => qp.recv(slab).id(receive_id(owner)).post(),
                };
                posted.map_err(|rejected| ResourceError::Post(self.refused(rejected)))
            });
            if let Err(error) = posted {
                self.release(count, done, own);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A connection has `count` slots for which nothing is posted: what comes is copied.
    pub(crate) fn expect(&mut self, count: u32) {
        self.wanted += count as usize;
    }

    /// A slab with a copy of a message.
    pub(crate) fn copy_of(&mut self, message: &[u8]) -> Result<Slab, MemoryError> {
        let mut slab = self.another()?;
        // What is longer no peer sends that keeps to what it was told; its length tells of it.
        if let Some(place) = slab.get_mut().and_then(|slab| slab.get_mut(..message.len())) {
            place.copy_from_slice(message);
        }
        Ok(slab)
    }

    /// Posts slabs for `count` more slots of the shared receive queue. Gives how many are posted.
    pub(crate) fn supply(&mut self, count: u32) -> u32 {
        let spare = count.min(self.surplus);
        self.surplus -= spare;
        let mut posted = spare;
        while posted < count
            && let Ok(slab) = self.another()
        {
            let Some(shared) = &mut self.shared else { break };
            if let Err(rejected) = shared.post(slab, SHARED_RECEIVE) {
                self.refused(rejected);
                break;
            }
            posted += 1;
        }
        self.wanted += posted as usize;
        posted
    }

    /// The `count` slots of a queue pair are not in use any more; `posted` of their slabs were not taken. `own`: they were not
    /// in the shared receive queue.
    pub(crate) fn release(&mut self, count: u32, posted: u32, own: bool) {
        self.wanted = self.wanted.saturating_sub(count as usize);
        match self.shared {
            Some(_) if !own => self.surplus += posted,
            // They go with the queue pair.
            _ => self.total = self.total.saturating_sub(posted as usize),
        }
        // What connections left behind is given back to the system, but for a few.
        while self.total > self.wanted + SPARE && self.spare.pop().is_some() {
            self.total -= 1;
        }
    }

    /// Posts a slab that the application has no part of.
    ///
    /// # Errors
    /// The device does not take it, though there is a slot: the peer must not be told of one.
    #[inline]
    pub(crate) fn post(&mut self, slab: Slab, endpoint: &mut Endpoint) -> Result<(), PostError> {
        // It is the worker's device's.
        let shared = self.shared.as_mut().filter(|_| endpoint.device == 0);
        let posted = match (shared, &mut endpoint.qp) {
            // What comes over datagrams is copied out of what they are received into.
            _ if endpoint.line.is_some() => {
                self.spare.push(slab);
                return Ok(());
            }
            (None, Some(qp)) => qp.recv(slab).id(receive_id(endpoint.id)).post(),
            (Some(shared), _) => shared.post(slab, SHARED_RECEIVE),
            (None, None) => {
                self.spare.push(slab);
                return Ok(());
            }
        };
        posted.map_err(|rejected| self.refused(rejected))
    }

    /// Posts the slab again that a completion brings, whose message has been read.
    ///
    /// # Errors
    /// As [`post`](EagerSlabs::post).
    #[inline(always)]
    pub(crate) fn post_again(&mut self, done: Completion<'_>, endpoint: &mut Endpoint) -> Result<(), PostError> {
        let posted = match (&mut self.shared, &mut endpoint.qp) {
            (None, Some(qp)) => qp.repost(done),
            (Some(shared), _) => shared.repost(done),
            (None, None) => {
                self.keep(done);
                return Ok(());
            }
        };
        posted.map_err(|rejected| self.refused(rejected))
    }

    #[cold]
    fn keep(&mut self, done: Completion<'_>) {
        if let Local::Slab(slab) = done.into_memory() {
            self.spare.push(slab);
        }
    }

    /// Takes in a slab of a message that does not count, though its receive is gone.
    #[cold]
    pub(crate) fn refuse(&mut self, slab: Slab, endpoint: &mut Endpoint) {
        let shares = self.shared.is_some() && endpoint.device == 0 && endpoint.line.is_none();
        if shares {
            return self.stray(slab, false);
        }
        endpoint.flushed += 1;
        self.spare.push(slab);
    }

    /// Takes in a slab of a queue pair that is gone. `own`: it was not in the shared receive queue.
    #[cold]
    pub(crate) fn stray(&mut self, slab: Slab, own: bool) {
        match &mut self.shared {
            Some(shared) if !own => {
                if let Err(rejected) = shared.post(slab, SHARED_RECEIVE) {
                    self.refused(rejected);
                }
            }
            _ => self.spare.push(slab),
        }
    }

    /// Keeps a slab that is not needed now.
    pub(crate) fn put_by(&mut self, slab: Slab) {
        self.spare.push(slab);
    }

    /// Keeps a slab of which the application has a part, or gets one.
    #[inline(always)]
    pub(crate) fn lend(&mut self, slab: Slab, owner: EndpointId) -> &Slab {
        self.lent.push(Lent { slab, owner: Some(owner), made_up: false })
    }

    /// The slots that lent slabs had of a connection are gone, with the queue pair, and another has slabs of its own. How many had
    /// one.
    pub(crate) fn disown(&mut self, owner: EndpointId) -> u32 {
        self.lent.make_up_all(owner)
    }

    /// Slabs with the application.
    #[inline]
    pub(crate) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Looks at the slab that was lent first.
    #[inline]
    pub(crate) fn oldest(&mut self) -> Oldest {
        let free = self.lent.oldest().is_some_and(Slab::is_unique);
        match self.lent.pop() {
            Some(Lent { slab, owner, made_up: true }) if free => Oldest::Spare(slab, owner),
            Some(Lent { slab, owner, .. }) if free => Oldest::Free(slab, owner),
            Some(lent) => {
                let owner = lent.owner.filter(|_| !lent.made_up);
                self.lent.push(lent);
                Oldest::Kept(owner)
            }
            None => Oldest::None,
        }
    }

    /// How many slabs with messages of a peer are made up for at most, whose window that is.
    pub(crate) fn most_kept(window: u32) -> u32 {
        window.saturating_add(RESERVED_SLOTS).saturating_mul(GROWTH as u32 - 1)
    }

    /// A slab to take the place of the one that was lent last, up to a limit.
    #[cold]
    pub(crate) fn replacement(&mut self) -> Option<Slab> {
        if self.spare.is_empty() && self.total >= self.wanted * GROWTH {
            return None;
        }
        let slab = self.another().ok()?;
        self.lent.make_up_newest();
        Some(slab)
    }

    fn another(&mut self) -> Result<Slab, MemoryError> {
        if let Some(slab) = self.spare.pop() {
            return Ok(slab);
        }
        let slab = self.pd.alloc(self.size)?.into_slab();
        self.total += 1;
        Ok(slab)
    }

    #[cold]
    fn refused(&mut self, rejected: Rejected) -> PostError {
        tracing::debug!(error = %rejected.error, "a slab could not be posted");
        if let Local::Slab(slab) = rejected.memory {
            self.spare.push(slab);
        }
        rejected.error
    }
}

#[cfg(test)]
impl EagerSlabs {
    /// True if all slabs are kept here: none is posted for a connection, lent or lost.
    pub(in crate::worker) fn has_all(&self) -> bool {
        self.spare.len() + self.surplus as usize == self.total
    }
}

/// Slabs beyond those that connections want which are kept for others.
const SPARE: usize = 64;
/// How many times the slabs that traffic needs there may be, in all and of each connection, so that an application can keep
/// messages.
const GROWTH: usize = 8;
