//! Connections by rdma_cm: listen at a port, connect to a socket address, accept or refuse, disconnect. The connection manager
//! speaks to its peers over queue pair 1, as Linux' does; on the software device it is `qpair_roce`'s, on others Linux' own by
//! librdmacm.

mod connecting;
mod connection;
mod listener;
mod options;
mod request;
mod soft;
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
pub(crate) fn padded<const LEN: usize>(private: &[u8]) -> Result<[u8; LEN], CmError> {
    let mut room = [0; LEN];
    let place = room.get_mut(..private.len()).ok_or(CmError::PrivateTooLong { len: private.len(), limit: LEN })?;
    place.copy_from_slice(private);
    Ok(room)
}

/// When a wait that begins now is over; none: never, since no clock can say it.
pub(crate) fn deadline(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}
