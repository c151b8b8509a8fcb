//! Listening for connections.

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::request::ConnectionRequest;
use super::{deadline, soft};
use crate::context::Provider;
use crate::error::CmError;
use crate::ibv::cm as ibv;

/// Listens for connections at a port, on all addresses of the device; a mio [`Source`](mio::event::Source) that is readable
/// while requests wait. [`Context::listen`](crate::Context::listen) makes one.
///
/// Up to 1,024 requests wait, on the software device for each address. Requests that find no room are dropped there, and
/// their peers repeat them; on devices of libibverbs they are refused, with [`RejectReason::CONSUMER`], and their peers have
/// to ask again. When it is dropped, requests that wait are refused.
///
/// On devices of libibverbs one listener of a host has a port, whatever its device; those who ask for another device there are
/// refused, with [`CmError::ListensElsewhere`].
///
/// [`RejectReason::CONSUMER`]: crate::RejectReason::CONSUMER
#[derive(Debug)]
pub struct Listener {
    listener: Inner,
}

#[derive(Debug)]
enum Inner {
    Soft(soft::Listener),
    Ibv(ibv::Listener),
}

impl Listener {
    /// Listens at a port, or at 0 for one that is free.
    pub(crate) fn new(provider: &Provider, port: u16) -> Result<Self, CmError> {
        let listener = match provider {
            Provider::Soft(node) => Inner::Soft(soft::Listener::new(node, port)?),
            Provider::Ibv(device) => Inner::Ibv(ibv::Listener::new(device, port)?),
        };
        Ok(Listener { listener })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        match &self.listener {
            Inner::Soft(listener) => listener.port(),
            Inner::Ibv(listener) => listener.port(),
        }
    }

    /// The next request, if one waits. Never blocks. That none can come any more, [`wait`](Listener::wait) alone tells.
    pub fn poll(&self) -> Option<ConnectionRequest> {
        self.next(Some(Instant::now())).ok().flatten()
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// [`CmError::TimedOut`] if none came within `limit`. On the software device, [`CmError::Connect`] with
    /// [`ConnectError::DeviceFailed`](crate::ConnectError::DeviceFailed), and on devices of libibverbs [`CmError::DeviceGone`] and
    /// [`CmError::ManagerGone`]: none comes any more.
    pub fn wait(&self, limit: Duration) -> Result<ConnectionRequest, CmError> {
        self.next(deadline(limit))?.ok_or(CmError::TimedOut { limit })
    }

    fn next(&self, deadline: Option<Instant>) -> Result<Option<ConnectionRequest>, CmError> {
        match &self.listener {
            Inner::Soft(listener) => Ok(listener.next(deadline)?.map(ConnectionRequest::soft)),
            Inner::Ibv(listener) => Ok(listener.next(deadline)?.map(ConnectionRequest::ibv)),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match &self.listener {
            Inner::Soft(listener) => listener.as_raw_fd(),
            Inner::Ibv(listener) => listener.as_raw_fd(),
        }
    }
}

crate::source::by_descriptor!(Listener);
