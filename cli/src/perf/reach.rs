//! Connecting to a server by TCP.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::net::sockopt;

use super::args::PerfArgs;
use super::error::PerfError;

/// Connects to the server at `host`, for a measurement with `device`.
///
/// # Errors
/// [`PerfError::NoSuchHost`], [`PerfError::NoServer`].
pub fn reach(args: &PerfArgs, device: &str, host: &str, port: u16) -> Result<TcpStream, PerfError> {
    let addresses = (host, port).to_socket_addrs();
    let addresses = addresses.map_err(|source| PerfError::NoSuchHost { host: host.to_owned(), source })?;
    connect(addresses).map_err(|source| {
        let (host, device) = (host.to_owned(), device.to_owned());
        PerfError::NoServer { host, port, test: args.test, device, source }
    })
}

/// Connects to the first of these addresses that takes the connection, each within a limit.
///
/// # Errors
/// What the system says of the last address.
pub fn connect(addresses: impl IntoIterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Has the system find out within a minute that the other side's host is gone.
///
/// # Errors
/// What the system says.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    Ok(sockopt::set_tcp_keepcnt(stream, 3)?)
}

const LIMIT: Duration = Duration::from_secs(10);
