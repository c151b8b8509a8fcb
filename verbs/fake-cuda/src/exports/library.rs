//! The library, its devices, and the names of errors.

use std::ffi::{c_char, c_int, c_uint};

use super::{put, valid};
use crate::code::{self, Code, Outcome};
use crate::world::{Needs, SCRIPT, call, world};

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> Code {
    let failure = SCRIPT.with_borrow_mut(|script| script.call("cuInit"));
    let mut world = world();
    let result = failure.and_then(|()| valid(flags == 0)).and_then(|()| {
        if world.devices.is_empty() {
            return Err(code::NO_DEVICE);
        }
        // What a fork inherits is of no use to it.
        match world.initialised {
            Some(process) if process != std::process::id() => Err(code::NOT_INITIALIZED),
            _ => {
                world.initialised = Some(std::process::id());
                Ok(())
            }
        }
    });
    result.err().unwrap_or(code::SUCCESS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    let failure = SCRIPT.with_borrow_mut(|script| script.call("cuDriverGetVersion"));
    let number = world().driver_version as c_int;
    // SAFETY: the caller's.
    failure.and_then(|()| unsafe { put(version, number) }).err().unwrap_or(code::SUCCESS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    // SAFETY: the caller's.
    call("cuDeviceGetCount", Needs::Init, |world, _| unsafe { put(count, world.devices.len() as c_int) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    // SAFETY: the caller's.
    call("cuDeviceGet", Needs::Device(ordinal), |_, _| unsafe { put(device, ordinal) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Code {
    // SAFETY: the caller's.
    call("cuDeviceGetName", Needs::Device(device), |_, device| unsafe {
        text(name, len, &format!("Fake CUDA device {device}"))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) -> Code {
    // SAFETY: the caller's.
    call("cuDeviceGetPCIBusId", Needs::Device(device), |world, device| unsafe {
        text(id, len, &world.devices[device].bus_id())
    })
}

/// Writes as much of a text as there is room for, and a zero.
///
/// # Safety
/// `to` is null, or has room for as many bytes.
unsafe fn text(to: *mut c_char, room: c_int, text: &str) -> Outcome<()> {
    valid(!to.is_null() && room > 0)?;
    let len = text.len().min(room as usize - 1);
    // SAFETY: as the caller says.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len);
        *to.add(len) = 0;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> Code {
    call("cuDeviceGetUuid_v2", Needs::Device(device), |world, device| {
        // SAFETY: the caller's.
        unsafe { put(uuid, world.devices[device].uuid()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> Code {
    call("cuDeviceTotalMem_v2", Needs::Device(device), |world, device| {
        let memory = world.devices[device].settings.get("memory");
        // SAFETY: the caller's.
        unsafe { put(bytes, memory as usize) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: u32, device: c_int) -> Code {
    call("cuDeviceGetAttribute", Needs::Device(device), |world, device| {
        let found = world.devices[device].settings.find_attribute(attribute);
        // Those up to the last one known, without a value, are 0.
        let found = found.or((1..=LAST_ATTRIBUTE).contains(&attribute).then_some(0));
        // SAFETY: the caller's.
        unsafe { put(value, found.ok_or(code::INVALID_VALUE)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: Code, text: *mut *const c_char) -> Code {
    let name = code::name(error);
    // SAFETY: the caller's.
    let put = unsafe { put(text, name.map_or(std::ptr::null(), |name| name.as_ptr())) };
    put.and(valid(name.is_some())).err().unwrap_or(code::SUCCESS)
}

/// The last `CUdevice_attribute` of the driver that this is like.
const LAST_ATTRIBUTE: u32 = 145;
