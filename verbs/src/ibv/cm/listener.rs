//! Listening, requests, and what is answered.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use qpair_roce::wire::cm::{IP_HEADER_LEN, Reject, Reply, Request as RequestMessage};
use qpair_verbs_sys as sys;

use super::connecting::{Connecting, smaller, words_of};
use super::course::{Course, Words};
use super::id::Id;
use super::inbox::{Asked, Inbox};
use super::known::About;
use super::manager::Manager;
use crate::cm::{PeerOffer, padded};
use crate::error::CmError;
use crate::ibv::device::Device;
use crate::ibv::port;
use crate::qp::Prepared;
use crate::types::{Mtu, QpType, Qpn};

/// Listens at a port, for requests to its device.
#[derive(Debug)]
pub(crate) struct Listener {
    port: u16,
    inbox: Arc<Inbox>,
    // Given back before those who wait are refused: nobody comes any more then.
    id: Option<Id>,
    manager: Arc<Manager>,
    device: Arc<Device>,
}

/// A peer asks for a connection. Dropped, it is rejected.
#[derive(Debug)]
pub(crate) struct Request {
    id: Id,
    course: Arc<Course>,
    /// What the peer said, its numbers of READs turned to this side's.
    words: Words,
    private: Vec<u8>,
    mtu: Mtu,
    device: Arc<Device>,
}

impl Listener {
    pub(crate) fn new(device: &Arc<Device>, port: u16) -> Result<Self, CmError> {
        const WHAT: &str = "listen for connections";
        let system = |source| CmError::System { what: WHAT, source };
        let manager = device.manager()?;
        let inbox = Arc::new(Inbox::new().map_err(system)?);
        let id = Id::new(&manager, About::Listener(inbox.clone()), WHAT)?;
        let port = id.listen(port).map_err(|source| match source.raw_os_error() {
            // Linux has the second for a port that another listens at on all addresses.
            Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL) => CmError::AddressInUse { port },
            _ => system(source),
        })?;
        Ok(Listener { port, inbox, id: Some(id), manager, device: device.clone() })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The next request, if one comes until then; none: without end. An error: none comes any more.
    pub(crate) fn next(&self, deadline: Option<Instant>) -> Result<Option<Request>, CmError> {
        loop {
            let taken = self.inbox.take(deadline).map_err(|loss| loss.error(self.device.name()))?;
            let Some(Asked { id, entry, course, words }) = taken else { return Ok(None) };
            let id = Id::of_request(id, entry, &self.manager);
            // Who asked may have given up since.
            if course.end().is_none()
                && let Ok(path) = id.attributes(sys::IBV_QPS_RTR)
            {
                return Ok(Some(Request::new(id, course, words, &path, &self.device)));
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.id = None;
        // Each is refused as it is dropped.
        while let Ok(Some(_)) = self.next(Some(Instant::now())) {}
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.inbox.as_raw_fd()
    }
}

impl Request {
    fn new(id: Id, course: Arc<Course>, mut words: Words, path: &sys::ibv_qp_attr, device: &Arc<Device>) -> Self {
        let mut private = std::mem::take(&mut words.private);
        private.resize(PRIVATE, 0);
        let mtu = port::mtu(path.path_mtu);
        Request { id, course, words, private, mtu, device: device.clone() }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.id.peer()
    }

    pub(crate) fn local(&self) -> IpAddr {
        self.id.local()
    }

    pub(crate) fn private_data(&self) -> &[u8] {
        &self.private
    }

    pub(crate) fn offer(&self) -> PeerOffer {
        let Words { qpn, reads: [answered, under_way], retry_count, rnr_retry, shared_receives, .. } = self.words;
        PeerOffer {
            qp_type: QpType::Rc,
            qpn: Qpn(qpn),
            // What this end answers is what the peer has under way, and the other way round.
            max_reads: answered,
            reads_answered: under_way,
            mtu: self.mtu,
            retry_count,
            rnr_retry,
            shared_receives,
        }
    }

    pub(crate) fn accept(self, prepared: Prepared, private: &[u8]) -> Result<Connecting, CmError> {
        let private = padded::<{ Reply::PRIVATE }>(private)?;
        let words = words_of(&self.device, &prepared, &private)?;
        let words = Words { reads: smaller(self.words.reads, words.reads), ..words };
        let qp = prepared.ibv().ok_or(CmError::ForeignObject)?;
        let gone = |source: io::Error| match self.course.end() {
            Some(end) => end.error(self.id.peer(), self.id.device()),
            // The kernel has it for a request whose peer gave up, of which it does not tell.
            None if source.raw_os_error() == Some(libc::EINVAL) => CmError::Over,
            None => CmError::System { what: "accept a connection", source },
        };
        let agreed = self.id.agreed(words.reads).map_err(gone)?;
        qp.check_agreed(&agreed, self.id.local())?;
        // Before the peer is told, since it may send at once then.
        qp.connect_as_agreed(&agreed)?;
        self.course.set_queue_pair(qp.leash());
        self.id.accept(&words).map_err(gone)?;
        Ok(Connecting::accepted(self.id, self.course, prepared.connected(), self.private))
    }

    pub(crate) fn reject(self, private: &[u8]) -> Result<(), CmError> {
        let private = padded::<{ Reject::PRIVATE }>(private)?;
        self.id.reject(&private).map_err(|_| match self.course.end() {
            Some(end) => end.error(self.id.peer(), self.id.device()),
            None => CmError::Over,
        })
    }
}

/// Bytes of a request that are the application's.
pub(super) const PRIVATE: usize = RequestMessage::PRIVATE - IP_HEADER_LEN;
