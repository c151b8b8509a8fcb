//! The control plane of the software device: how opened devices of a host find each other, exchange descriptors, and
//! see each other die. One sleeping thread per opened device; nothing here but [`Link::reach`] is on the data path.

mod establish;
mod link;
mod message;
mod remote_access;
mod serve;
mod socket;
mod thread;

pub(crate) use establish::establish;
pub(crate) use link::{Link, Reach};
pub(crate) use message::{BounceOp, Message};
pub(crate) use serve::{drain, greet};
pub(crate) use socket::{Socket, listen};
pub(crate) use thread::{Control, Handler};
