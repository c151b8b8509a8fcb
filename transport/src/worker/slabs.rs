//! Eager slabs: posted as receives, lent to the application, posted again.

use qpair_verbs::{Local, MemoryError, Prepared, ProtectionDomain, QueuePair, Rejected, SharedReceiveQueue, Slab};

use super::error::ResourceError;
use super::ids::EndpointId;
use super::lent::LentRing;

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
    /// It is still in use, and counts as lent last now.
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

    /// Posts slabs for the `count` slots of a queue pair.
    pub(crate) fn reserve(&mut self, count: u32, qp: &mut Prepared) -> Result<(), ResourceError> {
        self.wanted += count as usize;
        for done in 0..count {
            if self.surplus > 0 {
                self.surplus -= 1;
                continue;
            }
            let posted = self.another().map_err(ResourceError::Memory).and_then(|slab| {
                let posted = match &mut self.shared {
                    Some(shared) => shared.post(slab, 0),
                    None => qp.recv(slab).post(),
                };
                posted.map_err(|rejected| ResourceError::Post(self.refused(rejected)))
            });
            if let Err(error) = posted {
                self.release(count, done);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The `count` slots of a queue pair are not in use any more; `posted` of their slabs were not taken.
    pub(crate) fn release(&mut self, count: u32, posted: u32) {
        self.wanted = self.wanted.saturating_sub(count as usize);
        match self.shared {
            Some(_) => self.surplus += posted,
            // They go with the queue pair.
            None => self.total = self.total.saturating_sub(posted as usize),
        }
    }

    /// Posts a slab that the application has no part of: for `qp`, if it is still there.
    #[inline]
    pub(crate) fn post(&mut self, slab: Slab, qp: Option<&mut QueuePair>) {
        let posted = match (&mut self.shared, qp) {
            (None, Some(qp)) => qp.recv(slab).post(),
            (Some(shared), _) => shared.post(slab, 0),
            (None, None) => return self.spare.push(slab),
        };
        if let Err(rejected) = posted {
            self.refused(rejected);
        }
    }

    /// Keeps a slab that is not needed now.
    pub(crate) fn put_by(&mut self, slab: Slab) {
        self.spare.push(slab);
    }

    /// Keeps a slab of which the application has a part.
    #[inline(always)]
    pub(crate) fn lend(&mut self, slab: Slab, owner: EndpointId) {
        self.lent.push(slab, Some(owner));
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
            Some((slab, owner)) if free => Oldest::Free(slab, owner),
            Some((slab, owner)) => {
                self.lent.push(slab, owner);
                Oldest::Kept(owner)
            }
            None => Oldest::None,
        }
    }

    /// A slab to take the place of the one that was lent last, up to a limit.
    #[cold]
    pub(crate) fn replacement(&mut self) -> Option<Slab> {
        if self.spare.is_empty() && self.total >= self.wanted * GROWTH {
            return None;
        }
        let slab = self.another().ok()?;
        self.lent.disown_newest();
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
    fn refused(&mut self, rejected: Rejected) -> qpair_verbs::PostError {
        tracing::debug!(error = %rejected.error, "a slab could not be posted");
        if let Local::Slab(slab) = rejected.memory {
            self.spare.push(slab);
        }
        rejected.error
    }
}

/// How many times the slabs that traffic needs there may be, so that an application can keep messages.
const GROWTH: usize = 8;
