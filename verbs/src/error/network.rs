//! Using the network.

use std::io;

use thiserror::Error;

use super::LOOK;

/// Why the software device can not use the network.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Another program has the port, or the kernel's own driver.
    #[error(
        "UDP port {port} is taken: unload the kernel's rdma_rxe (rmmod rdma_rxe), or stop the program that has it \
         (ss -lunp 'sport = {port}')"
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// Processes that would share the port, but with their own user alone.
    #[error(
        "UDP port {port} is taken by qpair processes of another user: run as that user, or stop them \
         (ss -lunp 'sport = {port}')"
    )]
    OtherUser {
        /// The port.
        port: u16,
    },
    /// Processes that would share the port do not answer.
    #[error(
        "the qpair processes that have UDP port {port} do not answer: continue those that are stopped, or end them \
         (ss -lunp 'sport = {port}')"
    )]
    NoAnswer {
        /// The port.
        port: u16,
    },
    /// Another process was about to open the network all the time.
    #[error("other qpair processes were busy opening the network for {seconds} s: if one of them is stopped, end it")]
    Busy {
        /// How long this process waited.
        seconds: u64,
    },
    /// As many devices are open on this host as can share the port.
    #[error(
        "{limit} devices that are open on this host share the network already: close one, or let programs share one"
    )]
    Full {
        /// Devices at most.
        limit: u32,
    },
    /// The system refused something.
    #[error("could not {what}: {source}; {LOOK}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl NetworkError {
    /// The same once more, for another who asked.
    pub(crate) fn again(&self) -> Self {
        match self {
            NetworkError::PortTaken { port, source } => NetworkError::PortTaken { port: *port, source: again(source) },
            NetworkError::OtherUser { port } => NetworkError::OtherUser { port: *port },
            NetworkError::NoAnswer { port } => NetworkError::NoAnswer { port: *port },
            NetworkError::Busy { seconds } => NetworkError::Busy { seconds: *seconds },
            NetworkError::Full { limit } => NetworkError::Full { limit: *limit },
            NetworkError::System { what, source } => NetworkError::System { what, source: again(source) },
        }
    }

    /// For `map_err`.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| NetworkError::System { what, source }
    }
}

/// The system's reason once more.
pub(crate) fn again(source: &io::Error) -> io::Error {
    match source.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(source.kind(), source.to_string()),
    }
}
