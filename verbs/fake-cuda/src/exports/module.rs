//! Modules, and kernels launched.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{put, take, valid};
use crate::code::{self, Code, Outcome};
use crate::kernel::{Function, Kernel, Launch, Module};
use crate::settings::attribute;
use crate::stream::Work;
use crate::world::{Needs, State, World, call};

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut u64, image: *const c_void) -> Code {
    call("cuModuleLoadData", Needs::Context, |world, device| {
        valid(!image.is_null() && !module.is_null())?;
        // SAFETY: an image is text with a zero at its end, or begins with a number of four bytes that has none.
        let first = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
        if first == *b"\x7fELF" || first == FAT_BINARY {
            return Err(code::INVALID_IMAGE);
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| code::INVALID_IMAGE)?;
        let capability = world.devices[device].settings.capability();
        let parsed = Module::parse(text, capability, world.driver_version)?;
        let handle = world.add(device, State::Module(parsed));
        // SAFETY: the caller's.
        unsafe { put(module, handle) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: u64) -> Code {
    call("cuModuleUnload", Needs::Ending, |world, _| {
        let functions = std::mem::take(&mut find(world, "cuModuleUnload", module)?.functions);
        for function in functions {
            world.remove(function);
        }
        world.remove(module);
        Ok(())
    })
}

fn find<'a>(world: &'a mut World, symbol: &str, module: u64) -> Outcome<&'a mut Module> {
    match &mut world.object(symbol, module)?.state {
        State::Module(module) => Ok(module),
        _ => Err(code::INVALID_HANDLE),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) -> Code {
    call("cuModuleGetFunction", Needs::Context, |world, _| {
        valid(!name.is_null() && !function.is_null())?;
        // SAFETY: the caller's C string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let device = world.object("cuModuleGetFunction", module)?.device;
        if !find(world, "cuModuleGetFunction", module)?.entries.contains(&name) {
            return Err(code::NOT_FOUND);
        }
        let handle = world.add(device, State::Function(Function { name }));
        find(world, "cuModuleGetFunction", module)?.functions.push(handle);
        // SAFETY: the caller's.
        unsafe { put(function, handle) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: u64,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    const SYMBOL: &str = "cuLaunchKernel";
    call(SYMBOL, Needs::Context, |world, device| {
        let stream = world.stream_handle(SYMBOL, device, stream)?;
        let owner = world.stream_device(stream);
        let object = world.object(SYMBOL, function)?;
        let State::Function(Function { name }) = &object.state else { return Err(code::INVALID_HANDLE) };
        let (name, of) = (name.clone(), object.device);
        if of != owner {
            return Err(code::INVALID_HANDLE);
        }
        limits(world, device, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared_bytes)?;
        valid(extra.is_null() && !params.is_null())?;
        let Some(kernel) = Kernel::named(&name) else {
            world.violation(device, SYMBOL, format_args!("the fake knows no kernel {name}"));
            return Err(code::NOT_SUPPORTED);
        };
        let fault = world.devices[owner].script.launch();
        // SAFETY: the caller's, as many as the kernel of this name takes.
        let launch = unsafe { arguments(kernel, params, fault) }?;
        world.enqueue(SYMBOL, stream, Vec::new(), Work::Launch(launch));
        Ok(())
    })
}

/// Whether a device can run as many blocks and threads.
fn limits(world: &World, device: usize, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Outcome<()> {
    let limit = |number| world.devices[device].settings.attribute(number) as u64;
    for at in 0..3 {
        let (blocks, threads) = (u64::from(grid[at]), u64::from(block[at]));
        valid(blocks > 0 && blocks <= limit(attribute::MAX_GRID_DIM_X + at as u32))?;
        valid(threads > 0 && threads <= limit(attribute::MAX_BLOCK_DIM_X + at as u32))?;
    }
    let threads = block.iter().map(|threads| u64::from(*threads)).product::<u64>();
    valid(threads <= limit(attribute::MAX_THREADS_PER_BLOCK))?;
    valid(u64::from(shared_bytes) <= limit(attribute::MAX_SHARED_MEMORY))
}

/// Reads what a kernel is given.
///
/// # Safety
/// As many pointers to arguments as it takes, of the types that it takes.
unsafe fn arguments(kernel: Kernel, params: *mut *mut c_void, fault: Option<Code>) -> Outcome<Launch> {
    let argument = |(at, &len): (usize, &usize)| {
        // SAFETY: as the caller says.
        unsafe {
            let from = take(params.add(at).cast_const())?;
            if len == 4 { take(from.cast::<u32>()).map(u64::from) } else { take(from.cast::<u64>()) }
        }
    };
    let arguments = kernel.arguments().iter().enumerate().map(argument).collect::<Outcome<Vec<u64>>>()?;
    Ok(Launch { kernel, arguments, fault })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: u64,
    block: c_int,
    _shared_bytes: usize,
) -> Code {
    const SYMBOL: &str = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    call(SYMBOL, Needs::Context, |world, device| {
        if !matches!(world.object(SYMBOL, function)?.state, State::Function(_)) {
            return Err(code::INVALID_HANDLE);
        }
        let settings = &world.devices[device].settings;
        valid(block > 0 && block <= settings.attribute(attribute::MAX_THREADS_PER_BLOCK))?;
        let threads = settings.attribute(attribute::MAX_THREADS_PER_MULTIPROCESSOR);
        // SAFETY: the caller's.
        unsafe { put(blocks, (threads / block).min(32)) }
    })
}

/// How what `nvcc` packs many binaries into begins.
const FAT_BINARY: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
