//! What an application can ask of a worker, an operation or a pair of them in each file.

mod active;
mod atomic;
mod cancel;
mod deadlines;
mod expose;
mod flush;
mod handlers;
mod notice;
mod onesided;
mod post;
mod receive;
mod rendezvous;
mod request;
mod send;
mod stream;

pub use handlers::{ActiveMessage, Handlers, MessageHandler, RequestHandler};
pub use notice::{Counter, Notice, RemoteCounter};
pub use receive::Probe;
pub use request::{Reply, Request};
pub use stream::{StreamEnd, StreamId};

pub(in crate::worker) use deadlines::Deadlines;
pub(in crate::worker) use notice::CounterTable;
pub(in crate::worker) use post::{Body, has_memory, post};
pub(in crate::worker) use stream::{Halves, StreamCounts, StreamKey};
