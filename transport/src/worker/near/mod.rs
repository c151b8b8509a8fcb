//! Which rails a worker takes by itself: those that topology names for a GPU, a NUMA node or the thread. `choose` decides,
//! `here` reads what the host says, `nics` what the user said in the environment; `settings` come before all of it.

mod choose;
mod error;
mod here;
mod nics;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use qpair_topology::{GpuId, Machine, PciAddress, Selection};

use super::rails::Rail;
use crate::cm::RAILS_LIMIT;
use choose::choose;
pub use error::NearError;
use here::Here;
pub(super) use settings::{Placed, told_who_chose};

/// What a worker's data is near to. Topology then names the rails: the NICs that serve it best, while others use theirs.
///
/// ```
/// use qpair_topology::GpuId;
/// use qpair_transport::{Config, Near};
///
/// // The NICs of the third GPU, where eight work at once.
/// let config = Config::default().near(Near::gpu(GpuId(2)));
/// // Those of the NUMA node that this thread runs on; `qpair topo` shows the same.
/// let placement = Near::thread().placement()?;
/// println!("{}", placement.reason);
/// assert!(!placement.rails.is_empty());
/// # let _ = config;
/// # Ok::<(), qpair_transport::NearError>(())
/// ```
///
/// QPAIR_NICS in the environment limits what is chosen of, by names or PCI addresses: `mlx5_0,mlx5_3` are all that may be used,
/// `^mlx5_2` is one that may not. NICs that libibverbs does not list are left out. Where no NIC is left, it is the software
/// device.
#[derive(Clone, Debug, PartialEq)]
pub struct Near {
    what: What,
    among: Option<Vec<GpuId>>,
    nodes: Option<Vec<u32>>,
    turn: usize,
    share: Option<(usize, usize)>,
    at_most: usize,
    machine: Option<Arc<Machine>>,
}

/// What the data is near to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Software,
    Thread,
    Numa(u32),
    Gpu(GpuId),
    GpuAt(PciAddress),
}

/// The rails that were chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The device of the first rail, which messages go over at first.
    pub device: String,
    /// The rails, at least one; the fastest first, unless it was another's [turn](Near::turn).
    pub rails: Vec<Rail>,
    /// True if topology named them, false if the settings or the environment did.
    pub is_chosen: bool,
    /// Which they are and why, for people.
    pub reason: String,
    /// The GPU whose NICs they are, where those of the GPU that the worker is near reach its memory but by this one's, over links
    /// between the two (NCCL calls that PXN). See [`GpuStage::through`](qpair_verbs::GpuStage::through).
    pub through: Option<PciAddress>,
}

impl Near {
    /// The calling thread, or the one that makes the worker: the NUMA node of the processors that it may run on, or if these
    /// are of several nodes, of the one that it is on now.
    pub fn thread() -> Near {
        Near { what: What::Thread, among: None, nodes: None, turn: 0, share: None, at_most: RAILS_LIMIT, machine: None }
    }

    /// Peers of the same host: their memory, by the software device, whatever NICs there are.
    pub fn software() -> Near {
        Near { what: What::Software, ..Near::thread() }
    }

    /// A NUMA node, by Linux' number.
    pub fn numa(node: u32) -> Near {
        Near { what: What::Numa(node), ..Near::thread() }
    }

    /// A GPU, by its place in the order of PCI addresses among those of the host that the process can use. CUDA counts in that
    /// order with CUDA_DEVICE_ORDER=PCI_BUS_ID, but for GPUs that CUDA_VISIBLE_DEVICES leaves out: who uses CUDA rather takes
    /// [`gpu_at`](Near::gpu_at).
    pub fn gpu(gpu: GpuId) -> Near {
        Near { what: What::Gpu(gpu), ..Near::thread() }
    }

    /// The GPU at a PCI address, as `cuDeviceGetPCIBusId` and `hipDeviceGetPCIBusId` tell it.
    pub fn gpu_at(address: PciAddress) -> Near {
        Near { what: What::GpuAt(address), ..Near::thread() }
    }

    /// The GPUs that work at once, this one among them (default: all of the host). Each must be told the same: two GPUs then
    /// do not share a NIC while another is idle.
    #[must_use]
    pub fn among(mut self, gpus: impl IntoIterator<Item = GpuId>) -> Near {
        self.among = Some(gpus.into_iter().collect());
        self
    }

    /// The NUMA nodes whose workers work at once, this one's among them (default: all of the host): those that are named do not
    /// leave NICs to the others.
    #[must_use]
    pub fn among_nodes(mut self, nodes: impl IntoIterator<Item = u32>) -> Near {
        self.nodes = Some(nodes.into_iter().collect());
        self
    }

    /// Which of several workers for the same it is, from 0 (default 0, whatever other workers there are): it begins with the rail
    /// of that number, counted round.
    #[must_use]
    pub fn turn(mut self, turn: usize) -> Near {
        self.turn = turn;
        self
    }

    /// Which it is of so many workers that divide the rails among them, from 0, instead of a turn: each takes its part, and where
    /// there are more workers than rails, one.
    #[must_use]
    pub fn share(mut self, number: usize, of: usize) -> Near {
        self.share = Some((number, of));
        self
    }

    /// Takes no more rails than that (default 8, the most there can be; at least 1).
    #[must_use]
    pub fn at_most(mut self, rails: usize) -> Near {
        self.at_most = rails;
        self
    }

    /// In that machine instead of the one that [`Machine::this`] tells of.
    #[must_use]
    pub fn on(mut self, machine: Arc<Machine>) -> Near {
        self.machine = Some(machine);
        self
    }

    /// What workers choose of in a machine, and in words what not: NICs that can not be opened or that messages can not go over,
    /// and what QPAIR_NICS says.
    ///
    /// ```
    /// use qpair_topology::Machine;
    /// use qpair_transport::Near;
    ///
    /// let machine = Machine::this()?;
    /// let (selection, without) = Near::selection(&machine)?;
    /// println!("{}{}", selection.choose()?.explain(), without.join("\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NearError`] if QPAIR_NICS makes no sense.
    pub fn selection(machine: &Machine) -> Result<(Selection<'_>, Vec<String>), NearError> {
        let here = Here::of(machine)?;
        let (selection, left_out) = choose::sound_selection(&here)?;
        let mut words = choose::told(machine, &left_out);
        if !here.nics.value().is_empty() {
            words.push(format!("as QPAIR_NICS says: {}", here.nics.value()));
        }
        Ok((selection, words))
    }

    /// The rails, and why these.
    ///
    /// # Errors
    /// [`NearError`] if there is no such GPU or NUMA node, or if QPAIR_NICS or QPAIR_TOPOLOGY in the environment make no sense.
    /// The message lists what there is.
    pub fn placement(&self) -> Result<Placement, NearError> {
        // What the driver of GPUs tells takes long to be asked, and matters to them alone.
        let this = match self.what {
            What::Software => return Ok(choose::software("the memory of the host".to_owned())),
            What::Thread | What::Numa(_) => Machine::this_without_driver,
            What::Gpu(_) | What::GpuAt(_) => Machine::this,
        };
        let machine = self.machine.clone().map_or_else(this, Ok)?;
        choose(self, &Here::of(&machine)?)
    }
}
