//! Copies and fills. Each looks up by its addresses what is the host's and what a device's.

use std::ffi::{c_uchar, c_void};

use super::valid;
use crate::backing::{self, Piece};
use crate::code::{self, Code, Outcome};
use crate::stream::{Source, Work};
use crate::world::{Locked, Needs, World, call};

/// A copy: which sides have to be a device's, and whether it is waited for.
struct Copy {
    symbol: &'static str,
    to_device: bool,
    from_device: bool,
    wait: bool,
    /// The devices by whose rights it writes and reads, where those are not the stream's.
    between: Option<[usize; 2]>,
}

impl Copy {
    const fn of(symbol: &'static str, to_device: bool, from_device: bool, wait: bool) -> Copy {
        Copy { symbol, to_device, from_device, wait, between: None }
    }

    fn call(self, to: u64, from: u64, len: usize, stream: u64) -> Code {
        call(self.symbol, Needs::Context, |world, device| {
            if len == 0 {
                return Ok(());
            }
            let stream = world.stream_handle(self.symbol, device, stream)?;
            let owner = world.stream_device(stream);
            let [into, out_of] = self.between.unwrap_or([owner; 2]);
            let sides = [(into, to, true, self.to_device), (out_of, from, false, self.from_device)];
            for (device, address, write, on_device) in sides {
                check(world, self.symbol, device, address, len as u64, write)?;
                if on_device && !world.space.is_device(address) {
                    let what = format!("{address:#x} is not memory of a device");
                    world.violation(owner, self.symbol, what);
                    return Err(code::INVALID_VALUE);
                }
            }
            let from = if world.space.is_device(from) {
                Source::At(from)
            } else {
                let bytes = backing::gather(&[Piece::Host(from, len)]);
                Source::Staged(bytes.map_err(|_| code::INVALID_VALUE)?)
            };
            let pageable = !world.space.is_device(to) && world.devices[owner].settings.get("pageable_waits") != 0;
            let work = Work::Copy { to, from, len: len as u64, between: self.between };
            give(world, self.symbol, stream, work, self.wait || pageable)
        })
    }
}

/// Whether there is memory that the device may access so.
fn check(world: &mut World, symbol: &str, device: usize, address: u64, len: u64, write: bool) -> Outcome<()> {
    let found = world.resolve(device, address, len, write, false);
    found.map(drop).map_err(|(_, what)| {
        world.violation(device, symbol, what);
        code::INVALID_VALUE
    })
}

/// Gives a stream something to do, and waits for it if that is asked for.
fn give(world: &mut Locked, symbol: &'static str, stream: u64, work: Work, wait: bool) -> Outcome<()> {
    world.enqueue(symbol, stream, Vec::new(), work);
    if !wait {
        return Ok(());
    }
    let (device, mark) = (world.stream_device(stream), world.mark(stream));
    world.synchronize(device, vec![mark])
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy(to: u64, from: u64, len: usize) -> Code {
    Copy::of("cuMemcpy", false, false, true).call(to, from, len, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: u64) -> Code {
    Copy::of("cuMemcpyAsync", false, false, false).call(to, from, len, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) -> Code {
    Copy::of("cuMemcpyHtoD_v2", true, false, true).call(to, address(from), len, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) -> Code {
    Copy::of("cuMemcpyDtoH_v2", false, true, true).call(address(to), from, len, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) -> Code {
    Copy::of("cuMemcpyDtoD_v2", true, true, true).call(to, from, len, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: u64) -> Code {
    Copy::of("cuMemcpyHtoDAsync_v2", true, false, false).call(to, address(from), len, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: u64) -> Code {
    Copy::of("cuMemcpyDtoHAsync_v2", false, true, false).call(address(to), from, len, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> Code {
    Copy::of("cuMemcpyDtoDAsync_v2", true, true, false).call(to, from, len, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: u64,
    from: u64,
    from_context: u64,
    len: usize,
    stream: u64,
) -> Code {
    let device = |context| crate::world::world().device_of(context);
    let (Some(into), Some(out_of)) = (device(to_context), device(from_context)) else { return code::INVALID_CONTEXT };
    let between = Some([into, out_of]);
    Copy { between, ..Copy::of("cuMemcpyPeerAsync", true, true, false) }.call(to, from, len, stream)
}

fn set(symbol: &'static str, to: u64, value: u8, len: usize, stream: u64, wait: bool) -> Code {
    call(symbol, Needs::Context, |world, device| {
        if len == 0 {
            return Ok(());
        }
        let stream = world.stream_handle(symbol, device, stream)?;
        let owner = world.stream_device(stream);
        valid(world.space.is_device(to))?;
        check(world, symbol, owner, to, len as u64, true)?;
        give(world, symbol, stream, Work::Set { to, value, len: len as u64 }, wait)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: u64, value: c_uchar, len: usize) -> Code {
    set("cuMemsetD8_v2", to, value, len, 0, true)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, len: usize, stream: u64) -> Code {
    set("cuMemsetD8Async", to, value, len, stream, false)
}
