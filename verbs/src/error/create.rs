//! Making control objects.

use std::io;

use thiserror::Error;

use super::{LOOK, hexadecimal, list, untaken};
use crate::types::{QpState, QpType};

/// Making a control object (PD, CQ, QP, SRQ) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A size is zero or above the device's limit.
    #[error("{what} of {asked} is not possible; the greatest is {limit}")]
    OutOfRange {
        /// The attribute.
        what: &'static str,
        /// The value asked for.
        asked: u64,
        /// The greatest value.
        limit: u64,
    },
    /// The device has no more of these.
    #[error("the device has no room for another {what}; close some that are not used any more")]
    Exhausted {
        /// The kind of object.
        what: &'static str,
    },
    /// The device has no memory for the object, which a limit on locked memory may stand in the way of.
    #[error(
        "the device has no memory for a {what}: it may have no room for another, or what it pins would exceed the limit on \
         locked memory, of which {used} of {limit} bytes are used; raise it with `ulimit -l`, in /etc/security/limits.conf \
         (memlock), by LimitMEMLOCK= of systemd, or by --ulimit memlock=-1 of a container; or make the queue less deep, or \
         close some that are not used any more"
    )]
    Memlock {
        /// The kind of object.
        what: &'static str,
        /// Bytes that are pinned already.
        used: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// Objects of different contexts were combined, or of different protection domains.
    #[error("{what} belongs to another context or protection domain; make both from the same")]
    ForeignObject {
        /// The object that does not belong.
        what: &'static str,
    },
    /// The combination is not defined.
    #[error("{what} is not supported on {qp_type:?} queue pairs")]
    NotSupported {
        /// The attribute.
        what: &'static str,
        /// The service.
        qp_type: QpType,
    },
    /// Memory can not be registered with several devices of which one is the software device.
    #[error("memory of the software device can not be registered with another device; use devices of libibverbs alone")]
    NotSpanned,
    /// The device can not tell when completions were.
    #[error("{device} has no completion timestamps that can be relied upon; make the queue without")]
    NoTimestamps {
        /// The device.
        device: String,
    },
    /// The port has no address.
    #[error("port {port} has no GID: bring its network interface up and give it an address, or name another port")]
    NoGid {
        /// The port.
        port: u8,
    },
    /// The row of the GID table that was chosen is empty.
    #[error("row {index} of the GID table of port {port} is empty; rows in use: {} (`qpair devices -v` shows them)", list(.rows))]
    EmptyGid {
        /// The port.
        port: u8,
        /// The row asked for.
        index: u32,
        /// The rows in use.
        rows: Vec<u32>,
    },
    /// The port is not in the partition that was asked for.
    #[error(
        "port {port} is not in the partition of key {pkey:#06x}; its keys: {} (the subnet's manager gives them)",
        hexadecimal(.keys)
    )]
    NoPkey {
        /// The port.
        port: u8,
        /// The key asked for.
        pkey: u16,
        /// The keys of the port's table.
        keys: Vec<u16>,
    },
    /// The device refused a state transition.
    #[error(
        "the device does not bring a queue pair to {to:?}{}: {source}; {LOOK}",
        untaken(attribute.as_deref())
    )]
    Transition {
        /// Wanted state.
        to: QpState,
        /// The attribute that it does not take, with its value, if that was found out.
        attribute: Option<String>,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused a resource.
    #[error("could not {what}: {source}; {LOOK}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}
