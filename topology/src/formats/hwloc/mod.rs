//! The XML of hwloc (`lstopo machine.xml`), versions 1 to 3.

mod device;
mod links;
mod object;
mod read;

pub use read::HwlocError;
