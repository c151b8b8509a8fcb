//! Random machines, each of a number.

use qpair_topology::{Description, GpuPeer, LinkLayer, Machine, PcieGeneration, PcieLink, Port, PortState};

use super::machines::Lab;

/// Numbers that look random: splitmix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From 0 to `below` - 1.
    pub fn below(&mut self, below: usize) -> usize {
        (self.next() % below as u64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}

/// A machine with up to `gpus` GPUs and `nics` NICs: one or two sockets, root ports and switches
/// below them, links of GPUs here and there, some NICs down, some GPUs without GPUDirect.
pub fn machine(random: &mut Random, gpus: usize, nics: usize) -> Machine {
    let generation = random.of(&[PcieGeneration::Gen3, PcieGeneration::Gen4, PcieGeneration::Gen5]);
    let mut lab = Lab::new("random", generation);
    let mut places = Vec::new();
    for numa in 0..1 + random.below(2) as u32 {
        lab.intel(numa, random.of(&[0x4f, 0x55, 0x8f]));
        let root = lab.root(Some(numa).filter(|_| !random.once_in(10)));
        for _ in 0..1 + random.below(2) {
            let switch = lab.switch(root);
            places.push(switch);
            if random.once_in(4) {
                let port = lab.port(switch);
                places.push(lab.switch(port));
            }
        }
        if random.once_in(3) {
            places.push(root);
        }
    }
    let mut addresses = Vec::new();
    for _ in 0..1 + random.below(gpus) {
        addresses.push(lab.gpu(random.of(&places)));
        let gpu = lab.parts.gpus.last_mut().expect("it was just added");
        gpu.gpu_direct = Some(!random.once_in(12));
    }
    for _ in 0..1 + random.below(nics) {
        let rate = random.of(&[100, 100, 200, 200, 400]);
        let address = lab.nic(random.of(&places), rate);
        let nic = lab.parts.nics.last_mut().expect("it was just added");
        if random.once_in(12) {
            nic.ports[0].state = PortState::Down;
        }
        if random.once_in(8) {
            nic.ports.push(Port::active(2, 100_000, LinkLayer::Ethernet));
        }
        if random.once_in(8) {
            nic.pcie = PcieLink::new(PcieGeneration::Gen3, 8);
        }
        // A second function, on the same link.
        if random.once_in(8) {
            let parent = nic.parent;
            lab.nic(parent, 100);
            let nic = lab.parts.nics.last_mut().expect("it was just added");
            nic.address = Some(qpair_topology::PciAddress { function: 1, ..address });
        }
    }
    while lab.parts.nics.len() > nics {
        lab.parts.nics.pop();
    }
    let often = random.of(&[0, 0, 1, 3]);
    for (i, &a) in addresses.iter().enumerate() {
        for &b in &addresses[i + 1..] {
            if random.below(6) < often {
                lab.nvlink(a, GpuPeer::Gpu(b), 1 + random.below(4) as u32, 3);
            }
        }
    }
    lab.parts.build()
}

/// The same machine with as many GPUs as have no more than `most` assignments together, by what each
/// chooses of now; at least one less. `None` if that leaves none.
pub fn fewer_gpus(machine: &Machine, choices: &[u64], most: u64) -> Option<Machine> {
    let mut product = 1_u64;
    let fit = choices.iter().take_while(|&&choices| {
        product = product.saturating_mul(choices);
        product <= most
    });
    let kept = fit.count().min(machine.gpus().len() - 1);
    let mut parts: Description = machine.description().clone();
    let gone: Vec<_> = parts.gpus.split_off(kept).into_iter().map(|gpu| gpu.address).collect();
    parts.gpu_links.retain(|link| !gone.iter().any(|gpu| link.gpu == *gpu || link.to == GpuPeer::Gpu(*gpu)));
    (kept > 0).then(|| parts.build())
}

/// The same parts in another order.
pub fn reordered(machine: &Machine, random: &mut Random) -> Machine {
    let mut parts = machine.description().clone();
    random.shuffle(&mut parts.cpus);
    random.shuffle(&mut parts.host_bridges);
    random.shuffle(&mut parts.bridges);
    random.shuffle(&mut parts.gpus);
    random.shuffle(&mut parts.nics);
    random.shuffle(&mut parts.gpu_links);
    parts.build()
}
