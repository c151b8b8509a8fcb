//! The message protocol as a state machine without I/O, clock or randomness: headers, completions and time come in as
//! arguments; what to post and what to tell the application comes out. One [`Link`] is one side of one connection.

mod credits;
mod exposed;
mod inbox;
mod keepalive;
mod link;
mod slots;
mod step;
#[cfg(test)]
mod tests;
mod violation;
mod wire;

pub use wire::{HEADER_BYTES, Header, HeaderView, Kind, OFFER_BYTES, Offer, PROTOCOL_VERSION, WireError};

pub use violation::Violation;

pub(crate) use inbox::{Arrival, Fit, Offered, Placed, Posted, Pulled, Start, Unmatched};
pub(crate) use keepalive::Pulse;
pub(crate) use link::{Link, RESERVED_SLOTS};
pub(crate) use step::{Blocked, Frame, LinkConfig, PeerTerms, Pending, Step};
