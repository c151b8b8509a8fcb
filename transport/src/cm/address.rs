//! Whom to call: addresses, or a host's name.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Where a peer listens: addresses, of which the first that connects is taken, or a host's name and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerAddress {
    /// Addresses, of one worker.
    Addresses(Vec<SocketAddr>),
    /// A host by its name, which is looked up.
    Name {
        /// The name.
        host: String,
        /// The port.
        port: u16,
    },
    /// Where a peer listens by rdma_cm, not TCP ([`Worker::listen_rdma_cm`](crate::Worker::listen_rdma_cm)).
    RdmaCm(Box<PeerAddress>),
}

/// An address to connect to by rdma_cm instead of TCP; all that [`ToPeer`] takes.
///
/// ```
/// use qpair_transport::{PeerAddress, RdmaCm, ToPeer};
///
/// let name = PeerAddress::Name { host: "node7".into(), port: 4242 };
/// assert_eq!(RdmaCm("node7:4242").to_peer()?, PeerAddress::RdmaCm(Box::new(name)));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaCm<A>(pub A);

/// Which connection manager's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    Tcp,
    RdmaCm,
}

impl PeerAddress {
    /// The manager, and the address that it is to call.
    pub(crate) fn split(self) -> (Manager, PeerAddress) {
        match self {
            PeerAddress::RdmaCm(address) => (Manager::RdmaCm, address.split().1),
            address => (Manager::Tcp, address),
        }
    }
}

/// What [`Worker::connect`](crate::Worker::connect) takes: socket addresses, lists of them, `(host, port)`, and text of the form
/// `host:port`, `1.2.3.4:port` or `[::1]:port`.
///
/// ```
/// use qpair_transport::{PeerAddress, ToPeer};
///
/// let name = PeerAddress::Name { host: "node7".into(), port: 4242 };
/// assert_eq!("node7:4242".to_peer()?, name);
/// assert_eq!(("node7", 4242).to_peer()?, name);
/// assert_eq!("[::1]:4242".to_peer()?, PeerAddress::Addresses(vec!["[::1]:4242".parse().unwrap()]));
/// assert!("node7".to_peer().is_err());       // the port is missing
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait ToPeer {
    /// The address, as far as it can be understood without looking anything up.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if it has no address, no host or no port.
    fn to_peer(&self) -> io::Result<PeerAddress>;
}

impl ToPeer for PeerAddress {
    fn to_peer(&self) -> io::Result<PeerAddress> {
        match self {
            PeerAddress::Addresses(addresses) => addresses.to_peer(),
            PeerAddress::Name { host, port } => (host.as_str(), *port).to_peer(),
            PeerAddress::RdmaCm(address) => RdmaCm(&**address).to_peer(),
        }
    }
}

impl<A: ToPeer> ToPeer for RdmaCm<A> {
    fn to_peer(&self) -> io::Result<PeerAddress> {
        let (_, address) = self.0.to_peer()?.split();
        Ok(PeerAddress::RdmaCm(Box::new(address)))
    }
}

impl ToPeer for [SocketAddr] {
    fn to_peer(&self) -> io::Result<PeerAddress> {
        if self.is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "there is no address in the list"));
        }
        Ok(PeerAddress::Addresses(self.to_vec()))
    }
}

impl ToPeer for str {
    fn to_peer(&self) -> io::Result<PeerAddress> {
        if let Ok(address) = self.parse::<SocketAddr>() {
            return address.to_peer();
        }
        let parts = self.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = parts else {
            return Err(io::Error::new(ErrorKind::InvalidInput, format!("{self:?} has no port; write host:port")));
        };
        (host, port).to_peer()
    }
}

impl ToPeer for (&str, u16) {
    fn to_peer(&self) -> io::Result<PeerAddress> {
        let &(host, port) = self;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return (ip, port).to_peer();
        }
        if bare.is_empty() || bare.contains('\0') {
            return Err(io::Error::new(ErrorKind::InvalidInput, format!("{host:?} is no host; write host:port")));
        }
        Ok(PeerAddress::Name { host: bare.to_owned(), port })
    }
}

impl<T: ToPeer + ?Sized> ToPeer for &T {
    fn to_peer(&self) -> io::Result<PeerAddress> {
        (**self).to_peer()
    }
}

/// By what it holds.
macro_rules! to_peer {
    ($($type:ty: $this:ident => $holds:expr;)*) => {$(
        impl ToPeer for $type {
            fn to_peer(&self) -> io::Result<PeerAddress> {
                let $this = self;
                $holds.to_peer()
            }
        }
    )*};
}

to_peer! {
    SocketAddr: this => [*this][..];
    SocketAddrV4: this => SocketAddr::V4(*this);
    SocketAddrV6: this => SocketAddr::V6(*this);
    (IpAddr, u16): this => SocketAddr::from(*this);
    (Ipv4Addr, u16): this => SocketAddr::from(*this);
    (Ipv6Addr, u16): this => SocketAddr::from(*this);
    (String, u16): this => (this.0.as_str(), this.1);
    String: this => this.as_str();
    Vec<SocketAddr>: this => this[..];
}

impl<const N: usize> ToPeer for [SocketAddr; N] {
    fn to_peer(&self) -> io::Result<PeerAddress> {
        self[..].to_peer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_parsed_and_names_are_left_to_be_looked_up() {
        let here: SocketAddr = "127.0.0.1:7".parse().unwrap();
        let there: SocketAddr = "[fe80::1]:7".parse().unwrap();
        let one = |address| PeerAddress::Addresses(vec![address]);
        let named = PeerAddress::Name { host: "node.example".into(), port: 7 };
        let both = vec![here, there];
        let by_rdma_cm = PeerAddress::RdmaCm(Box::new(named.clone()));
        let cases: [(&dyn ToPeer, PeerAddress); 18] = [
            (&here, one(here)),
            (&&there, one(there)),
            (&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7), one(here)),
            (&(IpAddr::V4(Ipv4Addr::LOCALHOST), 7), one(here)),
            (&(Ipv4Addr::LOCALHOST, 7), one(here)),
            (&("127.0.0.1", 7), one(here)),
            (&("fe80::1", 7), one(there)),
            (&"127.0.0.1:7", one(here)),
            (&"[fe80::1]:7".to_owned(), one(there)),
            (&"node.example:7", named.clone()),
            (&("node.example".to_owned(), 7), named.clone()),
            (&("[fe80::1]", 7), one(there)),
            (&both, PeerAddress::Addresses(both.clone())),
            (&[here, there], PeerAddress::Addresses(both.clone())),
            (&&both[..], PeerAddress::Addresses(both.clone())),
            (&RdmaCm("node.example:7"), by_rdma_cm.clone()),
            (&RdmaCm(by_rdma_cm.clone()), by_rdma_cm),
            (&named.clone(), named),
        ];
        for (at, (given, expected)) in cases.into_iter().enumerate() {
            assert_eq!(given.to_peer().unwrap(), expected, "{at}");
        }
    }

    #[test]
    fn what_is_no_address_says_what_is_missing() {
        for text in ["", "node", "node:", "node:port", "node:70000", ":7", "127.0.0.1", "a\0b:7"] {
            let error = text.to_peer().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text:?}");
            assert!(error.to_string().contains("write host:port"), "{error}");
        }
        assert!(Vec::<SocketAddr>::new().to_peer().is_err());
    }
}
