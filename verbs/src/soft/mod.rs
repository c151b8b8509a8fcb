//! The software device: the semantics of a NIC between queue pairs, over shared memory within a host and by RoCEv2 between hosts.
//! In memory the core that posts does the NIC's work for both sides; a sleeping control thread per opened device does the rest.

mod arming;
mod at;
mod barrier;
mod bell;
mod bells;
mod block;
mod blocks;
mod boards;
mod channel;
mod claims;
mod control;
mod copy;
mod cq;
mod cq_shared;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod ends;
mod entry;
mod eventfd;
mod exec;
mod filler;
mod filling;
#[cfg(test)]
mod forged;
mod grant;
mod hazard;
mod home;
pub(crate) mod host;
mod keys;
mod layout;
#[cfg(test)]
mod leaks;
mod members;
mod node;
#[cfg(test)]
mod nonsense;
mod peer;
mod qp;
mod random;
mod receiver;
mod recv_queue;
mod rest;
mod ring;
mod roce;
mod roster;
mod seen;
mod send_queue;
mod spec;
mod srq;
mod switches;
mod ud;
mod visited;
mod vm;
mod withdrawal;

use std::path::Path;

pub(crate) use bell::Bell;
pub(crate) use channel::{Attached, Channel};
pub(crate) use copy::device_copy;
pub(crate) use cq::SoftCq;
pub(crate) use cq_shared::CqShared;
pub(crate) use entry::{RING_INLINE, SHORT};
pub(crate) use eventfd::{EventFd, wait};
pub(crate) use exec::UdTarget;
pub(crate) use grant::Grant;
pub(crate) use home::Home;
pub use host::shared_memory_domain;
pub(crate) use node::Node;
pub(crate) use qp::{OwnedQp, SoftQp};
pub(crate) use random::u32 as random_u32;
pub(crate) use roce::{Acceptance, End, Inbox, Key, Network as CmNetwork, NetworkGid, NetworkTarget, Progress, Watch};
pub(crate) use seen::{Answer, Found};
pub(crate) use send_queue::Retired;
pub(crate) use spec::QpSpec;
pub(crate) use srq::SoftSrq;
pub(crate) use switches::no_peer_access;

/// Name of the device.
pub(crate) const DEVICE_NAME: &str = "soft0";

/// True of the names that the device has: one for each NUMA node of the host, by the node's number. It is one device all
/// the same, since it runs on the processors of whoever polls.
pub(crate) fn is_name(name: &str) -> bool {
    let Some(node) = name.strip_prefix("soft") else { return false };
    let is_number = !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_digit());
    // A system that does not show its nodes has the first.
    name == DEVICE_NAME || is_number && Path::new(NODES).join(format!("node{node}")).is_dir()
}

/// Where Linux shows NUMA nodes.
const NODES: &str = "/sys/devices/system/node";
/// Longest region: what a length of 48 bits of address space leaves practical.
pub(crate) const MAX_REGION: usize = 1 << 40;
/// Longest message, as on hardware.
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;
/// Longest inline data. It is consumed when posted, so the bound only limits what a stalled request copies.
pub(crate) const MAX_INLINE: usize = 64 << 10;
/// READs and atomics at once of one queue pair on the network, each way. Shared memory has no such limit.
pub(crate) const MAX_READS: u8 = 128;
/// Most queue pairs of a device: half of the numbers that each device has which shares the network's UDP port, so that few
/// draws find one that is free. Deep queues take more room than the least, and then fewer fit.
pub(crate) const MAX_QP: usize = (1 << 24) / roce::SLOTS as usize / 2;
/// Work requests in one queue.
pub(crate) const MAX_WR: u32 = 32768;
/// Receives in a shared queue, which thousands of queue pairs may take from.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 18;

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn the_device_has_a_name_for_each_node_that_there_is() {
        assert!(is_name("soft0"));
        for other in ["soft", "soft00", "soft-1", "soft+1", "soft4095", "soft0/../node0", "software", "mlx5_0", ""] {
            assert!(!is_name(other), "{other}");
        }
    }
}
