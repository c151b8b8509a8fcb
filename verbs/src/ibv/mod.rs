//! Devices that libibverbs drives: InfiniBand and RoCE adapters, and the kernel's own software devices. Of iWARP adapters memory and
//! queues can be had, and no connections.
//! Each object owns its counterpart in the library and keeps alive what that stands on.

mod address;
mod ah;
mod attributes;
mod channel;
pub(crate) mod cm;
mod counters;
mod cq;
mod cq_shared;
mod device;
mod gid;
mod grant;
mod handle;
mod hub;
mod inline;
mod last_receive;
mod library;
mod listeners;
mod memlock;
mod mr;
mod mw;
mod numbers;
mod pd;
mod pd_handle;
mod pieces;
mod port;
mod qp;
mod quirks;
mod receive;
mod recv_slots;
mod registered;
mod resolve;
mod send_queue;
mod show;
mod source;
mod srq;
mod timed;
mod watcher;

pub use library::{Library, LibraryError, library};

pub(crate) use ah::Ah;
pub(crate) use channel::Channel;
pub(crate) use cq::{Cq, Short};
pub(crate) use cq_shared::CqShared;
pub(crate) use device::{Device, names};
pub(crate) use grant::Grant;
pub(crate) use mr::Mr;
pub(crate) use mw::Mw;
pub(crate) use pd::Pd;
pub(crate) use qp::OwnedQp;
pub(crate) use registered::{NotRegistered, Registered};
pub(crate) use send_queue::Retired;
pub(crate) use srq::Srq;
