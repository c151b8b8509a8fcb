//! Memory of devices for other devices on the bus, and for other processes.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::sync::Arc;

use super::memory::{insert, remove, unmap, warn_users};
use super::{put, supported, valid};
use crate::abi::IpcHandle;
use crate::backing::{self, Backing, PAGE};
use crate::code::{self, Code, Outcome};
use crate::settings::attribute;
use crate::space::What;
use crate::world::{Needs, World, call};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: u64,
    len: usize,
    kind: u32,
    flags: c_ulonglong,
) -> Code {
    call("cuMemGetHandleForAddressRange", Needs::Of(address), |world, _| {
        valid(!handle.is_null() && len > 0 && kind == DMA_BUF && flags <= 1)?;
        valid(address.is_multiple_of(PAGE) && (len as u64).is_multiple_of(PAGE))?;
        let (backing, offset) = pages(world, address, len as u64).ok_or(code::INVALID_VALUE)?;
        supported(world.devices[backing.device].settings.attribute(attribute::DMA_BUF_SUPPORTED) != 0)?;
        let fd = backing.export(offset)?;
        // SAFETY: the caller's, an int for this kind.
        unsafe { put(handle.cast::<c_int>(), fd) }
    })
}

/// The memory of whole pages, which an allocation may take only in part.
fn pages(world: &World, address: u64, len: u64) -> Option<(Arc<Backing>, u64)> {
    // An allocation may begin behind the first of its pages.
    let (base, range) = world.space.ranges.range(..address + PAGE).next_back()?;
    let (backing, offset, inside) = match &range.what {
        What::Alloc(backing, offset) | What::Ipc(backing, offset, _) => {
            (backing, 0, address.checked_sub(base - offset)?)
        }
        What::Reserved(segments) => {
            let (at, segment) = segments.range(..=address.checked_sub(*base)?).next_back()?;
            let inside = address - base - at;
            if segment.len.checked_sub(inside)? < len {
                return None;
            }
            (&segment.backing, segment.offset, inside)
        }
        What::Pinned(_) => return None,
    };
    (backing.len.checked_sub(offset + inside)? >= len).then(|| (backing.clone(), offset + inside))
}

#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) -> Code {
    call("cuFlushGPUDirectRDMAWrites", Needs::Context, |world, device| {
        valid(target == 0 && matches!(scope, 100 | 200))?;
        supported(world.devices[device].settings.attribute(attribute::RDMA_FLUSH_OPTIONS) & 1 != 0)
    })
}

/// What an [`IpcHandle`] says.
struct Shared {
    process: u32,
    fd: c_int,
    inode: u64,
    offset: u64,
    len: u64,
}

impl Shared {
    fn emit(&self) -> IpcHandle {
        let mut bytes = [0; 64];
        let fields: [&[u8]; 6] = [
            MAGIC,
            &self.process.to_ne_bytes(),
            &self.fd.to_ne_bytes(),
            &self.inode.to_ne_bytes(),
            &self.offset.to_ne_bytes(),
            &self.len.to_ne_bytes(),
        ];
        let all = fields.concat();
        bytes[..all.len()].copy_from_slice(&all);
        IpcHandle { bytes }
    }

    fn parse(handle: &IpcHandle) -> Option<Shared> {
        let rest = handle.bytes.strip_prefix(MAGIC)?;
        let word = |at: usize| rest[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
        let half = |at: usize| rest[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
        Some(Shared { process: half(0)?, fd: half(4)? as c_int, inode: word(8)?, offset: word(16)?, len: word(24)? })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64) -> Code {
    call("cuIpcGetMemHandle", Needs::Context, |world, _| {
        let (_, range) = world.space.find(address).ok_or(code::INVALID_VALUE)?;
        let What::Alloc(backing, offset) = &range.what else { return Err(code::INVALID_VALUE) };
        let shared = Shared {
            process: std::process::id(),
            fd: backing.fd(),
            inode: backing.inode(),
            offset: *offset,
            len: range.len,
        };
        // SAFETY: the caller's.
        unsafe { put(handle, shared.emit()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: IpcHandle, flags: c_uint) -> Code {
    call("cuIpcOpenMemHandle_v2", Needs::Context, |world, device| {
        valid(!address.is_null() && flags == LAZY_PEER_ACCESS)?;
        let shared = Shared::parse(&handle).ok_or(code::INVALID_VALUE)?;
        if shared.process == std::process::id() {
            return Err(code::INVALID_CONTEXT);
        }
        let known = world.space.ranges.iter_mut().find_map(|(base, range)| match &mut range.what {
            What::Ipc(backing, offset, opened) if backing.inode() == shared.inode && *offset == shared.offset => {
                *opened += 1;
                Some(*base)
            }
            _ => None,
        });
        let base = match known {
            Some(base) => base,
            None => open(world, device, &shared)?,
        };
        // SAFETY: the caller's.
        unsafe { put(address, base) }
    })
}

fn open(world: &mut World, device: usize, shared: &Shared) -> Outcome<u64> {
    let process = format!("/proc/{}", shared.process);
    if !std::path::Path::new(&process).exists() {
        return Err(code::MAP_FAILED);
    }
    let file = File::options().read(true).write(true).open(format!("{process}/fd/{}", shared.fd));
    // Another file of this number is there once the memory was freed.
    let file = file.ok().filter(|file| backing::inode(file) == shared.inode).ok_or(code::INVALID_VALUE)?;
    let backing = Backing::of(file, device)?;
    let fits = shared.offset.checked_add(shared.len).is_some_and(|end| end <= backing.len);
    valid(fits)?;
    let block = world.space.arena.take(backing.len, 1)?;
    backing.map(block, backing.len, 0)?;
    let base = block + shared.offset;
    insert(world, device, base, shared.len, What::Ipc(Arc::new(backing), shared.offset, 1));
    Ok(base)
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(address: u64) -> Code {
    call("cuIpcCloseMemHandle", Needs::Ending, |world, device| {
        if let Some((base, range)) = world.space.find_mut(address)
            && let What::Ipc(_, _, opened) = &mut range.what
            && base == address
            && *opened > 1
        {
            *opened -= 1;
            return Ok(());
        }
        if let Some((base, range)) = world.space.find(address) {
            let len = range.len;
            warn_users(world, "cuIpcCloseMemHandle", device, base, len);
        }
        let range = remove(world, "cuIpcCloseMemHandle", device, address, "opening")?;
        unmap(address, &range);
        Ok(())
    })
}

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: u32 = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: c_uint = 1;
/// How a handle of the fake begins.
const MAGIC: &[u8] = b"fakecuda";
