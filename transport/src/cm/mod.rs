//! The connection manager: two workers find each other over TCP and exchange what their queue pairs need. The stream
//! stays open afterwards: when it hangs up, the peer is gone.

mod hello;
mod sockets;
mod stream;
#[cfg(test)]
mod tests;

pub use hello::HandshakeError;
pub(crate) use hello::{Hello, Message};
pub(crate) use sockets::{Limits, Notice, SocketId, Sockets};
pub(crate) use stream::StreamEnd;
