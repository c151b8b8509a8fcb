//! NICs and GPUs on PCI, and the bridges above RDMA devices.

use std::fs;

use super::rdma::RdmaDevice;
use super::root::Root;

/// A PCI function that is a NIC or a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciFunction {
    /// Its address, such as `0000:c1:00.0`.
    pub address: String,
    /// Its class: base class, subclass and interface, 24 bits.
    pub class: u64,
    /// Its kernel driver.
    pub driver: Option<String>,
}

/// A PCI bridge above an RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Its address.
    pub address: String,
    /// Its access control bits; `None` if it has none, or they can not be read.
    pub access_control: Option<u16>,
}

impl PciFunction {
    /// True for InfiniBand adapters.
    pub fn is_infiniband(&self) -> bool {
        self.class >> 8 == 0x0207
    }

    /// True for NICs of every sort.
    pub fn is_network(&self) -> bool {
        self.class >> 16 == 0x02
    }

    /// True for GPUs and other accelerators, without plain displays.
    pub fn is_gpu(&self) -> bool {
        matches!(self.class >> 8, 0x0302 | 0x1200)
    }

    /// The module that makes an RDMA device of this NIC, if there is one for its driver.
    pub fn rdma_module(&self) -> Option<&'static str> {
        let driver = self.driver.as_deref()?;
        RDMA_MODULES.iter().find(|(name, _)| *name == driver).map(|(_, module)| *module)
    }
}

impl Bridge {
    /// True if it sends peer-to-peer traffic up to the root instead of across.
    pub fn redirects(&self) -> bool {
        // P2P Request Redirect and P2P Completion Redirect.
        self.access_control.is_some_and(|bits| bits & 0b1100 != 0)
    }
}

/// The NICs and GPUs.
pub fn functions(root: &Root) -> Vec<PciFunction> {
    let all = root.names(DEVICES).into_iter().filter_map(|address| {
        let class = root.hex(&format!("{DEVICES}/{address}/class"))?;
        let driver = root.link_name(&format!("{DEVICES}/{address}/driver"));
        Some(PciFunction { address, class, driver })
    });
    all.filter(|function| function.is_network() || function.is_gpu()).collect()
}

/// The bridges above these devices, each once.
pub fn bridges(root: &Root, devices: &[RdmaDevice]) -> Vec<Bridge> {
    let mut found: Vec<Bridge> = Vec::new();
    for address in devices.iter().filter_map(|device| device.pci.as_deref()) {
        let Ok(path) = fs::canonicalize(root.path(&format!("{DEVICES}/{address}"))) else { continue };
        let above = path.ancestors().skip(1).filter_map(|folder| folder.file_name()?.to_str());
        for bridge in above.take_while(|name| is_address(name)) {
            if found.iter().all(|known| known.address != bridge) {
                let config = root.bytes(&format!("{DEVICES}/{bridge}/config"), 4096).unwrap_or_default();
                found.push(Bridge { address: bridge.to_owned(), access_control: access_control(&config) });
            }
        }
    }
    found
}

fn is_address(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let hex = |part: Option<&str>| part.is_some_and(|part| u32::from_str_radix(part, 16).is_ok());
    hex(parts.next()) && hex(parts.next()) && hex(parts.next()) && hex(parts.next()) && parts.next().is_none()
}

/// The control register of the Access Control Services capability in a function's configuration space.
fn access_control(config: &[u8]) -> Option<u16> {
    let bytes = |at: usize| config.get(at..at + 4);
    let mut at = 0x100;
    // A capability takes 8 bytes or more: a list that is longer than this goes in a circle.
    for _ in 0..(4096 - 256) / 8 {
        let header = u32::from_le_bytes(bytes(at)?.try_into().ok()?);
        if header & 0xffff == ACCESS_CONTROL {
            let registers = bytes(at + 4)?;
            return Some(u16::from_le_bytes([registers[2], registers[3]]));
        }
        at = (header >> 20) as usize;
        if at < 0x100 {
            return None;
        }
    }
    None
}

const DEVICES: &str = "/sys/bus/pci/devices";
/// Identifier of the Access Control Services capability.
const ACCESS_CONTROL: u32 = 0x000d;
/// Drivers of NICs, and the modules that make RDMA devices of them.
const RDMA_MODULES: [(&str, &str); 12] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("idpf", "irdma"),
    ("qede", "qedr"),
    ("cxgb4", "iw_cxgb4"),
    ("hns3", "hns_roce_hw_v2"),
    ("mana", "mana_ib"),
    ("be2net", "ocrdma"),
    ("ionic", "ionic_rdma"),
];

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    /// A configuration space with these capabilities: offset, identifier, next.
    fn config(capabilities: &[(usize, u32, u32)]) -> Vec<u8> {
        let mut config = vec![0; 4096];
        for (at, id, next) in capabilities {
            config[*at..at + 4].copy_from_slice(&(id | 1 << 16 | next << 20).to_le_bytes());
        }
        config
    }

    #[test]
    fn access_control_is_found_behind_other_capabilities() {
        let mut bytes = config(&[(0x100, 1, 0x148), (0x148, 0x0d, 0)]);
        bytes[0x14e..0x150].copy_from_slice(&0x1d_u16.to_le_bytes());
        assert_eq!(access_control(&bytes), Some(0x1d));
        assert!(Bridge { access_control: access_control(&bytes), ..Bridge::default() }.redirects());
    }

    #[test]
    fn configuration_spaces_that_lie_are_left() {
        assert_eq!(access_control(&config(&[(0x100, 1, 0x100)])), None);
        assert_eq!(access_control(&config(&[(0x100, 1, 0xffe)])), None);
        assert_eq!(access_control(&config(&[(0x100, 1, 0xffc), (0xffc, 0x0d, 0)])), None);
        assert_eq!((access_control(&[0; 64]), access_control(&[])), (None, None));
    }

    #[test]
    fn bridges_above_a_device_are_found_by_its_path() {
        let fixture = Fixture::new();
        let path = "sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0";
        fixture
            .file(&format!("{path}/class"), "0x020700\n")
            .file("sys/devices/pci0000:c0/0000:c0:01.0/class", "0x060400\n");
        fixture.link("sys/bus/pci/devices/0000:c1:00.0", "../../../devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0");
        fixture.link("sys/bus/pci/devices/0000:c0:01.0", "../../../devices/pci0000:c0/0000:c0:01.0");
        let root = Root::new(fixture.path());
        let device = RdmaDevice { pci: Some("0000:c1:00.0".to_owned()), ..RdmaDevice::default() };
        let found = bridges(&root, &[device]);
        assert_eq!(found, [Bridge { address: "0000:c0:01.0".to_owned(), access_control: None }]);
        let [nic] = functions(&root).try_into().expect("the bridge is no NIC");
        assert!(nic.is_infiniband() && nic.is_network() && !nic.is_gpu());
    }
}
