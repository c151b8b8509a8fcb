//! Errors, one type per operation; a file for each group of operations. Each message says what to do next.

mod cm;
mod completion;
mod connect;
mod create;
mod gpu;
mod memory;
mod network;
mod open;
mod post;

pub use cm::CmError;
pub(crate) use cm::OTHER_DEVICE;
pub use completion::{CompletionError, CqError, NoMemory};
pub use connect::{ConnectError, ModifyError};
pub use create::CreateError;
pub use gpu::{GpuError, GpuRegisterFailed, GpuRevokeFailed};
pub use memory::{BytesRevokeFailed, DmabufRevokeFailed, ExposeFailed, MemoryError, RevokeBlocked, RevokeFailed};
pub use network::NetworkError;
pub(crate) use network::again;
pub use open::OpenError;
pub use post::{PostError, Rejected};

/// What a message says of an attribute that a device does not take, where it is known.
fn untaken(attribute: Option<&str>) -> String {
    attribute.map_or_else(String::new, |attribute| format!("; it does not take {attribute}"))
}
