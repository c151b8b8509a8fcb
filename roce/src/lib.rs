//! RoCEv2 without I/O: the packets of RDMA over UDP, byte for byte those of Linux' rdma_rxe and of RoCE NICs.
//!
//! [`wire`] has the formats: every header as an owned value that is parsed and emitted, the invariant CRC that ends each
//! packet, and the messages of the connection manager. [`cm`] is that manager. [`congestion`] keeps senders to what the
//! network takes. Nothing here reads a clock, draws a random number, or calls the system.
//!
//! [`ReliableConnection`], [`UnreliableConnection`] and [`Datagrams`] are queue pairs of the three services: packets come in,
//! packets go out, and a [`Host`] has the memory and takes note of what is done. A [`Port`] is all of them behind one UDP
//! socket.
//!
//! Sources: InfiniBand Architecture Specification, volume 1, release 1.4 ("IBA" below), chapter 9 and 12, and its annexes
//! A16 (RoCE) and A17 (RoCEv2).

#![forbid(unsafe_code)]

pub mod cm;
pub mod congestion;
mod counters;
mod host;
mod port;
mod qp;
mod types;
pub mod wire;
mod work;

pub use counters::Counters;
pub use host::{AccessError, Cause, Change, Host, Right};
pub use port::{AddError, Arrival, Departure, NumberTable, Port, QueuePair, Route};
pub use qp::{
    DatagramConfig, Datagrams, Grh, LONGEST_PACKET, ReliableConfig, ReliableConnection, State, UnreliableConfig,
    UnreliableConnection,
};
pub use types::{Msn, Mtu, Psn, Qpn, Rkey};
pub use work::{
    Completion, Datagram, Extra, Incoming, MAX_MESSAGE, Op, Outcome, PostError, Receive, Remote, Send, Target,
};
