//! How ranks learn where to meet: they are told a port, or rank 0 chooses one and publishes it.

mod addresses;
mod file;
mod pmi;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use mio::net::TcpListener;
use qpair_transport::ClusterKey;

use super::place::{Place, is_here, listen, listen_at, listen_everywhere, resolve};
use crate::deadline::Deadline;
use crate::error::BootstrapError;
pub(super) use file::Published;

/// How ranks learn where to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meeting {
    /// Rank 0 listens at a port that all have been told.
    At {
        /// The host of rank 0. By a name rank 0 listens at all its addresses, since the name may lead others to another one than it
        /// does there; by an address at that one; `localhost` is loopback.
        host: String,
        /// The port at which rank 0 listens.
        port: u16,
    },
    /// Rank 0 listens at that port of all its addresses, on a host that is known by several names, or by one that leads rank 0 itself
    /// to loopback: that of the program that started the ranks.
    BesideLauncher {
        /// Addresses or names of that host; the first at which it is reached counts.
        hosts: Vec<String>,
        /// The port at which rank 0 listens.
        port: u16,
    },
    /// All ranks are on one host. Rank 0 chooses a port of loopback, and writes it into this file, which it makes, and removes once
    /// all have come. The file has a ticket too, without which nobody joins.
    File(PathBuf),
    /// Rank 0 chooses a port, and tells the others by the process manager that started them, with the same kind of ticket. It has to
    /// be let to have a descriptor of its own by number (`pidfd_getfd`, Linux 5.6), which some containers forbid; the error then
    /// says what to set instead.
    Pmi {
        /// The descriptor of this process that leads to the process manager, which speaks PMI-1 there.
        descriptor: i32,
        /// Whether all ranks are on one host.
        one_host: bool,
    },
}

/// What a rank does to meet the others, and rank 0 for them.
pub(super) struct Settled {
    pub(super) place: Place,
    /// At rank 0.
    pub(super) hosting: Option<Hosting>,
}

/// Where rank 0 listens.
pub(super) struct Hosting {
    pub(super) listener: TcpListener,
    /// What others read that, and is to be gone once they have come.
    pub(super) published: Option<Published>,
}

impl Meeting {
    /// Finds out where the ranks meet. Rank 0 listens there afterwards.
    pub(super) fn settle(
        &self,
        (rank, size): (u32, u32),
        key: Option<ClusterKey>,
        limit: Duration,
    ) -> Result<Settled, BootstrapError> {
        let until = Deadline::after(limit);
        let place = |host: String, port, addresses, ticket| Place { host, port, addresses, ticket, key, limit };
        match self {
            Meeting::At { host, port } => {
                let addresses = resolve(host, *port)?;
                let listen = || listen_at(host, &addresses, *port).map_err(|source| refused(host, *port, source));
                let hosting = (rank == 0).then(listen);
                let hosting = hosting.transpose()?.map(|listener| Hosting { listener, published: None });
                Ok(Settled { place: place(host.clone(), *port, addresses, None), hosting })
            }
            Meeting::BesideLauncher { hosts, port } => {
                let addresses = resolve_some(hosts, *port)?;
                let name = hosts.first().cloned().unwrap_or_default();
                if rank != 0 {
                    return Ok(Settled { place: place(name, *port, addresses, None), hosting: None });
                }
                if !addresses.iter().any(is_here) {
                    return Err(BootstrapError::NotBesideLauncher { launcher: name });
                }
                let listener = listen_everywhere(*port).map_err(|source| refused(&name, *port, source))?;
                let addresses = vec![own(*port)];
                let hosting = Some(Hosting { listener, published: None });
                Ok(Settled { place: place(name, *port, addresses, None), hosting })
            }
            Meeting::File(path) => {
                let (port, ticket, hosting) = if rank == 0 {
                    let (listener, port) = listen_here(false, 0)?;
                    let ticket = new_ticket()?;
                    let published = (size > 1).then(|| file::publish(path, port, &ticket)).transpose()?;
                    (port, ticket, Some(Hosting { listener, published }))
                } else {
                    let (port, ticket) = file::find(path, until, limit)?;
                    (port, ticket, None)
                };
                let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
                Ok(Settled { place: place(address.ip().to_string(), port, vec![address], Some(ticket)), hosting })
            }
            Meeting::Pmi { descriptor, one_host } => {
                let known = pmi::known();
                let port = known.as_ref().map_or(0, |offer| offer.port);
                let listening = (rank == 0).then(|| listen_here(!one_host, port)).transpose()?;
                let hosts = if *one_host { vec![Ipv4Addr::LOCALHOST.to_string()] } else { addresses::own() };
                let offer = listening
                    .as_ref()
                    .map(|(_, port)| Ok::<_, BootstrapError>(pmi::Offer { port: *port, ticket: new_ticket()?, hosts }));
                let offer = match known {
                    Some(known) => known,
                    None => pmi::exchange(*descriptor, size, offer.transpose()?, until)?,
                };
                let name = offer.hosts.first().cloned().unwrap_or_default();
                let addresses = if rank == 0 { vec![own(offer.port)] } else { resolve_some(&offer.hosts, offer.port)? };
                let hosting = listening.map(|(listener, _)| Hosting { listener, published: None });
                Ok(Settled { place: place(name, offer.port, addresses, Some(offer.ticket)), hosting })
            }
        }
    }
}

/// Addresses of those hosts that are known.
fn resolve_some(hosts: &[String], port: u16) -> Result<Vec<SocketAddr>, BootstrapError> {
    let mut found = Vec::new();
    let mut last = None;
    for host in hosts {
        match resolve(host, port) {
            Ok(addresses) => found.extend(addresses),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Rank 0's own way to where it listens at all addresses.
fn own(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

/// Listens at a port of loopback, or of all addresses; 0 is one that the system chooses.
fn listen_here(everywhere: bool, port: u16) -> Result<(TcpListener, u16), BootstrapError> {
    let listener = if everywhere { listen_everywhere(port) } else { listen(&[own(port)]) };
    let found = listener.and_then(|listener| {
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    });
    found.map_err(|source| refused(&Ipv4Addr::LOCALHOST.to_string(), port, source))
}

fn refused(host: &str, port: u16, source: std::io::Error) -> BootstrapError {
    let host = host.to_owned();
    match source.kind() {
        ErrorKind::AddrInUse => BootstrapError::PortTaken { host, port },
        _ => BootstrapError::Bind { host, port, source },
    }
}

/// What nobody can guess.
fn new_ticket() -> Result<String, BootstrapError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| BootstrapError::System { what: "draw a random number", source: error.into() })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
