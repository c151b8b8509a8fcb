//! A cost model, and where it comes from; and what was measured of algorithms.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cost::{CostModel, Link};
use crate::tune::Fastest;

/// What algorithms are chosen by. Rank 0 tells it to all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) model: CostModel,
    /// Where the model comes from.
    pub(crate) origin: Origin,
    /// What was measured of algorithms, which counts for more than the model.
    pub(crate) fastest: Fastest,
}

/// Where a cost model comes from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) enum Origin {
    /// The default.
    #[default]
    BuiltIn,
    /// The program set it.
    Set,
    /// Rank 0 measured it when it was set up.
    Measured { took: Duration },
    /// Rank 0, or another program on its machine, measured it before.
    Kept { path: String },
    /// The environment named a file.
    File { path: String },
    /// The links between nodes are as fast as the ranks' devices, or as the software device is where one of them is that; those
    /// between islands of GPUs as topology has it; the rest is as that says.
    Links { rails: Option<Rails>, gpu_islands: bool, rest: Box<Origin> },
}

/// How fast links between nodes are taken to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Rails {
    Devices,
    Software,
}

/// What a rank's device is, to tell how fast rails are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Rail<'a> {
    /// What is the same for all ranks of a node.
    pub(crate) node: &'a str,
    pub(crate) device: &'a str,
    pub(crate) is_software: bool,
    /// Of its link, in megabits per second, where that is known.
    pub(crate) rate_mbps: Option<u64>,
}

impl Known {
    /// Takes what it costs between nodes from the ranks' devices, if nobody has said otherwise: where one is the software device,
    /// what that takes; else, where all rates are known, by the links of the node that has least. Ranks of a node on one device
    /// share it. What came of the devices of other ranks, of whom these are some, is no more.
    pub(crate) fn with_rails<'a>(mut self, rails: impl IntoIterator<Item = Rail<'a>>) -> Self {
        if matches!(self.origin, Origin::Set | Origin::File { .. }) {
            return self;
        }
        self = self.without_rails();
        let mut seen = HashSet::new();
        let mut nodes: HashMap<&str, u64> = HashMap::new();
        let (mut software, mut known) = (false, true);
        for rail in rails {
            let node = nodes.entry(rail.node).or_default();
            software |= rail.is_software;
            match rail.rate_mbps.filter(|&rate| rate > 0) {
                Some(rate) if seen.insert(rail) => *node = node.saturating_add(rate),
                Some(_) => {}
                None => known = false,
            }
        }
        let applies = if software { nodes.len() > 1 } else { known };
        let Some(&least) = nodes.values().min().filter(|_| applies) else { return self };
        let speed = least as f64 * 1e6 / 8.0 * USABLE;
        let device = Link { latency: DEVICE_LATENCY, speed };
        let (between, packet, payload) = if software { (SOFTWARE, PACKET, PAYLOAD) } else { (device, 0.0, 0.0) };
        self.model = CostModel { between, packet, payload, ..self.model };
        let (_, gpu_islands, rest) = self.origin.parts();
        let rails = Some(if software { Rails::Software } else { Rails::Devices });
        self.origin = Origin::Links { rails, gpu_islands, rest };
        self
    }

    /// What is known without the ranks' devices: nobody measures what it costs between nodes.
    fn without_rails(self) -> Self {
        let (rails, gpu_islands, rest) = self.origin.parts();
        let origin = if gpu_islands { Origin::Links { rails: None, gpu_islands, rest } } else { *rest };
        let CostModel { between, packet, payload, .. } =
            if rails.is_some() { CostModel::default() } else { self.model };
        Self { model: CostModel { between, packet, payload, ..self.model }, origin, fastest: self.fastest }
    }

    /// Takes what passes between islands of GPUs from what topology says of each, in bytes per second, if nobody has said
    /// otherwise: that of the island with least.
    pub(crate) fn with_gpu_islands(mut self, outside: impl IntoIterator<Item = u64>) -> Self {
        let said = matches!(&self.origin, Origin::Set | Origin::File { .. });
        if let Some(least) = outside.into_iter().min().filter(|&least| least > 0 && !said) {
            self.model.gpu.beside = least as f64;
            let (rails, _, rest) = self.origin.parts();
            self.origin = Origin::Links { rails, gpu_islands: true, rest };
        }
        self
    }
}

impl Origin {
    /// What is said of links, and where the rest comes from.
    fn parts(self) -> (Option<Rails>, bool, Box<Origin>) {
        match self {
            Origin::Links { rails, gpu_islands, rest } => (rails, gpu_islands, rest),
            origin => (None, false, Box::new(origin)),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::BuiltIn => f.write_str("built in"),
            Origin::Set => f.write_str("set by the program"),
            Origin::Measured { took } => {
                write!(f, "measured by rank 0 at set-up, in {:.1} ms", took.as_secs_f64() * 1e3)
            }
            Origin::Kept { path } => write!(f, "measured before on the machine of rank 0, kept in {path}"),
            Origin::File { path } => write!(f, "from {path}, which QPAIR_COST_MODEL names at rank 0"),
            Origin::Links { rails, gpu_islands, rest } => {
                write!(f, "{rest}")?;
                match rails {
                    Some(Rails::Devices) => f.write_str("; between nodes, by the rates of the ranks' devices")?,
                    Some(Rails::Software) => f.write_str("; between nodes, built in for the software device")?,
                    None => {}
                }
                if *gpu_islands { f.write_str("; between islands of GPUs, as topology has it") } else { Ok(()) }
            }
        }
    }
}

/// Of a message by an RDMA device through a switch or two: what vendors and perftest tell of current ones, 1 to 3 us.
const DEVICE_LATENCY: f64 = 2e-6;
/// What is left of a link's rate for payload, by headers and pauses.
const USABLE: f64 = 0.92;

/// Of messages by the software device between hosts, of either end of a packet, and of 4 KiB of what packets carry, on two cores of
/// an EPYC, between network namespaces joined by veth: a packet takes 4.7 us to be sent, through to the peer's socket, and 2 us to
/// be taken, 60 KiB take 11.5 us and 6 us. Near these times the values were fitted: by them the choice is within a tenth of the
/// fastest at more of 84 points than by others, for six operations of 1 KiB to 4 MiB on two and four such hosts. What a network
/// takes beside is not in them.
const SOFTWARE: Link = Link { latency: 5e-6, speed: 7e9 };
const PACKET: f64 = 3.8e-6;
const PAYLOAD: f64 = 0.45e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_are_as_fast_as_those_of_the_node_with_least() {
        let rail = |node, device, rate_mbps| Rail { node, device, is_software: false, rate_mbps };
        let speed = |rails: &[Rail<'_>]| Known::default().with_rails(rails.iter().copied()).model.between.speed;
        let one = rail("a", "mlx5_0", Some(100_000));
        let (both, other) = ([one, rail("a", "mlx5_1", Some(100_000))], rail("b", "mlx5_0", Some(100_000)));
        let fast = 12.5e9 * USABLE;
        assert_eq!(speed(&[one, one, other]), fast);
        assert_eq!(speed(&both), 2.0 * fast);
        assert_eq!(speed(&[both[0], both[1], other]), fast);
        // The software device has no rate; and what was said counts.
        let soft = |node| Rail { is_software: true, ..rail(node, "soft0", None) };
        assert_eq!(speed(&[one, soft("b")]), SOFTWARE.speed);
        assert_eq!(speed(&[soft("a"), soft("b"), soft("a")]), SOFTWARE.speed);
        // Packets take a core's time only where that device makes them.
        let by = |rails: [Rail<'_>; 2]| {
            let model = CostModel { packet: 1.0, payload: 1.0, ..CostModel::default() };
            let known = Known { model, ..Known::default() }.with_rails(rails).model;
            (known.packet, known.payload)
        };
        assert_eq!([by([soft("a"), soft("b")]), by([one, other])], [(PACKET, PAYLOAD), (0.0, 0.0)]);
        assert_eq!(Known::default().with_rails([soft("a"), soft("a")]), Known::default());
        assert_eq!(speed(&[one, rail("b", "mlx5_0", None)]), CostModel::default().between.speed);
        let set = Known { origin: Origin::Set, ..Known::default() };
        assert_eq!(set.clone().with_rails([one]), set);
    }

    #[test]
    fn between_islands_of_gpus_it_is_as_topology_says() {
        let speed = |known: Known, outside: &[u64]| known.with_gpu_islands(outside.iter().copied()).model.gpu.beside;
        let built_in = CostModel::default().gpu.beside;
        assert_eq!(speed(Known::default(), &[42_000_000_000, 16_000_000_000]), 16e9);
        assert_eq!((speed(Known::default(), &[]), speed(Known::default(), &[0])), (built_in, built_in));
        assert_eq!(speed(Known { origin: Origin::Set, ..Known::default() }, &[1]), built_in);
        let told = Known::default().with_gpu_islands([1]).with_rails([]).with_gpu_islands([2]).origin.to_string();
        assert_eq!(told, "built in; between islands of GPUs, as topology has it");
    }

    #[test]
    fn where_rails_are_from_is_told_once() {
        let rails = [Rail { node: "a", device: "mlx5_0", is_software: false, rate_mbps: Some(100_000) }];
        // A communicator of some of its ranks looks at their rails anew.
        let twice = Known::default().with_rails(rails).with_rails(rails);
        assert_eq!(twice.origin.to_string(), "built in; between nodes, by the rates of the ranks' devices");
        assert_eq!(Known::default().with_rails([]).origin.to_string(), "built in");
        // On one node, or with devices of which no rate is known, nothing is left of the others'.
        let soft = |node| Rail { node, device: "soft0", is_software: true, rate_mbps: None };
        let silent = |node| Rail { is_software: false, ..soft(node) };
        let all = Known::default().with_gpu_islands([1]).with_rails([soft("a"), soft("a"), silent("b"), silent("c")]);
        assert_eq!(all.model.packet, PACKET);
        for some in [[soft("a"), soft("a")], [silent("b"), silent("c")]] {
            assert_eq!(all.clone().with_rails(some), Known::default().with_gpu_islands([1]));
        }
    }
}
