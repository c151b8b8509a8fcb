//! Meeting by torchrun's variables.

use std::env::VarError;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use qpair_transport::Near;

use super::client::{Joining, Roster};
use super::message::{Listening, Member, Whereabouts};
use super::seating::{own_gpu, seating};
use super::server::{Server, listen};
use super::watch::Watch;
use super::whereabouts::whereabouts;
use crate::communicator::Communicator;
use crate::deadline::Deadline;
use crate::error::BootstrapError;
use crate::execute::{MAX_RANKS, Net, NetSettings};

/// Who this process is among the ranks, and where they meet.
///
/// ```no_run
/// use std::time::Duration;
/// use qpair_collectives::Environment;
///
/// let mut environment = Environment::from_env()?;
/// environment.limit = Duration::from_secs(300); // a cluster that starts slowly
/// let comm = environment.connect()?;
/// # Ok::<(), qpair_collectives::BootstrapError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    /// RANK: this rank.
    pub rank: u32,
    /// WORLD_SIZE: the number of ranks.
    pub size: u32,
    /// LOCAL_RANK: its number among the ranks of its host.
    pub local_rank: u32,
    /// MASTER_ADDR: the host of rank 0.
    pub host: String,
    /// MASTER_PORT: the port at which rank 0 listens. Where torchrun's agent listens there itself, the next one.
    pub port: u16,
    /// How long to wait for all ranks to come, and then for all to be set up: 60 s each unless set; [`Duration::MAX`] for ever.
    pub limit: Duration,
    /// What this rank's data is near to, to choose its NICs by, instead of what [`connect`](Environment::connect) finds out.
    pub near: Option<Near>,
}

impl Environment {
    /// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
    ///
    /// torchrun's agent may keep a store of its own at MASTER_PORT, and says so by TORCHELASTIC_USE_AGENT_STORE=True
    /// (torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py); the ranks meet at the next port then.
    ///
    /// # Errors
    /// [`BootstrapError`] that names the variable which is not set, makes no sense, or contradicts another.
    pub fn from_env() -> Result<Self, BootstrapError> {
        Self::from_variables(|name| match std::env::var(name) {
            Ok(value) => Some(value),
            Err(VarError::NotUnicode(value)) => Some(value.to_string_lossy().into_owned()),
            Err(VarError::NotPresent) => None,
        })
    }

    /// The same, with variables from elsewhere.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, BootstrapError> {
        let rank = number(&variable, "RANK", "set it to this process's number, from 0 to WORLD_SIZE - 1")?;
        let size = number(&variable, "WORLD_SIZE", "set it to the number of ranks, at least 1")?;
        let local_rank = number(&variable, "LOCAL_RANK", "set it to this process's number on its host, from 0 on")?;
        let host = text(&variable, "MASTER_ADDR", "set it to the host of rank 0")?;
        let hint = "set it to a free port of rank 0's host, from 1 to 65535";
        let port: u16 = number(&variable, "MASTER_PORT", hint)?;
        if port == 0 {
            return Err(BootstrapError::Value { name: "MASTER_PORT", value: "0".into(), hint });
        }
        let agent_is_there = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let port = if agent_is_there { port.checked_add(1).unwrap_or(FIRST_FREE) } else { port };
        let environment = Self { rank, size, local_rank, host, port, limit: LIMIT, near: None };
        environment.check()?;
        Ok(environment)
    }

    /// Meets the other ranks. Rank 0 listens for them at MASTER_ADDR and MASTER_PORT.
    ///
    /// Ranks first tell each other where they run. If that is one host, they go over its memory. If there are several, each goes
    /// over NICs that topology names: those of the GPU of the rank's number, as far as the host has one and the rank is not bound
    /// to another NUMA node (CUDA_VISIBLE_DEVICES and its kin are heeded); else those of a NUMA node that the rank may run on,
    /// which the ranks there divide among them. QPAIR_DEVICE names the device instead; QPAIR_NICS and QPAIR_TOPOLOGY are heeded as
    /// [`Near`](qpair_transport::Near) says. [`Communicator::explain`] tells what came of it.
    ///
    /// # Errors
    /// [`BootstrapError`]: the port is taken, rank 0 does not answer, ranks are missing, or two ranks contradict
    /// each other; a rank can not be set up, here or elsewhere.
    pub fn connect(&self) -> Result<Communicator, BootstrapError> {
        self.connect_from(Whereabouts { gpu: own_gpu(self.local_rank), ..whereabouts() })
    }

    pub(super) fn connect_from(&self, whereabouts: Whereabouts) -> Result<Communicator, BootstrapError> {
        self.check()?;
        let addresses: Vec<SocketAddr> = match (self.host.as_str(), self.port).to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(source) => return Err(BootstrapError::Resolve { host: self.host.clone(), source }),
        };
        let server = if self.rank == 0 { Some(self.serve(&addresses)?) } else { None };
        let stream = self.reach(&addresses)?;
        let ip = stream.local_addr().map(|address| address.ip());
        let ip = ip.map_err(|source| BootstrapError::System { what: "name the connection to rank 0", source })?;
        let store = (self.host.as_str(), self.port);
        let mut joining = Joining::new(stream, (self.rank, self.size), store, whereabouts, server)?;
        let Roster { token, members } = joining.roster(self.limit)?;
        let near = self.near.clone().map_or_else(|| seating(self.rank, &members), Ok);
        let set_up = near.and_then(|near| Net::new(self.rank, self.size, ip, NetSettings::default(), near));
        let mut net = match set_up {
            Ok(net) => net,
            Err(error) => {
                joining.give_up(&error);
                return Err(error);
            }
        };
        let own = net.listening();
        let (client, all) = joining.listen(own, self.limit)?;
        check_links(&all)?;
        net.meet(all.iter().map(|rank| rank.address), token);
        let members = members.into_iter().zip(all);
        let members = members.map(|(whereabouts, Listening { device, .. })| Member { whereabouts, device }).collect();
        Ok(Communicator::new(net, Watch::Store(client), self.local_rank, members))
    }

    fn check(&self) -> Result<(), BootstrapError> {
        if self.size == 0 || self.size > MAX_RANKS {
            return Err(BootstrapError::Size { size: self.size as usize, limit: MAX_RANKS });
        }
        for (name, rank) in [("RANK", self.rank), ("LOCAL_RANK", self.local_rank)] {
            if rank >= self.size {
                return Err(BootstrapError::NoSuchRank { name, rank, size: self.size });
            }
        }
        Ok(())
    }

    fn serve(&self, addresses: &[SocketAddr]) -> Result<Server, BootstrapError> {
        listen(addresses).and_then(|listener| Server::start(listener, self.size, self.limit)).map_err(|source| {
            match source.kind() {
                ErrorKind::AddrInUse => BootstrapError::PortTaken { host: self.host.clone(), port: self.port },
                _ => BootstrapError::Bind { host: self.host.clone(), port: self.port, source },
            }
        })
    }

    /// Connects to the store; rank 0 may still have to start.
    fn reach(&self, addresses: &[SocketAddr]) -> Result<TcpStream, BootstrapError> {
        let deadline = Deadline::after(self.limit);
        let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
        loop {
            for address in addresses {
                let left = deadline.left().unwrap_or(Duration::MAX).max(ATTEMPT);
                match TcpStream::connect_timeout(address, left) {
                    // A port without a listener may happen to be this side's own.
                    Ok(stream) if stream.local_addr().ok() != stream.peer_addr().ok() => return Ok(stream),
                    Ok(_) => last = ErrorKind::ConnectionRefused.into(),
                    Err(error) => last = error,
                }
            }
            if deadline.left().is_some_and(|left| left <= ATTEMPT) {
                let (host, port, limit) = (self.host.clone(), self.port, self.limit);
                return Err(BootstrapError::NoAnswer { host, port, limit, source: last });
            }
            std::thread::sleep(ATTEMPT);
        }
    }
}

fn text(
    variable: &impl Fn(&'static str) -> Option<String>,
    name: &'static str,
    hint: &'static str,
) -> Result<String, BootstrapError> {
    match variable(name) {
        None => Err(BootstrapError::Unset { name, hint }),
        Some(value) if value.trim().is_empty() => Err(BootstrapError::Value { name, value, hint }),
        Some(value) => Ok(value.trim().to_owned()),
    }
}

fn number<T: FromStr>(
    variable: &impl Fn(&'static str) -> Option<String>,
    name: &'static str,
    hint: &'static str,
) -> Result<T, BootstrapError> {
    let value = text(variable, name, hint)?;
    value.parse().map_err(|_| BootstrapError::Value { name, value, hint })
}

/// InfiniBand and the rest do not reach each other; before anything is sent, ranks on either are named.
fn check_links(all: &[Listening]) -> Result<(), BootstrapError> {
    let first = |infiniband: bool| (0_u32..).zip(all).find(|(_, rank)| rank.is_on_infiniband == infiniband);
    match (first(true), first(false)) {
        (Some((infiniband, on)), Some((other, beside))) => Err(BootstrapError::Links {
            infiniband,
            device: on.device.clone(),
            other,
            other_device: beside.device.clone(),
        }),
        _ => Ok(()),
    }
}

/// How long to wait for all ranks.
const LIMIT: Duration = Duration::from_secs(60);
/// The first port that needs no privilege: what follows the last one.
const FIRST_FREE: u16 = 1024;
/// Between two attempts to reach rank 0.
const ATTEMPT: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(change: &[(&str, Option<&str>)]) -> Result<Environment, BootstrapError> {
        Environment::from_variables(|name| {
            if let Some((_, value)) = change.iter().find(|(changed, _)| *changed == name) {
                return value.map(str::to_owned);
            }
            let value = match name {
                "RANK" => "1",
                "WORLD_SIZE" => "4",
                "LOCAL_RANK" => " 1 ",
                "MASTER_ADDR" => "localhost",
                "MASTER_PORT" => "29500",
                _ => return None,
            };
            Some(value.into())
        })
    }

    #[test]
    fn torchruns_variables_are_understood() {
        let environment = parse(&[]).unwrap();
        assert_eq!((environment.rank, environment.size, environment.local_rank), (1, 4, 1));
        assert_eq!((environment.host.as_str(), environment.port), ("localhost", 29500));
    }

    #[test]
    fn the_port_of_torchruns_own_store_is_left_to_it() {
        let with = |value, port| {
            parse(&[("TORCHELASTIC_USE_AGENT_STORE", Some(value)), ("MASTER_PORT", Some(port))]).unwrap().port
        };
        assert_eq!(with("True", "29500"), 29501);
        assert_eq!(with("False", "29500"), 29500);
        assert!(with("True", "65535") >= 1024);
    }

    #[test]
    fn each_variable_that_is_wrong_is_named() {
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let unset = parse(&[(name, None)]).unwrap_err();
            assert!(matches!(unset, BootstrapError::Unset { name: named, .. } if named == name), "{unset}");
            assert!(unset.to_string().contains("set it to"), "{unset}");
            let empty = parse(&[(name, Some(""))]).unwrap_err();
            assert!(matches!(empty, BootstrapError::Value { name: named, .. } if named == name), "{empty}");
            if name != "MASTER_ADDR" {
                let wrong = parse(&[(name, Some("-1x"))]).unwrap_err();
                assert!(wrong.to_string().starts_with(&format!("{name} is `-1x`: set it to")), "{wrong}");
            }
        }
        assert!(matches!(parse(&[("MASTER_PORT", Some("0"))]), Err(BootstrapError::Value { .. })));
        assert!(matches!(parse(&[("MASTER_PORT", Some("65536"))]), Err(BootstrapError::Value { .. })));
    }

    #[test]
    fn variables_that_contradict_each_other_are_refused() {
        let wrong = parse(&[("RANK", Some("4"))]).unwrap_err();
        assert!(matches!(wrong, BootstrapError::NoSuchRank { name: "RANK", rank: 4, size: 4 }), "{wrong}");
        let wrong = parse(&[("LOCAL_RANK", Some("9"))]).unwrap_err();
        assert!(matches!(wrong, BootstrapError::NoSuchRank { name: "LOCAL_RANK", .. }), "{wrong}");
        assert!(matches!(parse(&[("WORLD_SIZE", Some("0"))]), Err(BootstrapError::Size { size: 0, .. })));
        assert!(matches!(parse(&[("WORLD_SIZE", Some("5000"))]), Err(BootstrapError::Size { .. })));
    }

    #[test]
    fn ranks_that_do_not_reach_each_other_are_named() {
        let on = |device: &str, is_on_infiniband| Listening {
            address: "127.0.0.1:9".parse().unwrap(),
            device: device.into(),
            is_on_infiniband,
        };
        assert!(check_links(&[on("soft0", false), on("mlx5_0", false)]).is_ok());
        assert!(check_links(&[on("mlx5_0", true), on("mlx5_1", true)]).is_ok());
        let error = check_links(&[on("mlx5_0", true), on("mlx5_1", true), on("soft0", false)]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("rank 0 is on mlx5_0, which is on InfiniBand, and rank 2 on soft0, which is not"),
            "{text}"
        );
        assert!(text.contains("QPAIR_DEVICE"), "{text}");
    }
}
