//! Where ranks find the store.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream, ToSocketAddrs};
use std::time::Duration;

use mio::net::TcpListener;
use qpair_transport::ClusterKey;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

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

/// Listens where `host` leads: rank 0's part of a meeting.
///
/// A name may lead the other ranks to another address of this host than it does here: to that of a network where here it is
/// loopback, by IPv4 where here it is IPv6. By a name all addresses count therefore, and by a literal address that one, and
/// `localhost` is loopback.
///
/// # Errors
/// Also if the name leads to no address of this host: then rank 0 was started elsewhere than where the others look for it.
pub(super) fn listen_at(host: &str, addresses: &[SocketAddr], port: u16) -> io::Result<TcpListener> {
    let everywhere = is_name(host) && addresses.iter().any(is_here);
    if everywhere { listen_everywhere(port) } else { listen(addresses) }
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
    // One for both, unless the system has no IPv6.
    match listen_to_both(port) {
        Err(error) if error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
        }
        other => other,
    }
}

/// Whatever the system's own choice is (net.ipv6.bindv6only).
fn listen_to_both(port: u16) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}

/// Whether an address is one of this host's.
pub(super) fn is_here(address: &SocketAddr) -> bool {
    std::net::TcpListener::bind((address.ip(), 0)).is_ok()
}

/// Whether each host takes that for itself.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    address.map_or(host == "localhost" || host.ends_with(".localhost"), |address| address.is_loopback())
}

/// Whether it is the name of a host, and no address.
fn is_name(host: &str) -> bool {
    host.parse::<IpAddr>().is_err() && !is_loopback(host)
}

/// As many as mio has wait to be accepted.
const BACKLOG: i32 = 1024;
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
    fn by_a_name_others_may_reach_rank_0_at_another_address() {
        let is_everywhere = |host: &str, addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
            let listener = listen_at(host, &addresses, 0)?;
            Ok::<_, io::Error>(listener.local_addr()?.ip().is_unspecified())
        };
        assert!(is_everywhere("node1", &["127.0.1.1"]).unwrap(), "Debian's name of its own host");
        assert!(is_everywhere("node1", &["192.0.2.1", "127.0.0.1"]).unwrap(), "the second is this host's");
        assert!(is_everywhere("node1", &["192.0.2.1"]).is_err(), "it is another host's");
        assert!(is_everywhere("node1", &[]).is_err());
        for host in ["localhost", "a.localhost", "127.0.0.1"] {
            assert!(!is_everywhere(host, &["127.0.0.1"]).unwrap(), "{host}");
            assert!(is_loopback(host));
        }
        assert!(!is_loopback("node1") && !is_loopback("10.0.0.1"));
    }
}
