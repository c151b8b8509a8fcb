//! Opening a device.

use std::io;

use thiserror::Error;

use super::LOOK;
use crate::ibv::LibraryError;

/// Opening a device failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has that name.
    #[error("no RDMA device is called `{name}`; there are: {known}{note}")]
    NotFound {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
        /// Why there are no others, as text that begins with `; `, or empty.
        note: String,
    },
    /// The device needs libibverbs, which can not be used.
    #[error("`{name}` is none of the devices without libibverbs (soft0), and there is no libibverbs: {source}")]
    Library {
        /// The name asked for.
        name: String,
        /// What is the matter with the library.
        source: LibraryError,
    },
    /// libibverbs does not open the device.
    #[error("{name} can not be opened: {source}; `qpair doctor` looks at drivers and permissions")]
    Refused {
        /// The device.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The device's provider lacks what every device has.
    #[error("{name} can not be used: its provider has no {what}; update rdma-core")]
    Incomplete {
        /// The device.
        name: String,
        /// The function that it lacks.
        what: &'static str,
    },
    /// The device does not tell what others are told before it can be used.
    #[error(
        "{name} can not be used: it does not tell {what}: {source}; try again, and look at what the kernel says of its \
         driver (dmesg)"
    )]
    Silent {
        /// The device.
        name: String,
        /// What it was asked for.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused a resource.
    #[error("{name} can not be opened: could not {what}: {source}; {LOOK}")]
    System {
        /// The device.
        name: String,
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The software device could not set itself up.
    #[error("the software device could not {what}: {source}; {LOOK}")]
    Soft {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}
