//! Queue pairs: created, changed, asked, destroyed.

use std::ffi::{c_int, c_void};

use qpair_verbs_sys::*;

use super::completion::forget_events;
use super::protection::offered;
use super::{code, extended, pointer, structure, zeroed};
use crate::exec;
use crate::qp::{self, Qp};
use crate::settings::{Settings, TRUTH};
use crate::transitions;
use crate::world::{Kind, Neighbour, State, World, world, world_at, world_when};

/// What an extended context has of it.
pub(super) fn fill(outer: &mut verbs_context, settings: &Settings) {
    outer.create_qp_ex = settings.has("qp_ex").then_some(create_qp_ex as _);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's, to be read and written to.
    let attr = unsafe { &mut *attr };
    let created = create(&mut world(), "ibv_create_qp", pd, attr, None);
    pointer(created)
}

unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the caller's, to be read and written to.
    let attr = unsafe { &mut *attr };
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    // SAFETY: asked for its device only, of a domain that may be dead.
    let of_context = world().pd(attr.pd.addr()).is_some_and(|_| unsafe { (*attr.pd).context } == context);
    if attr.comp_mask & !known != 0 || attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || !of_context {
        return pointer(Err(libc::EINVAL));
    }
    let mut plain = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let ops = (attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
    let created = create(&mut world(), "ibv_create_qp_ex", attr.pd, &mut plain, ops);
    attr.cap = plain.cap;
    pointer(created)
}

fn create(
    world: &mut World,
    symbol: &str,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, c_int> {
    let device = world.enter(symbol, pd.addr())?;
    let root = world.pd(pd.addr()).ok_or(libc::EINVAL)?.root;
    let srq = (!attr.srq.is_null()).then_some(attr.srq.addr());
    let (send_cq, recv_cq) = (attr.send_cq.addr(), attr.recv_cq.addr());
    let queues = world.cq(send_cq).is_some() && world.cq(recv_cq).is_some();
    if !queues || srq.is_some_and(|srq| world.srq(srq).is_none()) {
        return Err(libc::EINVAL);
    }
    let offered = match attr.qp_type {
        IBV_QPT_RC => world.devices[device].settings.has("rc"),
        other => matches!(other, IBV_QPT_UC | IBV_QPT_UD),
    };
    if !offered {
        return Err(libc::EOPNOTSUPP);
    }
    world.room(device, Kind::Qp, "max_qp")?;
    let cap = granted(&attr.cap, &world.devices[device].settings, srq.is_some())?;
    attr.cap = cap;

    // SAFETY: pointers, numbers, functions that may be null, and locks whose initial value is zero.
    let mut ex: ibv_qp_ex = unsafe { zeroed() };
    // SAFETY: the domain was found alive, and structures are never freed.
    let context = unsafe { (*pd).context };
    let base = &mut ex.qp_base;
    (base.context, base.qp_context, base.pd) = (context, attr.qp_context, pd);
    (base.send_cq, base.recv_cq, base.srq) = (attr.send_cq, attr.recv_cq, attr.srq);
    (base.qp_type, base.state) = (attr.qp_type, IBV_QPS_RESET);
    if let Some(ops) = ops {
        extended::fill(&mut ex, ops, world.devices[device].is_null())?;
    }
    let c = structure(ex);
    let qpn = world.new_qpn(c.addr());
    let mut state = Qp::new(c, qpn, attr);
    (state.context, state.device, state.root, state.has_ex) = (context.addr(), device, root, ops.is_some());
    let mut parents = vec![context.addr(), pd.addr(), send_cq, recv_cq];
    parents.extend(srq);
    let detail: String = parents[1..].iter().map(|parent| format!(" {}", world.name(*parent))).collect();
    let handle = world.add(symbol, device, c.addr(), &parents, State::Qp(Box::new(state)), detail);
    // SAFETY: made above.
    unsafe { ((*c).qp_base.handle, (*c).qp_base.qp_num) = (handle, qpn) };
    Ok(c.cast())
}

/// What the device makes of the sizes asked for: no less, but of room for inline data.
fn granted(wish: &ibv_qp_cap, settings: &Settings, shared: bool) -> Result<ibv_qp_cap, c_int> {
    let fits = |value: u32, limit: &str| u64::from(value) <= settings.get(limit);
    let receives = shared || (fits(wish.max_recv_wr, "max_qp_wr") && fits(wish.max_recv_sge, "max_sge"));
    let sends = fits(wish.max_send_wr, "max_qp_wr") && fits(wish.max_send_sge, "max_sge");
    if !receives || !sends || !fits(wish.max_inline_data, "max_inline") {
        return Err(libc::EINVAL);
    }
    if u64::from(wish.max_send_wr) * (64 + u64::from(wish.max_inline_data)) > settings.get("send_bytes") {
        return Err(libc::ENOMEM);
    }
    let up = |value: u32| if value == 0 { 0 } else { value.next_power_of_two() };
    Ok(ibv_qp_cap {
        max_send_wr: up(wish.max_send_wr),
        max_recv_wr: if shared { 0 } else { up(wish.max_recv_wr) },
        max_send_sge: wish.max_send_sge,
        max_recv_sge: if shared { 0 } else { wish.max_recv_sge },
        max_inline_data: wish.max_inline_data.next_multiple_of(16).min(settings.get_u32("max_inline_given")),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's, to be read.
    let attr = unsafe { &*attr };
    let mut world = if mask as u32 & IBV_QP_AV != 0 { world_at(qp.addr(), &attr.ah_attr) } else { world() };
    code(modify(&mut world, qp.addr(), attr, mask as u32))
}

fn modify(world: &mut World, address: usize, attr: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    const SYMBOL: &str = "ibv_modify_qp";
    let device = world.enter(SYMBOL, address)?;
    let qp = world.qp(address).ok_or(libc::EINVAL)?;
    let (kind, from) = (qp.kind, qp.state);
    let to = if mask & IBV_QP_STATE != 0 { attr.qp_state } else { from };
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    let checked = transitions::check(kind, from, to, mask)
        .and_then(|()| check(world, device, attr, mask))
        .and_then(|()| refuse(world, device, attr, mask))
        .and_then(|()| match world.neighbour(address, &attr.ah_attr) {
            Neighbour::DoesNotAnswer if mask & IBV_QP_AV != 0 => Err(libc::ETIMEDOUT),
            _ => Ok(()),
        });
    if let Err(errno) = checked {
        let name = world.name(address);
        world.devices[device].record(format_args!("{SYMBOL} {name} {from}->{to} mask={mask:#x} -> errno {errno}"));
        return Err(errno);
    }
    let qp = world.qp_mut(address).ok_or(libc::EINVAL)?;
    apply(&mut qp.attr, attr, mask);
    let mut detail = format!(" {from}->{to}");
    if mask & IBV_QP_PKEY_INDEX != 0 && attr.pkey_index != 0 {
        detail.push_str(&format!(" pkey_index={}", attr.pkey_index));
    }
    if mask & IBV_QP_RETRY_CNT != 0 {
        detail.push_str(&format!(" retry_cnt={}", attr.retry_cnt));
    }
    if mask & IBV_QP_TIMEOUT != 0 {
        detail.push_str(&format!(" timeout={}", attr.timeout));
    }
    if mask & IBV_QP_AV != 0 {
        let (way, to) = (&attr.ah_attr, &attr.ah_attr.grh);
        let parts = [("sl", way.sl), ("gid", to.sgid_index), ("class", to.traffic_class), ("hops", to.hop_limit)];
        parts.iter().for_each(|(name, value)| detail.push_str(&format!(" {name}={value}")));
    }
    world.record(SYMBOL, address, detail);
    match to {
        IBV_QPS_ERR => qp::fail(world, address),
        IBV_QPS_RESET => {
            qp::clear(world, address);
            qp::set_state(world, address, IBV_QPS_RESET);
        }
        _ => qp::set_state(world, address, to),
    }
    exec::run(world, address);
    exec::kick(world);
    Ok(())
}

/// Refuses values that the kernel refuses.
fn check(world: &World, device: usize, attr: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    let (device, has) = (&world.devices[device], |bit| mask & bit != 0);
    let limit = |name| device.settings.get(name);
    let wrong = (has(IBV_QP_PORT) && !(1..=limit("ports")).contains(&u64::from(attr.port_num)))
        || (has(IBV_QP_PKEY_INDEX) && u64::from(attr.pkey_index) >= limit("pkey_tbl_len"))
        || (has(IBV_QP_PATH_MTU) && (attr.path_mtu == 0 || u64::from(attr.path_mtu) > limit("active_mtu")))
        || (has(IBV_QP_MAX_QP_RD_ATOMIC) && u64::from(attr.max_rd_atomic) > limit("max_qp_init_rd_atom"))
        || (has(IBV_QP_MAX_DEST_RD_ATOMIC) && u64::from(attr.max_dest_rd_atomic) > limit("max_qp_rd_atom"))
        || (has(IBV_QP_TIMEOUT) && attr.timeout > 31)
        || (has(IBV_QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31)
        || (has(IBV_QP_RETRY_CNT) && attr.retry_cnt > 7)
        || (has(IBV_QP_RNR_RETRY) && attr.rnr_retry > 7)
        || (has(IBV_QP_DEST_QPN) && attr.dest_qp_num > 0xff_ffff)
        || (has(IBV_QP_AV) && !is_address(device, &attr.ah_attr));
    if wrong { Err(libc::EINVAL) } else { Ok(()) }
}

/// Refuses the value of an attribute that the setting `refuse_attr` names.
fn refuse(world: &mut World, device: usize, attr: &ibv_qp_attr, mask: u32) -> Result<(), c_int> {
    let device = &mut world.devices[device];
    let named = mask & device.settings.get_u32("refuse_attr");
    if named == 0 {
        return Ok(());
    }
    // SAFETY: all zeroes is a value of these plain numbers.
    let mut alone: ibv_qp_attr = unsafe { zeroed() };
    apply(&mut alone, attr, named);
    let route = (qp::gid_bytes(&alone.ah_attr.grh.dgid), alone.ah_attr.dlid, alone.ah_attr.port_num);
    let reads = (alone.max_rd_atomic, alone.max_dest_rd_atomic, alone.qp_access_flags, alone.qkey);
    let retries = (alone.timeout, alone.retry_cnt, alone.rnr_retry, alone.min_rnr_timer);
    let rest = (alone.path_mtu, alone.dest_qp_num, alone.rq_psn, alone.sq_psn, alone.pkey_index, alone.port_num);
    let value = format!("{route:?} {reads:?} {retries:?} {rest:?}");
    if *device.refused_value.get_or_insert_with(|| value.clone()) == value { Err(libc::EINVAL) } else { Ok(()) }
}

/// Whether an address can be one: over Ethernet it has a GID, and the source's is in use.
pub(super) fn is_address(device: &crate::device::Device, address: &ibv_ah_attr) -> bool {
    let ethernet = device.settings.get("link_layer") == u64::from(IBV_LINK_LAYER_ETHERNET);
    let port = (1..=device.settings.get("ports")).contains(&u64::from(address.port_num));
    let global = address.is_global != 0;
    let source = device.gid(u32::from(address.grh.sgid_index)).is_some();
    let by_lid = !ethernet && device.settings.get_u32("port_flags") & IBV_QPF_GRH_REQUIRED == 0;
    port && (global || by_lid) && (!global || (source && qp::gid_bytes(&address.grh.dgid) != [0; 16]))
}

/// Takes over the attributes that the mask names.
fn apply(kept: &mut ibv_qp_attr, given: &ibv_qp_attr, mask: u32) {
    macro_rules! take {
        ($($bit:ident: $($field:ident)*;)*) => { $(
            if mask & $bit != 0 {
                $(kept.$field = given.$field;)*
            }
        )* };
    }
    take! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index;
        IBV_QP_PORT: port_num;
        IBV_QP_QKEY: qkey;
        IBV_QP_AV: ah_attr;
        IBV_QP_PATH_MTU: path_mtu;
        IBV_QP_TIMEOUT: timeout;
        IBV_QP_RETRY_CNT: retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry;
        IBV_QP_RQ_PSN: rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
        IBV_QP_ALT_PATH: alt_ah_attr alt_pkey_index alt_port_num alt_timeout;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
        IBV_QP_SQ_PSN: sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        IBV_QP_PATH_MIG_STATE: path_mig_state;
        IBV_QP_DEST_QPN: dest_qp_num;
        IBV_QP_RATE_LIMIT: rate_limit;
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let mut world = world();
    code(world.enter("ibv_query_qp", qp.addr()).and_then(|device| {
        let state = world.qp(qp.addr()).ok_or(libc::EINVAL)?;
        let claimed = world.devices[device].settings.get("query_qp_state");
        let shown = if claimed == TRUTH { state.state } else { claimed as u32 };
        let mut all = state.attr;
        (all.qp_state, all.cur_qp_state, all.cap) = (shown, shown, state.cap);
        // SAFETY: the caller's, to be written to; the queue pair is alive.
        unsafe {
            *attr = all;
            let base = &(*state.c).qp_base;
            *init = ibv_qp_init_attr {
                qp_context: base.qp_context,
                send_cq: base.send_cq,
                recv_cq: base.recv_cq,
                srq: base.srq,
                cap: state.cap,
                qp_type: state.kind,
                sq_sig_all: c_int::from(state.signals_all),
            };
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _opcode: u32, _flags: u32) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let acknowledged = |world: &World| world.qp(qp.addr()).is_none_or(|state| state.async_unacknowledged == 0);
    code(destroy_qp(&mut world_when(acknowledged), qp.addr()))
}

fn destroy_qp(world: &mut World, address: usize) -> Result<(), c_int> {
    const SYMBOL: &str = "ibv_destroy_qp";
    let device = world.enter(SYMBOL, address)?;
    let qp = world.qp(address).ok_or(libc::EINVAL)?;
    let (qpn, context, c) = (qp.qpn, qp.context, qp.c);
    let queues = [qp.send_cq, qp.recv_cq];
    if qp.async_unacknowledged > 0 {
        world.violation(address, "destroyed with events not acknowledged, which waits for ever");
        return Err(libc::EDEADLK);
    }
    qp::clear(world, address);
    world.remove(SYMBOL, address)?;
    world.qpns.remove(&qpn);
    if world.devices[device].settings.has("purge_cq") {
        for queue in queues {
            if let Some(cq) = world.cq_mut(queue) {
                cq.queue.retain(|done| done.qp != address);
            }
        }
    }
    forget_events(world, context, c.cast::<c_void>());
    exec::kick(world);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    let mut world = world();
    code(world.enter("ibv_query_ece", qp.addr()).and_then(|device| {
        offered(&world, device, "ece")?;
        let state = world.qp(qp.addr()).ok_or(libc::EINVAL)?;
        // SAFETY: the caller's, to be written to.
        unsafe { *ece = ibv_ece { vendor_id: 0x15b3, options: state.ece.options | 1, comp_mask: 0 } };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's, to be read.
    let ece = unsafe { *ece };
    let mut world = world();
    code(world.enter("ibv_set_ece", qp.addr()).and_then(|device| {
        offered(&world, device, "ece")?;
        if ece.comp_mask != 0 {
            return Err(libc::EINVAL);
        }
        world.qp_mut(qp.addr()).ok_or(libc::EINVAL)?.ece = ece;
        world.record("ibv_set_ece", qp.addr(), format_args!(" vendor={:#x} options={:#x}", ece.vendor_id, ece.options));
        Ok(())
    }))
}
