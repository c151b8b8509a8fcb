//! Machines that people have, as far as choosing NICs needs them.

use qpair_topology::{
    Bandwidth, Bridge, BridgeRole, Cpu, Description, Gpu, GpuLink, GpuLinkKind, GpuPeer, GpuVendor, HostBridge,
    LinkLayer, Machine, Nic, NvSwitch, Parent, PciAddress, PcieGeneration, PcieLink, Port,
};

use PcieGeneration::{Gen3, Gen4, Gen5};

/// A machine that is put together part by part. Buses are given out in order.
pub struct Lab {
    pub parts: Description,
    bus: u8,
    nics: usize,
    pcie: PcieLink,
}

impl Lab {
    pub fn new(name: &str, generation: PcieGeneration) -> Self {
        let parts = Description { name: Some(name.to_owned()), ..Description::default() };
        Self { parts, bus: 0, nics: 0, pcie: PcieLink::new(generation, 16) }
    }

    pub fn intel(&mut self, numa: u32, model: u32) {
        let vendor = Some("GenuineIntel".to_owned());
        let arch = Some("x86_64".to_owned());
        let (family, model, package) = (Some(6), Some(model), Some(numa));
        let cpus = (numa * 24..numa * 24 + 24).collect();
        self.parts.cpus.push(Cpu { package, cpus, arch, vendor, family, model, ..Cpu::numa(numa) });
    }

    pub fn amd(&mut self, numa: u32, package: u32, family: u32, model: u32) {
        let vendor = Some("AuthenticAMD".to_owned());
        let arch = Some("x86_64".to_owned());
        let (family, model, package) = (Some(family), Some(model), Some(package));
        let cpus = (numa * 24..numa * 24 + 24).collect();
        self.parts.cpus.push(Cpu { package, cpus, arch, vendor, family, model, ..Cpu::numa(numa) });
    }

    /// A host bridge of a NUMA node.
    pub fn root(&mut self, numa: Option<u32>) -> Parent {
        self.bus += 1;
        self.parts.host_bridges.push(HostBridge { domain: 0, bus: self.bus, numa });
        Parent::HostBridge { domain: 0, bus: self.bus }
    }

    /// A root port and a switch below it.
    pub fn switch(&mut self, root: Parent) -> Parent {
        let port = self.port(root);
        self.bus += 1;
        let switch = PciAddress::new(0, self.bus, 0, 0);
        self.parts.bridges.push(Bridge { pcie: self.pcie, role: BridgeRole::Switch, ..Bridge::at(switch, port) });
        Parent::Bridge(switch)
    }

    /// A root port of a host bridge, or a port of a switch.
    pub fn port(&mut self, parent: Parent) -> Parent {
        self.bus += 1;
        let port = PciAddress::new(0, self.bus, 1, 0);
        self.parts.bridges.push(Bridge { pcie: self.pcie, ..Bridge::at(port, parent) });
        Parent::Bridge(port)
    }

    pub fn next(&mut self) -> PciAddress {
        self.bus += 1;
        PciAddress::new(0, self.bus, 0, 0)
    }

    pub fn gpu(&mut self, parent: Parent) -> PciAddress {
        let address = self.next();
        self.parts.gpus.push(Gpu { vendor: GpuVendor::Nvidia, pcie: self.pcie, ..Gpu::at(address, parent) });
        address
    }

    pub fn nic(&mut self, parent: Parent, gbit: u64) -> PciAddress {
        let address = self.next();
        let name = format!("mlx5_{}", self.nics);
        self.nics += 1;
        let ports = vec![Port::active(1, gbit * 1000, LinkLayer::InfiniBand)];
        self.parts.nics.push(Nic { ports, pcie: self.pcie, ..Nic::at(name, address, parent) });
        address
    }

    pub fn nvlink(&mut self, gpu: PciAddress, to: GpuPeer, count: u32, generation: u32) {
        let each = GpuLinkKind::nvlink(generation);
        self.parts.gpu_links.push(GpuLink { gpu, to, kind: GpuLinkKind::NvLink, count, each });
    }

    /// Joins all GPUs by NVSwitches.
    pub fn nv_switch(&mut self, links: u32, generation: u32) {
        self.parts.nv_switch = Some(NvSwitch::default());
        let gpus: Vec<PciAddress> = self.parts.gpus.iter().map(|gpu| gpu.address).collect();
        gpus.into_iter().for_each(|gpu| self.nvlink(gpu, GpuPeer::NvSwitch, links, generation));
    }

    pub fn build(self) -> Machine {
        let machine = self.parts.build();
        assert_eq!(machine.warnings(), []);
        machine
    }
}

/// Two GPUs and one NIC of 100 Gbit/s under each of four switches; NVLink as a cube mesh.
pub fn dgx1_v100() -> Machine {
    let mut lab = Lab::new("DGX-1 V100", Gen3);
    let mut gpus = Vec::new();
    for numa in 0..2 {
        lab.intel(numa, 0x4f);
        let root = lab.root(Some(numa));
        for _ in 0..2 {
            let switch = lab.switch(root);
            gpus.push(lab.gpu(switch));
            gpus.push(lab.gpu(switch));
            lab.nic(switch, 100);
        }
    }
    let mesh = [
        (0, 1, 1),
        (0, 2, 1),
        (0, 3, 2),
        (0, 4, 2),
        (1, 2, 2),
        (1, 3, 1),
        (1, 5, 2),
        (2, 3, 2),
        (2, 6, 1),
        (3, 7, 1),
        (4, 5, 1),
        (4, 6, 1),
        (4, 7, 2),
        (5, 6, 2),
        (5, 7, 1),
        (6, 7, 2),
    ];
    for (a, b, count) in mesh {
        lab.nvlink(gpus[a], GpuPeer::Gpu(gpus[b]), count, 2);
    }
    lab.build()
}

/// Two GPUs and two NICs of 200 Gbit/s under each of four switches.
pub fn dgx_a100() -> Machine {
    let mut lab = Lab::new("DGX A100", Gen4);
    for numa in 0..4 {
        lab.amd(numa, numa / 2, 23, 0x31);
        let root = lab.root(Some(numa));
        let switch = lab.switch(root);
        lab.gpu(switch);
        lab.gpu(switch);
        lab.nic(switch, 200);
        lab.nic(switch, 200);
    }
    lab.nv_switch(12, 3);
    lab.build()
}

/// A GPU and a NIC of 400 Gbit/s under each of eight switches.
pub fn dgx_h100() -> Machine {
    let mut lab = Lab::new("DGX H100", Gen5);
    for numa in 0..2 {
        lab.intel(numa, 0x8f);
        for _ in 0..4 {
            let root = lab.root(Some(numa));
            let switch = lab.switch(root);
            lab.gpu(switch);
            lab.nic(switch, 400);
        }
    }
    lab.nv_switch(18, 4);
    lab.build()
}

/// Two GPUs and a NIC of 100 Gbit/s under each of four switches.
pub fn p4d() -> Machine {
    let mut lab = Lab::new("AWS p4d", Gen3);
    for numa in 0..2 {
        lab.intel(numa, 0x55);
        let root = lab.root(Some(numa));
        for _ in 0..2 {
            let switch = lab.switch(root);
            lab.gpu(switch);
            lab.gpu(switch);
            lab.nic(switch, 100);
        }
    }
    lab.nv_switch(12, 3);
    lab.build()
}

/// A GPU and four NICs of 100 Gbit/s under each of eight switches.
pub fn p5() -> Machine {
    let mut lab = Lab::new("AWS p5", Gen5);
    for numa in 0..2 {
        lab.amd(numa, numa, 25, 0x01);
        let root = lab.root(Some(numa));
        for _ in 0..4 {
            let switch = lab.switch(root);
            lab.gpu(switch);
            for _ in 0..4 {
                lab.nic(switch, 100);
            }
        }
    }
    lab.nv_switch(18, 4);
    lab.build()
}

/// Two GPUs and two NICs of 200 Gbit/s under each of four switches, as a file describes them: no
/// host bridges, a domain for each device, and domains that do not follow NUMA nodes.
pub fn azure_nd() -> Machine {
    let mut lab = Lab::new("Azure ND", Gen4);
    let domains = [[3, 4], [1, 2], [0xd, 0xe], [0xb, 0xc]];
    for (numa, pair) in domains.into_iter().enumerate() {
        lab.amd(numa as u32, numa as u32 / 2, 23, 0x31);
        let switch = PciAddress::new(0xffff, 0xff, numa as u8 + 1, 0);
        let pcie = lab.pcie;
        let under = Parent::Bridge(switch);
        lab.parts.bridges.push(Bridge {
            role: BridgeRole::Switch,
            pcie,
            ..Bridge::at(switch, Parent::Numa(numa as u32))
        });
        for domain in pair {
            lab.parts.gpus.push(Gpu { pcie, ..Gpu::at(PciAddress::new(domain, 0, 0, 0), under) });
            let ports = vec![Port::active(1, 200_000, LinkLayer::InfiniBand)];
            let address = PciAddress::new(0x100 + domain, 0, 0, 0);
            lab.parts.nics.push(Nic { ports, pcie, ..Nic::at(format!("mlx5_ib{domain}"), address, under) });
        }
    }
    lab.nv_switch(12, 3);
    lab.build()
}

/// Two GPUs and a NIC of 400 Gbit/s under each of four switches, and a NIC of 100 Gbit/s for storage
/// beside them.
pub fn hgx_two_per_nic() -> Machine {
    let mut lab = Lab::new("HGX, two GPUs per NIC", Gen5);
    for numa in 0..2 {
        lab.intel(numa, 0x8f);
        let root = lab.root(Some(numa));
        if numa == 0 {
            let port = lab.port(root);
            lab.nic(port, 100);
        }
        for _ in 0..2 {
            let switch = lab.switch(root);
            lab.gpu(switch);
            lab.gpu(switch);
            lab.nic(switch, 400);
        }
    }
    lab.nv_switch(18, 4);
    lab.build()
}

/// Two sockets with two GPUs each at root ports, and one NIC of 100 Gbit/s at the first.
pub fn two_sockets() -> Machine {
    let mut lab = Lab::new("two sockets, PCIe only", Gen4);
    for numa in 0..2 {
        lab.intel(numa, 0x6a);
        let root = lab.root(Some(numa));
        for _ in 0..2 {
            let port = lab.port(root);
            lab.gpu(port);
        }
        if numa == 0 {
            let port = lab.port(root);
            lab.nic(port, 100);
        }
    }
    lab.build()
}

/// Four GPUs and four NICs of 200 Gbit/s, of which a virtual machine shows nothing more.
pub fn vm_numa_unknown() -> Machine {
    let mut lab = Lab::new("VM, NUMA -1", Gen4);
    lab.pcie = PcieLink::UNKNOWN;
    lab.parts.cpus = vec![Cpu::numa(0), Cpu::numa(1)];
    let root = lab.root(None);
    for _ in 0..4 {
        lab.gpu(root);
    }
    for _ in 0..4 {
        lab.nic(root, 200);
    }
    lab.build()
}

/// Two GPUs and a NIC of 200 Gbit/s under each of two switches, each NIC with two virtual functions.
pub fn virtual_functions() -> Machine {
    let mut lab = Lab::new("virtual functions", Gen4);
    lab.intel(0, 0x6a);
    let root = lab.root(Some(0));
    for _ in 0..2 {
        let switch = lab.switch(root);
        lab.gpu(switch);
        lab.gpu(switch);
        let port = lab.port(switch);
        let physical = lab.nic(port, 200);
        for function in 1..3 {
            lab.nic(port, 200);
            let nic = lab.parts.nics.last_mut().expect("it was just added");
            nic.address = Some(PciAddress { function, ..physical });
            nic.physfn = Some(physical);
            nic.pcie = PcieLink::UNKNOWN;
        }
    }
    lab.build()
}

/// Four superchips, each a Grace and a Hopper joined by C2C, with a NIC of 200 Gbit/s.
pub fn grace_hopper() -> Machine {
    let mut lab = Lab::new("Grace-Hopper", Gen5);
    let mut gpus = Vec::new();
    for numa in 0..4 {
        let arch = Some("arm64".to_owned());
        lab.parts.cpus.push(Cpu { package: Some(numa), arch, ..Cpu::numa(numa) });
        let (first, second) = (lab.root(Some(numa)), lab.root(Some(numa)));
        let port = lab.port(first);
        let gpu = lab.gpu(port);
        let port = lab.port(second);
        lab.nic(port, 200);
        let (to, kind, each) = (GpuPeer::Cpu(numa), GpuLinkKind::C2c, GpuLinkKind::c2c());
        lab.parts.gpu_links.push(GpuLink { gpu, to, kind, count: 1, each });
        gpus.push(gpu);
    }
    for (i, &a) in gpus.iter().enumerate() {
        gpus[i + 1..].iter().for_each(|&b| lab.nvlink(a, GpuPeer::Gpu(b), 6, 4));
    }
    lab.build()
}

/// Eight GPUs joined by xGMI, each under a switch with a NIC of 400 Gbit/s.
pub fn mi300x() -> Machine {
    let mut lab = Lab::new("AMD MI300X", Gen5);
    let mut gpus = Vec::new();
    for numa in 0..2 {
        lab.amd(numa, numa, 25, 0x11);
        for _ in 0..4 {
            let root = lab.root(Some(numa));
            let switch = lab.switch(root);
            gpus.push(lab.gpu(switch));
            lab.nic(switch, 400);
        }
    }
    lab.parts.gpus.iter_mut().for_each(|gpu| gpu.vendor = GpuVendor::Amd);
    let (kind, each) = (GpuLinkKind::Xgmi, GpuLinkKind::xgmi(3));
    for (i, &gpu) in gpus.iter().enumerate() {
        for &b in &gpus[i + 1..] {
            lab.parts.gpu_links.push(GpuLink { gpu, to: GpuPeer::Gpu(b), kind, count: 1, each });
        }
    }
    lab.build()
}

/// A GPU, and the software device alone.
pub fn one_gpu() -> Machine {
    let mut lab = Lab::new("one GPU, no NIC", Gen4);
    lab.intel(0, 0x6a);
    let root = lab.root(Some(0));
    let port = lab.port(root);
    lab.gpu(port);
    lab.parts.nics.push(Nic::software("soft0", 0));
    lab.build()
}

/// A NIC of 100 Gbit/s at each of two sockets, and no GPU.
pub fn nics_only() -> Machine {
    let mut lab = Lab::new("NICs, no GPU", Gen4);
    for numa in 0..2 {
        lab.intel(numa, 0x6a);
        let root = lab.root(Some(numa));
        let port = lab.port(root);
        lab.nic(port, 100);
        lab.parts.nics.push(Nic::software(format!("soft{numa}"), numa));
    }
    lab.build()
}

/// A near NIC of 100 Gbit/s, and a far one of 400: that it is faster does not make up for the way
/// through the host's memory.
pub fn far_and_fast() -> Machine {
    let mut lab = Lab::new("far 400G, near 100G", Gen5);
    for numa in 0..2 {
        lab.intel(numa, 0x8f);
        let root = lab.root(Some(numa));
        if numa == 0 {
            let switch = lab.switch(root);
            lab.gpu(switch);
            lab.nic(switch, 100);
        } else {
            let port = lab.port(root);
            lab.nic(port, 400);
        }
    }
    lab.build()
}

/// Four GPUs and two NICs of 200 Gbit/s under one switch: GPUs 0 and 2 must not share one.
pub fn four_on_two() -> Machine {
    let mut lab = Lab::new("four GPUs on two NICs", Gen4);
    lab.amd(0, 0, 25, 0x01);
    let root = lab.root(Some(0));
    let switch = lab.switch(root);
    for _ in 0..4 {
        lab.gpu(switch);
    }
    for _ in 0..2 {
        lab.nic(switch, 200);
    }
    lab.build()
}

/// Two pairs of GPUs joined by NVLink; one of each pair has a NIC of 200 Gbit/s beside it.
pub fn neighbours() -> Machine {
    let mut lab = Lab::new("a neighbour's NIC", Gen4);
    lab.amd(0, 0, 25, 0x01);
    for _ in 0..2 {
        let root = lab.root(Some(0));
        let switch = lab.switch(root);
        let a = lab.gpu(switch);
        lab.nic(switch, 200);
        let root = lab.root(Some(0));
        let port = lab.port(root);
        let b = lab.gpu(port);
        lab.nvlink(a, GpuPeer::Gpu(b), 4, 3);
    }
    lab.build()
}

/// All of them.
pub fn all() -> Vec<Machine> {
    vec![
        dgx1_v100(),
        dgx_a100(),
        dgx_h100(),
        p4d(),
        p5(),
        azure_nd(),
        hgx_two_per_nic(),
        two_sockets(),
        vm_numa_unknown(),
        virtual_functions(),
        grace_hopper(),
        mi300x(),
        one_gpu(),
        nics_only(),
        far_and_fast(),
        four_on_two(),
        neighbours(),
    ]
}

/// As many GPUs as NICs, a pair under each switch.
pub fn pairs(count: u32) -> Machine {
    let mut lab = Lab::new("pairs", Gen5);
    for numa in 0..2 {
        lab.intel(numa, 0x8f);
        for _ in 0..count / 2 {
            let root = lab.root(Some(numa));
            let switch = lab.switch(root);
            lab.gpu(switch);
            lab.nic(switch, 400);
        }
    }
    lab.nv_switch(18, 4);
    lab.build()
}

pub const GB: fn(u64) -> Bandwidth = Bandwidth::from_gb;
