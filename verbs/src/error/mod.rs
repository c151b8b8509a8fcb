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

/// Numbers, or that there are none.
fn list(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") }
}

fn hexadecimal(keys: &[u16]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("{key:#06x}")).collect();
    if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
}

/// Where to look for what the system does not tell.
const LOOK: &str = "see what the kernel's log (dmesg) says, and look for limits (`qpair doctor`)";

/// What a message says of an attribute that a device does not take, where it is known.
fn untaken(attribute: Option<&str>) -> String {
    attribute.map_or_else(String::new, |attribute| format!("; it does not take {attribute}"))
}
