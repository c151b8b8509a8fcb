//! Finding a peer's port on an Ethernet network. The kernel asks for its address there (ARP, neighbour discovery) when a queue pair
//! is brought to RTR or an address handle is made, and has whoever does that wait: a second where nobody answers (`rdma_resolve_ip`
//! and `rdma_addr_find_l2_eth_by_grh` in its drivers/infiniband/core/addr.c). Once it has the answer, nobody waits any more.
//!
//! Some providers look for the port of an address handle in the library, and may fail without saying why: whoever connects waits then,
//! as if nobody had asked. Others have no address handles (iWARP), and look for nobody when connecting.

use std::io;
use std::sync::Arc;
use std::task::Waker;

use qpair_verbs_sys as sys;

use super::address;
use super::ah::AhHandle;
use super::device::Device;
use super::handle::Handle;
use super::pd_handle::PdHandle;
use super::qp::Local;
use crate::QpAddress;
use crate::asking::{self, CLOSED, Ticket, Whom};
use crate::device::{LinkLayer, preferred_gid};
use crate::error::ConnectError;
use crate::qp::HOP_LIMIT;
use crate::types::{Gid, QpType};

impl Device {
    /// Has a thread find the peer's port from port `number`, and from that row of its GID table or from the one that a queue pair
    /// has by default. `None` if nobody would have to wait for that, or no path leads there.
    pub(crate) fn ask(
        self: &Arc<Self>,
        number: u8,
        gid_index: Option<u32>,
        peer: &QpAddress,
        waker: &Waker,
    ) -> Option<Arc<Ticket<()>>> {
        let side = self.side(number).ok().filter(|side| side.link_layer == LinkLayer::Ethernet)?;
        address::check_peer(peer).ok()?;
        let default = || {
            let towards = (peer.qp_type == QpType::Ud).then_some(peer.gid);
            preferred_gid(&side.gids, towards).map(|row| row.index)
        };
        let row = u8::try_from(gid_index.or_else(default)?).ok()?;
        let local = Local {
            port: number,
            gid_index: row,
            // Of a subnet of InfiniBand, which this is none of.
            gid: Gid([0; 16]),
            link_layer: side.link_layer,
            grh_required: side.grh_required,
            service_level: 0,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
        };
        let (gid, path) = (peer.gid, local.path_to(peer));
        let handle = Arc::downgrade(self.handle());
        let whom = Whom::Port { device: self.id(), number, row, gid };
        Some(asking::ask(whom, waker, move || match handle.upgrade() {
            Some(handle) => find(&handle, gid, path),
            None => Err(CLOSED),
        }))
    }
}

/// Has the kernel find the way to a port, by an address handle that nobody uses.
fn find(handle: &Arc<Handle>, gid: Gid, path: sys::ibv_ah_attr) -> Result<(), ConnectError> {
    let Ok(domain) = PdHandle::alloc(handle) else { return Ok(()) };
    match AhHandle::create(&Arc::new(domain), path) {
        Err(source) if is_silence(LinkLayer::Ethernet, &source) => Err(ConnectError::Unreachable { gid, source }),
        // It may be that there are no address handles; what is wrong else is told when connecting.
        _ => Ok(()),
    }
}

/// True if the system's reason is that the peer's port was asked for on its network, and is not there. A device that does not answer
/// the kernel in time has the same code, and can not be told from that on Ethernet.
pub(super) fn is_silence(on: LinkLayer, source: &io::Error) -> bool {
    let silences = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EHOSTDOWN, libc::ENETDOWN];
    on == LinkLayer::Ethernet && source.raw_os_error().is_some_and(|code| silences.contains(&code))
}
