//! What ranks and the store say to each other: one line of JSON each.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use qpair_topology::{CpuSet, PciAddress};
use serde::{Deserialize, Serialize};

use super::islands::OwnIsland;
use super::muster::Remnant;
use super::regroup::Spot;
use crate::distinct::Distinct;
use crate::fault::{Fault, Place};
use crate::machine::Known;
use crate::tune;

/// A rank to the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToStore {
    /// The first message.
    Join {
        protocol: u32,
        size: u32,
        rank: u32,
        /// What shows that it is of this job, where the launcher passes such a thing on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticket: Option<String>,
        whereabouts: Whereabouts,
        /// What operations cost, of rank 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<Box<Known>>,
    },
    /// The second: its worker is set up.
    Listening(Listening),
    /// Something ended the communicator.
    Report(Fault),
    /// Where the rank waits, if it does, in answer to [`FromStore::Ask`].
    Waits(Option<Place>),
    /// The communicator is of no use to the rank any more; who is left? It listens there, and the others have that long to ask.
    Shrink { spot: Spot, limit: Duration },
    /// The communicator is dropped: the end of the connection that follows is no fault. One that had asked who is left may go on with
    /// others.
    Leave { goes_on: bool },
}

/// The store to a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromStore {
    /// The rank can not join.
    Refused { reason: String },
    /// It has met these ranks before, whose store this is until rank 0 has dropped its communicator: it may come again.
    Again,
    /// All ranks have joined: where they run.
    Roster {
        token: u64,
        members: Members,
        /// The address of rank 0's host at which ranks of other hosts reached it: that of ranks that came by loopback.
        reached: Option<IpAddr>,
        /// What operations cost, by which all choose alike.
        cost: Known,
    },
    /// All ranks can be reached: where, by rank.
    Listening(Listeners),
    /// Not all ranks have come so far in time. Who was turned away last, and why.
    Absent { missing: Vec<u32>, limit: Duration, turned_away: Option<String> },
    /// A rank waited too long: what does this one wait for?
    Ask,
    /// What ended the communicator.
    Verdict(Fault),
    /// Ranks dropped their communicator, or ask who is left.
    Left { ranks: Vec<u32> },
    /// Those are left, and go on without the others.
    Remain(Remnant),
}

/// How a rank is reached. It chooses its device by where all ranks run, and so says this after that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listening {
    /// Where its worker listens.
    pub(crate) address: SocketAddr,
    /// The device that its worker is on, for people.
    pub(crate) device: String,
    /// Whether that is on InfiniBand, which reaches nothing else.
    pub(crate) is_on_infiniband: bool,
    /// Whether that is the software device.
    pub(crate) is_software: bool,
    /// Why messages of GPUs go by memory that the device reaches, if they do.
    pub(crate) staging: Option<Staging>,
    /// The rate of the device's link in megabits per second, where that is known.
    pub(crate) rate_mbps: Option<u64>,
    /// The port of the same address at which it stands in for rank 0, if it does.
    pub(crate) stand_in_port: Option<u16>,
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Whereabouts {
    /// The name of its host, for people.
    pub(crate) host: String,
    /// What is the same for all processes of a machine, and of no other.
    pub(crate) machine: String,
    /// What is the same for all processes of a node, whose messages go over its memory, and of no other: those of a machine, but
    /// for containers with networks of their own.
    pub(crate) node: String,
    /// The cores that it may run on.
    pub(crate) cores: CpuSet,
    /// The GPU that it uses, as far as can be told.
    #[serde(default)]
    pub(crate) gpu: Option<PciAddress>,
    /// The island of its machine that its cores are on, and the one that its GPU is on, where there are several.
    #[serde(default)]
    pub(crate) cpu_island: Option<OwnIsland>,
    #[serde(default)]
    pub(crate) gpu_island: Option<OwnIsland>,
}

/// What all ranks know of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Where it runs.
    pub(crate) whereabouts: Whereabouts,
    /// The device that its worker is on.
    pub(crate) device: String,
    /// Whether that is the software device.
    pub(crate) is_software: bool,
    /// Why messages of GPUs go by memory that it reaches, if they do.
    pub(crate) staging: Option<Staging>,
}

/// Why messages of GPUs go by memory that a device reaches, instead of straight from the GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Staging {
    /// The environment says so.
    Asked,
    /// The device is another GPU's.
    Neighbour,
    /// The device does not reach the memory of each GPU, or what it writes there would have to be read back.
    Unreached,
    /// Its process does not see a GPU of another's on its node, whose memory the software device would map.
    Unseen,
}

impl Staging {
    /// What can be done about GPUs that are not seen.
    pub(crate) const UNSEEN: &str = "make all GPUs of the host visible to each process (CUDA_VISIBLE_DEVICES), and have it take the \
                                     one of its local rank";

    /// What it is that a rank has, for people.
    pub(crate) fn words(self, rank: usize) -> String {
        match self {
            Staging::Asked => format!("as QPAIR_GPU_STAGING=1 says at rank {rank}"),
            Staging::Neighbour => format!("as the NIC of rank {rank} is another GPU's"),
            Staging::Unseen => {
                format!("as rank {rank} does not see the GPUs of all ranks on its host: {}", Staging::UNSEEN)
            }
            Staging::Unreached => format!(
                "as the device of rank {rank} does not reach that of each of its GPUs, or not so that they see what it writes"
            ),
        }
    }
}

/// Where all ranks run, with what several have in common said once: every rank is told of every other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Members {
    /// Name, machine and node.
    hosts: Vec<(String, String, String)>,
    seats: Vec<Seat>,
    /// By rank: its host and its seat there.
    ranks: Vec<(u32, u32)>,
}

/// Cores and the island that they are on, a GPU and the island that it is on.
type Seat = (CpuSet, Option<OwnIsland>, Option<PciAddress>, Option<OwnIsland>);

impl Members {
    pub(super) fn pack(all: &[Whereabouts]) -> Self {
        let (mut hosts, mut seats) = (Distinct::default(), Distinct::default());
        let ranks = all.iter().map(|its| {
            let host = hosts.number((its.host.clone(), its.machine.clone(), its.node.clone()));
            (host, seats.number((its.cores.clone(), its.cpu_island, its.gpu, its.gpu_island)))
        });
        let ranks = ranks.collect();
        Members { hosts: hosts.all, seats: seats.all, ranks }
    }

    /// `None` if it contradicts itself, or is not of so many ranks. What each has of it is copied only then.
    pub(super) fn unpack(self, size: u32) -> Option<Vec<Whereabouts>> {
        let names = self.hosts.iter().flat_map(|(host, machine, node)| [host, machine, node]);
        if !are_of(size, &self.ranks, names) {
            return None;
        }
        let one = |&(host, seat): &(u32, u32)| {
            let (host, machine, node) = self.hosts.get(host as usize)?.clone();
            let (cores, cpu_island, gpu, gpu_island) = self.seats.get(seat as usize)?.clone();
            Some(Whereabouts { host, machine, node, cores, gpu, cpu_island, gpu_island })
        };
        self.ranks.iter().map(one).collect()
    }
}

/// How all ranks are reached, likewise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Listeners {
    addresses: Vec<IpAddr>,
    devices: Vec<ListenersDevice>,
    /// By rank: its address, port and device.
    ranks: Vec<(u32, u16, u32)>,
    /// Those that stand in for rank 0, with the port.
    stand_ins: Vec<(u32, u16)>,
}

/// Its name, whether it is on InfiniBand, whether it is the software device, why messages of GPUs go by other memory, and the rate
/// of its link.
type ListenersDevice = (String, bool, bool, Option<Staging>, Option<u64>);

impl Listeners {
    pub(super) fn pack(all: &[Listening]) -> Self {
        let (mut addresses, mut devices) = (Distinct::default(), Distinct::default());
        let ranks = all.iter().map(|its| {
            let Listening { device, is_on_infiniband, is_software, staging, rate_mbps, .. } = its.clone();
            let device = devices.number((device, is_on_infiniband, is_software, staging, rate_mbps));
            (addresses.number(its.address.ip()), its.address.port(), device)
        });
        let ranks = ranks.collect();
        let stand_ins = (0..).zip(all).filter_map(|(rank, its)| Some((rank, its.stand_in_port?))).collect();
        Listeners { addresses: addresses.all, devices: devices.all, ranks, stand_ins }
    }

    /// As [`Members::unpack`].
    pub(super) fn unpack(self, size: u32) -> Option<Vec<Listening>> {
        if !are_of(size, &self.ranks, self.devices.iter().map(|(device, ..)| device)) {
            return None;
        }
        let one = |&(address, port, device): &(u32, u16, u32)| {
            let address = SocketAddr::new(*self.addresses.get(address as usize)?, port);
            let (device, is_on_infiniband, is_software, staging, rate_mbps) =
                self.devices.get(device as usize)?.clone();
            let listening =
                Listening { address, device, is_on_infiniband, is_software, staging, rate_mbps, stand_in_port: None };
            Some(listening)
        };
        let mut all: Vec<Listening> = self.ranks.iter().map(one).collect::<Option<_>>()?;
        for &(rank, port) in &self.stand_ins {
            all.get_mut(rank as usize)?.stand_in_port = Some(port);
        }
        Some(all)
    }
}

/// Whether a list is of so many ranks, and no name is longer than there are.
fn are_of<'n, R>(size: u32, ranks: &[R], mut names: impl Iterator<Item = &'n String>) -> bool {
    ranks.len() == size as usize && names.all(|name| name.len() <= NAME_LIMIT)
}

/// A message as a line.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    // Only a type that refuses to be serialised could fail, and these do not.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The version of these messages. Those before 3 had no preface before them.
pub(super) const PROTOCOL: u32 = 18;

/// What the stream that carries them is for: with a cluster key, ranks and the store are held to it.
pub(super) const PURPOSE: &[u8] = b"qpair store";

/// The longest name of a host, a machine, a node or a device.
const NAME_LIMIT: usize = 4 << 10;

/// The longest line that a rank sends.
pub(super) const LINE_LIMIT: usize = 64 << 10;

/// The longest line of who has not joined yet, and may be anybody: every second core of 4096 takes 10 KiB, and what was measured of
/// algorithms as much as it may.
pub(super) const JOIN_LIMIT: usize = (16 << 10) + tune::LONGEST;

/// The longest line that the store sends: a roster of as many ranks as there can be, or what all of them wait for.
pub(super) const ANSWER_LIMIT: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Algorithm;
    use crate::cost::{CostModel, Seats};
    use crate::plan::{Elements, Ranks, Spec};
    use crate::tune::{Case, Fastest, LONGEST};

    #[test]
    fn what_ranks_have_in_common_is_said_once() {
        let rank = |host: &str, cores: &str| Whereabouts {
            host: host.into(),
            machine: format!("machine-{host}"),
            node: format!("node-{host}"),
            cores: cores.parse().unwrap(),
            gpu: (host == "b").then(|| PciAddress::new(0, 1, 2, 0)),
            cpu_island: Some(OwnIsland { number: 1, outside: None }),
            gpu_island: (host == "b").then_some(OwnIsland { number: 3, outside: Some(32_000_000_000) }),
        };
        let all: Vec<_> = (0..512).map(|at| rank(["a", "b"][at / 256], "0-63,128-191")).collect();
        let packed = Members::pack(&all);
        assert_eq!((packed.hosts.len(), packed.seats.len()), (2, 2));
        let line = encode(&packed);
        assert!(line.len() < 512 * 8, "{} bytes", line.len());
        assert_eq!(serde_json::from_slice::<Members>(&line).unwrap().unpack(512).unwrap(), all);
        let listening = |port: u16| Listening {
            address: SocketAddr::new("10.0.0.1".parse().unwrap(), port),
            device: "soft0".into(),
            is_on_infiniband: false,
            is_software: true,
            staging: None,
            rate_mbps: None,
            stand_in_port: (port == 1).then_some(9),
        };
        let all: Vec<_> = (0..512).map(listening).collect();
        let line = encode(&Listeners::pack(&all));
        assert!(line.len() < 512 * 12, "{} bytes", line.len());
        assert_eq!(serde_json::from_slice::<Listeners>(&line).unwrap().unpack(512).unwrap(), all);
    }

    /// That of rank 0 of a large machine where as much was measured of algorithms as is kept.
    #[test]
    fn the_longest_line_that_joins_is_heard() {
        let mut fastest = Fastest::default();
        for elements in 1.. {
            let spec = Spec::all_reduce(Ranks(8), Elements(elements), 4);
            let mut more = fastest.clone();
            more.set(Case::of(&spec, &Seats::default(), &CostModel::default(), Algorithm::RecursiveDoubling).unwrap());
            if !more.is_sound() {
                break;
            }
            fastest = more;
        }
        assert!(fastest.len() > 400, "{} cases", fastest.len());
        let cores: Vec<String> = (0..2048).map(|core| (2 * core).to_string()).collect();
        let whereabouts = Whereabouts {
            host: "h".repeat(64),
            machine: "m".repeat(64),
            node: "n".repeat(64),
            cores: cores.join(",").parse().unwrap(),
            gpu: Some(PciAddress::new(0, 1, 2, 0)),
            cpu_island: Some(OwnIsland { number: 1, outside: Some(u64::MAX) }),
            gpu_island: Some(OwnIsland { number: 1, outside: Some(u64::MAX) }),
        };
        let cost = Some(Box::new(Known { fastest, ..Known::default() }));
        let ticket = Some("t".repeat(64));
        let line = encode(&ToStore::Join { protocol: PROTOCOL, size: 4096, rank: 0, ticket, whereabouts, cost });
        assert!((LONGEST..JOIN_LIMIT).contains(&line.len()), "{} bytes", line.len());
    }

    #[test]
    fn what_contradicts_itself_is_nothing() {
        let members = r#"{"hosts":[["h","m","m"]],"seats":[["0",null,null,null]],"ranks":[[1,0]]}"#;
        assert_eq!(serde_json::from_str::<Members>(members).unwrap().unpack(1), None);
        for listeners in [
            r#"{"addresses":["10.0.0.1"],"devices":[],"ranks":[[0,1,0]],"stand_ins":[]}"#,
            r#"{"addresses":["10.0.0.1"],"devices":[["soft0",false,true,null,null]],"ranks":[[0,1,0]],"stand_ins":[[1,9]]}"#,
        ] {
            assert_eq!(serde_json::from_str::<Listeners>(listeners).unwrap().unpack(1), None);
        }
    }

    #[test]
    fn a_list_of_other_ranks_or_of_long_names_is_not_spread_out() {
        let host = |len| ("h".repeat(len), String::new(), String::new());
        let members = |len, ranks| Members {
            hosts: vec![host(len)],
            seats: vec![("0".parse().unwrap(), None, None, None)],
            ranks: vec![(0, 0); ranks],
        };
        assert_eq!(members(NAME_LIMIT, 3).unpack(3).unwrap().len(), 3);
        // Spread out it would take more memory than there is.
        assert_eq!(members(1 << 20, 10_000_000).unpack(2), None);
        assert_eq!(members(NAME_LIMIT + 1, 2).unpack(2), None);
        let listeners = |len| Listeners {
            addresses: vec![IpAddr::from([127, 0, 0, 1])],
            devices: vec![("d".repeat(len), false, true, None, None)],
            ranks: vec![(0, 1, 0); 2],
            stand_ins: Vec::new(),
        };
        assert_eq!(listeners(9).unpack(2).unwrap().len(), 2);
        assert_eq!((listeners(9).unpack(3), listeners(NAME_LIMIT + 1).unpack(2)), (None, None));
    }
}
