//! Where datagrams go over the network.

use std::sync::Arc;

use qpair_roce::{Datagram, Qpn, Route, Target};

use super::network::Network;
use crate::soft::device_copy;
use crate::soft::exec::{Outcome, Request, Wait};
use crate::status::WcStatus;

/// A queue pair for datagrams on another host, and the way there.
#[derive(Debug)]
pub(crate) struct NetworkTarget {
    pub(crate) network: Arc<Network>,
    /// Protection domain of those who may send.
    pub(crate) domain: u64,
    pub(crate) route: Route,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: u32,
}

impl NetworkTarget {
    /// Sends one datagram from queue pair `from`; it succeeds whether or not it arrives.
    pub(crate) fn send(&self, from: Qpn, request: &Request<'_>) -> Outcome {
        let len = request.len();
        let work = Datagram {
            id: 0,
            local: (),
            len: len as u32,
            immediate: request.imm,
            solicited: request.solicited,
            target: Target { qpn: self.qpn, qkey: self.qkey, path: self.route },
        };
        let is_sent = self.network.send_datagram(from, &work, |to| {
            request.part(0, to.len(), |at, piece| {
                // SAFETY: the stretch lies within `to`, and the piece is memory of the request, which a peer may write at
                // most as `device_copy` bears it.
                unsafe { device_copy(to[at..].as_mut_ptr(), piece.ptr, piece.len) };
            });
        });
        if is_sent { Outcome::Done(WcStatus::SUCCESS, len as u64) } else { Outcome::Wait(Wait::Room) }
    }
}
