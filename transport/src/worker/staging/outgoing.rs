//! Payloads in memory of a GPU: offered part by part once the peer wants them.

use std::collections::VecDeque;

use qpair_verbs::{Gpu, GpuError};

use super::{SLOT, Staging, may_have_one};
use crate::engine::{Envelope, Header, Pending, Readable};
use crate::worker::Worker;
use crate::worker::endpoint::Carried;
use crate::worker::error::{CloseReason, ResourceError};
use crate::worker::ids::EndpointId;
use crate::worker::seen::Note;

/// What a peer wants, in the order in which it said so.
#[derive(Debug)]
pub(super) struct Wanting {
    ep: EndpointId,
    payloads: VecDeque<Outgoing>,
}

/// A payload that has bytes left for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    id: u32,
    gpu: Gpu,
    len: usize,
    /// Bytes that have had a slot.
    filled: usize,
}

/// A slot that is being filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    ep: EndpointId,
    id: u32,
    gpu: Gpu,
    slot: usize,
    len: usize,
}

/// What became of the wish to fill a slot for a peer.
enum Filled {
    Yes,
    /// There is none for it now.
    No,
    /// It wants nothing more, for now or ever, or not what it did.
    Over,
}

impl Staging {
    /// A peer wants nothing more, for now or ever.
    fn forget(&mut self, at: usize) {
        let Wanting { mut payloads, .. } = self.wanting.swap_remove(at);
        payloads.clear();
        self.spare_payloads.push(payloads);
    }
}

impl Worker {
    /// The peer wants a payload.
    pub(in crate::worker) fn wanted(&mut self, ep: EndpointId, header: &Header) {
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        endpoint.note(self.pace.now(), Note::of("the peer wants", header.envelope.tag));
        let (id, len) = match endpoint.link.on_want(header) {
            Ok(len) => (header.envelope.tag as u32, len as usize),
            Err(violation) => return self.break_off(ep.index as usize, CloseReason::Protocol(violation)),
        };
        // Nothing else has parts.
        let Some(Carried::Gpu(buffer)) = endpoint.link.exposed(id) else { return };
        let payload = Outgoing { id, gpu: buffer.gpu(), len, filled: 0 };
        match self.staging.wanting.iter_mut().find(|wanting| wanting.ep == ep) {
            Some(Wanting { payloads, .. }) => payloads.push_back(payload),
            None => {
                let mut payloads = self.staging.spare_payloads.pop().unwrap_or_default();
                payloads.push_back(payload);
                self.staging.wanting.push(Wanting { ep, payloads });
            }
        }
        self.fill_slots();
    }

    /// Fills slots: one for each peer in turn, as long as there are some and [more](may_have_one) may be had.
    pub(super) fn fill_slots(&mut self) {
        let mut again = true;
        while std::mem::take(&mut again) {
            let mut at = 0;
            while at < self.staging.wanting.len() {
                match self.fill_slot(at) {
                    Filled::Yes => (again, at) = (true, at + 1),
                    Filled::No => at += 1,
                    Filled::Over => {}
                }
            }
        }
    }

    /// Fills a slot for a peer.
    fn fill_slot(&mut self, at: usize) -> Filled {
        let Staging { slots, wanting, filling, moved, .. } = &mut self.staging;
        let is_alone = wanting.len() == 1;
        let Wanting { ep, payloads } = &mut wanting[at];
        let ep = *ep;
        let (Some(endpoint), Some(payload)) = (self.endpoints.get(ep), payloads.front_mut()) else {
            self.staging.forget(at);
            return Filled::Over;
        };
        let Outgoing { id, gpu, len, filled } = *payload;
        let of = slots.iter_mut().find(|of| of.gpu == gpu);
        let (Some(Carried::Gpu(buffer)), Some(of)) = (endpoint.link.exposed(id), of) else {
            // The peer wants no more of it.
            payloads.pop_front();
            return Filled::Over;
        };
        let held = of.holders.iter().filter(|holder| **holder == Some(ep)).count();
        let may = endpoint.up && endpoint.broken.is_none() && may_have_one(held, of.out.free(), is_alone);
        let Some(slot) = (if may { of.out.take() } else { None }) else { return Filled::No };
        let part = SLOT.min(len - filled);
        if let Err(error) = of.out.fill(slot, buffer, filled..filled + part) {
            of.out.give(slot);
            payloads.pop_front();
            self.gpu_failed(ep, error);
            return Filled::Over;
        }
        of.holders[slot] = Some(ep);
        filling.push(Filling { ep, id, gpu, slot, len: part });
        *moved = true;
        payload.filled += part;
        if payload.filled == len {
            payloads.pop_front();
        }
        Filled::Yes
    }

    /// Offers what slots were filled with. The copies of a GPU end in order.
    pub(super) fn offer_filled(&mut self) {
        let mut at = 0;
        while let Some(&filling) = self.staging.filling.get(at) {
            let Filling { ep, gpu, slot, .. } = filling;
            let waits = self.staging.filling[..at].iter().any(|before| before.gpu == gpu);
            let done = match self.staging.of(gpu) {
                Some(of) if !waits => of.out.is_done(slot),
                _ => Ok(false),
            };
            if let Ok(false) = done {
                at += 1;
                continue;
            }
            self.staging.filling.remove(at);
            self.staging.moved = true;
            let is_wanted = self.endpoints.get(ep).is_some_and(|endpoint| endpoint.link.exposed(filling.id).is_some());
            match done {
                Ok(_) if is_wanted => self.offer_part(filling),
                Ok(_) => self.staging.give(gpu, slot),
                Err(error) => {
                    self.staging.give(gpu, slot);
                    if is_wanted {
                        self.gpu_failed(ep, error);
                    }
                }
            }
        }
    }

    fn offer_part(&mut self, Filling { ep, id, gpu, slot, len }: Filling) {
        let op = self.op();
        let Some(of) = self.staging.slots.iter().find(|of| of.gpu == gpu) else { return };
        let readable = Some(Readable::At(self.remote(of.out.region(), of.out.range(slot, len))));
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return self.staging.give(gpu, slot) };
        let (envelope, payload, len) = (Envelope::part(id), Carried::Slot(gpu, slot), len as u64);
        endpoint.link.enqueue_part(Pending { op, envelope, len, readable, payload });
        self.advance(ep.index as usize);
    }

    /// A payload of a connection can not be had: the peer waits for it, and nothing else tells.
    #[cold]
    fn gpu_failed(&mut self, ep: EndpointId, error: GpuError) {
        let error = ResourceError::Memory(error.into());
        self.break_off(ep.index as usize, CloseReason::Resources(Box::new(error)));
    }
}
