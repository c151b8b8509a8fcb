//! Memory that a device reaches: ordinary buffers, slabs shared as `Bytes`, regions exposed to peers, windows.
//! Ownership decides who may touch it: a posted buffer is with the device, an exposed region never yields a slice.

mod backing;
mod buffer;
mod exposed;
mod local;
mod remote;
mod slab;
mod window;

pub use buffer::{Buffer, HugePages};
pub use exposed::{ExposedRegion, RegionSlice};
pub use local::Local;
pub use remote::RemoteSlice;
pub use slab::{Slab, SlabView};
pub use window::MemoryWindow;

pub(crate) use backing::Backing;
pub(crate) use exposed::RegionShared;
pub(crate) use local::Sge;
pub(crate) use window::{Bound, WindowShared};
