//! Connections that others have made, and that have not said of which rank they are.

use std::time::{Duration, Instant};

use qpair_transport::EndpointId;

use super::net::Net;

/// Such connections, and since when they are there.
#[derive(Debug)]
pub(super) struct Strangers {
    waiting: Vec<(EndpointId, Instant)>,
    limit: Duration,
}

impl Strangers {
    /// Each has so long to say who it is.
    pub(super) fn new(limit: Duration) -> Self {
        Strangers { waiting: Vec::new(), limit }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// One has connected.
    pub(super) fn came(&mut self, ep: EndpointId) {
        self.waiting.push((ep, Instant::now()));
    }

    /// It has said who it is, or is gone.
    pub(super) fn forget(&mut self, ep: EndpointId) {
        self.waiting.retain(|(other, _)| *other != ep);
    }

    /// One whose time is over.
    fn late(&self) -> Option<EndpointId> {
        let late = self.waiting.iter().find(|(_, since)| since.elapsed() >= self.limit);
        late.map(|(ep, _)| *ep)
    }
}

impl Net {
    /// Ends the connections that have not said in time who they are, where nothing more came: what was said is taken by then.
    #[cold]
    pub(super) fn turn_silent_away(&mut self) {
        while let Some(ep) = self.strangers.late() {
            self.turn_away(ep);
        }
    }
}
