//! NICs and GPUs on PCI.

use qpair::topology::GpuVendor;

use super::root::Root;

/// A PCI function that is a NIC or a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciFunction {
    /// Its address, such as `0000:c1:00.0`.
    pub address: String,
    /// Its class: base class, subclass and interface, 24 bits.
    pub class: u64,
    /// Whose GPU it is, if it is one.
    pub gpu: Option<GpuVendor>,
    /// Its kernel driver.
    pub driver: Option<String>,
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

    /// The module that makes an RDMA device of this NIC, if there is one for its driver.
    pub fn rdma_module(&self) -> Option<&'static str> {
        let driver = self.driver.as_deref()?;
        RDMA_MODULES.iter().find(|(name, _)| *name == driver).map(|(_, module)| *module)
    }
}

/// The NICs and GPUs.
pub fn functions(root: &Root) -> Vec<PciFunction> {
    let all = root.names(DEVICES).into_iter().filter_map(|address| {
        let class = root.hex(&format!("{DEVICES}/{address}/class"))?;
        let vendor = root.hex(&format!("{DEVICES}/{address}/vendor"));
        let gpu = vendor.and_then(|vendor| GpuVendor::of(vendor.try_into().ok()?, (class >> 8) as u16));
        let driver = root.link_name(&format!("{DEVICES}/{address}/driver"));
        Some(PciFunction { address, class, gpu, driver })
    });
    all.filter(|function| function.is_network() || function.gpu.is_some()).collect()
}

const DEVICES: &str = "/sys/bus/pci/devices";
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

    #[test]
    fn nics_and_gpus_are_found_and_displays_of_boards_are_not() {
        let fixture = Fixture::new();
        let functions_of = [
            ("0000:3b:00.0", "0x030200", "0x10de"),
            ("0000:3c:00.0", "0x030000", "0x10de"),
            ("0000:3d:00.0", "0x038000", "0x1002"),
            ("0000:c1:00.0", "0x020700", "0x15b3"),
            ("0000:c2:00.0", "0x030000", "0x1a03"),
            ("0000:c3:00.0", "0x060400", "0x1000"),
        ];
        for (address, class, vendor) in functions_of {
            let path = format!("sys/bus/pci/devices/{address}");
            fixture.file(&format!("{path}/class"), class).file(&format!("{path}/vendor"), vendor);
        }
        let mut found = functions(&Root::new(fixture.path()));
        found.sort_by(|a, b| a.address.cmp(&b.address));
        let vendors: Vec<_> = found.iter().map(|function| function.gpu).collect();
        assert_eq!(vendors, [Some(GpuVendor::Nvidia), Some(GpuVendor::Nvidia), Some(GpuVendor::Amd), None]);
        assert!(found[3].is_infiniband() && found[3].is_network());
    }
}
