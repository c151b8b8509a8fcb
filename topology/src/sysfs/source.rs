//! Where a machine is read from, and reading it.

use std::fmt;
use std::path::PathBuf;

use super::driver::{GpuDriver, NoGpuDriver};
use super::manifest::{self, ManifestError};
use super::memory::Entry;
use super::tree::{BESIDE, Source, Tree, join};
use super::{cpus, fabric, gpus, pci, rdma};
use crate::{Machine, MachineBuilder, Nic, Warning};

/// A sysfs to discover a machine from: this machine's, a folder that looks like one, or one that was
/// captured as text.
///
/// ```
/// use qpair_topology::{Machine, Sysfs};
///
/// let machine = Machine::discover(&Sysfs::this_machine());
/// println!("{} GPUs, {} NICs", machine.gpus().len(), machine.nics().len());
///
/// let written = "devices/pci0000:16/0000:16:00.0|class=0x030200\n\
///                devices/pci0000:16/0000:16:00.0|vendor=0x10de\n\
///                devices/system/node/node0|cpulist=0-7\n";
/// let machine = Machine::discover(&Sysfs::from_manifest(written)?);
/// // A GPU, and the software device of the NUMA node.
/// assert_eq!((machine.gpus().len(), machine.nics().len()), (1, 1));
/// # Ok::<(), qpair_topology::ManifestError>(())
/// ```
pub struct Sysfs {
    source: Source,
    driver: Box<dyn GpuDriver + Send + Sync>,
    openable: Option<Box<Openable>>,
    software: bool,
}

type Openable = dyn Fn(&str) -> bool + Send + Sync;

impl Sysfs {
    /// That of this machine: `/sys`, with NVIDIA's driver where there is one. Devices that this process
    /// can not open are passed over: a container's sysfs has those of the whole machine.
    pub fn this_machine() -> Self {
        let can_open = |name: &str| {
            // Devices of RDMA and of GPUs can be opened by many; opening one does nothing to it.
            std::fs::OpenOptions::new().read(true).write(true).open(PathBuf::from("/dev").join(name)).is_ok()
        };
        let this = Self::at("/sys").openable_if(can_open);
        #[cfg(feature = "nvml")]
        let this = this.gpu_driver(super::nvml::Nvml);
        this
    }

    /// A folder that is laid out like `/sys`. All its devices are taken to be usable. Links that lead
    /// out of it lead nowhere.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self::from(Source::Folder(root.into()))
    }

    /// One that [`Sysfs::capture`] wrote, or that is written by hand in the same form.
    ///
    /// # Errors
    ///
    /// The text is no manifest; the error names the line.
    pub fn from_manifest(text: &str) -> Result<Self, ManifestError> {
        Ok(Self::from(Source::Memory(manifest::parse(text)?)))
    }

    /// With another driver for NVIDIA's GPUs.
    #[must_use]
    pub fn gpu_driver(mut self, driver: impl GpuDriver + Send + Sync + 'static) -> Self {
        self.driver = Box::new(driver);
        self
    }

    /// With a check of which devices can be opened. It gets names below `/dev`, such as
    /// `infiniband/uverbs0`, `dri/renderD128` or `nvidiactl`; what needs one for which it says no, or one
    /// that is not there, is passed over.
    #[must_use]
    pub fn openable_if(mut self, check: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.openable = Some(Box::new(check));
        self
    }

    /// Whether the software device is added at each NUMA node; it is unless said otherwise.
    #[must_use]
    pub fn software_device(mut self, add: bool) -> Self {
        self.software = add;
        self
    }

    /// Reads the machine, and gives all that was read as text: lines `path|attribute=value`, and
    /// `path|name=-> target` for links. [`Sysfs::from_manifest`] makes the same machine of it.
    ///
    /// It has PCI addresses, names, speeds, sizes, processor lists and the GUIDs of RDMA devices; no serial
    /// numbers, no host name, no IP addresses. **GUIDs of Ethernet devices hold the MAC address**, and are
    /// kept since the machine would be another without: replace them, equal ones by equal ones, in what is
    /// to be published.
    pub fn capture(&self) -> String {
        let tree = Tree::recording(&self.source);
        self.read(&tree);
        manifest::write(&tree.into_record())
    }

    pub(super) fn read(&self, tree: &Tree<'_>) -> Machine {
        let mut machine = Machine::builder();
        if !tree.is_there() {
            machine.warn(Warning::new(self, "it is no folder that can be read; nothing was discovered"));
        } else if let Source::Folder(root) = &self.source
            && !is_sysfs(tree, "")
        {
            let inner = root.join("sys");
            let hint = if is_sysfs(tree, "sys") { format!("; use {}", inner.display()) } else { String::new() };
            let problem = "it has neither bus/pci nor class nor devices, as a sysfs has";
            machine.warn(Warning::new(self, format!("{problem}{hint}")));
        }
        let probe = Probe { tree, openable: self.openable.as_deref() };
        let cpus = cpus::read(tree, &mut machine);
        let mut devices = pci::scan(tree, &cpus, &mut machine);
        let gpus = gpus::read(&probe, &*self.driver, &mut devices, &mut machine);
        fabric::read(tree, &gpus, &devices, &mut machine);
        rdma::read(&probe, &mut devices, &mut machine);
        devices.finish(&mut machine);
        if self.software {
            software(&cpus, &mut machine);
        }
        machine.build()
    }
}

impl From<Source> for Sysfs {
    fn from(source: Source) -> Self {
        Self { source, driver: Box::new(NoGpuDriver), openable: None, software: true }
    }
}

/// Names the folder.
impl fmt::Display for Sysfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Folder(root) => root.display().fmt(f),
            Source::Memory(_) => f.write_str("manifest"),
        }
    }
}

impl fmt::Debug for Sysfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sysfs({self})")
    }
}

impl Machine {
    /// Discovers a machine. It never fails: where there is nothing, the machine has nothing, and what
    /// is broken is passed over and becomes a [`Warning`].
    pub fn discover(sysfs: &Sysfs) -> Self {
        sysfs.read(&Tree::new(&sysfs.source))
    }
}

/// True if a folder has something that sysfs has.
fn is_sysfs(tree: &Tree<'_>, folder: &str) -> bool {
    ["bus/pci", "class", "devices"].iter().any(|name| tree.resolve(&join(folder, name)).is_some())
}

/// The software device of each NUMA node, which any process can open.
fn software(cpus: &[crate::Cpu], machine: &mut MachineBuilder) {
    for numa in cpus.iter().filter_map(|cpu| cpu.numa) {
        machine.nic(Nic::software(format!("soft{numa}"), numa));
    }
}

/// A tree, and which devices can be opened.
pub(super) struct Probe<'a> {
    pub(super) tree: &'a Tree<'a>,
    openable: Option<&'a Openable>,
}

impl Probe<'_> {
    /// True if devices are checked, so that one that can not be found can not be used.
    pub(super) fn checks(&self) -> bool {
        let recorded = self.tree.read(BESIDE, "devices").is_some();
        if self.openable.is_some() {
            self.tree.note(join(BESIDE, "devices"), || Entry::File("checked".to_owned()));
        }
        recorded || self.openable.is_some()
    }

    /// True if a device below `/dev` can be opened, or may be for all that is known.
    pub(super) fn can_open(&self, device: &str) -> bool {
        let folder = join(BESIDE, "dev");
        if let Some(recorded) = self.tree.read(&folder, device) {
            return recorded != CLOSED;
        }
        let Some(check) = self.openable else { return true };
        let open = check(device);
        self.tree.note(join(&folder, device), || Entry::File(if open { OPEN } else { CLOSED }.to_owned()));
        open
    }
}

const OPEN: &str = "open";
const CLOSED: &str = "closed";
