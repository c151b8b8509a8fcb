//! What the application holds: communicators, buffers, and operations under way.
//! A communicator queues operations and gives each in turn to the executor.

mod buffer;
mod cartesian;
mod comm;
mod core;
mod explain;
mod group;
mod keys;
mod location;
mod measure;
mod neighbors;
mod operands;
mod operations;
mod pending;
mod seats;
mod shrink;
mod split;

pub use buffer::CommBuffer;
pub use cartesian::Cartesian;
pub use comm::Communicator;
pub use explain::Explanation;
pub use location::{Location, OnGpu, OnHost};
pub(crate) use measure::this_machine;
pub use neighbors::Neighbors;
pub use pending::{Held, OperationFailed, Pending, Start};
