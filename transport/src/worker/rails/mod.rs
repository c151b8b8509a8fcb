//! Rails: several ways from this host to the peer's, each a port and an address of the device. Every connection has a queue
//! pair on each, beside the one for its messages; long payloads are read over all of them, in slices. A rail that fails is
//! left out and comes back; a connection that recovers takes the next rail for its messages.

mod carry;
mod lanes;
mod place;
mod renew;
mod request;
mod transfer;

use qpair_verbs::{CompletionChannel, CompletionQueue, Context, Prepared, ProtectionDomain};

use super::error::{ResourceError, WorkerError};
use crate::engine::DEPTH;
pub(super) use lanes::Lanes;
use place::Place;
pub use place::Rail;

/// The rails of a worker.
#[derive(Debug)]
pub(super) struct RailSet {
    places: Vec<Place>,
    /// Where slices complete; `None` if there are no rails to choose from.
    cq: Option<CompletionQueue>,
    /// Queue pairs for which the completion queue has room.
    room: usize,
}

impl RailSet {
    /// The rails of the settings, for so many endpoints. One or none: all goes over the messages' queue pairs.
    pub(super) fn new(
        rails: &[Rail],
        context: &Context,
        channel: &CompletionChannel,
        endpoints: usize,
    ) -> Result<RailSet, WorkerError> {
        let places = rails.iter().enumerate().map(|(number, rail)| rail.find(number, context));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        if places.len() < 2 {
            return Ok(RailSet { places, cq: None, room: 0 });
        }
        let room = endpoints.saturating_mul(places.len());
        let most = context.attributes().max_cqe as usize / SLOTS;
        let room = room.min(most);
        let cq = context.create_cq_on((room * SLOTS) as u32, channel)?;
        Ok(RailSet { places, cq: Some(cq), room })
    }

    /// Rails on which long payloads are read.
    pub(super) fn count(&self) -> usize {
        if self.cq.is_some() { self.places.len() } else { 0 }
    }

    pub(super) fn queue(&mut self) -> Option<&mut CompletionQueue> {
        self.cq.as_mut()
    }

    /// Where the queue pair of that rail is made, if the settings say.
    pub(super) fn place(&self, rail: usize) -> Option<Place> {
        self.places.get(rail).copied()
    }

    /// A queue pair on that rail. `None` if there is no room for it.
    fn prepare(&mut self, pd: &ProtectionDomain, rail: usize) -> Result<Option<Prepared>, ResourceError> {
        let (Some(cq), Some(place)) = (&self.cq, self.places.get(rail)) else { return Ok(None) };
        let Some(room) = self.room.checked_sub(1) else { return Ok(None) };
        let builder = pd.rc(cq).send_depth(SLOTS as u32).recv_depth(1);
        let prepared = place.of(builder).build()?;
        self.room = room;
        Ok(Some(prepared))
    }

    /// Queue pairs that can still be made.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// A queue pair is gone.
    fn give_back(&mut self) {
        self.room += 1;
    }
}

/// Requests of a queue pair at most: slices, and a probe.
const SLOTS: usize = DEPTH + 1;
