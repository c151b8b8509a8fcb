//! Which rails a worker takes by itself: those that topology names for a GPU, a NUMA node or the thread. `choose` decides,
//! `here` reads what the host says, `nics` what the user said in the environment.

mod choose;
mod error;
mod here;
mod nics;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use qpair_topology::{GpuId, Machine, PciAddress};

use super::rails::Rail;
use crate::cm::RAILS_LIMIT;
use choose::choose;
pub use error::NearError;
use here::Here;

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
    turn: usize,
    at_most: usize,
    machine: Option<Arc<Machine>>,
}

/// What the data is near to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
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
    /// The rails, at least one.
    pub rails: Vec<Rail>,
    /// Which they are and why, for people.
    pub reason: String,
}

impl Near {
    /// The calling thread, or the one that makes the worker: the NUMA node of the processors that it may run on, or if these
    /// are of several nodes, of the one that it is on now.
    pub fn thread() -> Near {
        Near { what: What::Thread, among: None, turn: 0, at_most: RAILS_LIMIT, machine: None }
    }

    /// A NUMA node, by Linux' number.
    pub fn numa(node: u32) -> Near {
        Near { what: What::Numa(node), ..Near::thread() }
    }

    /// A GPU, by its place in the order of PCI addresses. That is CUDA's order with CUDA_DEVICE_ORDER=PCI_BUS_ID.
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

    /// Which of several workers for the same it is, from 0 (default 0): each begins with another of its NICs.
    #[must_use]
    pub fn turn(mut self, turn: usize) -> Near {
        self.turn = turn;
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

    /// The rails, and why these.
    ///
    /// # Errors
    /// [`NearError`] if there is no such GPU or NUMA node, or if QPAIR_NICS or QPAIR_TOPOLOGY in the environment make no sense.
    /// The message lists what there is.
    pub fn placement(&self) -> Result<Placement, NearError> {
        let machine = self.machine.clone().map_or_else(Machine::this, Ok)?;
        choose(self, &Here::of(&machine)?)
    }
}

/// The software device, by the name that it has everywhere.
const SOFTWARE: &str = "soft0";
