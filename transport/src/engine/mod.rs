//! The message protocol as a state machine without I/O, clock or randomness: headers, completions and time come in as
//! arguments; what to post and what to tell the application comes out. One [`Link`] is one side of one connection.

mod credits;
mod exposed;
mod inbox;
mod keepalive;
mod link;
mod slots;
#[cfg(test)]
mod tests;
mod wire;

pub use wire::{HEADER_BYTES, Header, HeaderView, Kind, Offer, OFFER_BYTES, PROTOCOL_VERSION, WireError};

pub use link::Violation;

pub(crate) use inbox::{Arrival, Fit, Offered, Placed, Posted, Pulled, Start};
pub(crate) use keepalive::Pulse;
pub(crate) use link::{Blocked, Frame, Link, LinkConfig, Pending, PeerTerms, RESERVED_SLOTS, Step};
