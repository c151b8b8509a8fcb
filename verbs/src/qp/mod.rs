//! Queue pairs: set up by typestate, then posted to. RC and UC connect to one peer; UD sends to address handles.
//! What may be posted and which transitions are legal stands here; how a request is carried out is the provider's.

mod builder;
mod check;
mod connected;
mod datagram;
mod provider;
mod request;
mod transition;

pub use builder::{Prepared, QpBuilder, ReadyToReceive};
pub use connected::QueuePair;
pub use datagram::{AddressHandle, DatagramQueuePair, GRH_BYTES};
pub use request::{RecvRequest, SendRequest};
pub use transition::{QpAttribute, QpAttributes, Transition, transition};

pub(crate) use check::Limits;
pub(crate) use provider::{CqHandle, HOP_LIMIT, OwnedQp, QpOptions, RNR_FOREVER, SrqHandle, Target};
pub(crate) use request::{Borrowed, Op, SendWr};
pub(crate) use transition::check;
