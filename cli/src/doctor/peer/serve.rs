//! The side that waits for others to compare with.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use thiserror::Error;

use super::exchange::{Patience, answer};
use super::summary::Summary;
use crate::output::{PrintError, print};
use crate::text::{count, printable, serving};

/// Serving ended.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The port is in use.
    #[error("port {0} is taken; give another with --port (the other side must give the same)")]
    PortTaken(u16),
    /// Not possible there.
    #[error("can not listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// No client can be taken any more.
    #[error("can not take clients any more: {0}")]
    Accept(io::Error),
    /// Nothing can be printed.
    #[error(transparent)]
    Print(#[from] PrintError),
}

/// Tells each client what this machine has, as it is at that time, one client after another, without end.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    bind: IpAddr,
    port: u16,
    patience: Patience,
    now: impl Fn() -> Summary,
) -> Result<std::convert::Infallible, ServeError> {
    let address = SocketAddr::new(bind, port);
    let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::PortTaken(port),
        _ => ServeError::Listen { address, source },
    })?;
    let bound = listener.local_addr().map_err(|source| ServeError::Listen { address, source })?;
    print(&serving(bound, "qpair doctor", "--port"))?;
    loop {
        let (stream, client) = match listener.accept() {
            Ok(accepted) => accepted,
            // A client that went away meanwhile.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ServeError::Accept(error)),
        };
        match answer(stream, &now(), patience) {
            Ok(theirs) => print(&format!(
                "{client}: release {}, kernel {}, {}",
                printable(&theirs.release),
                printable(theirs.kernel.as_deref().unwrap_or("not told")),
                count(theirs.ports.len(), "active RDMA port")
            ))?,
            Err(error) => print(&format!("{client}: {}", printable(&error.to_string())))?,
        }
    }
}
