//! What the checks look at: a snapshot of the machine as plain data, and how it is read from /sys, /proc, /dev and /etc.
//! The root of these folders can be another one; whatever stands there is read within bounds, and nonsense is kept aside.

mod kernel;
mod library;
mod machine;
mod netdev;
mod pci;
mod rdma;
mod root;
mod user;
mod verbs;

use std::path::Path;

use qpair::topology::{Hint, Machine as Layout, Sysfs};
use qpair::transport::Placement;
use qpair::verbs::GpuError;
use qpair::{Config, Context};

use crate::gpus::{Found, find};

pub use kernel::Kernel;
#[cfg(test)]
pub use library::LoadedLibrary;
pub use library::{Library, LibraryFile, RDMA_CORE_FEATURES};
pub use machine::{Machine, Memory};
pub use netdev::{Address, Netdev};
pub use pci::PciFunction;
pub use rdma::{DeviceFile, GidKind, GidRow, Port, RdmaDevice, gigatransfers};
pub use root::{Oddity, Root};
pub use user::{CAP_IPC_LOCK, CAP_SYS_PTRACE, Limit, Limits, User};
pub use verbs::{OpenPort, OpenedDevice};

/// A machine, as one process of one user sees it.
#[derive(Clone, Debug, Default)]
pub struct System {
    /// Who runs this.
    pub user: User,
    /// What may be used at most.
    pub limits: Limits,
    /// The kernel and its modules.
    pub kernel: Kernel,
    /// Memory.
    pub memory: Memory,
    /// Other settings and circumstances.
    pub machine: Machine,
    /// RDMA devices that the kernel has.
    pub devices: Vec<RdmaDevice>,
    /// What stands in /dev/infiniband.
    pub files: Vec<DeviceFile>,
    /// Network interfaces of this network namespace.
    pub netdevs: Vec<Netdev>,
    /// Their addresses, without loopback.
    pub addresses: Vec<Address>,
    /// libibverbs and its providers.
    pub library: Library,
    /// PCI functions that are NICs or GPUs.
    pub pci: Vec<PciFunction>,
    /// What its layout tells of what could be set otherwise.
    pub hints: Vec<Hint>,
    /// What opening the devices gave.
    pub opened: Vec<OpenedDevice>,
    /// The GPUs that this program can use, or why it can use none.
    pub gpus: Option<Result<Found, GpuError>>,
    /// The device that a worker takes by itself and why, or why it can take none.
    pub worker: Option<Result<WorkerDevice, String>>,
    /// Files whose content makes no sense.
    pub oddities: Vec<Oddity>,
}

/// The device that a worker takes which is told none.
#[derive(Clone, Debug)]
pub struct WorkerDevice {
    /// Its name.
    pub name: String,
    /// Why it is that one.
    pub reason: String,
    /// True if topology named it, false if the environment does.
    pub is_chosen: bool,
    /// Why it can not be opened, if it can not.
    pub closed: Option<String>,
}

/// The RDMA devices that the kernel under `base` has.
pub fn rdma_devices(base: &Path) -> Vec<RdmaDevice> {
    rdma::devices(&Root::new(base))
}

impl System {
    /// Reads what stands under `base`, which is `/` on a live machine.
    pub fn read(base: &Path) -> Self {
        let root = Root::new(base);
        let devices = rdma::devices(&root);
        let addresses = netdev::addresses(&root);
        System {
            user: User::read(&root),
            limits: Limits::read(&root),
            kernel: Kernel::read(&root),
            memory: Memory::read(&root),
            machine: Machine::read(&root),
            files: rdma::device_files(&root),
            netdevs: netdev::netdevs(&root),
            addresses,
            library: Library::read(&root),
            pci: pci::functions(&root),
            hints: Layout::discover(&Sysfs::at(root.path("/sys")).software_device(false)).hints(),
            devices,
            opened: Vec::new(),
            gpus: None,
            worker: None,
            oddities: root.into_oddities(),
        }
    }

    /// Reads the machine that this runs on, and opens its devices.
    pub fn this_machine() -> Self {
        let mut system = System::read(Path::new("/"));
        system.library.loaded = Some(verbs::load());
        system.opened = verbs::open_all();
        let names: Vec<String> = system.opened.iter().map(|device| device.name.clone()).collect();
        system.gpus = Some(find(&names));
        let placement = Config::default().placement();
        let worker = placement.map(|Placement { device, reason, is_chosen, .. }| {
            let closed = Context::open(&device).err().map(|error| error.to_string());
            WorkerDevice { name: device, reason, is_chosen, closed }
        });
        system.worker = Some(worker.map_err(|error| error.to_string()));
        system
    }

    /// The interface of that name, if it is in this network namespace.
    pub fn netdev(&self, name: &str) -> Option<&Netdev> {
        self.netdevs.iter().find(|netdev| netdev.name == name)
    }

    /// What a device's port said when it was opened.
    pub fn open_port(&self, device: &str, port: u32) -> Option<&OpenPort> {
        let device = self.opened.iter().find(|opened| opened.name == device)?;
        device.ports.as_ref().ok()?.iter().find(|open| open.number == port)
    }

    /// The interface that a software RDMA device is best put on: up, with an address, and no tunnel or bridge if it can
    /// be helped.
    pub fn best_netdev(&self) -> Option<&Netdev> {
        let usable = self.netdevs.iter().filter(|netdev| netdev.is_ethernet());
        usable.max_by_key(|netdev| {
            let addressed = self.addresses.iter().any(|address| address.netdev.as_deref() == Some(&netdev.name));
            // Of equals the first by name.
            (netdev.up, netdev.carrier == Some(true), addressed, netdev.physical, std::cmp::Reverse(&netdev.name))
        })
    }
}
