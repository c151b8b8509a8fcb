//! Messages over RDMA queue pairs: endpoints, tagged messages, zero-copy receives, a connection manager.
//!
//! A [`Worker`] belongs to one thread. Short messages are copied once, into a slab of the receiver that the application
//! gets as it is, a [`Message`]; long ones stay where they are until the receiver reads them, straight into its own
//! memory if it posted a receive. A sender never sends what the receiver has no room for.
//!
//! ```
//! use bytes::Bytes;
//! use qpair_transport::{Config, Event, Flow, Tag, Worker};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut worker = Worker::new(Config::default())?;        // one thread, one worker
//! let server = worker.listen("127.0.0.1:0")?;
//! let ep = worker.connect(server.local_addr())?;
//! worker.send(ep, Tag(7), Bytes::from_static(b"hello"))?;
//! worker.run(|event, _worker| match event {
//!     Event::Received { tag, message, .. } => {
//!         println!("{tag}: {message:?}");
//!         assert_eq!((tag, &message[..]), (Tag(7), &b"hello"[..]));
//!         Flow::Stop
//!     }
//!     _ => Flow::Continue,
//! })?;
//! # Ok(())
//! # }
//! ```

//!
//! # What there is
//!
//! | | |
//! |---|---|
//! | messages | [`send`](Worker::send), [`send_copy`](Worker::send_copy), [`recv_into`](Worker::recv_into), [`recv`](Worker::recv), [`probe`](Worker::probe) |
//! | calls | [`send_active`](Worker::send_active), [`request`](Worker::request), [`respond`](Worker::respond), [`Handlers`] |
//! | streams | [`open_stream`](Worker::open_stream), [`stream_send`](Worker::stream_send), [`stream_finish`](Worker::stream_finish) |
//! | the peer's memory | [`put`](Worker::put), [`get`](Worker::get), [`put_copy`](Worker::put_copy), [`put_notify`](Worker::put_notify), [`fetch_add`](Worker::fetch_add), [`compare_swap`](Worker::compare_swap) |
//! | order and ends | [`flush`](Worker::flush), [`fence`](Worker::fence), [`cancel`](Worker::cancel), [`set_deadline`](Worker::set_deadline) |
//! | waiting | [`poll`](Worker::poll), [`wait`](Worker::wait), [`arm`](Worker::arm), [`futures`] |
//! | looking in | [`explain`](Worker::explain), [`metrics`](Worker::metrics), [`Counters`], [`History`] |
//!
//! The [`guide`] says what holds: order, memory, failures, waiting, many peers, several NICs, who may
//! connect.

#![forbid(unsafe_code)]

mod cm;
mod engine;
pub mod futures;
pub mod guide;
#[cfg(test)]
mod soak;
mod worker;

pub use cm::{
    ClusterKey, ClusterKeyError, Guarded, HandshakeError, Keepalive, PeerAddress, RdmaCm, RdmaCmError, ToPeer, Versions,
};
pub use engine::{
    Class, Envelope, HEADER_BYTES, Header, HeaderView, Kind, OFFER_BYTES, OFFER_LIMIT, Offer, Origin, PARTS_BYTES,
    PROTOCOL_VERSION, RailKeys, RemoteMemory, Violation, WireError,
};
pub use worker::{
    ActiveMessage, Armed, CloseReason, Config, ConnectError, ConnectFailure, Counter, Counters, DatagramState,
    EndpointId, Event, Explanation, Flow, HandlerId, Handlers, History, ListenError, Listener, ListenerId, Lost,
    Message, MessageHandler, Metrics, Misfit, Near, NearError, NoKey, Notice, OneSidedError, OneSidedFailure, OpError,
    OpId, Payload, Placement, Polled, Probe, Rail, RailState, RecvError, RecvFailure, RemoteCounter, Reply, Request,
    RequestHandler, ResourceError, Returned, SendCopyError, SendError, SendFailure, Source, StreamEnd, StreamId, Tag,
    TagPattern, Traffic, Unmatched, Worker, WorkerError,
};
