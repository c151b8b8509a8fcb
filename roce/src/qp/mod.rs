//! Queue pairs, by service, and what the services have in common: a message that comes in, and the packets of one that goes
//! out.

mod incoming;
mod message;
mod outgoing;
mod rc;
mod state;
mod uc;
mod ud;

pub use outgoing::LONGEST_PACKET;
pub use rc::{ReliableConfig, ReliableConnection};
pub use state::State;
pub use uc::{UnreliableConfig, UnreliableConnection};
pub use ud::{DatagramConfig, Datagrams, Grh};
