//! Connections by rdma_cm: listen at a port, connect to a socket address, accept or refuse, disconnect. The connection manager
//! speaks to its peers over queue pair 1, as Linux' does; on the software device it is `qpair_roce`'s.

mod connecting;
mod connection;
mod handle;
mod listener;
mod options;
mod request;
#[cfg(test)]
mod tests;

pub use connecting::{Connecting, Established};
pub use connection::{CmConnection, Ended};
pub use listener::Listener;
pub use options::ConnectOptions;
pub use request::{ConnectionRequest, PeerOffer};

pub(crate) use connecting::connect;

use std::time::{Duration, Instant};

use crate::error::CmError;

/// Private data as a message has it: with zeros behind.
fn padded<const LEN: usize>(private: &[u8]) -> Result<[u8; LEN], CmError> {
    let mut room = [0; LEN];
    let place = room.get_mut(..private.len()).ok_or(CmError::PrivateTooLong { len: private.len(), limit: LEN })?;
    place.copy_from_slice(private);
    Ok(room)
}

/// When a wait that begins now is over; none: never, since no clock can say it.
fn deadline(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}
