//! Connecting to a server by TCP.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::args::PerfArgs;
use super::error::PerfError;

/// Connects to the server at `host`, for a measurement with `device`.
///
/// # Errors
/// [`PerfError::NoServer`].
pub fn reach(args: &PerfArgs, device: &str, host: &str, port: u16) -> Result<TcpStream, PerfError> {
    connect(host, port).map_err(|source| {
        let (host, device) = (host.to_owned(), device.to_owned());
        PerfError::NoServer { host, port, test: args.test, device, source }
    })
}

/// Connects to the first address of `host` that takes the connection, each within a limit.
///
/// # Errors
/// What the system says of the last address.
pub fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

const LIMIT: Duration = Duration::from_secs(10);
