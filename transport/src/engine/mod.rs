//! The message protocol as a state machine without I/O, clock or randomness: headers, completions and time come in as
//! arguments; what to post and what to tell the application comes out. One [`Link`] is one side of one connection; one
//! [`Inbox`] takes what comes on all connections of a worker; one [`Flow`] carries the packets of a connection that has no
//! queue pair of its own.

mod calls;
mod credits;
mod exposed;
mod flow;
mod flush;
mod inbox;
mod keepalive;
mod link;
mod order;
mod part;
mod rail_keys;
mod rails;
mod retained;
mod shares;
mod slots;
mod step;
mod table;
#[cfg(test)]
mod tests;
mod threshold;
mod violation;
mod wire;

pub use wire::{
    Class, Envelope, HEADER_BYTES, Header, HeaderView, Kind, OFFER_BYTES, OFFER_LIMIT, Offer, PARTS_BYTES,
    PROTOCOL_VERSION, WireError,
};

#[cfg(test)]
pub(crate) use tests::random;
pub use threshold::Origin;
pub use violation::Violation;

pub(crate) use calls::{Call, Calls};
pub(crate) use credits::MAX_WINDOW;
pub(crate) use exposed::Exposed;
pub(crate) use flow::{Due, FLOW_BYTES, Flow, FlowHeader, FlowSettings, NotSent};
pub(crate) use inbox::{
    Arrival, Delivery, EntryKey, Fit, Freed, Inbox, Offered, Pattern, Peer, Placed, Policy, Posted, Start, Waiting,
};
pub(crate) use keepalive::Pulse;
pub(crate) use link::{Link, RESERVED_SLOTS};
pub(crate) use part::Part;
pub(crate) use rail_keys::RAILS;
pub use rail_keys::{RailKeys, RemoteMemory};
pub(crate) use rails::{DEPTH, RailStage, Rails, SLICED_FROM, slice_len};
pub(crate) use retained::{Again, Unconfirmed};
pub(crate) use shares::Shares;
#[cfg(test)]
pub(crate) use slots::Work;
pub(crate) use slots::is_before;
pub(crate) use step::{Blocked, Cancelled, Frame, LinkConfig, PeerTerms, Pending, Readable, Step};
pub(crate) use table::{Key, Seeds, Table};
pub(crate) use threshold::Threshold;
