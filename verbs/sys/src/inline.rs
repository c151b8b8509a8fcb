//! The functions that exist in the headers only: they go through pointers in a device's context. Each says which pointer
//! is absent, where one is, instead of calling it; beside that they return what the provider returns.

use std::ffi::c_int;
use std::mem::offset_of;

use crate::ibverbs::*;
use crate::{Ibverbs, Missing, MissingSymbol};

/// The functions of the data path, read from a context and found present once.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "each is the function of its name in C")]
pub struct HotOps {
    pub post_send: PostSend,
    pub post_recv: PostRecv,
    pub post_srq_recv: PostSrqRecv,
    pub poll_cq: PollCq,
    pub req_notify_cq: ReqNotifyCq,
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
/// `ibv_post_recv`.
pub type PostRecv = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PostSrqRecv = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

impl HotOps {
    /// Reads the functions of a context.
    ///
    /// # Errors
    /// [`Missing`], which names the first one that is absent.
    ///
    /// # Safety
    /// `context` points to an open context.
    pub unsafe fn of(context: *mut ibv_context) -> Result<HotOps, Missing> {
        // SAFETY: the caller keeps the context open.
        let ops = unsafe { &(*context).ops };
        Ok(HotOps {
            post_send: present(ops.post_send, "ibv_post_send")?,
            post_recv: present(ops.post_recv, "ibv_post_recv")?,
            post_srq_recv: present(ops.post_srq_recv, "ibv_post_srq_recv")?,
            poll_cq: present(ops.poll_cq, "ibv_poll_cq")?,
            req_notify_cq: present(ops.req_notify_cq, "ibv_req_notify_cq")?,
        })
    }
}

impl std::fmt::Debug for HotOps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HotOps").finish_non_exhaustive()
    }
}

/// The extended context around a context; `None` where the library or the provider gives a plain one.
///
/// # Safety
/// `context` points to an open context.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller keeps the context open.
    let mark = unsafe { (*context).abi_compat };
    // SAFETY: the mark says that this context is the last field of an extended one.
    (mark.addr() == EXTENDED).then(|| unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast())
}

/// A function of the extended context: absent where there is none, where it is too short for the field (it grows at its
/// front, and `sz` says how long the provider's is), and where the field is null.
macro_rules! extended {
    ($context:expr, $field:ident, $what:literal) => {{
        let context: *mut ibv_context = $context;
        verbs_get_ctx(context)
            .filter(|extended| (**extended).sz >= size_of::<verbs_context>() - offset_of!(verbs_context, $field))
            .and_then(|extended| (*extended).$field)
            .ok_or(Missing { what: $what })
    }};
}

/// Declares functions that call one pointer and return what it returns.
macro_rules! through_context {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $find:expr;)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of C.")]
        ///
        /// # Errors
        /// [`Missing`] where the provider has no such function; a failure of the function is in what it returns.
        ///
        /// # Safety
        /// As the C function asks: the objects are alive, the pointers valid for the call.
        $(#[$attribute])*
        pub unsafe fn $name($($argument: $kind),*) -> Result<$result, Missing> {
            // SAFETY: the objects and with them their context are alive, by the caller; the pointer was set by the
            // provider with the type that the header declares.
            unsafe { Ok($find?($($argument),*)) }
        }
    )* };
}

through_context! {
    #[inline]
    fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int =
        present((*(*qp).context).ops.post_send, "ibv_post_send");
    #[inline]
    fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int =
        present((*(*qp).context).ops.post_recv, "ibv_post_recv");
    #[inline]
    fn ibv_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int =
        present((*(*srq).context).ops.post_srq_recv, "ibv_post_srq_recv");
    #[inline]
    fn ibv_poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int =
        present((*(*cq).context).ops.poll_cq, "ibv_poll_cq");
    #[inline]
    fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int =
        present((*(*cq).context).ops.req_notify_cq, "ibv_req_notify_cq");

    fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw =
        present((*(*pd).context).ops.alloc_mw, "ibv_alloc_mw");
    fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int = present((*(*mw).context).ops.dealloc_mw, "ibv_dealloc_mw");

    fn ibv_create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp =
        extended!(context, create_qp_ex, "ibv_create_qp_ex");
    fn ibv_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex =
        extended!(context, create_cq_ex, "ibv_create_cq_ex");
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int =
        extended!((*cq).context, modify_cq, "ibv_modify_cq");
    fn ibv_create_srq_ex(context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq =
        extended!(context, create_srq_ex, "ibv_create_srq_ex");
    fn ibv_get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int =
        extended!((*srq).context, get_srq_num, "ibv_get_srq_num");
    fn ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td =
        extended!(context, alloc_td, "ibv_alloc_td");
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = extended!((*td).context, dealloc_td, "ibv_dealloc_td");
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd =
        extended!(context, alloc_parent_domain, "ibv_alloc_parent_domain");
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int =
        extended!(context, query_rt_values, "ibv_query_rt_values_ex");
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int =
        extended!((*qp).context, modify_qp_rate_limit, "ibv_modify_qp_rate_limit");
    fn ibv_advise_mr(
        pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32
    ) -> c_int = extended!((*pd).context, advise_mr, "ibv_advise_mr");
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr =
        extended!((*pd).context, alloc_null_mr, "ibv_alloc_null_mr");
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm =
        extended!(context, alloc_dm, "ibv_alloc_dm");
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = extended!((*dm).context, free_dm, "ibv_free_dm");
    fn ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: u32) -> *mut ibv_mr =
        extended!((*pd).context, reg_dm_mr, "ibv_reg_dm_mr");
}

/// `ibv_bind_mw` of C: binds a window of type 1 to a region. Returns 0 or an errno.
///
/// # Errors
/// [`Missing`] where the provider has no windows.
///
/// # Safety
/// The objects are alive, the pointers valid for the call.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> Result<c_int, Missing> {
    // SAFETY: all are alive by the caller, and so is the region that the binding names.
    unsafe {
        let (window, info) = (&*mw, &(*bind).bind_info);
        if window.type_ != IBV_MW_TYPE_1 || (info.mr.is_null() && (info.addr != 0 || info.length != 0)) {
            return Ok(libc::EINVAL);
        }
        if !info.mr.is_null() && (*info.mr).pd != window.pd {
            return Ok(libc::EPERM);
        }
        let bind_mw = present((*window.context).ops.bind_mw, "ibv_bind_mw")?;
        Ok(bind_mw(qp, mw, bind))
    }
}

/// `ibv_inc_rkey` of C: the next key of a window of type 2, whose low 8 bits its owner chooses.
#[inline]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// `ibv_query_device_ex` of C, without its fallback to `ibv_query_device`. Returns 0 or an errno.
///
/// # Errors
/// [`Missing`] where the library or the provider has plain contexts only: ask `ibv_query_device`.
///
/// # Safety
/// `context` points to an open context, `attr` to memory to write to; `input` to a value, or it is null.
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> Result<c_int, Missing> {
    // SAFETY: as the caller says.
    unsafe {
        let query = extended!(context, query_device_ex, "ibv_query_device_ex")?;
        Ok(query(context, input, attr, size_of::<ibv_device_attr_ex>()))
    }
}

/// `ibv_query_port` of C: through the extended context, which knows all fields, or else the exported function, which
/// leaves those at zero that came later. Returns 0 or an errno.
///
/// # Safety
/// `context` points to an open context of `library`, `attr` to memory to write to.
pub unsafe fn ibv_query_port(
    library: &Ibverbs,
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as the caller says; the exported function writes a prefix of what `attr` points to.
    unsafe {
        attr.write_bytes(0, 1);
        match extended!(context, query_port, "ibv_query_port") {
            Ok(query) => query(context, port_num, attr, size_of::<ibv_port_attr>()),
            Err(_) => (library.ibv_query_port)(context, port_num, attr.cast()),
        }
    }
}

/// `ibv_query_gid_ex` of C: an entry of the GID table with its type. Returns 0 or an errno.
///
/// # Errors
/// [`MissingSymbol`] before rdma-core 32.
///
/// # Safety
/// `context` points to an open context of `library`, `entry` to memory to write to.
pub unsafe fn ibv_query_gid_ex(
    library: &Ibverbs,
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> Result<c_int, MissingSymbol> {
    let query = library._ibv_query_gid_ex()?;
    // SAFETY: as the caller says, and the size is that of the entry.
    Ok(unsafe { query(context, port_num, gid_index, entry, flags, size_of::<ibv_gid_entry>()) })
}

/// `ibv_query_gid_table` of C: all valid entries of the GID table. Returns their count, or an errno negated.
///
/// # Errors
/// [`MissingSymbol`] before rdma-core 32.
///
/// # Safety
/// `context` points to an open context of `library`, `entries` to memory for `max_entries` to write to.
pub unsafe fn ibv_query_gid_table(
    library: &Ibverbs,
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> Result<isize, MissingSymbol> {
    let query = library._ibv_query_gid_table()?;
    // SAFETY: as the caller says, and the size is that of one entry.
    Ok(unsafe { query(context, entries, max_entries, flags, size_of::<ibv_gid_entry>()) })
}

#[inline]
fn present<F>(function: Option<F>, what: &'static str) -> Result<F, Missing> {
    function.ok_or(Missing { what })
}

/// What `abi_compat` holds in a context that is the end of an extended one.
const EXTENDED: usize = usize::MAX;
