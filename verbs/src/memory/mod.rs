//! Memory that a device reaches: ordinary buffers, slabs shared as `Bytes`, regions exposed to peers, windows.
//! Ownership decides who may touch it: a posted buffer is with the device, an exposed region never yields a slice.

mod arena;
mod atomic;
mod available;
mod backing;
mod buffer;
mod bytes;
mod dmabuf;
mod exposed;
mod grant;
mod local;
mod parts;
mod ranges;
mod remote;
mod segment;
mod slab;
mod spot;
mod window;

pub use buffer::{Buffer, HugePages};
pub use bytes::BytesRegion;
pub use dmabuf::{DmabufRegion, DmabufSlice};
pub use exposed::{ExposedRegion, RegionSlice};
pub use local::Local;
pub use parts::{DividedMemory, MemoryPart};
pub use remote::RemoteSlice;
pub use slab::{Slab, SlabView};
pub use window::{Bindable, MemoryWindow};

pub(crate) use arena::{Arena, ArenaPool, Gone, GpuArena, Left, Pages, Registrar};
pub(crate) use atomic::Atomic;
pub(crate) use backing::{Backing, FurtherKey, Reach};
pub(crate) use exposed::RegionShared;
pub(crate) use grant::Grant;
pub(crate) use local::{MAX_SGE, Sge, sge};
pub(crate) use ranges::Ranges;
pub(crate) use segment::{Segment, Writers};
pub(crate) use spot::Spot;
pub(crate) use window::sealed::{Here, Whole};
pub(crate) use window::{Bound, Window, WindowShared};
