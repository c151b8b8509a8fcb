//! Messages of the connection manager, which set up and end connections: datagrams of 256 bytes between the queue pairs 1 of
//! two hosts. IBA 12.6, the header IBA 13.4.3. Linux' rdma_cm speaks them over RoCE too (`drivers/infiniband/core/cm_msgs.h`).
//!
//! ```
//! use qpair_roce::wire::cm::{Message, Packet, Pair};
//!
//! let ready = Packet { transaction: 7, message: Message::ReadyToUse { ids: Pair { local: 1, remote: 2 }, private: [0; 224] } };
//! assert_eq!(Packet::parse(&ready.emit()), Ok(ready));
//! ```

mod bits;
mod ids;
mod ip;
mod message;
mod path;
mod reject;
mod reply;
mod request;

pub use ids::{Pair, Refused};
pub use ip::{IP_HEADER_LEN, IpHeader, SERVICE_TCP};
pub use message::{CmError, LEN, Message, Packet};
pub use path::Path;
pub use reject::{Reason, Reject};
pub use reply::Reply;
pub use request::{Request, Transport};

/// The Q_Key of queue pair 1, where all of these messages go. IBA 10.2.5 calls it well-known.
pub const QKEY: u32 = 0x8001_0000;
