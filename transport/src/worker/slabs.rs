//! Eager slabs: posted to the shared receive queue, lent to the application, posted again.

use std::collections::VecDeque;

use qpair_verbs::{Local, ProtectionDomain, SharedReceiveQueue, Slab};

use super::error::ResourceError;
use super::ids::EndpointId;

/// The slabs of one size and the shared receive queue they are posted to. (One class; a further class is another of
/// these, with a queue pair of its own.)
///
/// For every slot that a peer may take, and for its reserved ones, a slab is posted: a message always finds a receive.
#[derive(Debug)]
pub(crate) struct EagerSlabs {
    pd: ProtectionDomain,
    srq: SharedReceiveQueue,
    size: usize,
    /// Slabs with the application, oldest first.
    lent: VecDeque<Lent>,
    /// Neither posted nor lent.
    spare: Vec<Slab>,
    /// Slabs posted beyond what peers may take: left by connections that ended.
    surplus: u32,
    /// Slabs in all, and how many there should be without the application keeping any.
    total: usize,
    wanted: usize,
}

#[derive(Debug)]
struct Lent {
    slab: Slab,
    /// Whose slot is free once the slab is posted again; `None` if another slab took its place.
    owner: Option<EndpointId>,
}

impl EagerSlabs {
    pub(crate) fn new(pd: &ProtectionDomain, srq: SharedReceiveQueue, size: usize) -> Self {
        EagerSlabs {
            pd: pd.clone(),
            srq,
            size,
            lent: VecDeque::with_capacity(1024),
            spare: Vec::new(),
            surplus: 0,
            total: 0,
            wanted: 0,
        }
    }

    /// The shared receive queue, for queue pairs to take receives from.
    pub(crate) fn queue(&self) -> &SharedReceiveQueue {
        &self.srq
    }

    /// Posts slabs for `count` more slots.
    pub(crate) fn reserve(&mut self, count: u32) -> Result<(), ResourceError> {
        for done in 0..count {
            if self.surplus > 0 {
                self.surplus -= 1;
            } else if let Err(error) = self.post_another() {
                self.surplus += done;
                return Err(error);
            }
        }
        self.wanted += count as usize;
        Ok(())
    }

    /// `posted` of the `count` slots that were reserved are not in use any more, and were not taken.
    pub(crate) fn release(&mut self, count: u32, posted: u32) {
        self.wanted = self.wanted.saturating_sub(count as usize);
        self.surplus += posted;
    }

    /// Posts a slab again that the application has no part of.
    #[inline]
    pub(crate) fn repost(&mut self, slab: Slab) {
        if let Err(rejected) = self.srq.post(slab, 0) {
            tracing::error!(error = %rejected.error, "a slab could not be posted again");
            if let Local::Slab(slab) = rejected.memory {
                self.spare.push(slab);
            }
        }
    }

    /// Keeps a slab of which the application has a part.
    #[inline]
    pub(crate) fn lend(&mut self, slab: Slab, owner: EndpointId) {
        self.lent.push_back(Lent { slab, owner: Some(owner) });
    }

    /// Slabs with the application.
    #[inline]
    pub(crate) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Looks at the slab lent first. If the application has dropped all of it, the slab is posted again, and whose slot
    /// is free is told; so it is if another slab took its place. `peer` tells how a connection's peer stands.
    #[inline]
    pub(crate) fn reclaim(&mut self, peer: impl Fn(EndpointId) -> Peer) -> Reclaimed {
        let Some(oldest) = self.lent.front() else { return Reclaimed::Nothing };
        if !oldest.slab.is_unique() {
            return self.rotate(peer);
        }
        match self.lent.pop_front() {
            Some(Lent { slab, owner: Some(owner) }) if peer(owner) != Peer::Gone => {
                self.repost(slab);
                Reclaimed::Slot(owner)
            }
            Some(Lent { slab, .. }) => {
                self.spare.push(slab);
                Reclaimed::Spare
            }
            None => Reclaimed::Nothing,
        }
    }

    /// The application keeps the oldest: it goes to the end. If the peer runs out of slots by that, another slab takes its
    /// place, so that messages go on, up to a limit.
    #[cold]
    fn rotate(&mut self, peer: impl Fn(EndpointId) -> Peer) -> Reclaimed {
        let Some(mut kept) = self.lent.pop_front() else { return Reclaimed::Nothing };
        let mut freed = Reclaimed::Kept;
        match kept.owner.map(&peer) {
            Some(Peer::Starving) if self.may_grow() && self.post_another().is_ok() => {
                freed = kept.owner.take().map_or(Reclaimed::Kept, Reclaimed::Slot);
            }
            Some(Peer::Gone) => kept.owner = None,
            _ => {}
        }
        self.lent.push_back(kept);
        freed
    }

    fn may_grow(&self) -> bool {
        !self.spare.is_empty() || self.total < self.wanted * GROWTH
    }

    fn post_another(&mut self) -> Result<(), ResourceError> {
        let slab = match self.spare.pop() {
            Some(slab) => slab,
            None => {
                let slab = self.pd.alloc(self.size)?.into_slab();
                self.total += 1;
                slab
            }
        };
        self.srq.post(slab, 0).map_err(|rejected| {
            if let Local::Slab(slab) = rejected.memory {
                self.spare.push(slab);
            }
            ResourceError::Post(rejected.error)
        })
    }
}

/// How the peer stands to whom a slab's slot belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The connection ended.
    Gone,
    /// It has slots.
    Fine,
    /// More than half of its slots are taken.
    Starving,
}

/// What became of the oldest slab with the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reclaimed {
    /// There is none.
    Nothing,
    /// It is still in use.
    Kept,
    /// It is free, and no slot with it.
    Spare,
    /// A slot of this connection is free.
    Slot(EndpointId),
}

/// How many times the slabs that traffic needs there may be, so that an application can keep messages.
const GROWTH: usize = 8;
