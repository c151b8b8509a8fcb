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

#![forbid(unsafe_code)]

mod cm;
mod engine;
pub mod futures;
mod worker;

pub use cm::{ClusterKey, ClusterKeyError, HandshakeError, PeerAddress, ToPeer, Versions};
pub use engine::{
    Class, Envelope, HEADER_BYTES, Header, HeaderView, Kind, OFFER_BYTES, Offer, Origin, PROTOCOL_VERSION, Violation,
    WireError,
};
pub use worker::{
    ActiveMessage, Armed, CloseReason, Config, ConnectError, ConnectFailure, Counter, Counters, EndpointId, Event,
    Explanation, Flow, HandlerId, Handlers, History, ListenError, Listener, ListenerId, Lost, Message, MessageHandler,
    Metrics, Misfit, Notice, OneSidedError, OneSidedFailure, OpError, OpId, Payload, Probe, RecvError, RecvFailure,
    RemoteCounter, Reply, Request, RequestHandler, ResourceError, Returned, SendCopyError, SendError, SendFailure,
    Source, StreamEnd, StreamId, Tag, TagPattern, Traffic, Unmatched, Worker, WorkerError,
};
