//! Shared receive queues and address handles.

use std::ffi::c_int;

use qpair_verbs_sys::*;

use super::completion::forget_events;
use super::protection::offered;
use super::queue_pair::is_address;
use super::{code, pointer, structure, zeroed};
use crate::qp::{Ah, Srq};
use crate::world::{Kind, Neighbour, State, World, world, world_at, world_when};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller's, to be read and written to.
    let attr = unsafe { &mut *attr };
    pointer(create_srq(&mut world(), pd, attr))
}

fn create_srq(world: &mut World, pd: *mut ibv_pd, attr: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq, c_int> {
    let device = world.enter("ibv_create_srq", pd.addr())?;
    offered(world, device, "srq")?;
    let root = world.pd(pd.addr()).ok_or(libc::EINVAL)?.root;
    let limit = |name| world.devices[device].settings.get(name);
    let (max_wr, max_sge) = (attr.attr.max_wr, attr.attr.max_sge);
    if max_wr == 0 || u64::from(max_wr) > limit("max_srq_wr") || u64::from(max_sge) > limit("max_srq_sge") {
        return Err(libc::EINVAL);
    }
    world.room(device, Kind::Srq, "max_srq")?;
    attr.attr.max_wr = max_wr.next_power_of_two();
    // SAFETY: pointers, numbers and locks, for which zero is a value.
    let mut srq: ibv_srq = unsafe { zeroed() };
    // SAFETY: the domain was found alive, and structures are never freed.
    let context = unsafe { (*pd).context };
    (srq.context, srq.srq_context, srq.pd) = (context, attr.srq_context, pd);
    let c = structure(srq);
    let state = State::Srq(Srq {
        c,
        context: context.addr(),
        root,
        max_wr: attr.attr.max_wr,
        max_sge,
        limit: 0,
        queue: Default::default(),
        async_unacknowledged: 0,
    });
    let detail = format!(" {}", world.name(pd.addr()));
    let handle = world.add("ibv_create_srq", device, c.addr(), &[context.addr(), pd.addr()], state, detail);
    // SAFETY: made above.
    unsafe { (*c).handle = handle };
    Ok(c)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's, to be read.
    let attr = unsafe { *attr };
    let mut world = world();
    code(world.enter("ibv_modify_srq", srq.addr()).and_then(|_| {
        let state = world.srq_mut(srq.addr()).ok_or(libc::EINVAL)?;
        if mask as u32 & IBV_SRQ_MAX_WR != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask as u32 & IBV_SRQ_LIMIT != 0 {
            if attr.srq_limit > state.max_wr {
                return Err(libc::EINVAL);
            }
            state.limit = attr.srq_limit;
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let mut world = world();
    code(world.enter("ibv_query_srq", srq.addr()).and_then(|_| {
        let state = world.srq(srq.addr()).ok_or(libc::EINVAL)?;
        let all = ibv_srq_attr { max_wr: state.max_wr, max_sge: state.max_sge, srq_limit: state.limit };
        // SAFETY: the caller's, to be written to.
        unsafe { *attr = all };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let address = srq.addr();
    let acknowledged = |world: &World| world.srq(address).is_none_or(|state| state.async_unacknowledged == 0);
    let mut world = world_when(acknowledged);
    code(world.enter("ibv_destroy_srq", address).and_then(|_| {
        let state = world.srq(address).ok_or(libc::EINVAL)?;
        let (context, waits) = (state.context, state.async_unacknowledged > 0 && world.users(address) == 0);
        if waits {
            world.violation(address, "destroyed with events not acknowledged, which waits for ever");
            return Err(libc::EDEADLK);
        }
        world.remove("ibv_destroy_srq", address)?;
        forget_events(&mut world, context, srq.cast());
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's, to be read.
    let attr = unsafe { *attr };
    let mut world = world_at(pd.addr(), &attr);
    pointer(world.enter("ibv_create_ah", pd.addr()).and_then(|device| {
        let root = world.pd(pd.addr()).ok_or(libc::EINVAL)?.root;
        if !is_address(&world.devices[device], &attr) {
            return Err(libc::EINVAL);
        }
        world.room(device, Kind::Ah, "max_ah")?;
        if world.neighbour(pd.addr(), &attr) == Neighbour::DoesNotAnswer {
            let name = world.name(pd.addr());
            world.devices[device].record(format_args!("ibv_create_ah {name} -> errno {}", libc::ETIMEDOUT));
            return Err(libc::ETIMEDOUT);
        }
        // SAFETY: the domain was found alive, and structures are never freed.
        let context = unsafe { (*pd).context };
        let ah = structure(ibv_ah { context, pd, handle: 0 });
        let state = State::Ah(Ah { root, attr });
        let ibv_ah_attr { grh, port_num, sl, .. } = attr;
        let (row, class, hops) = (grh.sgid_index, grh.traffic_class, grh.hop_limit);
        let detail = format!(" {} port {port_num} row {row} sl {sl} tc {class} hops {hops}", world.name(pd.addr()));
        let handle = world.add("ibv_create_ah", device, ah.addr(), &[pd.addr()], state, detail);
        // SAFETY: made above.
        unsafe { (*ah).handle = handle };
        Ok(ah)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    let mut world = world();
    code(world.enter("ibv_destroy_ah", ah.addr()).and_then(|_| world.remove("ibv_destroy_ah", ah.addr()).map(drop)))
}
