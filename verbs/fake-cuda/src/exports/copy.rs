//! Copies and fills. Each looks up by its addresses what is the host's and what a device's.

use std::ffi::{c_uchar, c_void};

use super::valid;
use crate::backing::{self, Piece};
use crate::code::{self, Code, Outcome};
use crate::stream::{Source, Work};
use crate::world::{Needs, World, call};

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
            world.enqueue(self.symbol, stream, Vec::new(), work);
            if !self.wait && !pageable {
                return Ok(());
            }
            let mark = world.mark(stream);
            world.synchronize(owner, vec![mark])
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

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, len: usize, stream: u64) -> Code {
    const SYMBOL: &str = "cuMemsetD8Async";
    call(SYMBOL, Needs::Context, |world, device| {
        if len == 0 {
            return Ok(());
        }
        let stream = world.stream_handle(SYMBOL, device, stream)?;
        let owner = world.stream_device(stream);
        valid(world.space.is_device(to))?;
        check(world, SYMBOL, owner, to, len as u64, true)?;
        world.enqueue(SYMBOL, stream, Vec::new(), Work::Set { to, value, len: len as u64 });
        Ok(())
    })
}
