//! Making a queue pair: by the extended way, whose posting is faster, where the provider has it.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use qpair_verbs_sys as sys;

use super::attributes::Local;
use super::managed::Leash;
use super::shared::QpShared;
use super::submit::Submit;
use crate::QpAddress;
use crate::device::DeviceAttributes;
use crate::error::CreateError;
use crate::ibv::address;
use crate::ibv::cq_shared::{Completing, CqShared, Member};
use crate::ibv::device::Device;
use crate::ibv::handle::made;
use crate::ibv::inline::Room;
use crate::ibv::memlock;
use crate::ibv::mw::Mw;
use crate::ibv::numbers::Tag;
use crate::ibv::pd::Pd;
use crate::ibv::pd_handle::PdHandle;
use crate::ibv::quirks;
use crate::ibv::receive::{Takes, with_route};
use crate::ibv::recv_slots::{MOST_SLOTS, RecvSlots};
use crate::ibv::send_queue::SendQueue;
use crate::ibv::srq::Srq;
use crate::memory::MAX_SGE;
use crate::qp::{CqHandle, QpOptions, SrqHandle};
use crate::sync::lock;
use crate::types::{QpState, QpType, Qpn, Rkey};

/// The owner of a queue pair: closes it when dropped.
#[derive(Debug)]
pub(crate) struct OwnedQp {
    pub(super) qp: NonNull<sys::ibv_qp>,
    pub(super) submit: Submit,
    /// Number of the domain that its memory must be of.
    pub(super) domain: u64,
    /// Tags of its sends, but for their counts.
    pub(super) tags: u64,
    pub(super) shared: Arc<QpShared>,
    /// The shared part's queue of sends, nearer.
    pub(super) send: Arc<SendQueue>,
    /// The shared part's receives, nearer.
    pub(super) receives: Option<Arc<RecvSlots>>,
    pub(super) post_recv: sys::PostRecv,
    pub(super) options: QpOptions,
    pub(super) address: QpAddress,
    pub(super) local: Local,
    /// Row of the port's table of partition keys.
    pub(super) pkey_index: u16,
    pub(super) inline: Room,
    /// Most pieces of memory in a request, and in a READ.
    pub(super) max_sge: [usize; 2],
    /// What it takes receives into.
    pub(super) takes: Takes,
    pub(super) max_datagram: u32,
    pub(super) max_message: u32,
    /// READs and atomics that this side answers at once, and that it may have under way.
    pub(super) reads: [u8; 2],
    /// READs and atomics that the peer answers at once, once it is known.
    pub(super) peer_reads: Mutex<Option<u8>>,
    pub(super) explanation: Mutex<String>,
    /// When it was found to have failed, if it may have taken receives from a shared queue by then.
    pub(super) failed: OnceLock<Instant>,
    /// How a connection manager takes it to the error state.
    pub(super) leash: OnceLock<Arc<Leash>>,
    /// Windows that were bound over this queue pair, with their keys.
    pub(super) windows: Mutex<Vec<(Rkey, Weak<Mw>)>>,
    pub(super) in_domain: Arc<PdHandle>,
    pub(super) send_cq: Arc<CqShared>,
    pub(super) recv_cq: Arc<CqShared>,
    pub(super) srq: Option<Arc<Srq>>,
    pub(super) pd: Arc<Pd>,
}

// SAFETY: the library's functions on a queue pair may be called from any thread; a thread domain asks for one at a time,
// which the one owner sees to.
unsafe impl Send for OwnedQp {}
// SAFETY: as above: posting is by the owner, and `&self` otherwise reads.
unsafe impl Sync for OwnedQp {}

impl OwnedQp {
    /// Makes a queue pair and brings it to INIT.
    pub(crate) fn create(
        pd: &Arc<Pd>,
        options: &QpOptions,
        [send_cq, recv_cq]: [&CqHandle; 2],
        srq: Option<&SrqHandle>,
    ) -> Result<Self, CreateError> {
        let device = pd.device();
        options.check(device.attributes().max_qp_wr.min(MOST_SLOTS), srq.is_some())?;
        let (send_cq, recv_cq) = (own_cq(send_cq, device)?, own_cq(recv_cq, device)?);
        let srq = srq.map(|srq| own_srq(srq, pd)).transpose()?;
        let ports = device.attributes().ports;
        if !(1..=ports).contains(&options.port) {
            let (asked, limit) = (options.port.into(), ports.into());
            return Err(CreateError::OutOfRange { what: "a port number", asked, limit });
        }
        let asked = device.side(options.port);
        let port = asked.map_err(|source| CreateError::System { what: "ask the device for its port", source })?;
        let (address, gid_index) = address::of_port(options, &port)?;
        let pkey_index = options.pkey.map_or(Ok(0), |pkey| device.pkey_index(options.port, pkey))?;
        let max_inline = options.max_inline.unwrap_or_else(|| device.max_inline());
        let in_domain = in_domain(pd, options);
        let max_sge = most_pieces(device.attributes());
        let extended = quirks::sound_work_requests(device.attributes());
        let (made, inline) = Room::fit(max_inline, options.max_inline.is_some(), |inline| {
            let cap = capacities(options, max_sge[0], inline, srq.is_some());
            make(&in_domain, extended, options.qp_type, cap, [&send_cq, &recv_cq], srq.as_deref())
        })?;
        let qpn = Qpn(made.qpn);
        let numbers = lock(&device.hub().numbers).take();
        let id = numbers.ok_or(CreateError::Exhausted { what: "queue pair" }).inspect_err(|_| {
            // SAFETY: just made, and nobody knows of it.
            unsafe { (device.handle().library.ibv_destroy_qp)(made.qp.as_ptr()) };
        })?;
        let receives = srq.is_none().then(|| Arc::new(RecvSlots::new(options.recv_depth())));
        let send = Arc::new(SendQueue::new(options.send_depth));
        let shared = Arc::new(QpShared::new(id, (qpn, options.qp_type), send.clone(), receives.clone()));
        let attributes = device.attributes();
        let asked = options.max_rd_atomic.unwrap_or(DEFAULT_READS);
        let reads = [attributes.max_rd_atomic, attributes.max_init_rd_atomic].map(|most| reads(asked, most));
        let is_ud = options.qp_type == QpType::Ud;
        let mut qp = OwnedQp {
            qp: made.qp,
            submit: made.submit,
            domain: pd.id(),
            tags: Tag { queue: id, receive: false, own: 0 }.encode(),
            shared,
            send,
            receives,
            post_recv: device.handle().ops.post_recv,
            options: options.clone(),
            address: QpAddress { qpn, max_rd_atomic: reads[0], ..address },
            local: Local {
                port: options.port,
                gid_index,
                gid: address.gid,
                link_layer: port.link_layer,
                grh_required: port.grh_required,
                service_level: options.service_level,
                traffic_class: options.traffic_class,
                hop_limit: options.hop_limit,
            },
            pkey_index,
            inline,
            max_sge,
            takes: Takes {
                domain: pd.id(),
                max_sge: max_sge[0],
                max_message: if is_ud { with_route(port.max_message) } else { port.max_message },
                copied: quirks::copies_received(attributes, is_ud),
            },
            max_datagram: address.mtu.bytes(),
            max_message: port.max_message,
            reads,
            peer_reads: Mutex::default(),
            explanation: Mutex::default(),
            failed: OnceLock::new(),
            leash: OnceLock::new(),
            windows: Mutex::default(),
            in_domain,
            send_cq,
            recv_cq,
            srq,
            pd: pd.clone(),
        };
        qp.enter();
        qp.bring_to_init()?;
        qp.address.ece = qp.offered_ece();
        Ok(qp)
    }

    /// Makes it known to those who meet its number or address.
    fn enter(&self) {
        self.pd.device().hub().enter_qp(self.qp.as_ptr(), Arc::downgrade(&self.shared) as _);
        let member = |queue| Member { id: self.shared.id, queue };
        let shared = self.shared.clone();
        if Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.send_cq.join(member(Completing::Both(shared)));
        } else {
            self.send_cq.join(member(Completing::Sends(shared.clone())));
            self.recv_cq.join(member(Completing::Receives(shared)));
        }
        if let Some(srq) = &self.srq {
            srq.completes_at(&self.recv_cq);
        }
    }

    pub(crate) fn address(&self) -> QpAddress {
        self.address
    }

    /// Bytes of inline data that there is room for.
    pub(crate) fn max_inline(&self) -> usize {
        self.inline.len as usize
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.shared.qpn
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.shared.qp_type
    }

    /// What tells its device from others that are open.
    pub(crate) fn device_id(&self) -> u64 {
        self.pd.device().id()
    }

    /// State as far as this side was told, by completions and events.
    #[inline(always)]
    pub(crate) fn known_state(&self) -> QpState {
        self.shared.state()
    }

    /// State as the device says: it moves queue pairs to the error state by itself, and not all devices tell of it.
    pub(crate) fn state(&self) -> QpState {
        if matches!(self.known_state(), QpState::Rtr | QpState::Rts | QpState::Sqd) {
            match self.asked_state() {
                Some(sys::IBV_QPS_ERR) => self.shared.fail(),
                Some(sys::IBV_QPS_SQE) => self.shared.entered(QpState::Sqe),
                _ => {}
            }
        }
        self.known_state()
    }

    fn asked_state(&self) -> Option<sys::ibv_qp_state> {
        let mut attributes = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        let mut made = MaybeUninit::<sys::ibv_qp_init_attr>::zeroed();
        let mask = sys::IBV_QP_STATE.cast_signed();
        let (to, made) = (attributes.as_mut_ptr(), made.as_mut_ptr());
        // SAFETY: the queue pair is alive, and both are written to.
        let status = unsafe { (self.library().ibv_query_qp)(self.qp.as_ptr(), to, mask, made) };
        // SAFETY: zeroed, which is valid, and filled by the library.
        (status == 0).then(|| unsafe { attributes.assume_init() }.qp_state)
    }

    pub(crate) fn explain(&self) -> String {
        let explained = lock(&self.explanation);
        if explained.is_empty() { "not connected".to_owned() } else { explained.clone() }
    }

    pub(super) fn library(&self) -> &'static sys::Ibverbs {
        self.pd.device().handle().library
    }
}

/// What the library made.
struct Made {
    qp: NonNull<sys::ibv_qp>,
    submit: Submit,
    qpn: u32,
}

/// A queue pair, and the room for inline data that the device says that it gave.
fn make(
    pd: &PdHandle,
    extended: bool,
    qp_type: QpType,
    cap: sys::ibv_qp_cap,
    [send_cq, recv_cq]: [&CqShared; 2],
    srq: Option<&Srq>,
) -> Result<(Made, u32), CreateError> {
    // SAFETY: all zeroes is a valid value of these plain attributes.
    let mut attributes: sys::ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
    attributes.send_cq = send_cq.raw();
    attributes.recv_cq = recv_cq.raw();
    attributes.srq = srq.map_or(null_mut(), Srq::raw);
    attributes.cap = cap;
    attributes.qp_type = type_code(qp_type);
    attributes.comp_mask = sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attributes.pd = pd.pd();
    attributes.send_ops_flags = Submit::operations(qp_type);
    let library = pd.device().library;
    // SAFETY: context, domain, queues are alive.
    let create = || unsafe { sys::ibv_create_qp_ex(pd.device().ctx(), &raw mut attributes) }.ok();
    if let Some(qp) = extended.then(create).flatten().and_then(NonNull::new) {
        // SAFETY: just made, with those operations.
        if let Some(submit) = unsafe { Submit::extended(library, qp, qp_type) } {
            // SAFETY: alive.
            let made = Made { qp, submit, qpn: unsafe { (*qp.as_ptr()).qp_num } };
            return Ok((made, attributes.cap.max_inline_data));
        }
        // SAFETY: just made, and nobody knows of it.
        unsafe { (library.ibv_destroy_qp)(qp.as_ptr()) };
    }
    let mut plain = sys::ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: attributes.send_cq,
        recv_cq: attributes.recv_cq,
        srq: attributes.srq,
        cap,
        qp_type: attributes.qp_type,
        sq_sig_all: 0,
    };
    // SAFETY: domain and queues are alive.
    let qp = made(unsafe { (library.ibv_create_qp)(pd.pd(), &raw mut plain) }).map_err(explain)?;
    // SAFETY: alive.
    let made = Made { qp, submit: Submit::Plain(pd.device().ops), qpn: unsafe { (*qp.as_ptr()).qp_num } };
    Ok((made, plain.cap.max_inline_data))
}

fn explain(source: io::Error) -> CreateError {
    if let Some(limited) = memlock::explain_queue("queue pair", &source) {
        return limited;
    }
    match source.raw_os_error() {
        Some(libc::ENOMEM | libc::ENOSPC) => CreateError::Exhausted { what: "queue pair" },
        _ => CreateError::System { what: "create a queue pair with these sizes", source },
    }
}

fn capacities(options: &QpOptions, max_sge: usize, max_inline: u32, shared_receives: bool) -> sys::ibv_qp_cap {
    let max_sge = max_sge as u32;
    let (recv_wr, recv_sge) = if shared_receives { (0, 0) } else { (options.recv_depth(), max_sge) };
    sys::ibv_qp_cap {
        max_send_wr: options.send_depth,
        max_recv_wr: recv_wr,
        max_send_sge: max_sge,
        max_recv_sge: recv_sge,
        max_inline_data: max_inline,
    }
}

/// The domain that the queue pair is made in: one with a thread domain where that is asked for and to be had.
fn in_domain(pd: &Pd, options: &QpOptions) -> Arc<PdHandle> {
    let own = if options.thread_domain { pd.handle().with_thread_domain() } else { None };
    own.unwrap_or_else(|| pd.handle().clone())
}

fn own_cq(cq: &CqHandle, device: &Arc<Device>) -> Result<Arc<CqShared>, CreateError> {
    match cq {
        CqHandle::Ibv(cq) if Arc::ptr_eq(cq.device(), device) => Ok(cq.clone()),
        _ => Err(CreateError::ForeignObject { what: "the completion queue" }),
    }
}

fn own_srq(srq: &SrqHandle, pd: &Arc<Pd>) -> Result<Arc<Srq>, CreateError> {
    match srq {
        // The domain that spans others is the same one.
        SrqHandle::Ibv(srq) if srq.pd().id() == pd.id() => Ok(srq.clone()),
        _ => Err(CreateError::ForeignObject { what: "the shared receive queue" }),
    }
}

fn type_code(qp_type: QpType) -> u32 {
    match qp_type {
        QpType::Rc => sys::IBV_QPT_RC,
        QpType::Uc => sys::IBV_QPT_UC,
        QpType::Ud => sys::IBV_QPT_UD,
    }
}

/// Most pieces of memory in a request, and in a READ; a device that does not tell of READs has no limit of their own.
fn most_pieces(attributes: &DeviceAttributes) -> [usize; 2] {
    let most = attributes.max_sge.clamp(1, MAX_SGE as u32);
    let in_read = if attributes.max_sge_read == 0 { most } else { attributes.max_sge_read.min(most) };
    [most as usize, in_read as usize]
}

fn reads(asked: u8, most: u32) -> u8 {
    u8::try_from(most).unwrap_or(u8::MAX).min(asked)
}

const DEFAULT_READS: u8 = 16;
