//! The control plane of the software device: how opened devices of a host find each other, exchange descriptors, and
//! see each other die. One sleeping thread per opened device; nothing here is on the data path.

mod establish;
mod message;
mod serve;
mod socket;
mod thread;

pub(crate) use establish::establish;
pub(crate) use message::{BounceOp, ClaimInfo, FaultKind, Message, QpInfo};
pub(crate) use socket::{Socket, listen};
pub(crate) use thread::Control;
