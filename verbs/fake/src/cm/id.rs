//! Ids: what each is, where it is, and what is to be set in its queue pair.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use qpair_verbs_sys::*;

use super::address;
use crate::world::World;

/// An id of the library.
pub(crate) struct Id {
    pub(crate) c: *mut rdma_cm_id,
    pub(crate) handle: u32,
    pub(crate) channel: usize,
    pub(crate) device: Option<usize>,
    pub(crate) state: State,
    pub(crate) own: Option<SocketAddr>,
    pub(crate) to: Option<SocketAddr>,
    /// The other end.
    pub(crate) peer: Option<usize>,
    /// What this end said of its queue pair, once it asked or accepted.
    pub(crate) said: Said,
    /// Whether the library has it: one of a request is the kernel's until the request is read.
    pub(crate) was_told: bool,
    /// Whether events about it are told.
    pub(crate) is_followed: bool,
}

/// What one side says of its queue pair.
#[derive(Clone, Default)]
pub(crate) struct Said {
    pub(crate) private: Vec<u8>,
    /// READs that it answers, and that it has under way.
    pub(crate) reads: [u8; 2],
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) srq: u8,
    pub(crate) qpn: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Bound,
    Listening {
        backlog: usize,
    },
    Addressed,
    Routed,
    /// It asked, or is asked.
    Asking,
    Asked,
    /// It accepted, or the peer did.
    Accepting,
    Accepted,
    Connected,
    /// It ended the connection, or the peer did.
    Leaving,
    Left,
    Over,
}

impl Id {
    pub(crate) fn new(c: *mut rdma_cm_id, handle: u32, channel: usize) -> Id {
        Id {
            c,
            handle,
            channel,
            device: None,
            state: State::Idle,
            own: None,
            to: None,
            peer: None,
            said: Said::default(),
            was_told: true,
            is_followed: true,
        }
    }

    /// Shows in the C structure what is known of it.
    pub(crate) fn show(&self, context: Option<*mut ibv_context>) {
        // SAFETY: the structure is never freed, and written to with the world locked only; whoever reads it does so after the
        // call or the event that tells of it.
        unsafe {
            let addr = &mut (*self.c).route.addr;
            if let Some(own) = self.own {
                addr.__bindgen_anon_1.src_storage = address::storage(own);
            }
            if let Some(to) = self.to {
                addr.__bindgen_anon_2.dst_storage = address::storage(to);
            }
            if let Some(context) = context {
                (*self.c).verbs = context;
                (*self.c).port_num = 1;
            }
        }
    }
}

impl World {
    /// Listens at a port, or picks one.
    pub(crate) fn cm_bind(&mut self, id: usize, at: SocketAddr) -> Result<(), c_int> {
        self.cm_enter("rdma_bind_addr", id)?;
        let taken = |port| self.cm.ids.values().any(|id| id.own.is_some_and(|own| own.port() == port));
        if at.port() != 0 && taken(at.port()) {
            return Err(libc::EADDRINUSE);
        }
        let port = if at.port() == 0 { self.cm.new_port() } else { at.port() };
        let id = self.cm.ids.get_mut(&id).ok_or(libc::EINVAL)?;
        if id.state != State::Idle {
            return Err(libc::EINVAL);
        }
        (id.state, id.own) = (State::Bound, Some(SocketAddr::new(at.ip(), port)));
        id.show(None);
        Ok(())
    }

    /// Looks for the device at which the way to an address begins: the one that has it, or the address to begin at.
    pub(crate) fn cm_resolve(&mut self, id: usize, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), c_int> {
        if self.cm_enter("rdma_resolve_addr", id)?.state != State::Idle {
            return Err(libc::EINVAL);
        }
        let own = from.unwrap_or(to).ip();
        let Some(device) = self.cm_owner(own) else {
            self.cm_raise(id, RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV, Said::default());
            return Ok(());
        };
        let (context, port) = (self.cm_context(device), self.cm.new_port());
        let state = self.cm.ids.get_mut(&id).ok_or(libc::EINVAL)?;
        (state.state, state.device) = (State::Addressed, Some(device));
        (state.own, state.to) = (Some(SocketAddr::new(own, port)), Some(to));
        state.show(Some(context));
        self.cm_raise(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0, Said::default());
        Ok(())
    }

    pub(crate) fn cm_find_route(&mut self, id: usize) -> Result<(), c_int> {
        let state = self.cm_enter("rdma_resolve_route", id)?;
        if state.state != State::Addressed {
            return Err(libc::EINVAL);
        }
        state.state = State::Routed;
        self.cm_raise(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Said::default());
        Ok(())
    }

    /// What is to be set in a state of an id's queue pair, and the mask of it.
    pub(crate) fn cm_attributes(&mut self, id: usize, state: ibv_qp_state) -> Result<(ibv_qp_attr, u32), c_int> {
        let (cm_state, peer) = {
            let id = self.cm_enter("rdma_init_qp_attr", id)?;
            (id.state, id.peer)
        };
        let is_there = matches!(cm_state, State::Asked | State::Accepting | State::Accepted | State::Connected);
        if !is_there && (state != IBV_QPS_INIT || !matches!(cm_state, State::Routed | State::Asking)) {
            return Err(libc::EINVAL);
        }
        // SAFETY: numbers, for which zero is a value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = state;
        if state == IBV_QPS_INIT {
            attr.port_num = 1;
            return Ok((attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
        }
        let own = &self.cm.ids[&id];
        let theirs = peer.and_then(|peer| self.cm.ids.get(&peer)).ok_or(libc::EINVAL)?;
        let (device, to) = (own.device.ok_or(libc::EINVAL)?, own.to.ok_or(libc::EINVAL)?);
        let local = own.own.ok_or(libc::EINVAL)?.ip();
        match state {
            IBV_QPS_RTR => {
                attr.path_mtu = self.devices[device].settings.get_u32("active_mtu");
                attr.dest_qp_num = theirs.said.qpn;
                attr.max_dest_rd_atomic = own.said.reads[0];
                attr.ah_attr.is_global = 1;
                attr.ah_attr.port_num = 1;
                attr.ah_attr.grh.hop_limit = 64;
                attr.ah_attr.grh.sgid_index = self.cm_gid_index(device, local).ok_or(libc::EINVAL)?;
                attr.ah_attr.grh.dgid.raw = mapped(to.ip());
                let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
                Ok((attr, IBV_QP_STATE | path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
            }
            IBV_QPS_RTS => {
                // Whoever asks says how often both try.
                let is_asked = matches!(cm_state, State::Asked | State::Accepting);
                let asks = if is_asked { &theirs.said } else { &own.said };
                (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, asks.retry_count, asks.rnr_retry);
                attr.max_rd_atomic = own.said.reads[1];
                let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
                Ok((attr, IBV_QP_STATE | IBV_QP_SQ_PSN | retries))
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn cm_owner(&self, ip: IpAddr) -> Option<usize> {
        (0..self.devices.len()).find(|&device| self.cm_gid_index(device, ip).is_some())
    }

    fn cm_gid_index(&self, device: usize, ip: IpAddr) -> Option<u8> {
        let is_it = |gid: &crate::device::Gid| gid.raw == mapped(ip) && gid.gid_type == IBV_GID_TYPE_ROCE_V2;
        self.devices[device].gids.iter().position(is_it).and_then(|index| u8::try_from(index).ok())
    }
}

/// The GID of an address.
fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
