//! Where a worker can be reached by peers that connect.

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};

use super::error::ListenError;
use super::ids::{Listener, ListenerId};
use crate::worker::{Worker, no_address};

impl Worker {
    /// Listens at a TCP address for peers that want to connect. A name that needs to be looked up blocks.
    ///
    /// # Errors
    /// [`ListenError`] if the address can not be resolved or taken.
    pub fn listen(&mut self, addr: impl ToSocketAddrs) -> Result<Listener, ListenError> {
        if self.sockets.listeners() >= LISTENERS {
            return Err(ListenError::TooMany { limit: LISTENERS });
        }
        let mut last = None;
        for address in addr.to_socket_addrs().map_err(ListenError::Address)? {
            match self.sockets.listen(address) {
                Ok((id, address)) => return Ok(Listener { id: ListenerId(id), address }),
                Err(source) => last = Some(ListenError::Bind { address, source }),
            }
        }
        Err(last.unwrap_or_else(|| ListenError::Address(no_address())))
    }

    /// Listens by rdma_cm for peers that want to connect: at a port of all addresses of the device, or at 0 for one that is
    /// free. It is no TCP port. Peers connect with [`RdmaCm`](crate::RdmaCm) around the address, and all that is said to set
    /// connections up, and about them later, goes over a queue pair: no TCP is needed between the two, nor the system's
    /// sockets. What holds for TCP otherwise, the cluster key say, holds here, but that each who connects costs a queue pair,
    /// 24 KiB and a descriptor before it has shown the key, and there may be 256 of them at once.
    ///
    /// ```
    /// use qpair_transport::{Config, Event, RdmaCm, Worker};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut worker = Worker::new(Config::default())?;
    /// # if let Err(qpair_transport::ListenError::RdmaCm(error)) = worker.listen_rdma_cm(0) {
    /// #     return Ok(println!("skipped: {error}"));
    /// # }
    /// let server = worker.listen_rdma_cm(0)?;
    /// worker.connect(RdmaCm(("127.0.0.1", server.local_addr().port())))?;
    /// while !matches!(worker.wait(None)?, Some(Event::Accepted { .. })) {}
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ListenError`] if the port is taken, or the device has no connection manager.
    pub fn listen_rdma_cm(&mut self, port: u16) -> Result<Listener, ListenError> {
        if self.sockets.listeners() >= LISTENERS {
            return Err(ListenError::TooMany { limit: LISTENERS });
        }
        let (id, port) = self.sockets.listen_rdma_cm(port).map_err(Box::new)?;
        Ok(Listener { id: ListenerId(id), address: SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)) })
    }

    /// Stops listening; once more, it does nothing. Connections that were accepted stay.
    pub fn stop_listening(&mut self, listener: Listener) {
        self.sockets.stop_listening(listener.id.0);
    }
}

/// Listening addresses of a worker.
const LISTENERS: usize = 64;
