//! Listening for connections.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use super::handle::{Handle, source_port};
use super::request::Request;
use crate::error::CmError;
use crate::soft::{CmNetwork, Inbox, Node, random_u32};

/// Listens at a port, on all addresses of the device.
#[derive(Debug)]
pub(crate) struct Listener {
    port: u16,
    inbox: Arc<Inbox>,
    network: Arc<CmNetwork>,
    node: Arc<Node>,
}

impl Listener {
    /// Listens at a port, or at 0 for one that is free.
    pub(crate) fn new(node: &Arc<Node>, port: u16) -> Result<Self, CmError> {
        node.check()?;
        let network = node.network()?;
        let system = |source| CmError::System { what: "listen for connections", source };
        for _ in 0..ATTEMPTS {
            let tried = if port == 0 { source_port(random_u32()) } else { port };
            if let Some(inbox) = network.listen(tried).map_err(system)? {
                return Ok(Listener { port: tried, inbox, network, node: node.clone() });
            }
            if port != 0 {
                break;
            }
        }
        Err(CmError::AddressInUse { port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The next request, if one comes until then; none: without end.
    ///
    /// # Errors
    /// [`ConnectError::DeviceFailed`](crate::ConnectError::DeviceFailed): none comes any more.
    pub(crate) fn next(&self, deadline: Option<Instant>) -> Result<Option<Request>, CmError> {
        loop {
            let Some(asked) = self.inbox.wait(deadline)? else { return Ok(None) };
            let peer = (asked.offer.terms.address, asked.header.source.port()).into();
            let handle = Handle::new(self.node.clone(), self.network.clone(), (asked.key, asked.watch), peer);
            // Who asked may have given up since.
            if handle.watch.end().is_none() {
                return Ok(Some(Request::new(handle, &asked.offer)));
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.network.unlisten(self.port);
        // Each is refused as it is dropped.
        while let Ok(Some(_)) = self.next(Some(Instant::now())) {}
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.inbox.bell().as_raw_fd()
    }
}

/// Ports that are tried for one that is free; there are sixteen thousand.
const ATTEMPTS: u32 = 64;
