//! The network wire: RoCEv2 over UDP, for peers on other hosts. `qpair_roce` is the protocol; here are the device's memory
//! and queues as the protocol sees them, the UDP port that the processes of a host share, and who drives it all.

mod attached;
mod cm;
mod engine;
mod gids;
mod interfaces;
mod memory;
mod network;
mod side;
mod staging;
mod target;
#[cfg(test)]
mod tests;
mod thread;
mod udp;

pub(crate) use attached::{Join, Owner};
pub(crate) use cm::{Acceptance, End, Inbox, Key, Progress, Watch, address_at, address_towards};
pub(crate) use engine::Member;
pub(crate) use gids::{NetworkGid, network_gids};
pub(crate) use network::Network;
pub(crate) use target::NetworkTarget;
pub(crate) use udp::{SLOTS, Slot};
