//! Protection domains, thread domains, memory regions, memory windows.

use std::ffi::{c_int, c_void};
use std::fmt;

use qpair_verbs_sys::*;

use super::{code, pointer, structure};
use crate::memory::{self, Mr, Mw, Pd};
use crate::settings::Settings;
use crate::world::{Kind, State, World, world};

/// What an extended context has of it.
pub(super) fn fill(outer: &mut verbs_context, settings: &Settings) {
    if settings.has("td") {
        outer.alloc_td = Some(alloc_td);
        outer.dealloc_td = Some(dealloc_td);
    }
    outer.alloc_parent_domain = settings.has("parent_domain").then_some(alloc_parent_domain as _);
}

/// A feature that is there, but not offered.
pub(super) fn offered(world: &World, device: usize, feature: &str) -> Result<(), c_int> {
    if world.devices[device].settings.has(feature) { Ok(()) } else { Err(libc::EOPNOTSUPP) }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let mut world = world();
    pointer(world.enter("ibv_alloc_pd", context.addr()).and_then(|device| {
        world.room(device, Kind::Pd, "max_pd")?;
        Ok(add_pd(&mut world, "ibv_alloc_pd", context, None, &[context.addr()], ""))
    }))
}

fn add_pd(
    world: &mut World,
    symbol: &str,
    context: *mut ibv_context,
    root: Option<usize>,
    parents: &[usize],
    detail: impl fmt::Display,
) -> *mut ibv_pd {
    let pd = structure(ibv_pd { context, handle: 0 });
    let device = world.device_of(context.addr()).expect("entered through the context");
    let state = State::Pd(Pd { root: root.unwrap_or(pd.addr()) });
    let handle = world.add(symbol, device, pd.addr(), parents, state, detail);
    // SAFETY: made above.
    unsafe { (*pd).handle = handle };
    pd
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    destroy(&mut world(), "ibv_dealloc_pd", pd.addr())
}

/// Destroys what has no state of its own to end.
fn destroy(world: &mut World, symbol: &str, address: usize) -> c_int {
    code(world.enter(symbol, address).and_then(|_| world.remove(symbol, address).map(drop)))
}

unsafe extern "C" fn alloc_td(context: *mut ibv_context, _attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    let mut world = world();
    pointer(world.enter("ibv_alloc_td", context.addr()).map(|device| {
        let td = structure(ibv_td { context });
        world.add("ibv_alloc_td", device, td.addr(), &[context.addr()], State::Td, "");
        td
    }))
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    destroy(&mut world(), "ibv_dealloc_td", td.addr())
}

unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the caller's, to be read.
    let (pd, td, mask) = unsafe { ((*attr).pd, (*attr).td, (*attr).comp_mask) };
    let mut world = world();
    let symbol = "ibv_alloc_parent_domain";
    pointer(world.enter(symbol, context.addr()).and_then(|_| {
        let root = world.pd(pd.addr()).ok_or(libc::EINVAL)?.root;
        if mask & !(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) != 0 {
            return Err(libc::EINVAL);
        }
        let mut parents = vec![context.addr(), pd.addr()];
        parents.extend((!td.is_null()).then_some(td.addr()));
        let detail = format!(" of {} {}", world.name(pd.addr()), world.name(td.addr()));
        Ok(add_pd(&mut world, symbol, context, Some(root), &parents, detail))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    let memory = Memory { addr: addr.cast(), length, iova: addr.addr() as u64, mapped: None };
    pointer(register(&mut world(), "ibv_reg_mr", pd, memory, access as u32, ""))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    ibv_reg_mr_iova2(pd, addr, length, iova, access as u32)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    let memory = Memory { addr: addr.cast(), length, iova, mapped: None };
    pointer(register(&mut world(), "ibv_reg_mr_iova2", pd, memory, access, ""))
}

/// What is to be registered.
struct Memory {
    addr: *mut u8,
    length: usize,
    iova: u64,
    mapped: Option<(*mut u8, usize)>,
}

fn register(
    world: &mut World,
    symbol: &str,
    pd: *mut ibv_pd,
    memory: Memory,
    access: u32,
    detail: impl fmt::Display,
) -> Result<*mut ibv_mr, c_int> {
    let Memory { addr, length, iova, mapped } = memory;
    let device = world.enter(symbol, pd.addr())?;
    let root = world.pd(pd.addr()).ok_or(libc::EINVAL)?.root;
    let settings = &world.devices[device].settings;
    memory::check_access(access, settings.has("odp"))?;
    if length == 0 || length as u64 > settings.get("max_mr_size") || (addr.addr()).checked_add(length).is_none() {
        return Err(libc::EINVAL);
    }
    world.room(device, Kind::Mr, "max_mr")?;
    let pinned = if access & IBV_ACCESS_ON_DEMAND == 0 { length as u64 } else { 0 };
    let locked = world.devices[device].locked.saturating_add(pinned);
    if locked > settings_limit(world, device) {
        return Err(libc::ENOMEM);
    }
    world.devices[device].locked = locked;
    // SAFETY: the domain was found alive, and structures are never freed.
    let context = unsafe { (*pd).context };
    let mr = structure(ibv_mr { context, pd, addr: addr.cast(), length, handle: 0, lkey: 0, rkey: 0 });
    // Unlike on most devices the two keys differ, so that one taken for the other is noticed.
    let (lkey, rkey) = (world.new_key(mr.addr()), world.new_key(mr.addr()));
    let iova = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    let state = State::Mr(Mr { root, iova, base: addr, length, access, lkey, rkey, mapped });
    let detail = format!(" {} length={length} access={access:#x}{detail}", world.name(pd.addr()));
    let handle = world.add(symbol, device, mr.addr(), &[pd.addr()], state, detail);
    // SAFETY: made above.
    unsafe { ((*mr).handle, (*mr).lkey, (*mr).rkey) = (handle, lkey, rkey) };
    Ok(mr)
}

fn settings_limit(world: &World, device: usize) -> u64 {
    world.devices[device].settings.get("max_locked")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let mut world = world();
    let registered = world.device_of(pd.addr()).ok_or(libc::EINVAL).and_then(|device| {
        if !world.devices[device].settings.has("dmabuf") {
            world.enter("ibv_reg_dmabuf_mr", pd.addr())?;
            return Err(libc::EOPNOTSUPP);
        }
        let mapped = map(fd, offset, length)?;
        let page_offset = (offset % PAGE) as usize;
        // SAFETY: within the mapping, which begins at the page of the offset.
        let addr = unsafe { mapped.0.add(page_offset) };
        let memory = Memory { addr, length, iova, mapped: Some(mapped) };
        let detail = format!(" fd={fd} offset={offset} iova={iova:#x}");
        let registered = register(&mut world, "ibv_reg_dmabuf_mr", pd, memory, access as u32, detail);
        if registered.is_err() {
            unmap(mapped);
        }
        registered.inspect(|mr| {
            // SAFETY: made just now. As in libibverbs, such a region has no address.
            unsafe { (**mr).addr = std::ptr::null_mut() };
        })
    });
    pointer(registered)
}

/// Maps a part of a file, from the page that the offset is in.
fn map(fd: c_int, offset: u64, length: usize) -> Result<(*mut u8, usize), c_int> {
    let start = libc::off_t::try_from(offset - offset % PAGE).map_err(|_| libc::EINVAL)?;
    let bytes = length.checked_add((offset % PAGE) as usize).filter(|_| length > 0).ok_or(libc::EINVAL)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, fd, start) };
    if at == libc::MAP_FAILED { Err(crate::cq::errno()) } else { Ok((at.cast(), bytes)) }
}

fn unmap((at, bytes): (*mut u8, usize)) {
    // SAFETY: a mapping of the function above, unmapped once.
    unsafe { libc::munmap(at.cast(), bytes) };
}

const PAGE: u64 = 4096;

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    code(deregister(&mut world(), mr.addr()))
}

fn deregister(world: &mut World, address: usize) -> Result<(), c_int> {
    const SYMBOL: &str = "ibv_dereg_mr";
    let device = world.enter(SYMBOL, address)?;
    let lkey = world.mr(address).ok_or(libc::EINVAL)?.lkey;
    if let Some(user) = posted_with(world, device, lkey) {
        let user = world.name(user);
        world.violation(address, format_args!("deregistered while posted on {user}"));
    }
    if let State::Mr(mr) = world.remove(SYMBOL, address)? {
        world.keys.remove(&mr.lkey);
        world.keys.remove(&mr.rkey);
        let pinned = if mr.access & IBV_ACCESS_ON_DEMAND == 0 { mr.length as u64 } else { 0 };
        world.devices[device].locked -= pinned;
        if let Some(mapped) = mr.mapped {
            unmap(mapped);
        }
    }
    Ok(())
}

/// A queue with posted work that names the key.
fn posted_with(world: &World, device: usize, lkey: u32) -> Option<usize> {
    let names = |list: &[ibv_sge]| list.iter().any(|entry| entry.lkey == lkey && entry.length > 0);
    let queue_pair = world.live(device, Kind::Qp).into_iter().find(|(_, address)| {
        let qp = world.qp(*address).expect("it is alive");
        qp.send.iter().any(|request| request.inline.is_none() && names(&request.list))
            || qp.recv.iter().any(|receive| names(&receive.list))
    });
    let shared = || {
        world.live(device, Kind::Srq).into_iter().find(|(_, address)| {
            let srq = world.srq(*address).expect("it is alive");
            srq.queue.iter().any(|receive| names(&receive.list))
        })
    };
    queue_pair.or_else(shared).map(|(_, address)| address)
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    let mut world = world();
    pointer(world.enter("ibv_alloc_mw", pd.addr()).and_then(|device| {
        offered(&world, device, "mw")?;
        if kind != IBV_MW_TYPE_1 && kind != IBV_MW_TYPE_2 {
            return Err(libc::EINVAL);
        }
        world.room(device, Kind::Mw, "max_mw")?;
        let root = world.pd(pd.addr()).ok_or(libc::EINVAL)?.root;
        // SAFETY: the domain was found alive, and structures are never freed.
        let context = unsafe { (*pd).context };
        let mw = structure(ibv_mw { context, pd, rkey: 0, handle: 0, type_: kind });
        let rkey = world.new_key(mw.addr());
        let state = State::Mw(Mw { c: mw, root, rkey, kind, bound: None });
        let detail = format!(" {}", world.name(pd.addr()));
        let handle = world.add("ibv_alloc_mw", device, mw.addr(), &[pd.addr()], state, detail);
        // SAFETY: made above.
        unsafe { ((*mw).rkey, (*mw).handle) = (rkey, handle) };
        Ok(mw)
    }))
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let (mut world, address) = (world(), mw.addr());
    code(world.enter("ibv_dealloc_mw", address).and_then(|_| {
        memory::unbind(&mut world, address);
        if let State::Mw(mw) = world.remove("ibv_dealloc_mw", address)? {
            world.keys.remove(&mw.rkey);
        }
        Ok(())
    }))
}
