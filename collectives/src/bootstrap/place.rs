//! Where ranks find the store.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use mio::net::TcpListener;
use qpair_transport::ClusterKey;

use super::line::{self, Ear, Mouth};
use crate::deadline::Deadline;
use crate::error::BootstrapError;

/// Where ranks find the store, and what they need there.
#[derive(Debug)]
pub(super) struct Place {
    /// The host's name or address, for people.
    pub(super) host: String,
    pub(super) port: u16,
    /// Tried in turn.
    pub(super) addresses: Vec<SocketAddr>,
    /// What shows that a rank is of this job, where the launcher passes such a thing on.
    pub(super) ticket: Option<String>,
    pub(super) key: Option<ClusterKey>,
    pub(super) limit: Duration,
}

impl Place {
    pub(super) fn named(&self) -> (String, u16) {
        (self.host.clone(), self.port)
    }

    /// Connects to the store; rank 0 may still have to start.
    pub(super) fn reach(&self, until: Deadline) -> Result<TcpStream, BootstrapError> {
        let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
        let mut pause = FIRST_PAUSE;
        // A host that does not answer at one of its addresses is not to take the time of the others.
        let longest = if self.addresses.len() > 1 { ATTEMPT } else { Duration::MAX };
        loop {
            for address in &self.addresses {
                let left = until.left().unwrap_or(Duration::MAX).clamp(FIRST_PAUSE, longest);
                match TcpStream::connect_timeout(address, left) {
                    // A port without a listener may happen to be this side's own.
                    Ok(stream) if stream.local_addr().ok() != stream.peer_addr().ok() => return Ok(stream),
                    Ok(_) => last = ErrorKind::ConnectionRefused.into(),
                    Err(error) => last = error,
                }
            }
            if until.left().is_some_and(|left| left <= pause) {
                let ((host, port), limit) = (self.named(), self.limit);
                return Err(BootstrapError::NoAnswer { host, port, limit, source: last });
            }
            std::thread::sleep(pause);
            // Hundreds of ranks that ask again and again keep rank 0 from starting.
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    pub(super) fn speak(&self, stream: TcpStream) -> Result<(Mouth, Ear), BootstrapError> {
        let what = "set up the connection to rank 0";
        line::speak(stream, self.key.as_ref()).map_err(|source| BootstrapError::System { what, source })
    }
}

/// The addresses of a host; `None` of them is an error.
pub(super) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, BootstrapError> {
    match (host, port).to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(source) => Err(BootstrapError::Resolve { host: host.to_owned(), source }),
    }
}

/// Listens at the first of `addresses` that this host has.
///
/// # Errors
/// Also if that port is taken at an address before: ranks would find what listens there.
pub(super) fn listen(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut last = ErrorKind::AddrNotAvailable.into();
    for &address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens at a port of all addresses of this host.
pub(super) fn listen_everywhere(port: u16) -> io::Result<TcpListener> {
    let v4 = || TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
    // One for both, unless the system has it otherwise, or has no IPv6.
    if std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|flag| flag.trim() == "1") {
        return v4();
    }
    match TcpListener::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
        Err(error) if error.kind() != ErrorKind::AddrInUse => v4(),
        other => other,
    }
}

/// Whether a host's name leads its own processes to loopback, where those of other hosts do not reach them.
pub(super) fn is_own_name(host: &str, addresses: &[SocketAddr]) -> bool {
    let is_name = host.parse::<IpAddr>().is_err() && host != "localhost" && !host.ends_with(".localhost");
    is_name && !addresses.is_empty() && addresses.iter().all(|address| address.ip().is_loopback())
}

/// Between two attempts to reach rank 0, at first and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// For one of several addresses.
const ATTEMPT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_at_one_address_is_not_used_at_the_next() {
        let stranger = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let taken = stranger.local_addr().unwrap();
        let next = SocketAddr::new("127.0.0.2".parse().unwrap(), taken.port());
        assert_eq!(listen(&[taken, next]).unwrap_err().kind(), ErrorKind::AddrInUse);
        // An address that this host does not have is passed over.
        let foreign = SocketAddr::new("192.0.2.1".parse().unwrap(), taken.port());
        assert_eq!(listen(&[foreign, next]).unwrap().local_addr().unwrap(), next);
        assert_eq!(listen_everywhere(taken.port()).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn a_name_that_leads_to_loopback_is_one_that_others_reach_elsewhere() {
        let (loopback, other) = ("127.0.1.1:9".parse().unwrap(), "10.0.0.1:9".parse().unwrap());
        assert!(is_own_name("node1", &[loopback]));
        assert!(!is_own_name("node1", &[loopback, other]) && !is_own_name("node1", &[]));
        assert!(!is_own_name("localhost", &[loopback]) && !is_own_name("127.0.1.1", &[loopback]));
    }
}
