//! What the driver of GPUs says that sysfs does not: which GPUs can be used, and their NVLinks.

use super::memory::Entry;
use super::tree::{BESIDE, Tree, join};
use crate::PciAddress;

/// A GPU as its driver knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverGpu {
    /// Its address.
    pub address: PciAddress,
    /// The number that the driver gives it.
    pub index: Option<u32>,
    /// Its model.
    pub name: Option<String>,
    /// Its NVLinks that are up.
    pub links: Vec<DriverLink>,
}

/// An NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverLink {
    /// The address of the other end, where it is known. What stands there is found in sysfs; what is
    /// not there is taken to be an NVSwitch, which virtual machines do not show.
    pub remote: Option<PciAddress>,
    /// The generation of NVLink, 1 to 5.
    pub generation: u32,
}

/// The driver of a machine's NVIDIA GPUs. It is asked only if there is such a GPU.
pub trait GpuDriver {
    /// The GPUs that this process can use; `None` if the driver says nothing: there is none, or it
    /// fails. GPUs of NVIDIA that a list leaves out are passed over, and of an empty list all, since in
    /// a container sysfs has those of the whole machine.
    fn gpus(&self) -> Option<Vec<DriverGpu>>;
}

/// No driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGpuDriver;

impl GpuDriver for NoGpuDriver {
    fn gpus(&self) -> Option<Vec<DriverGpu>> {
        None
    }
}

/// What a driver says, or what a tree has recorded of one, in order.
pub(super) fn ask(tree: &Tree<'_>, driver: &dyn GpuDriver) -> Option<Vec<DriverGpu>> {
    let asked = || {
        let mut gpus = driver.gpus()?;
        gpus.truncate(crate::limits::GPUS);
        for gpu in &mut gpus {
            gpu.links.truncate(MOST_LINKS);
            gpu.links.sort();
            record(tree, gpu);
        }
        tree.note(join(&folder(), ANSWERED), || Entry::File("yes".to_owned()));
        Some(gpus)
    };
    let mut gpus = recorded(tree).or_else(asked)?;
    gpus.sort_by_key(|gpu| gpu.address);
    Some(gpus)
}

/// Stands in a record if the driver answered, which without a GPU in the answer could not be seen.
const ANSWERED: &str = "answered";

/// Links of a GPU; the largest have 18.
const MOST_LINKS: usize = 64;

fn folder() -> String {
    join(BESIDE, "gpu_driver")
}

fn record(tree: &Tree<'_>, gpu: &DriverGpu) {
    let folder = join(&folder(), &gpu.address.to_string());
    let note = |name: &str, text: String| tree.note(join(&folder, name), || Entry::File(text));
    if let Some(index) = gpu.index {
        note("index", index.to_string());
    }
    if let Some(name) = &gpu.name {
        note("name", name.clone());
    }
    let links = gpu.links.iter().map(|link| match link.remote {
        Some(address) => format!("{address}/{}", link.generation),
        None => format!("unknown/{}", link.generation),
    });
    note("nvlinks", links.collect::<Vec<_>>().join(" "));
}

fn recorded(tree: &Tree<'_>) -> Option<Vec<DriverGpu>> {
    let gpus = tree.entries(&folder()).into_iter().filter_map(|(name, path)| {
        let (address, path) = (name.parse().ok()?, path?);
        tree.keep(&path);
        let links = tree.read(&path, "nvlinks").unwrap_or_default();
        let links = links.split_whitespace().take(MOST_LINKS).filter_map(|link| {
            let (remote, generation) = link.rsplit_once('/')?;
            Some(DriverLink { remote: remote.parse().ok(), generation: generation.parse().ok()? })
        });
        let links = links.collect();
        Some(DriverGpu { address, index: tree.number(&path, "index"), name: tree.read(&path, "name"), links })
    });
    let gpus: Vec<DriverGpu> = gpus.take(crate::limits::GPUS).collect();
    let answered = tree.read(&folder(), ANSWERED).is_some() || !gpus.is_empty();
    answered.then_some(gpus)
}
