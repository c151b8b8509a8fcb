//! Memory that messages go through: slabs for short ones, a pool for long ones, payloads, and what receives are put into.

mod chain;
mod lent;
mod line;
mod message;
mod payload;
mod pool;
mod registrations;
mod slabs;
mod target;

pub use message::Message;
pub(super) use message::SHORT;
pub use payload::Payload;

pub(crate) use pool::Pool;
pub(crate) use registrations::{InUse, Registrations};
pub(crate) use slabs::{EagerSlabs, Oldest};
pub(crate) use target::Target;
