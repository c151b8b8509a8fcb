//! Memory of GPUs: allocated here or by another library, registered with devices, copied and combined where it is.
//!
//! [`Gpu`] is one of the GPUs of this machine, [`GpuBuffer`] memory of it, [`GpuRegion`] such memory with a protection domain:
//! work requests name parts of it by [`local`](GpuRegion::local), peers by [`remote`](GpuRegion::remote). No slice of it
//! exists, since the processor does not reach it; bytes are copied in and out.
//!
//! The software device reaches such memory itself, also that of other processes on the host: this is its wire for GPUs.
//! Devices of libibverbs reach it where GPUDirect RDMA is set up; [`RegistrationPath`] says how.
//!
//! Without the feature `cuda` all of it is there and [`Gpu::open`] says that it was left out.

mod allocation;
mod atomic;
mod attributes;
mod buffer;
mod capture;
mod copies;
mod device;
mod driver;
mod event;
mod gpu_stage;
mod hold;
mod host_slots;
mod imported;
mod kernels;
mod lane;
mod path;
mod peers;
mod pinned;
mod place;
mod region;

pub use attributes::{FlushOptions, GpuAttributes};
pub use buffer::GpuBuffer;
pub use device::Gpu;
pub use event::GpuEvent;
pub use gpu_stage::GpuStage;
pub use hold::GpuHold;
pub use path::{Flush, RegistrationPath};
pub use region::GpuRegion;

pub(crate) use allocation::{Allocation, Export};
pub(crate) use atomic::atomic;
pub(crate) use hold::give_back;
pub(crate) use host_slots::HostSlots;
pub(crate) use imported::Imported;
pub(crate) use lane::{combine, copy, scale};
pub(crate) use path::{Way, has_peermem};
pub(crate) use pinned::Pinned;
pub(crate) use place::{ARENA_MASK, Place};
