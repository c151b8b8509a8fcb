//! What a pointer points to.

use std::ffi::{c_int, c_uint, c_void};

use super::{put, take, valid};
use crate::abi::HANDLE_POSIX_FD;
use crate::backing::Piece;
use crate::code::{self, Code, Outcome};
use crate::settings::attribute as device_attribute;
use crate::space::What;
use crate::world::{Needs, World, call};

/// The value of an attribute, in the size that it has.
#[derive(Clone, Copy)]
enum Value {
    Word(u64),
    Half(u32),
}

impl Value {
    /// # Safety
    /// `to` is null, or the caller's to be written to.
    unsafe fn put(self, to: *mut c_void) -> Outcome<()> {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Value::Word(value) => put(to.cast(), value),
                Value::Half(value) => put(to.cast(), value),
            }
        }
    }

    /// What an attribute of a pointer that the driver does not know is.
    fn of_nothing(attribute: u32) -> Outcome<Value> {
        match attribute {
            number::DEVICE_ORDINAL => Ok(Value::Half(NO_DEVICE as u32)),
            number::MEMORY_TYPE
            | number::SYNC_MEMOPS
            | number::IS_MANAGED
            | number::IS_IPC_CAPABLE
            | number::MAPPED
            | number::IS_RDMA_CAPABLE
            | number::ACCESS_FLAGS => Ok(Value::Half(0)),
            number::CONTEXT..=number::POOL => Ok(Value::Word(0)),
            _ => Err(code::INVALID_VALUE),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: u64) -> Code {
    call("cuPointerGetAttribute", Needs::Of(address), |world, _| {
        let value = value(world, attribute, address)?;
        // SAFETY: the caller's.
        unsafe { value.put(data) }
    })
}

/// The one attribute that can be set, of memory that is not reserved.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerSetAttribute(value: *const c_void, attribute: u32, address: u64) -> Code {
    call("cuPointerSetAttribute", Needs::Of(address), |world, _| {
        valid(attribute == number::SYNC_MEMOPS && !value.is_null())?;
        // SAFETY: the caller's.
        let value = unsafe { take(value.cast::<u32>())? };
        valid(value <= 1)?;
        match world.space.find_mut(address) {
            Some((_, range)) if matches!(range.what, What::Alloc(..) | What::Ipc(..)) => range.synchronous = value == 1,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut u32,
    data: *mut *mut c_void,
    address: u64,
) -> Code {
    call("cuPointerGetAttributes", Needs::Of(address), |world, _| {
        valid(count > 0 && !attributes.is_null() && !data.is_null())?;
        for at in 0..count as usize {
            // SAFETY: the caller's, as many as it says.
            let (attribute, to) = unsafe { (take(attributes.add(at).cast_const())?, take(data.add(at).cast_const())?) };
            let value = value(world, attribute, address).or_else(|_| Value::of_nothing(attribute))?;
            // SAFETY: the caller's.
            unsafe { value.put(to)? };
        }
        Ok(())
    })
}

fn value(world: &World, attribute: u32, address: u64) -> Outcome<Value> {
    let (base, range) = world.space.find(address).ok_or(code::INVALID_VALUE)?;
    let settings = &world.devices[range.device].settings;
    let host = matches!(range.what, What::Pinned(_));
    let extent = super::memory::extent(world, address);
    let segment = match &range.what {
        What::Reserved(segments) => {
            segments.range(..=address - base).next_back().filter(|(at, segment)| address - base - *at < segment.len)
        }
        _ => None,
    };
    let physical = segment.and_then(|(_, segment)| match &world.objects.get(&segment.physical)?.state {
        crate::world::State::Physical(physical) => Some(physical),
        _ => None,
    });
    let reserved = matches!(range.what, What::Reserved(_));
    if reserved && segment.is_none() && attribute != number::MAPPED {
        return Err(code::INVALID_VALUE);
    }
    let flag = |holds: bool| Ok(Value::Half(u32::from(holds)));
    match attribute {
        number::CONTEXT if reserved => Ok(Value::Word(0)),
        number::CONTEXT => Ok(Value::Word(world.devices[range.device].context.handle)),
        number::MEMORY_TYPE => Ok(Value::Half(if host { MEMORY_HOST } else { MEMORY_DEVICE })),
        number::DEVICE_POINTER => Ok(Value::Word(address)),
        number::HOST_POINTER if host => Ok(Value::Word(address)),
        number::SYNC_MEMOPS => flag(range.synchronous),
        number::IS_MANAGED => flag(false),
        number::BUFFER_ID => Ok(Value::Word(match world.resolve(range.device, address, 1, false, false) {
            Ok(pieces) => match &pieces[..] {
                [Piece::Device(backing, ..)] => backing.inode(),
                _ => base,
            },
            Err(_) => base,
        })),
        number::DEVICE_ORDINAL => Ok(Value::Half(range.device as u32)),
        number::IS_IPC_CAPABLE => flag(matches!(range.what, What::Alloc(..))),
        number::RANGE_START => extent.map(|(start, _)| Value::Word(start)).ok_or(code::INVALID_VALUE),
        number::RANGE_SIZE => extent.map(|(_, len)| Value::Word(len)).ok_or(code::INVALID_VALUE),
        number::MAPPED => flag(!reserved || segment.is_some()),
        number::HANDLE_TYPES => {
            Ok(Value::Word(physical.map_or(0, |physical| u64::from(physical.handle_types & HANDLE_POSIX_FD))))
        }
        number::IS_RDMA_CAPABLE => {
            let able = physical.is_none_or(|physical| physical.rdma_capable != 0);
            flag(!host && able && settings.attribute(device_attribute::RDMA_SUPPORTED) != 0)
        }
        number::ACCESS_FLAGS => {
            let current = world.current().unwrap_or(range.device);
            let right = segment.map(|(_, segment)| segment.access.get(&current).copied().unwrap_or(0));
            Ok(Value::Half(right.unwrap_or(3)))
        }
        number::POOL => Ok(Value::Word(0)),
        _ => Err(code::INVALID_VALUE),
    }
}

/// Numbers of `CUpointer_attribute`.
mod number {
    pub(super) const CONTEXT: u32 = 1;
    pub(super) const MEMORY_TYPE: u32 = 2;
    pub(super) const DEVICE_POINTER: u32 = 3;
    pub(super) const HOST_POINTER: u32 = 4;
    pub(super) const SYNC_MEMOPS: u32 = 6;
    pub(super) const BUFFER_ID: u32 = 7;
    pub(super) const IS_MANAGED: u32 = 8;
    pub(super) const DEVICE_ORDINAL: u32 = 9;
    pub(super) const IS_IPC_CAPABLE: u32 = 10;
    pub(super) const RANGE_START: u32 = 11;
    pub(super) const RANGE_SIZE: u32 = 12;
    pub(super) const MAPPED: u32 = 13;
    pub(super) const HANDLE_TYPES: u32 = 14;
    pub(super) const IS_RDMA_CAPABLE: u32 = 15;
    pub(super) const ACCESS_FLAGS: u32 = 16;
    pub(super) const POOL: u32 = 17;
}

/// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`.
const MEMORY_HOST: u32 = 1;
const MEMORY_DEVICE: u32 = 2;
/// `CU_DEVICE_INVALID`.
const NO_DEVICE: c_int = -2;
