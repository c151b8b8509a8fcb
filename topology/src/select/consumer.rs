//! Whose NICs are chosen.

use super::selection::{Known, SelectError};
use crate::PciAddress;
use crate::model::{CpuId, GpuId, Machine, NodeId};

/// What a NIC is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consumer {
    /// A GPU: data is in its memory.
    Gpu(GpuId),
    /// A NUMA node: data is in its memory, and workers run on its processors.
    Cpu(CpuId),
}

impl Consumer {
    /// The GPU with that number.
    ///
    /// # Errors
    ///
    /// [`SelectError::NoSuchConsumer`], which lists the GPUs.
    pub fn gpu(machine: &Machine, id: GpuId) -> Result<Self, SelectError> {
        machine.gpu(id).map(|_| Self::Gpu(id)).ok_or_else(|| no_gpu(machine, format!("GPU {}", id.0)))
    }

    /// The GPU at an address.
    ///
    /// # Errors
    ///
    /// [`SelectError::NoSuchConsumer`], which lists the GPUs.
    pub fn gpu_at(machine: &Machine, address: PciAddress) -> Result<Self, SelectError> {
        machine.gpu_at(address).map(Self::Gpu).ok_or_else(|| no_gpu(machine, format!("GPU at {address}")))
    }

    /// The NUMA node that Linux gives that number.
    ///
    /// # Errors
    ///
    /// [`SelectError::NoSuchConsumer`], which lists the NUMA nodes.
    pub fn numa(machine: &Machine, number: u32) -> Result<Self, SelectError> {
        machine.cpu_numa(number).map(Self::Cpu).ok_or_else(|| no_node(machine, format!("NUMA node {number}")))
    }

    /// The same, if the machine has it.
    pub(super) fn checked(self, machine: &Machine) -> Result<Self, SelectError> {
        match self {
            Self::Gpu(id) => Self::gpu(machine, id),
            // The node for what has no known place has no processors.
            Self::Cpu(id) if machine.cpu(id).is_some_and(|cpu| cpu.numa.is_some()) => Ok(self),
            Self::Cpu(id) => Err(no_node(machine, format!("NUMA node with place {}", id.0))),
        }
    }
}

fn no_gpu(machine: &Machine, wanted: String) -> SelectError {
    let known = machine.gpu_ids().zip(machine.gpus()).map(|(id, gpu)| format!("GPU {} at {}", id.0, gpu.address));
    SelectError::NoSuchConsumer { wanted, known: Known(known.collect()) }
}

fn no_node(machine: &Machine, wanted: String) -> SelectError {
    let numbers = machine.cpus().iter().filter_map(|cpu| cpu.numa);
    SelectError::NoSuchConsumer { wanted, known: Known(numbers.map(|numa| format!("NUMA {numa}")).collect()) }
}

impl From<GpuId> for Consumer {
    fn from(id: GpuId) -> Self {
        Self::Gpu(id)
    }
}

impl From<CpuId> for Consumer {
    fn from(id: CpuId) -> Self {
        Self::Cpu(id)
    }
}

impl From<Consumer> for NodeId {
    fn from(consumer: Consumer) -> Self {
        match consumer {
            Consumer::Gpu(id) => Self::Gpu(id),
            Consumer::Cpu(id) => Self::Cpu(id),
        }
    }
}
