//! Writing: version 1, without ranks, which NCCL fills in as it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::gpu::CPU_BRIDGE;
use super::models::{capability, instruction_set};
use crate::escape::escape;
use crate::{
    BridgeRole, Gpu, GpuId, GpuLink, GpuLinkKind, GpuPeer, GpuVendor, LinkKind, LinkLayer, Machine, Nic, NicId, NodeId,
    PciAddress, PcieLink,
};

impl Machine {
    /// The machine as a topology file of NCCL, for `NCCL_TOPO_FILE`.
    ///
    /// The format has switches, GPUs, their links, and ports of NICs that carry data. What it has no
    /// place for is left out: host bridges and ports of switches (the slower of both ends is written
    /// as the link), sockets, bonds, software devices, and warnings.
    pub fn to_nccl_xml(&self) -> String {
        let described = self.description().gpu_links.iter().map(|link| (link.gpu, link.to)).collect();
        let mut writer =
            Writer { machine: self, below: BTreeMap::new(), text: String::new(), described, nets: 0, opened: 0 };
        for node in self.nodes() {
            if let Some(above) = writer.above(node) {
                writer.below.entry(above).or_default().push(node);
            }
        }
        writer.machine();
        writer.text
    }
}

struct Writer<'a> {
    machine: &'a Machine,
    /// For each NUMA node and switch, what hangs under it once ports and host bridges are left out.
    below: BTreeMap<NodeId, Vec<NodeId>>,
    text: String,
    /// Which GPUs describe links to which.
    described: BTreeSet<(PciAddress, GpuPeer)>,
    /// Ports written so far, which have numbers.
    nets: usize,
    /// Where the text stood after the last start of an element.
    opened: usize,
}

impl Writer<'_> {
    fn machine(&mut self) {
        self.text.push_str("<system version=\"1\">\n");
        for id in self.machine.cpu_ids() {
            let Some(cpu) = self.machine.cpu(id) else { continue };
            let text = |value: &Option<String>| value.as_deref().map(escape);
            let number = |value: Option<u32>| value.map(|value| value.to_string());
            let attributes = [
                ("numaid", Some(cpu.numa.map_or("-1".to_owned(), |numa| numa.to_string()))),
                // A mask of zeros would say that there are none.
                ("affinity", Some(cpu.cpus.to_mask()).filter(|_| !cpu.cpus.is_empty())),
                ("arch", text(&cpu.arch)),
                ("vendor", text(&cpu.vendor)),
                ("familyid", number(cpu.family)),
                ("modelid", number(cpu.model)),
            ];
            self.open(1, "cpu", &attributes);
            self.children(NodeId::Cpu(id), 2);
            self.close(1, "cpu");
        }
        self.text.push_str("</system>\n");
    }

    fn children(&mut self, above: NodeId, depth: usize) {
        let nodes = self.below.get(&above).cloned().unwrap_or_default();
        for (place, &node) in nodes.iter().enumerate() {
            match node {
                NodeId::Bridge(i) => {
                    let address = self.machine.bridges()[usize::from(i)].address;
                    self.pci(depth, address, "0x060400", None, self.link(node));
                    self.children(node, depth + 1);
                    self.close(depth, "pci");
                }
                NodeId::Gpu(id) => self.gpu(id, depth),
                NodeId::Nic(id) => self.nic(id, &nodes[..place], &nodes[place..], depth),
                _ => {}
            }
        }
    }

    fn gpu(&mut self, id: GpuId, depth: usize) {
        let Some(gpu) = self.machine.gpu(id) else { return };
        let links: Vec<GpuLink> = self.links(gpu);
        let last = links.iter().find(|link| link.kind == GpuLinkKind::Xgmi);
        let newest = last.is_some_and(|link| link.each == GpuLinkKind::xgmi(3));
        let (vendor, class) = match gpu.vendor {
            GpuVendor::Nvidia => ("0x10de", "0x030200"),
            GpuVendor::Amd if newest => ("0x1002", "0x120000"),
            GpuVendor::Amd => ("0x1002", "0x038000"),
            GpuVendor::Intel => ("0x8086", "0x038000"),
            GpuVendor::Other => ("0xffff", "0x030200"),
        };
        self.pci(depth, gpu.address, class, Some(vendor), self.link(id.into()));
        let attributes = [
            ("dev", gpu.device.map(|device| device.to_string())),
            ("sm", capability(gpu, &links).map(|sm| escape(&sm))),
            ("gcn", instruction_set(gpu).map(|set| escape(&set))),
            ("gdr", direct(gpu.gpu_direct)),
        ];
        self.open(depth + 1, "gpu", &attributes);
        for link in links {
            self.gpu_link(link, class, depth + 2);
        }
        self.close(depth + 1, "gpu");
        self.close(depth, "pci");
    }

    /// The links of a GPU, those that only the other end describes among them.
    fn links(&self, gpu: &Gpu) -> Vec<GpuLink> {
        let all = &self.machine.description().gpu_links;
        let own = all.iter().filter(|link| link.gpu == gpu.address);
        let others = all.iter().filter_map(|link| {
            let back = GpuPeer::Gpu(link.gpu);
            let ours = link.to == GpuPeer::Gpu(gpu.address) && link.gpu != gpu.address;
            let ours = ours && !self.described.contains(&(gpu.address, back));
            ours.then_some(GpuLink { gpu: gpu.address, to: back, ..*link })
        });
        own.copied().chain(others).filter(|link| link.count > 0).collect()
    }

    fn gpu_link(&mut self, link: GpuLink, class: &str, depth: usize) {
        // What NCCL itself writes for an end that it does not see.
        const UNSEEN: &str = "fffffff:ffff:ff";
        let element = match link.kind {
            GpuLinkKind::NvLink => "nvlink",
            GpuLinkKind::Xgmi => "xgmi",
            GpuLinkKind::C2c => {
                let nominal = (u128::from(link.each.bytes()) * 6 / 5 + 500_000) / 1_000_000;
                let attributes = [("bw", Some(nominal.to_string())), ("count", Some(link.count.to_string()))];
                return self.empty(depth, "c2c", &attributes);
            }
        };
        let machine = self.machine;
        let mut write = |target: String, count: u32, class: &str| {
            let attributes =
                [("target", Some(target)), ("count", Some(count.to_string())), ("tclass", Some(class.to_owned()))];
            self.empty(depth, element, &attributes);
        };
        match link.to {
            GpuPeer::Gpu(address) => write(address.to_string(), link.count, class),
            GpuPeer::Cpu(_) => write(UNSEEN.to_owned(), link.count, &format!("{CPU_BRIDGE:#08x}")),
            GpuPeer::NvSwitch => {
                let switches = machine.nv_switch().map(|switch| switch.addresses.clone()).unwrap_or_default();
                let number = switches.len() as u32;
                if number == 0 {
                    return write(UNSEEN.to_owned(), link.count, "0x068000");
                }
                // Spread as evenly as it goes.
                for (place, address) in (0..).zip(switches) {
                    let count = link.count / number + u32::from(place < link.count % number);
                    if count > 0 {
                        write(address.to_string(), count, "0x068000");
                    }
                }
            }
        }
    }

    /// The NICs at one address, as functions of which several may be, once the first of them is met.
    fn nic(&mut self, id: NicId, before: &[NodeId], from: &[NodeId], depth: usize) {
        let machine = self.machine;
        let Some(nic) = machine.nic(id).filter(|nic| is_written(nic)) else { return };
        let known = |node: &NodeId| match *node {
            NodeId::Nic(id) => machine.nic(id).filter(|nic| is_written(nic)),
            _ => None,
        };
        if nic.address.is_some() && before.iter().filter_map(known).any(|other| other.address == nic.address) {
            return;
        }
        let mut all: Vec<&Nic> = vec![nic];
        if let Some(address) = nic.address {
            all = from.iter().filter_map(known).filter(|other| other.address == nic.address).collect();
            let layer = nic.ports.first().map_or(LinkLayer::Unknown, |port| port.link_layer);
            let class = if layer == LinkLayer::InfiniBand { "0x020700" } else { "0x020000" };
            self.pci(depth, address, class, None, self.link(id.into()));
        }
        let depth_in = depth + usize::from(nic.address.is_some());
        // One without a name was read from a file without `net`, and NCCL finds the rest by itself.
        all.retain(|nic| nic.address.is_none_or(|address| nic.name != address.to_string()));
        if !all.is_empty() {
            self.open(depth_in, "nic", &[]);
            for nic in all {
                self.nets(nic, depth_in + 1);
            }
            self.close(depth_in, "nic");
        }
        if nic.address.is_some() {
            self.close(depth, "pci");
        }
    }

    fn nets(&mut self, nic: &Nic, depth: usize) {
        for port in nic.ports.iter().filter(|port| port.carries_data()) {
            let attributes = [
                ("name", Some(escape(&nic.name))),
                ("dev", Some(self.nets.to_string())),
                ("speed", port.mbit.map(|mbit| mbit.to_string())),
                ("port", Some(port.number.to_string())),
                ("guid", nic.guid.map(|guid| format!("{guid:#x}"))),
                ("gdr", direct(nic.gpu_direct)),
            ];
            self.empty(depth, "net", &attributes);
            self.nets += 1;
        }
    }

    fn pci(&mut self, depth: usize, address: PciAddress, class: &str, vendor: Option<&str>, pcie: PcieLink) {
        let speed = pcie.generation.map_or("Unknown".to_owned(), |generation| {
            format!("{}.{} GT/s PCIe", generation.rate() / 10, generation.rate() % 10)
        });
        let attributes = [
            ("busid", Some(address.to_string())),
            ("class", Some(class.to_owned())),
            ("vendor", vendor.map(str::to_owned)),
            ("link_speed", Some(speed)),
            ("link_width", Some(pcie.width.unwrap_or(0).to_string())),
        ];
        self.open(depth, "pci", &attributes);
    }

    /// The NUMA node or switch that a node hangs under in the file; `None` of what is not in it.
    fn above(&self, node: NodeId) -> Option<NodeId> {
        if !matches!(node, NodeId::Gpu(_) | NodeId::Nic(_)) && !self.is_switch(node) {
            return None;
        }
        let mut above = self.machine.parent(node)?;
        while !matches!(above, NodeId::Cpu(_)) && !self.is_switch(above) {
            above = self.machine.parent(above)?;
        }
        Some(above)
    }

    fn is_switch(&self, node: NodeId) -> bool {
        let NodeId::Bridge(i) = node else { return false };
        matches!(self.machine.bridges()[usize::from(i)].role, BridgeRole::Switch | BridgeRole::Unknown)
    }

    /// The link above a node.
    fn link(&self, node: NodeId) -> PcieLink {
        let link = self.machine.links_of(node).find(|link| link.b == node && link.is_towards_host());
        match link.map(|link| link.kind) {
            Some(LinkKind::Pcie(pcie)) => pcie,
            _ => PcieLink::UNKNOWN,
        }
    }

    fn tag(&mut self, depth: usize, name: &str, attributes: &[(&str, Option<String>)], end: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "{:1$}<{name}", "", depth * 2);
        for (key, value) in attributes {
            if let Some(value) = value {
                let _ = write!(self.text, " {key}=\"{value}\"");
            }
        }
        self.text.push_str(end);
    }

    fn open(&mut self, depth: usize, name: &str, attributes: &[(&str, Option<String>)]) {
        self.tag(depth, name, attributes, ">\n");
        self.opened = self.text.len();
    }

    fn empty(&mut self, depth: usize, name: &str, attributes: &[(&str, Option<String>)]) {
        self.tag(depth, name, attributes, "/>\n");
    }

    /// Ends an element; of one with nothing in it the start is the end.
    fn close(&mut self, depth: usize, name: &str) {
        if self.text.len() == self.opened {
            self.text.truncate(self.opened - ">\n".len());
            self.text.push_str("/>\n");
            return;
        }
        let _ = writeln!(self.text, "{:1$}</{name}>", "", depth * 2);
    }
}

fn is_written(nic: &Nic) -> bool {
    !nic.software && nic.is_usable()
}

fn direct(direct: Option<bool>) -> Option<String> {
    direct.map(|direct| u8::from(direct).to_string())
}
