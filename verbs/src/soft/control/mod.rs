//! The control plane of the software device: how opened devices of a host find each other, exchange descriptors, and
//! see each other die. One sleeping thread per opened device; nothing here but [`Link::reach`] is on the data path.

mod answers;
mod askers;
mod departures;
mod establish;
mod lending;
mod link;
mod message;
mod outbox;
mod peer_arenas;
mod process;
mod remote_access;
mod serve;
mod socket;
mod thread;

pub(crate) use askers::Askers;
pub(crate) use establish::establish;
pub(crate) use link::Link;
pub(crate) use message::{BounceOp, Message};
pub(crate) use peer_arenas::Reach;
pub(crate) use serve::{Drained, Greeted, drain, greet, settle};
#[cfg(test)]
pub(crate) use socket::accept;
pub(crate) use socket::{Socket, listen};
pub(crate) use thread::{Control, Handler};
