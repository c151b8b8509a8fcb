//! The connection manager: two workers find each other over TCP, or by rdma_cm, show that they belong together, and exchange
//! what their queue pairs need. The stream stays open afterwards: when it hangs up, the peer is gone.
//!
//! `channel`, `dial` and what they use decide, without I/O; `sockets` is the driver around them.

mod address;
mod alarm;
mod backoff;
mod carrier;
mod channel;
mod dial;
mod error;
mod hello;
mod keepalive;
mod key;
mod message;
mod names;
mod preface;
mod rdma;
mod socket_map;
mod sockets;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod timers;
mod turns;

use rustix::io::Errno;

pub use address::{PeerAddress, RdmaCm, ToPeer};
pub use channel::Guarded;
pub(crate) use dial::CallError;
pub use error::{HandshakeError, Versions};
pub(crate) use hello::{DatagramTerms, Fabric, Features, Hello, RAILS_LIMIT, RailNews, RailWord, Renewal};
pub use keepalive::Keepalive;
pub use key::{ClusterKey, ClusterKeyError};
pub(crate) use message::Message;
pub use rdma::RdmaCmError;
pub(crate) use socket_map::SocketMap;
pub(crate) use sockets::{Notice, Settings, SocketId, Sockets};
pub(crate) use stream::StreamEnd;

/// True if this process, or the system, has no descriptor left.
pub(crate) fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|full| error.raw_os_error() == Some(full.raw_os_error()))
}
