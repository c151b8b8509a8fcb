//! Who takes the place of rank 0's store once that is gone, for those that are left to find each other.
//!
//! Some ranks listen from the beginning, in case; all know which, and where. Who is left asks them in that order: one that has
//! ended refuses the connection, one that has not come that far yet keeps it waiting.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use mio::net::TcpListener;
use qpair_transport::ClusterKey;

use super::line::{self, Ear, Mouth};
use super::message::{FromStore, Listening, PROTOCOL, ToStore, Whereabouts, encode};
use super::muster::Remnant;
use super::place::is_here;
use super::regroup::Spot;
use super::server::{Descriptors, Server, Terms};
use crate::deadline::Deadline;
use crate::error::BootstrapError;

/// The ranks that stand in for rank 0: of its machine the next two, and of others, three at most, the first.
pub(super) fn chosen(members: &[Whereabouts]) -> Vec<u32> {
    let Some(first) = members.first() else { return Vec::new() };
    let others = || (1..).zip(&members[1..]);
    let mut machines = vec![&first.machine];
    let mut all: Vec<u32> = others()
        .filter(|(_, rank)| rank.machine == first.machine)
        .map(|(rank, _)| rank)
        .take(BESIDE)
        .chain(others().filter_map(|(rank, its)| {
            let is_first = machines.len() <= ELSEWHERE && !machines.contains(&&its.machine);
            is_first.then(|| {
                machines.push(&its.machine);
                rank
            })
        }))
        .collect();
    all.sort_unstable();
    all
}

/// What a rank needs to find those that are left without the store.
#[derive(Debug)]
pub(super) struct StandIns {
    rank: u32,
    size: u32,
    whereabouts: Whereabouts,
    /// What only the ranks know.
    token: u64,
    key: Option<ClusterKey>,
    /// Where those listen that were not asked yet.
    places: VecDeque<(u32, SocketAddr)>,
    /// This rank's own listener, if it is one of them, until it serves.
    listener: Option<TcpListener>,
    server: Option<Server>,
    /// To the one that answered.
    line: Option<(Mouth, Ear)>,
    /// Hosts that did not answer at all.
    silent: Vec<IpAddr>,
}

impl StandIns {
    /// For a rank that is reached at `ip`. If it is one of them, it listens from now on, but where the system refuses that: then
    /// others stand in.
    pub(super) fn new(
        (rank, size): (u32, u32),
        members: &[Whereabouts],
        ip: IpAddr,
        token: u64,
        key: Option<ClusterKey>,
    ) -> Self {
        StandIns {
            rank,
            size,
            whereabouts: members[rank as usize].clone(),
            token,
            key,
            places: VecDeque::new(),
            listener: if chosen(members).contains(&rank) { listen(ip, size).ok() } else { None },
            server: None,
            line: None,
            silent: Vec::new(),
        }
    }

    /// Where this rank listens, if it is one of them.
    pub(super) fn port(&self) -> Option<u16> {
        Some(self.listener.as_ref()?.local_addr().ok()?.port())
    }

    /// Takes note of where they listen.
    pub(super) fn meet(&mut self, all: &[Listening]) {
        let place = |its: &Listening| Some(SocketAddr::new(its.address.ip(), its.stand_in_port?));
        self.places = (0..).zip(all).filter_map(|(rank, its)| Some((rank, place(its)?))).collect();
    }

    /// Whether one of them has taken the store's place.
    pub(super) fn is_served(&self) -> bool {
        self.line.is_some()
    }

    /// Asks who is left, and waits for the answer. This rank listens at `spot`; those in `gone` can not ask, others have as long
    /// as `limit`.
    ///
    /// # Errors
    /// [`BootstrapError::RankZeroGone`] if none of those that stand in is left, [`BootstrapError::TooFewLeft`].
    pub(super) fn who_is_left(&mut self, spot: Spot, limit: Duration, gone: &[u32]) -> Result<Remnant, BootstrapError> {
        let remnant = loop {
            if let Some(remnant) = self.ask(spot, limit) {
                break remnant;
            }
            self.line = None;
            let (rank, address) = self.places.pop_front().ok_or(BootstrapError::RankZeroGone)?;
            match self.call(rank, address, gone) {
                Ok(line) => self.line = Some(line),
                Err(error) => tracing::debug!(rank = self.rank, %error, "rank {rank} does not stand in for rank 0"),
            }
        };
        // Of two groups that know nothing of each other, where one stands in here and one there, only one may go on.
        let (left, size) = (remnant.ranks.len() as u32, self.size);
        if remnant.ranks.contains(&self.rank) && 2 * left < size {
            return Err(BootstrapError::TooFewLeft { left, size });
        }
        Ok(remnant)
    }

    fn ask(&mut self, spot: Spot, limit: Duration) -> Option<Remnant> {
        let (mouth, ear) = self.line.as_mut()?;
        mouth.say(&encode(&ToStore::Shrink { spot, limit })).ok()?;
        let limit = limit.saturating_add(ANSWER);
        let (mut deadline, mut is_heard) = (Deadline::after(limit), false);
        loop {
            match ear.message(Some(deadline)) {
                Ok(FromStore::Remain(remnant)) => return Some(remnant),
                // It has come to asking itself, perhaps later than this rank, and the time of the others begins.
                Ok(FromStore::Left { .. }) if !is_heard => (deadline, is_heard) = (Deadline::after(limit), true),
                Ok(FromStore::Left { .. }) => {}
                // It knows of no other ranks, or of nothing any more.
                Ok(_) | Err(_) => return None,
            }
        }
    }

    /// Connects to the rank that stands in for rank 0 there, which may be this one.
    fn call(&mut self, rank: u32, address: SocketAddr, gone: &[u32]) -> io::Result<(Mouth, Ear)> {
        if rank == self.rank
            && let Some(listener) = self.listener.take()
        {
            let (size, key, ticket) = (self.size, self.key.clone(), Some(self.ticket()));
            let terms = Terms { size, limit: Duration::MAX, key, ticket, places: Descriptors::now().left() };
            self.server = Some(Server::stand_in(listener, terms, gone)?);
        } else if self.silent.contains(&address.ip()) {
            return Err(ErrorKind::HostUnreachable.into());
        }
        let stream = TcpStream::connect_timeout(&address, REACHED).inspect_err(|error| {
            // A rank that has ended refuses; a host that has says nothing, or others say so. But this one answers itself, of course,
            // and what says nothing there is a listener with too many strangers.
            let is_silent = match error.kind() {
                ErrorKind::TimedOut => !is_here(&address),
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => true,
                _ => false,
            };
            if is_silent {
                self.silent.push(address.ip());
            }
        })?;
        // A port without a listener may happen to be this side's own.
        if stream.local_addr()? == stream.peer_addr()? {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let (mut mouth, ear) = line::speak(stream, self.key.as_ref())?;
        mouth.say(&encode(&ToStore::Join {
            protocol: PROTOCOL,
            size: self.size,
            rank: self.rank,
            ticket: Some(self.ticket()),
            whereabouts: self.whereabouts.clone(),
            cost: None,
        }))?;
        Ok((mouth, ear))
    }

    fn ticket(&self) -> String {
        format!("{:016x}", self.token)
    }
}

/// Listens, with room for all ranks, which may have to wait until this one asks who is left itself, and for strangers that came by
/// meanwhile.
fn listen(ip: IpAddr, size: u32) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
    rustix::net::listen(&listener, size as i32 + STRANGERS)?;
    Ok(listener)
}

/// Of the machine of rank 0.
const BESIDE: usize = 2;
/// Of other machines.
const ELSEWHERE: usize = 3;
/// Connections of others than ranks that a listener has room for: nobody accepts any until the rank asks who is left. The system
/// allows 4096 of all kinds (net.core.somaxconn).
const STRANGERS: i32 = 2048;
/// How long a host has to answer at all.
const REACHED: Duration = Duration::from_secs(3);
/// How much longer than others may still ask a rank waits for the answer; and before for a word from who is to give it.
const ANSWER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn on(machines: &[&str]) -> Vec<Whereabouts> {
        let rank = |machine: &&str| Whereabouts {
            host: "a name".into(),
            machine: (*machine).into(),
            node: "a node".into(),
            cores: "0".parse().unwrap(),
            gpu: None,
            cpu_island: None,
            gpu_island: None,
        };
        machines.iter().map(rank).collect()
    }

    #[test]
    fn those_stand_in_that_do_not_end_with_the_host_of_rank_0() {
        assert!(chosen(&on(&["a"])).is_empty());
        assert_eq!(chosen(&on(&["a", "a"])), [1]);
        assert_eq!(chosen(&on(&["a"; 8])), [1, 2]);
        assert_eq!(chosen(&on(&["a", "b", "a", "b", "a", "c", "a"])), [1, 2, 4, 5]);
        assert_eq!(chosen(&on(&["a", "b", "c", "d", "e", "f"])), [1, 2, 3]);
    }

    /// Nobody accepts them: the system keeps as many as there is room for, and answers no more.
    #[test]
    fn strangers_leave_ranks_room_to_wait() {
        let listener = listen(Ipv4Addr::LOCALHOST.into(), 2).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |_| TcpStream::connect_timeout(&address, REACHED).unwrap();
        let waiting: Vec<_> = (0..100).map(connect).collect();
        assert_eq!(waiting.len(), 100);
    }

    #[test]
    fn of_those_that_have_ended_none_answers() {
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut stand_ins = StandIns::new((3, 4), &on(&["a"; 4]), address.ip(), 7, None);
        stand_ins.places = [(1, address), (2, address)].into();
        let spot = Spot { address, ticket: 1 };
        let error = stand_ins.who_is_left(spot, Duration::ZERO, &[0]).unwrap_err();
        assert!(matches!(error, BootstrapError::RankZeroGone), "{error}");
        assert!(!stand_ins.is_served() && stand_ins.port().is_none());
    }
}
