//! Rails could not be chosen.

use qpair_topology::{LoadError, SelectError};
use thiserror::Error;

/// Topology could not name rails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NearError {
    /// QPAIR_TOPOLOGY names what is no machine.
    #[error("QPAIR_TOPOLOGY: {source}; correct it, or unset it to have the system asked")]
    Topology {
        /// What is wrong with the file.
        #[from]
        source: LoadError,
    },
    /// What is asked for is not there, or contradicts itself.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// QPAIR_NICS can not be meant as asked for.
    #[error("QPAIR_NICS is `{value}`: {source}")]
    Nics {
        /// Its value.
        value: String,
        /// What is wrong with it.
        source: SelectError,
    },
    /// QPAIR_NICS can not be understood.
    #[error(
        "QPAIR_NICS is `{value}`: write names or PCI addresses of NICs, as in mlx5_0,mlx5_3, or what to leave out, as in ^mlx5_2"
    )]
    Syntax {
        /// Its value.
        value: String,
    },
    /// QPAIR_NICS leaves nothing that can be used.
    #[error("QPAIR_NICS is `{value}`, and none of these NICs can be used: {why}; name others, or unset it")]
    NoneLeft {
        /// Its value.
        value: String,
        /// What is the matter with each.
        why: String,
    },
    /// The device that the worker is to be on is none of those that topology names.
    #[error(
        "{device} is none of the rails that topology names ({reason}); make the worker by Worker::new, or leave out Config::near"
    )]
    NotThat {
        /// The device.
        device: String,
        /// What topology names, and why.
        reason: String,
    },
    /// QPAIR_NICS names a NIC that can not be opened.
    #[error("QPAIR_NICS names {nic}, which libibverbs does not list; `qpair doctor` tells why")]
    NotListed {
        /// The NIC.
        nic: String,
    },
}
