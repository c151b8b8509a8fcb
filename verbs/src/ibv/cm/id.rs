//! One connection, or listener, of the library.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::course::{Loss, Words};
use super::inbox::WAITING;
use super::known::{About, Entry};
use super::manager::Manager;
use crate::error::CmError;
use crate::ibv::handle::outcome;
use crate::ibv::qp::Agreed;

/// What the library has of a connection or listener. Dropped, it is given back: what was not accepted is refused, what is
/// established is disconnected.
#[derive(Debug)]
pub(super) struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    entry: Arc<Entry>,
    manager: Arc<Manager>,
}

// SAFETY: the library's functions on an id may be called from any thread.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    /// A new one, and where events about it go. `what` is what it is for.
    pub(super) fn new(manager: &Arc<Manager>, about: About, what: &'static str) -> Result<Self, CmError> {
        let system = |source| CmError::System { what, source };
        let library = manager.core.library;
        let mut raw = null_mut();
        let channel = manager.core.channel.as_ptr();
        // SAFETY: the channel is there as long as the manager; `raw` is written to.
        outcome(unsafe { (library.rdma_create_id)(channel, &raw mut raw, null_mut(), sys::RDMA_PS_TCP) })
            .map_err(system)?;
        let raw = NonNull::new(raw).ok_or_else(|| system(io::ErrorKind::InvalidData.into()))?;
        let Some(entry) = manager.core.known.add(raw.addr().get(), about) else {
            // SAFETY: made above, and nobody else knows of it.
            unsafe { (library.rdma_destroy_id)(raw.as_ptr()) };
            return Err(Loss::Manager.error(&manager.core.device.name));
        };
        Ok(Id { raw, entry, manager: manager.clone() })
    }

    /// One that the library made for a request, and that is known already.
    pub(super) fn of_request(raw: Raw, entry: Arc<Entry>, manager: &Arc<Manager>) -> Self {
        Id { raw: raw.0, entry, manager: manager.clone() }
    }

    pub(super) fn device(&self) -> &str {
        &self.manager.core.device.name
    }

    /// Begins to look for the way to a peer, from an address of this side if one is named.
    pub(super) fn resolve_address(&self, own: Option<IpAddr>, peer: SocketAddr) -> io::Result<()> {
        let mut to = storage(peer);
        let mut own = own.map(|ip| storage(SocketAddr::new(ip, 0)));
        let from = own.as_mut().map_or(null_mut(), |own| (&raw mut *own).cast());
        let resolve = self.library().rdma_resolve_addr;
        // SAFETY: the id is alive; the addresses are read before it returns.
        outcome(unsafe { resolve(self.raw.as_ptr(), from, (&raw mut to).cast(), RESOLVE_MS) })
    }

    /// Listens at a port of all addresses, or at one that is free, and tells which.
    pub(super) fn listen(&self, port: u16) -> io::Result<u16> {
        let any = |ip: IpAddr| {
            let mut at = storage(SocketAddr::new(ip, port));
            // SAFETY: as above.
            outcome(unsafe { (self.library().rdma_bind_addr)(self.raw.as_ptr(), (&raw mut at).cast()) })
        };
        // Of both families, where there are both.
        any(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => Err(error),
            _ => any(Ipv4Addr::UNSPECIFIED.into()),
        })?;
        // SAFETY: the id is alive.
        outcome(unsafe { (self.library().rdma_listen)(self.raw.as_ptr(), BACKLOG) })?;
        // SAFETY: as above.
        Ok(u16::from_be(unsafe { (self.library().rdma_get_src_port)(self.raw.as_ptr()) }))
    }

    pub(super) fn accept(&self, words: &Words) -> io::Result<()> {
        let mut said = said(words);
        // SAFETY: the id is alive; what is said is read before it returns.
        outcome(unsafe { (self.library().rdma_accept)(self.raw.as_ptr(), &raw mut said) })
    }

    pub(super) fn reject(&self, private: &[u8]) -> io::Result<()> {
        let data = if private.is_empty() { null() } else { private.as_ptr().cast() };
        // SAFETY: as above; the length is checked to fit by the caller.
        outcome(unsafe { (self.library().rdma_reject)(self.raw.as_ptr(), data, private.len() as u8) })
    }

    /// Tells the peer, which accepted, that this end is ready.
    pub(super) fn establish(&self) -> io::Result<()> {
        // SAFETY: the id is alive.
        outcome(unsafe { (self.manager.core.establish)(self.raw.as_ptr()) })
    }

    pub(super) fn disconnect(&self) {
        // SAFETY: the id is alive. It may have ended before.
        let _ = unsafe { (self.library().rdma_disconnect)(self.raw.as_ptr()) };
    }

    /// What is to be set in each state of its queue pair.
    pub(super) fn agreed(&self, reads: [u8; 2]) -> io::Result<Agreed> {
        Ok(Agreed {
            init: self.attributes(sys::IBV_QPS_INIT)?,
            ready_to_receive: self.attributes(sys::IBV_QPS_RTR)?,
            ready_to_send: self.attributes(sys::IBV_QPS_RTS)?,
            reads,
        })
    }

    pub(super) fn attributes(&self, state: sys::ibv_qp_state) -> io::Result<sys::ibv_qp_attr> {
        // SAFETY: the id is alive.
        unsafe { attributes(self.raw, self.manager.core.init_qp_attr, state) }
    }

    /// The peer's address.
    pub(super) fn peer(&self) -> SocketAddr {
        // SAFETY: the id is alive, and its addresses were set before the event that told of it; of the union each member has
        // the family in front, and the storage is as long as any.
        address(unsafe { &(*self.raw.as_ptr()).route.addr.__bindgen_anon_2.dst_storage })
    }

    /// The address here.
    pub(super) fn local(&self) -> IpAddr {
        // SAFETY: as above.
        address(unsafe { &(*self.raw.as_ptr()).route.addr.__bindgen_anon_1.src_storage }).ip()
    }

    fn library(&self) -> &'static sys::Rdmacm {
        self.manager.core.library
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.manager.core.known.remove(self.raw.addr().get());
        self.entry.leave();
        // SAFETY: alive until now, and nobody is at work with it. It waits until events about it are acknowledged.
        if let Err(error) = outcome(unsafe { (self.library().rdma_destroy_id)(self.raw.as_ptr()) }) {
            tracing::warn!(%error, "a connection is not given back to librdmacm");
        }
    }
}

/// What the library has of a request, on its way to who answers it.
#[derive(Debug)]
pub(super) struct Raw(pub(super) NonNull<sys::rdma_cm_id>);

// SAFETY: as of `Id`.
unsafe impl Send for Raw {}

/// What is to be set in a state of an id's queue pair; an error where the connection is over.
///
/// # Safety
/// The id is alive, and of the library that the function is of.
pub(super) unsafe fn attributes(
    id: NonNull<sys::rdma_cm_id>,
    fill: sys::cm_signature::rdma_init_qp_attr,
    state: sys::ibv_qp_state,
) -> io::Result<sys::ibv_qp_attr> {
    // SAFETY: all zeroes is a valid value of these plain numbers.
    let mut attributes: sys::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    attributes.qp_state = state;
    let mut mask: c_int = 0;
    // SAFETY: by contract; both are written to.
    outcome(unsafe { fill(id.as_ptr(), &raw mut attributes, &raw mut mask) })?;
    Ok(attributes)
}

/// The words as the library takes them. It points into them.
pub(super) fn said(words: &Words) -> sys::rdma_conn_param {
    let private = &words.private;
    sys::rdma_conn_param {
        private_data: if private.is_empty() { null() } else { private.as_ptr().cast::<c_void>() },
        private_data_len: private.len() as u8,
        responder_resources: words.reads[0],
        initiator_depth: words.reads[1],
        flow_control: 1,
        retry_count: words.retry_count,
        rnr_retry_count: words.rnr_retry,
        srq: words.shared_receives.into(),
        qp_num: words.qpn,
    }
}

/// What the peer said, as the library tells it: its numbers of READs are turned to this side's already.
///
/// # Safety
/// The private data is as long as it says.
pub(super) unsafe fn heard(said: &sys::rdma_conn_param) -> Words {
    let private = if said.private_data.is_null() {
        Vec::new()
    } else {
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(said.private_data.cast::<u8>(), said.private_data_len.into()) }.to_vec()
    };
    Words {
        qpn: said.qp_num,
        reads: [said.responder_resources, said.initiator_depth],
        retry_count: said.retry_count,
        rnr_retry: said.rnr_retry_count,
        shared_receives: said.srq != 0,
        private,
    }
}

fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zeroes is a valid value of these plain numbers.
    let mut storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    let at = &raw mut storage;
    const { assert!(size_of::<libc::sockaddr_in6>() <= size_of::<libc::sockaddr_storage>()) };
    match address {
        SocketAddr::V4(address) => {
            let in4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: there is room, and the storage is aligned for all kinds of addresses.
            unsafe { at.cast::<libc::sockaddr_in>().write(in4) };
        }
        SocketAddr::V6(address) => {
            let in6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { at.cast::<libc::sockaddr_in6>().write(in6) };
        }
    }
    storage
}

/// An address of the library; unspecified if it is of another kind.
fn address(storage: &libc::sockaddr_storage) -> SocketAddr {
    let at = std::ptr::from_ref(storage);
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says so, and the storage is aligned for all kinds.
            let in4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(in4.sin_addr.s_addr.to_ne_bytes());
            SocketAddr::new(ip.into(), u16::from_be(in4.sin_port))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let in6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let (ip, port) = (Ipv6Addr::from(in6.sin6_addr.s6_addr), u16::from_be(in6.sin6_port));
            match ip.to_ipv4_mapped() {
                Some(ip) => SocketAddr::new(ip.into(), port),
                None => SocketAddrV6::new(ip, port, in6.sin6_flowinfo, in6.sin6_scope_id).into(),
            }
        }
        _ => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}

/// How long to look for a peer's address, and for the route: as rdma-core's own programs.
pub(super) const RESOLVE_MS: c_int = 2000;
/// Requests that wait at a port before the manager has read of them.
const BACKLOG: c_int = WAITING as c_int;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["1.2.3.4:5", "[2001:db8::7]:65535", "[fe80::1%3]:80", "0.0.0.0:0"] {
            let given: SocketAddr = text.parse().unwrap();
            assert_eq!(address(&storage(given)), given);
        }
        assert_eq!(address(&storage("[::ffff:1.2.3.4]:9".parse().unwrap())), "1.2.3.4:9".parse().unwrap());
        // SAFETY: all zeroes is a valid value.
        let nothing: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        assert_eq!(address(&nothing), "[::]:0".parse().unwrap());
    }
}
