//! Protection domains, regions and windows: who may reach which memory.

use std::ffi::c_int;

use qpair_verbs_sys::*;

use crate::world::World;

pub(crate) struct Pd {
    /// The domain that counts for protection: itself, or that of which it is a parent domain.
    pub(crate) root: usize,
}

pub(crate) struct Mr {
    pub(crate) root: usize,
    /// The address that requests use for the first byte.
    pub(crate) iova: u64,
    pub(crate) base: *mut u8,
    pub(crate) length: usize,
    pub(crate) access: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// A DMA-buf's mapping, and its length.
    pub(crate) mapped: Option<(*mut u8, usize)>,
}

pub(crate) struct Mw {
    pub(crate) c: *mut ibv_mw,
    pub(crate) root: usize,
    pub(crate) rkey: u32,
    pub(crate) kind: u32,
    pub(crate) bound: Option<Bound>,
}

/// What a window opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) mr: usize,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
    pub(crate) qp: usize,
}

/// Memory that a request may touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: *mut u8,
    len: usize,
}

impl Span {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies the bytes out.
    pub(crate) fn read(&self, to: &mut Vec<u8>) {
        // SAFETY: the span lies in a region that its owner keeps valid until it is deregistered, and it is checked with
        // the world's lock held, under which regions go.
        unsafe { to.extend_from_slice(std::slice::from_raw_parts(self.start, self.len)) }
    }

    /// Copies bytes in, as many as it has.
    pub(crate) fn write(&self, from: &[u8]) {
        assert_eq!(from.len(), self.len, "cut to the span by the caller");
        // SAFETY: as above; the region allows writing.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start, self.len) }
    }

    /// Replaces the word, and returns what was there.
    pub(crate) fn atomic(&self, change: impl Fn(u64) -> u64) -> u64 {
        assert!(self.len == 8 && self.start.addr().is_multiple_of(8), "checked by the caller");
        // SAFETY: as above, and aligned.
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(self.start.cast()) };
        let order = std::sync::atomic::Ordering::SeqCst;
        match word.fetch_update(order, order, |old| Some(change(old))) {
            Ok(old) | Err(old) => old,
        }
    }
}

impl Mr {
    /// A part of the region.
    fn span(&self, address: u64, len: usize) -> Option<Span> {
        let offset = usize::try_from(address.checked_sub(self.iova)?).ok()?;
        if offset.checked_add(len)? > self.length {
            return None;
        }
        // SAFETY: within the region, which the caller of ibv_reg_mr said to be one allocation.
        Some(Span { start: unsafe { self.base.add(offset) }, len })
    }
}

/// The memory of a scatter-gather list, or the status of a request that names other memory.
pub(crate) fn local(world: &World, root: usize, list: &[ibv_sge], write: bool) -> Result<Vec<Span>, u32> {
    let mut spans = Vec::with_capacity(list.len());
    for entry in list.iter().filter(|entry| entry.length > 0) {
        let region = world.keys.get(&entry.lkey).and_then(|address| world.mr(*address));
        let region = region.filter(|mr| mr.lkey == entry.lkey && mr.root == root);
        let region = region.filter(|mr| !write || mr.access & IBV_ACCESS_LOCAL_WRITE != 0);
        let span = region.and_then(|mr| mr.span(entry.addr, entry.length as usize));
        spans.push(span.ok_or(IBV_WC_LOC_PROT_ERR)?);
    }
    Ok(spans)
}

/// Memory that a peer's request reaches through a key of queue pair `qp`'s domain, if the right is given.
pub(crate) fn remote(world: &World, qp: usize, rkey: u32, address: u64, len: usize, right: u32) -> Option<Span> {
    let target = world.qp(qp)?;
    if target.access() & right == 0 {
        return None;
    }
    let object = *world.keys.get(&rkey)?;
    if let Some(mr) = world.mr(object) {
        let fits = mr.rkey == rkey && mr.root == target.root && mr.access & right != 0;
        return if fits { mr.span(address, len) } else { None };
    }
    let mw = world.mw(object).filter(|mw| mw.rkey == rkey && mw.root == target.root)?;
    let bound = mw.bound.filter(|bound| bound.access & right != 0)?;
    let of_this_qp = mw.kind == IBV_MW_TYPE_1 || bound.qp == qp;
    let end = address.checked_add(len as u64)?;
    let inside = address >= bound.start && end <= bound.start.checked_add(bound.length)?;
    if of_this_qp && inside { world.mr(bound.mr)?.span(address, len) } else { None }
}

/// Binds a window, or unbinds one of type 1 with length 0. `rkey` is the key it has from now on.
pub(crate) fn bind(world: &mut World, qp: usize, mw: usize, rkey: u32, info: &Bound) -> Result<(), u32> {
    const REFUSED: u32 = IBV_WC_MW_BIND_ERR;
    let root = world.qp(qp).ok_or(REFUSED)?.root;
    let window = world.mw(mw).filter(|window| window.root == root).ok_or(REFUSED)?;
    let (kind, old_key, old) = (window.kind, window.rkey, window.bound);
    if kind == IBV_MW_TYPE_2 && (old.is_some() || info.length == 0 || rkey & !0xff != old_key & !0xff) {
        return Err(REFUSED);
    }
    if info.length > 0 {
        let region = world.mr(info.mr).filter(|mr| mr.root == root && mr.access & IBV_ACCESS_MW_BIND != 0);
        let region = region.ok_or(REFUSED)?;
        let writes = info.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
        let length = usize::try_from(info.length).map_err(|_| REFUSED)?;
        if (writes && region.access & IBV_ACCESS_LOCAL_WRITE == 0) || region.span(info.start, length).is_none() {
            return Err(REFUSED);
        }
    }
    unbind(world, mw);
    world.keys.remove(&old_key);
    world.keys.insert(rkey, mw);
    let bound = (info.length > 0).then_some(*info);
    if let Some(bound) = bound {
        world.use_one_more(bound.mr);
    }
    let window = world.mw_mut(mw).expect("found above");
    (window.rkey, window.bound) = (rkey, bound);
    Ok(())
}

/// Takes a window's region away from it.
pub(crate) fn unbind(world: &mut World, mw: usize) {
    let bound = world.mw_mut(mw).and_then(|window| window.bound.take());
    if let Some(bound) = bound {
        world.use_one_less(bound.mr);
    }
}

/// Makes a window of type 2 unusable by its key; false if there is no such window, or it is another queue pair's.
pub(crate) fn invalidate(world: &mut World, qp: usize, rkey: u32) -> bool {
    let Some(mw) = world.keys.get(&rkey).copied() else { return false };
    let root = world.qp(qp).map(|qp| qp.root);
    let ours = world.mw(mw).is_some_and(|window| {
        let bound_here = window.bound.is_some_and(|bound| bound.qp == qp);
        window.rkey == rkey && window.kind == IBV_MW_TYPE_2 && Some(window.root) == root && bound_here
    });
    if ours {
        unbind(world, mw);
    }
    ours
}

/// Whether these rights may be asked for, of memory that is not on demand.
pub(crate) fn check_access(access: u32, odp: bool) -> Result<(), c_int> {
    let known = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_ZERO_BASED
        | IBV_ACCESS_ON_DEMAND
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_OPTIONAL_RANGE;
    let writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    if access & !known != 0 || (writes && access & IBV_ACCESS_LOCAL_WRITE == 0) {
        return Err(libc::EINVAL);
    }
    if access & IBV_ACCESS_ON_DEMAND != 0 && !odp { Err(libc::EOPNOTSUPP) } else { Ok(()) }
}
