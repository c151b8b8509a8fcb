//! Safe RDMA verbs: devices, memory, queue pairs, completion queues.
//!
//! A posted buffer moves into its work request and comes back with its completion; memory that a peer may write is
//! another type than memory that this program may touch. So safe code never reads or writes what a device may be
//! writing. The device `soft0` needs no hardware: it moves data between queue pairs of one host through shared memory, and
//! between hosts by RoCEv2 over UDP.
//!
//! ```
//! use qpair_verbs::{Access, Context};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ctx = Context::open("soft0")?;
//! let pd = ctx.alloc_pd()?;
//! let mut cq = ctx.create_cq(64)?;
//!
//! let (a, b) = (pd.rc(&cq).build()?, pd.rc(&cq).build()?);
//! let (addr_a, addr_b) = (a.address(), b.address());
//! let (mut a, _b) = (a.connect(&addr_b)?, b.connect(&addr_a)?);
//!
//! let window = pd.expose(4096, Access::REMOTE_WRITE)?;
//! let mut buf = pd.alloc(4096)?;
//! buf.fill(7);
//!
//! a.write(buf, window.remote(0..4096)).signaled().post()?;
//! let done = cq.wait()?;
//! assert!(done.status().is_success());
//! let buf = done.into_buffer()?;
//! assert_eq!(window.revoke()?[..], buf[..]);
//! # Ok(())
//! # }
//! ```

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("qpair runs on Linux, on x86-64 and aarch64");

mod address;
mod aside;
mod asking;
#[cfg(test)]
mod bomb;
pub mod calc;
mod cm;
#[cfg(test)]
mod companion;
mod context;
mod counters;
mod cq;
mod device;
mod error;
mod events;
mod gpu;
mod ibv;
mod inquiry;
mod memory;
mod panics;
mod pd;
mod qp;
mod soft;
mod source;
mod srq;
mod status;
mod sync;
mod types;
mod wc;

pub use address::{Ece, NodeId, QpAddress, SoftAddress};
pub use cm::{CmConnection, ConnectOptions, Connecting, ConnectionRequest, Ended, Established, Listener, PeerOffer};
pub use context::Context;
pub use counters::Counter;
pub use cq::{Arm, CompletionChannel, CompletionQueue};
pub use device::{
    AtomicAbility, Device, DeviceAttributes, LinkLayer, OnDemandPaging, PhysicalState, PortAttributes, PortState,
};
pub use error::{
    BytesRevokeFailed, CmError, CompletionError, ConnectError, CqError, CreateError, DmabufRevokeFailed, ExposeFailed,
    GpuError, GpuRegisterFailed, GpuRevokeFailed, MemoryError, ModifyError, NetworkError, NoMemory, OpenError,
    PostError, Rejected, RevokeBlocked, RevokeFailed,
};
pub use events::{AsyncEvent, AsyncEvents};
pub use gpu::{
    Flush, FlushOptions, Gpu, GpuAttributes, GpuBuffer, GpuEvent, GpuHold, GpuRegion, GpuStage, RegistrationPath,
};
pub use ibv::{Library, LibraryError, library};
pub use inquiry::Inquiry;
pub use memory::{
    Bindable, Buffer, BytesRegion, DividedMemory, DmabufRegion, DmabufSlice, ExposedRegion, HugePages, Local,
    MemoryPart, MemoryWindow, RegionSlice, RemoteSlice, Slab, SlabView,
};
pub use pd::ProtectionDomain;
pub use qp::{
    AddressHandle, DatagramQueuePair, GRH_BYTES, Prepared, QpAttribute, QpAttributes, QpBuilder, QueuePair,
    ReadyToReceive, RecvRequest, SendRequest, Transition, transition,
};
/// Why a peer refused a connection: a code of IBA 12.6.7.2, printed in words.
pub use qpair_roce::wire::cm::Reason as RejectReason;
pub use soft::shared_memory_domain;
pub use srq::SharedReceiveQueue;
pub use status::{WcOpcode, WcStatus};
pub use types::{Access, Gid, GidEntry, GidKind, Mtu, Psn, QpState, QpType, Qpn, Rkey};
pub use wc::{Completion, WorkCompletion};
