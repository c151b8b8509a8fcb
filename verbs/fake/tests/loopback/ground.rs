//! Objects of a device, made with the C functions, and closed in order when dropped.

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::OnceLock;

use qpair_fake_ibverbs::control::{Device, library_path};
use qpair_verbs_sys::*;

/// The library, loaded as any libibverbs.
pub fn library() -> &'static Ibverbs {
    static LIBRARY: OnceLock<Ibverbs> = OnceLock::new();
    LIBRARY.get_or_init(|| Ibverbs::open(library_path().expect("it is built")).expect("it has all functions"))
}

/// An open device with one domain, one channel and one completion queue.
pub struct Ground {
    pub device: Device,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub channel: *mut ibv_comp_channel,
    pub cq: *mut ibv_cq,
    qps: Vec<*mut ibv_qp>,
    mrs: Vec<*mut ibv_mr>,
}

pub fn open(name: &str) -> *mut ibv_context {
    let library = library();
    let mut count = 0;
    // SAFETY: the list is read up to its count and given back; the device stays.
    unsafe {
        let list = (library.ibv_get_device_list)(&mut count);
        let devices = std::slice::from_raw_parts(list, count as usize);
        let found = devices.iter().find(|device| {
            let known = std::ffi::CStr::from_ptr((library.ibv_get_device_name)(**device));
            known.to_str() == Ok(name)
        });
        let context = (library.ibv_open_device)(*found.expect("it is listed"));
        (library.ibv_free_device_list)(list);
        context
    }
}

impl Ground {
    pub fn new(name: &str) -> Ground {
        let device = Device::new(name).expect("the library is there");
        let library = library();
        // SAFETY: objects just made.
        unsafe {
            let context = open(name);
            assert!(!context.is_null());
            let pd = (library.ibv_alloc_pd)(context);
            let channel = (library.ibv_create_comp_channel)(context);
            let cq = (library.ibv_create_cq)(context, 64, null_mut(), channel, 0);
            assert!(!pd.is_null() && !channel.is_null() && !cq.is_null());
            Ground { device, context, pd, channel, cq, qps: Vec::new(), mrs: Vec::new() }
        }
    }

    /// Registers bytes that live as long as the program.
    pub fn memory(&mut self, len: usize, access: u32) -> Memory {
        let bytes = Box::leak(vec![0u8; len].into_boxed_slice());
        let start = bytes.as_mut_ptr();
        // SAFETY: the memory lives for ever.
        let mr = unsafe { (library().ibv_reg_mr)(self.pd, start.cast(), len, access as i32) };
        assert!(!mr.is_null());
        self.mrs.push(mr);
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Memory { mr, start, len, lkey, rkey }
    }

    pub fn qp(&mut self, kind: u32, srq: *mut ibv_srq) -> *mut ibv_qp {
        let mut attr = init_attr(self.cq, kind, srq);
        // SAFETY: objects that are alive.
        let qp = unsafe { (library().ibv_create_qp)(self.pd, &mut attr) };
        assert!(!qp.is_null());
        self.qps.push(qp);
        qp
    }

    /// Two queue pairs, connected.
    pub fn pair(&mut self, kind: u32) -> (*mut ibv_qp, *mut ibv_qp) {
        let (a, b) = (self.qp(kind, null_mut()), self.qp(kind, null_mut()));
        self.connect(a, b, kind);
        self.connect(b, a, kind);
        (a, b)
    }

    pub fn gid(&self, index: i32) -> ibv_gid {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open.
        assert_eq!(unsafe { (library().ibv_query_gid)(self.context, 1, index, &mut gid) }, 0);
        gid
    }

    pub fn address(&self) -> ibv_ah_attr {
        // SAFETY: numbers.
        let mut attr: ibv_ah_attr = unsafe { zeroed() };
        (attr.is_global, attr.port_num) = (1, 1);
        (attr.grh.dgid, attr.grh.sgid_index) = (self.gid(3), 3);
        attr
    }

    pub fn connect(&self, qp: *mut ibv_qp, to: *mut ibv_qp, kind: u32) {
        // SAFETY: both are alive.
        let qpn = unsafe { (*to).qp_num };
        for (attr, mask) in [self.to_init(kind), self.to_rtr(kind, qpn), self.to_rts(kind)] {
            assert_eq!(modify(qp, attr, mask), 0, "to state {}", attr.qp_state);
        }
    }

    pub fn to_init(&self, kind: u32) -> (ibv_qp_attr, u32) {
        let mut attr = attributes(IBV_QPS_INIT);
        (attr.port_num, attr.qkey) = (1, 0x1111);
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        let of_kind = if kind == IBV_QPT_UD { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
        (attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | of_kind)
    }

    pub fn to_rtr(&self, kind: u32, qpn: u32) -> (ibv_qp_attr, u32) {
        let mut attr = attributes(IBV_QPS_RTR);
        (attr.path_mtu, attr.dest_qp_num, attr.ah_attr) = (IBV_MTU_1024, qpn, self.address());
        (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 1);
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let of_kind = match kind {
            IBV_QPT_RC => path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            IBV_QPT_UC => path,
            _ => 0,
        };
        (attr, IBV_QP_STATE | of_kind)
    }

    pub fn to_rts(&self, kind: u32) -> (ibv_qp_attr, u32) {
        let mut attr = attributes(IBV_QPS_RTS);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (1, 1, 7, 1);
        let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        (attr, IBV_QP_STATE | IBV_QP_SQ_PSN | if kind == IBV_QPT_RC { retries } else { 0 })
    }

    /// Polls once.
    pub fn poll(&self, room: usize) -> Vec<ibv_wc> {
        // SAFETY: memory for as many; the queue is alive.
        unsafe {
            let mut wc: Vec<ibv_wc> = vec![zeroed(); room];
            let found = ibv_poll_cq(self.cq, room as i32, wc.as_mut_ptr()).expect("there is a poll");
            wc.truncate(usize::try_from(found).expect("polling works"));
            wc
        }
    }

    /// The one completion that there is.
    pub fn done(&self) -> ibv_wc {
        let mut found = self.poll(8);
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    /// Takes a queue pair out of those that are destroyed at the end.
    pub fn forget(&mut self, qp: *mut ibv_qp) {
        self.qps.retain(|known| *known != qp);
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let library = library();
        // SAFETY: each object once, those that use others first.
        unsafe {
            for qp in self.qps.drain(..) {
                assert_eq!((library.ibv_destroy_qp)(qp), 0);
            }
            for mr in self.mrs.drain(..) {
                assert_eq!((library.ibv_dereg_mr)(mr), 0);
            }
            assert_eq!((library.ibv_destroy_cq)(self.cq), 0);
            assert_eq!((library.ibv_destroy_comp_channel)(self.channel), 0);
            assert_eq!((library.ibv_dealloc_pd)(self.pd), 0);
            assert_eq!((library.ibv_close_device)(self.context), 0);
        }
    }
}

/// Registered bytes.
#[derive(Clone, Copy)]
pub struct Memory {
    pub mr: *mut ibv_mr,
    pub start: *mut u8,
    pub len: usize,
    pub lkey: u32,
    pub rkey: u32,
}

impl Memory {
    pub fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        ibv_sge { addr: self.at(offset), length: length as u32, lkey: self.lkey }
    }

    pub fn at(&self, offset: usize) -> u64 {
        self.start.expose_provenance() as u64 + offset as u64
    }

    pub fn fill(&self, byte: u8) {
        // SAFETY: memory of this length that no request uses now.
        unsafe { self.start.write_bytes(byte, self.len) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start, self.len).to_vec() }
    }
}

pub fn init_attr(cq: *mut ibv_cq, kind: u32, srq: *mut ibv_srq) -> ibv_qp_init_attr {
    let cap = ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
    ibv_qp_init_attr { qp_context: null_mut(), send_cq: cq, recv_cq: cq, srq, cap, qp_type: kind, sq_sig_all: 0 }
}

pub fn attributes(state: u32) -> ibv_qp_attr {
    // SAFETY: numbers.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = state;
    attr
}

pub fn modify(qp: *mut ibv_qp, mut attr: ibv_qp_attr, mask: u32) -> i32 {
    // SAFETY: the caller's queue pair.
    unsafe { (library().ibv_modify_qp)(qp, &mut attr, mask as i32) }
}

/// A signaled request without memory.
pub fn request(wr_id: u64, opcode: u32) -> ibv_send_wr {
    // SAFETY: numbers and pointers that may be null.
    let mut wr: ibv_send_wr = unsafe { zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, IBV_SEND_SIGNALED);
    wr
}

/// Posts one request with a list.
pub fn post(qp: *mut ibv_qp, mut wr: ibv_send_wr, list: &mut [ibv_sge]) -> i32 {
    (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as i32);
    let mut bad = null_mut();
    // SAFETY: the request and the list outlive the call.
    unsafe { ibv_post_send(qp, &mut wr, &mut bad) }.expect("there is a way to post")
}

pub fn receive(qp: *mut ibv_qp, wr_id: u64, list: &mut [ibv_sge]) -> i32 {
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: list.as_mut_ptr(), num_sge: list.len() as i32 };
    let mut bad = null_mut();
    // SAFETY: the request and the list outlive the call.
    unsafe { ibv_post_recv(qp, &mut wr, &mut bad) }.expect("there is a way to post")
}

/// A remote address in a request.
pub fn at(mut wr: ibv_send_wr, remote_addr: u64, rkey: u32) -> ibv_send_wr {
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    wr
}

pub const ALL: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND;
