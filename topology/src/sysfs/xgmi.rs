//! Links of AMD's GPUs, as its kernel driver lists them for the run-time library.

use std::collections::{BTreeMap, BTreeSet};

use super::gpus::Found;
use super::tree::{Tree, join};
use crate::{GpuLink, GpuLinkKind, GpuPeer, GpuVendor, MachineBuilder, PciAddress, Warning, limits};

/// Adds the links, of each pair of GPUs once in each direction.
pub(super) fn read(tree: &Tree<'_>, gpus: &[Found], machine: &mut MachineBuilder) {
    const XGMI: u64 = 11;
    let nodes = nodes(tree, gpus);
    let mut links: BTreeMap<(PciAddress, PciAddress), GpuLink> = BTreeMap::new();
    for node in nodes.values() {
        for (_, link) in tree.entries(&join(&node.path, "io_links")) {
            let Some(text) = link.and_then(|link| tree.read(&link, "properties")) else { continue };
            let link = Properties(text);
            let to = link.get("node_to").and_then(|to| nodes.get(&to));
            let (Some(XGMI), Some(to)) = (link.get("type"), to) else { continue };
            if to.gpu == node.gpu {
                continue;
            }
            // The driver gives the bandwidth of one link, and of all to this neighbour; 0 of what it does not know.
            let count = match (link.get("min_bandwidth").unwrap_or(0), link.get("max_bandwidth").unwrap_or(0)) {
                (0, _) => 1,
                (one, all) => (all / one).clamp(1, 16) as u32,
            };
            let (kind, each) = (GpuLinkKind::Xgmi, GpuLinkKind::xgmi(cdna(node.version)));
            let link = GpuLink { gpu: node.gpu, to: GpuPeer::Gpu(to.gpu), kind, count, each };
            // All partitions of a GPU have the same links.
            let best = links.entry((node.gpu, to.gpu)).or_insert(link);
            *best = (*best).max(link);
        }
    }
    links.into_values().for_each(|link| _ = machine.gpu_link(link));
    let divided: BTreeSet<PciAddress> = nodes.values().map(|node| node.gpu).collect();
    if divided.len() < nodes.len() {
        let problem = format!(
            "{} are divided into {} partitions, as in CPX mode; each is one GPU here, and all its partitions share its \
             links",
            divided.len(),
            nodes.len()
        );
        machine.warn(Warning::new("GPUs of AMD", problem));
    }
}

/// A GPU, or one of the partitions that it is divided into.
struct Node {
    gpu: PciAddress,
    path: String,
    /// The number of its instruction set.
    version: u64,
}

/// What of the driver's nodes is a GPU of this process, by the numbers that links name.
fn nodes(tree: &Tree<'_>, gpus: &[Found]) -> BTreeMap<u64, Node> {
    const NODES: &str = "class/kfd/kfd/topology/nodes";
    let mut nodes = BTreeMap::new();
    for (name, path) in tree.entries(NODES) {
        let (Ok(number), Some(path)) = (name.parse::<u64>(), path) else { continue };
        let properties = Properties(tree.read(&path, "properties").unwrap_or_default());
        let location = properties.get("location_id").unwrap_or(0);
        let domain = properties.get("domain").and_then(|domain| u32::try_from(domain).ok()).unwrap_or(0);
        let address = PciAddress::new(domain, (location >> 8) as u8, (location >> 3 & 31) as u8, location as u8 & 7);
        if nodes.len() < limits::GPUS * MOST_PARTITIONS
            && let Some(gpu) = card(gpus, address)
        {
            nodes.insert(number, Node { gpu, path, version: properties.get("gfx_target_version").unwrap_or(0) });
        }
    }
    nodes
}

/// Partitions of a GPU: MI300X has one for each of its eight dies at most.
const MOST_PARTITIONS: usize = 8;

/// The GPU at an address. Of a partition the driver puts the number above the address, or, in some
/// releases, in place of the function.
fn card(gpus: &[Found], address: PciAddress) -> Option<PciAddress> {
    let exact = gpus.iter().find(|gpu| gpu.address == address);
    let whole = || gpus.iter().find(|gpu| gpu.vendor == GpuVendor::Amd && gpu.address.same_device(address));
    exact.or_else(whole).map(|gpu| gpu.address)
}

/// The generation of CDNA, of the number of the instruction set: 90008 for gfx908, 90010 for gfx90a,
/// 90402 for gfx942.
fn cdna(version: u64) -> u32 {
    match version {
        0..90_010 => 1,
        90_010..90_400 => 2,
        _ => 3,
    }
}

/// Lines of a name and a number.
struct Properties(String);

impl Properties {
    fn get(&self, name: &str) -> Option<u64> {
        self.0.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }
}
