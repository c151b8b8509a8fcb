//! The connection manager of a device, driven with its queue pairs by the engine: a manager for each of the host's addresses,
//! and those who listen, or wait for a connection, as it tells them.

mod agent;
mod calls;
mod inbox;
mod key;
mod rounds;
mod route;
mod watch;

pub(super) use agent::Agent;
pub(crate) use inbox::Inbox;
pub(crate) use key::Key;
pub(crate) use route::{address_at, address_towards};
pub(crate) use watch::{Acceptance, End, Progress, Watch};
