//! Primary contexts, and which one is a thread's current one.

use std::ffi::{c_int, c_uint};

use super::{put, take, valid};
use crate::code::{self, Code, Outcome};
use crate::world::{CAPTURE_MODE, CONTEXTS, Needs, RELAXED, World, call};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) -> Code {
    call("cuDevicePrimaryCtxRetain", Needs::Device(device), |world, device| {
        let of = &mut world.devices[device].context;
        // SAFETY: the caller's.
        unsafe { put(context, of.handle)? };
        of.retained += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    call("cuDevicePrimaryCtxRelease_v2", Needs::Device(device), |world, device| {
        let retained = world.devices[device].context.retained;
        if retained == 0 {
            world.violation(device, "cuDevicePrimaryCtxRelease", "released once too often");
            return Err(code::INVALID_CONTEXT);
        }
        if retained == 1 {
            let marks = world.marks(device);
            // What is held is done never, or once somebody has the context again.
            let _ = world.run(marks);
            world.devices[device].context.error = None;
            world.devices[device].context.peers.clear();
        }
        world.devices[device].context.retained -= 1;
        Ok(())
    })
}

/// A context that can be made current.
fn alive(world: &World, context: u64) -> Outcome<usize> {
    let device = world.device_of(context).ok_or(code::INVALID_CONTEXT)?;
    if world.devices[device].context.retained == 0 { Err(code::INVALID_CONTEXT) } else { Ok(device) }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: u64) -> Code {
    call("cuCtxPushCurrent_v2", Needs::Init, |world, _| {
        alive(world, context)?;
        CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> Code {
    call("cuCtxPopCurrent_v2", Needs::Init, |_, _| {
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).filter(|context| *context != 0).ok_or(code::INVALID_CONTEXT)?;
        if !context.is_null() {
            // SAFETY: the caller's.
            unsafe { put(context, popped)? };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: u64) -> Code {
    call("cuCtxSetCurrent", Needs::Init, |world, _| {
        if context != 0 {
            alive(world, context)?;
        }
        CONTEXTS.with_borrow_mut(|contexts| {
            contexts.pop();
            if context != 0 {
                contexts.push(context);
            }
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut u64) -> Code {
    call("cuCtxGetCurrent", Needs::Init, |_, _| {
        let current = CONTEXTS.with_borrow(|contexts| contexts.last().copied()).unwrap_or(0);
        // SAFETY: the caller's.
        unsafe { put(context, current) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    call("cuCtxSynchronize", Needs::Context, |world, device| {
        let marks = world.marks(device);
        world.synchronize(device, marks)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Code {
    call("cuDeviceCanAccessPeer", Needs::Device(device), |world, device| {
        let peer = world.device(peer)?;
        let reaches = device != peer && world.reach(device, peer);
        // SAFETY: the caller's.
        unsafe { put(can, c_int::from(reaches)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: u64, flags: c_uint) -> Code {
    call("cuCtxEnablePeerAccess", Needs::Context, |world, device| {
        valid(flags == 0)?;
        let peer = alive(world, peer)?;
        if peer == device {
            return Err(code::INVALID_CONTEXT);
        }
        if !world.reach(device, peer) {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        let peers = &mut world.devices[device].context.peers;
        if peers.contains(&peer) {
            return Err(code::PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer);
        Ok(())
    })
}

/// It belongs to no device, and is not among the calls of one.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> Code {
    // SAFETY: the caller's.
    let exchanged = unsafe { take(mode) }.and_then(|new| {
        valid(new <= RELAXED)?;
        // SAFETY: as above.
        unsafe { put(mode, CAPTURE_MODE.replace(new)) }
    });
    exchanged.err().unwrap_or(code::SUCCESS)
}
