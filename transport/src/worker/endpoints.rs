//! All endpoints of a worker, by their numbers and by their queue pairs'.

use std::time::Duration;

use qpair_verbs::QueuePair;
use slab::Slab;

use super::endpoint::Endpoint;
use super::ids::EndpointId;
use super::work_id::SHARED_RECEIVE;
use crate::engine::{Key, PeerTerms, Seeds, Table};

/// A queue pair's number. They are unpredictable, but for six bits that all of a device have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QpKey(u32);

impl Key for QpKey {
    #[inline(always)]
    fn words(self) -> [u64; 2] {
        [self.0.into(), 0]
    }

    /// Numbers are those of this side's devices, and looked for with each message.
    #[inline(always)]
    fn home(self, _: Seeds) -> u64 {
        u64::from(self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

/// All endpoints of a worker.
#[derive(Debug)]
pub(crate) struct Endpoints {
    slots: Slab<Endpoint>,
    by_qpn: Table<QpKey, u32>,
    generation: u32,
}

impl Endpoints {
    pub(crate) fn new(seeds: Seeds) -> Self {
        Endpoints { slots: Slab::new(), by_qpn: Table::new(seeds), generation: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The id of the one that is put in next.
    pub(crate) fn upcoming(&self) -> EndpointId {
        EndpointId { index: self.slots.vacant_key() as u32, generation: self.generation.wrapping_add(1).max(1) }
    }

    /// Puts in what `make` makes for the given id, which is [`upcoming`](Endpoints::upcoming).
    pub(crate) fn insert(&mut self, make: impl FnOnce(EndpointId) -> Endpoint) -> EndpointId {
        let id = self.upcoming();
        self.generation = id.generation;
        self.slots.insert(make(id));
        id
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Endpoint> {
        self.forget(index);
        self.slots.try_remove(index)
    }

    /// Takes out the queue pair of endpoint `index`: another is to take its place.
    pub(crate) fn detach(&mut self, index: usize) -> Option<QueuePair> {
        self.forget(index);
        self.slots.get_mut(index)?.qp.take()
    }

    /// Only those of the worker's own device are found by their numbers: those of another may have the same.
    fn forget(&mut self, index: usize) {
        if let Some(Endpoint { qp: Some(qp), device: 0, .. }) = self.slots.get(index) {
            self.by_qpn.remove(QpKey(qp.number().0));
        }
    }

    /// Another queue pair of endpoint `index` is connected, on its device.
    pub(crate) fn replace(&mut self, index: usize, qp: QueuePair) {
        let Some(endpoint) = self.slots.get_mut(index) else { return };
        if endpoint.device == 0 {
            self.by_qpn.insert(QpKey(qp.number().0), index as u32);
        }
        endpoint.qp = Some(qp);
    }

    /// The queue pair of endpoint `index` is connected.
    pub(crate) fn attach(&mut self, index: usize, qp: QueuePair, terms: &PeerTerms, now: Duration) {
        self.replace(index, qp);
        self.open(index, terms, now);
    }

    /// Endpoint `index` is connected.
    pub(crate) fn open(&mut self, index: usize, terms: &PeerTerms, now: Duration) {
        let Some(endpoint) = self.slots.get_mut(index) else { return };
        if let Err(violation) = endpoint.link.open(terms, now) {
            // The hello's values were checked when it was read.
            tracing::error!(parent: &endpoint.span, %violation, "a checked hello was refused");
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.slots.get(id.index as usize).filter(|endpoint| endpoint.id.generation == id.generation)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.slots.get_mut(id.index as usize).filter(|endpoint| endpoint.id.generation == id.generation)
    }

    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> Option<&mut Endpoint> {
        self.slots.get_mut(index)
    }

    /// Whose receive came back: the number that it was posted with says so, or, from a shared queue, the queue pair.
    #[inline(always)]
    pub(crate) fn receiver(&mut self, wr_id: u64, qpn: u32) -> Option<&mut Endpoint> {
        if wr_id == SHARED_RECEIVE {
            return self.slots.get_mut(self.by_qpn.get(QpKey(qpn))? as usize);
        }
        self.get_mut(EndpointId { index: wr_id as u32, generation: (wr_id >> 32) as u32 })
    }

    /// All indices are below.
    pub(crate) fn bound(&self) -> usize {
        self.slots.capacity()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Endpoint> + '_ {
        self.slots.iter().map(|(_, endpoint)| endpoint)
    }
}
