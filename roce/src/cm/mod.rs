//! The connection manager: sets up connections between queue pairs over datagrams that may be lost, and ends them. IBA
//! chapter 12; what it leaves open is as in Linux (`drivers/infiniband/core/cm.c`), the usual peer.
//!
//! ```
//! use std::time::Instant;
//!
//! use qpair_roce::cm::{Accept, CmConfig, Connect, ConnectionManager, Event, Offered};
//! use qpair_roce::Qpn;
//!
//! let (near, far) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
//! let mut active = ConnectionManager::new(CmConfig::new(near, 1));
//! let mut passive = ConnectionManager::new(CmConfig::new(far, 2));
//! let (now, mut drawn) = (Instant::now(), 0);
//! let entropy = &mut || { drawn += 1; drawn }; // A real one is unpredictable.
//! passive.listen(7)?;
//! active.connect(now, &Connect::new(far, 7, Offered::new(Qpn(0x11))), entropy)?;
//! while let Some(datagram) = active.poll_transmit() {
//!     passive.handle(now, near, &datagram.bytes, entropy);
//! }
//! let Some(Event::Requested { id, .. }) = passive.poll_event() else { panic!("nobody asked") };
//! let theirs = passive.accept(now, id, &Accept::new(Offered::new(Qpn(0x22))))?;
//! while let Some(datagram) = passive.poll_transmit() {
//!     active.handle(now, far, &datagram.bytes, entropy);
//! }
//! let Some(Event::Accepted { id, terms, .. }) = active.poll_event() else { panic!("not accepted") };
//! assert_eq!((terms.send_psn, terms.receive_psn), (theirs.receive_psn, theirs.send_psn));
//! active.ready(id, &[0; 224])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod counters;
mod ending;
mod event;
mod handle;
mod manager;
mod opening;
mod outbox;
mod table;
mod time;

pub use config::{Accept, CmConfig, Connect, IdTail, Offered};
pub use counters::CmCounters;
pub use event::{Awaited, CmState, ConnectionId, Event, Offer, OpenError, StateError, Terms, Transmit};
pub use manager::ConnectionManager;
pub use time::Timeout;
