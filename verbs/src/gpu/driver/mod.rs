//! The calls of CUDA's driver that are used, each as a function that says what went wrong. The driver is loaded when it is
//! first asked for; a program that was built without the feature `cuda` has none.
//!
//! Names, values and structures are those of `cuda.h`. What the driver answers is a number: a newer one has answers that no
//! enumeration of today knows.

mod codes;
#[cfg(feature = "cuda")]
mod layouts;
#[cfg(feature = "cuda")]
mod loading;

use std::ffi::c_void;
#[cfg(feature = "cuda")]
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;

#[cfg(feature = "cuda")]
use layouts::{
    AccessDesc, AllocationProp, CURRENT_CONTEXT, DEVICE, DMA_BUF_FD, FILE_DESCRIPTOR, IpcHandle, LAZY_PEER_ACCESS,
    Location, MINIMUM, READ_WRITE, TO_ALL_DEVICES, TO_OWNER,
};

use crate::error::GpuError;
pub(super) use codes::*;

/// The driver of this process. Only one that was loaded, initialised and found complete has this value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver {
    #[cfg(not(feature = "cuda"))]
    none: std::convert::Infallible,
    #[cfg(feature = "cuda")]
    _loaded: (),
}

/// An address of a GPU's memory, or of the processor's.
pub(super) type Address = u64;

/// A handle of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(pub(super) *mut c_void);

// SAFETY: handles are names; the driver takes them from every thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Defines the calls. Their bodies name the driver's functions, which are not there without the feature; then nobody can make
/// them, since there is no driver.
macro_rules! calls {
    ($($(#[$doc:meta])* unsafe fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block)+) => {
        #[cfg(feature = "cuda")]
        impl Driver {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As `cuda.h` says of the call: handles are alive, ranges are those of memory that is allocated.
                pub(super) unsafe fn $name(self $(, $arg: $type)*) -> Result<$ret, GpuError> $body
            )+
        }

        #[cfg(not(feature = "cuda"))]
        #[allow(clippy::missing_safety_doc, reason = "nobody can call them")]
        impl Driver {
            $(
                $(#[$doc])*
                pub(super) unsafe fn $name(self $(, $arg: $type)*) -> Result<$ret, GpuError> {
                    $(let _ = $arg;)*
                    match self.none {}
                }
            )+
        }
    };
}

impl Driver {
    /// The driver, loaded now if it was not before.
    ///
    /// # Errors
    /// [`GpuError::NotBuilt`], [`GpuError::NoDriver`], [`GpuError::OldDriver`], or what initialising it says.
    pub(super) fn load() -> Result<Driver, GpuError> {
        #[cfg(feature = "cuda")]
        return loading::load();
        #[cfg(not(feature = "cuda"))]
        Err(GpuError::NotBuilt)
    }
}

/// What the driver answered to a call.
#[cfg(feature = "cuda")]
fn check(call: &'static str, code: i32) -> Result<(), GpuError> {
    if code == 0 {
        return Ok(());
    }
    let name = loading::error_name(code).unwrap_or_else(|| format!("error {code}"));
    Err(GpuError::Driver { call, code, name })
}

/// Makes a call.
#[cfg(feature = "cuda")]
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: as the function that makes the call says; what it writes to are places of that function's own.
        check(stringify!($name), unsafe { (loading::functions().$name)($($arg),*) })
    };
}

calls! {
    /// Number of GPUs.
    unsafe fn device_count() -> i32 {
        let mut count = 0;
        cu!(cuDeviceGetCount(&mut count))?;
        Ok(count)
    }

    /// The device of an ordinal.
    unsafe fn device(ordinal: i32) -> i32 {
        let mut device = 0;
        cu!(cuDeviceGet(&mut device, ordinal))?;
        Ok(device)
    }

    /// Its name.
    unsafe fn device_name(device: i32) -> String {
        let mut name = [0; 256];
        cu!(cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device))?;
        Ok(text(&name))
    }

    /// Its number among all there are.
    unsafe fn device_uuid(device: i32) -> [u8; 16] {
        let mut uuid = [0_u8; 16];
        cu!(cuDeviceGetUuid_v2(uuid.as_mut_ptr().cast(), device))?;
        Ok(uuid)
    }

    /// Its PCI address, as `0000:3b:00.0`.
    unsafe fn device_pci(device: i32) -> String {
        let mut name = [0; 32];
        cu!(cuDeviceGetPCIBusId(name.as_mut_ptr(), name.len() as i32, device))?;
        Ok(text(&name).to_ascii_lowercase())
    }

    /// Bytes of its memory.
    unsafe fn device_memory(device: i32) -> usize {
        let mut bytes = 0;
        cu!(cuDeviceTotalMem_v2(&mut bytes, device))?;
        Ok(bytes)
    }

    /// An attribute, by its number in `cuda.h`; 0 of those that the driver does not know.
    unsafe fn attribute(device: i32, attribute: u32) -> i32 {
        let mut value = 0;
        // What the driver does not know is not there.
        Ok(cu!(cuDeviceGetAttribute(&mut value, attribute, device)).map_or(0, |()| value))
    }

    /// Its primary context, kept until the process ends.
    unsafe fn retain_primary(device: i32) -> Handle {
        let mut context = std::ptr::null_mut();
        cu!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        Ok(Handle(context))
    }

    /// Has the current context, of device `of`, reach memory of another device's, if the two can.
    unsafe fn reach_context(of: i32, other: (i32, Handle)) -> () {
        let mut can = 0;
        cu!(cuDeviceCanAccessPeer(&mut can, of, other.0))?;
        if can == 0 {
            return check("cuDeviceCanAccessPeer", PEER_ACCESS_UNSUPPORTED);
        }
        cu!(cuCtxEnablePeerAccess(other.1.0, 0))
    }

    /// Makes a context this thread's.
    unsafe fn push(context: Handle) -> () {
        cu!(cuCtxPushCurrent_v2(context.0))
    }

    /// Gives the thread the context that it had before.
    unsafe fn pop() -> () {
        let mut context = std::ptr::null_mut();
        cu!(cuCtxPopCurrent_v2(&mut context))
    }

    /// Changes what a graph that is captured forbids this thread; what it was.
    unsafe fn exchange_capture_mode(mode: u32) -> u32 {
        let mut mode = mode;
        cu!(cuThreadExchangeStreamCaptureMode(&mut mode))?;
        Ok(mode)
    }

    /// Allocates memory of the current context.
    unsafe fn alloc(len: usize) -> Address {
        let mut address = 0;
        cu!(cuMemAlloc_v2(&mut address, len))?;
        Ok(address)
    }

    /// Frees it.
    unsafe fn free(address: Address) -> () {
        cu!(cuMemFree_v2(address))
    }

    /// Bytes that are free on the current device.
    unsafe fn free_memory() -> usize {
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok(free)
    }

    /// Pins memory of the processor, for all contexts and for kernels too.
    unsafe fn pin(address: *mut c_void, len: usize) -> () {
        // CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP
        cu!(cuMemHostRegister_v2(address, len, 1 | 2))
    }

    /// Unpins it.
    unsafe fn unpin(address: *mut c_void) -> () {
        cu!(cuMemHostUnregister(address))
    }

    /// Copies between any two addresses, in the order of the stream.
    unsafe fn copy(to: Address, from: Address, len: usize, stream: Handle) -> () {
        cu!(cuMemcpyAsync(to, from, len, stream.0))
    }

    /// Copies between memory of two devices, by their contexts, in the order of the stream.
    unsafe fn copy_between(to: (Address, Handle), from: (Address, Handle), len: usize, stream: Handle) -> () {
        cu!(cuMemcpyPeerAsync(to.0, to.1.0, from.0, from.1.0, len, stream.0))
    }

    /// Sets bytes, in the order of the stream.
    unsafe fn set(to: Address, value: u8, len: usize, stream: Handle) -> () {
        cu!(cuMemsetD8Async(to, value, len, stream.0))
    }

    /// A stream that does not wait for the default one, whose work comes before that of others where the device has not room for all.
    unsafe fn create_stream() -> Handle {
        let (mut stream, mut greatest) = (std::ptr::null_mut(), 0);
        cu!(cuCtxGetStreamPriorityRange(std::ptr::null_mut(), &mut greatest))?;
        // CU_STREAM_NON_BLOCKING
        cu!(cuStreamCreateWithPriority(&mut stream, 1, greatest))?;
        Ok(Handle(stream))
    }

    /// Waits until all of a stream is done.
    unsafe fn synchronize(stream: Handle) -> () {
        cu!(cuStreamSynchronize(stream.0))
    }

    /// Waits until all streams of the current context are done.
    unsafe fn synchronize_all() -> () {
        cu!(cuCtxSynchronize())
    }

    /// Has what a stream is given from now on wait until a word of 4 bytes is at least the value, cyclically; `flush` makes what
    /// NICs have written visible then.
    unsafe fn wait_for_word(stream: Handle, word: Address, value: u32, flush: bool) -> () {
        // CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_WAIT_VALUE_FLUSH
        cu!(cuStreamWaitValue32_v2(stream.0, word, value, u32::from(flush) << 30))
    }

    /// Memory of the processor that GPUs reach, zeroed by nobody.
    unsafe fn alloc_pinned(len: usize) -> *mut c_void {
        let mut at = std::ptr::null_mut();
        // CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP
        cu!(cuMemHostAlloc(&mut at, len, 1 | 2))?;
        Ok(at)
    }

    /// The address by which the current device reaches it.
    unsafe fn pinned_address(at: *mut c_void) -> Address {
        let mut address = 0;
        cu!(cuMemHostGetDevicePointer_v2(&mut address, at, 0))?;
        Ok(address)
    }

    /// An event that takes no times.
    unsafe fn create_event() -> Handle {
        let mut event = std::ptr::null_mut();
        // CU_EVENT_DISABLE_TIMING
        cu!(cuEventCreate(&mut event, 2))?;
        Ok(Handle(event))
    }

    /// Marks in an event where a stream is.
    unsafe fn record(event: Handle, stream: Handle) -> () {
        cu!(cuEventRecord(event.0, stream.0))
    }

    /// Whether what was marked is done; else [`NOT_READY`].
    unsafe fn query(event: Handle) -> () {
        cu!(cuEventQuery(event.0))
    }

    /// Waits until what was marked is done.
    unsafe fn wait(event: Handle) -> () {
        cu!(cuEventSynchronize(event.0))
    }

    /// Destroys an event.
    unsafe fn destroy_event(event: Handle) -> () {
        cu!(cuEventDestroy_v2(event.0))
    }

    /// Loads a module into the current context. The text ends with 0.
    unsafe fn load_module(text: *const c_void) -> Handle {
        let mut module = std::ptr::null_mut();
        cu!(cuModuleLoadData(&mut module, text))?;
        Ok(Handle(module))
    }

    /// A kernel of a module.
    unsafe fn function(module: Handle, name: &std::ffi::CStr) -> Handle {
        let mut function = std::ptr::null_mut();
        cu!(cuModuleGetFunction(&mut function, module.0, name.as_ptr()))?;
        Ok(Handle(function))
    }

    /// Starts a kernel on `grid` blocks of `block` threads, in the order of the stream.
    unsafe fn launch(function: Handle, grid: u32, block: u32, stream: Handle, args: *mut *mut c_void) -> () {
        let extra = std::ptr::null_mut();
        cu!(cuLaunchKernel(function.0, grid, 1, 1, block, 1, 1, 0, stream.0, args, extra))
    }

    /// An attribute of an address, by its number in `cuda.h`, whose value has the size of `u64` or less.
    unsafe fn pointer_attribute(attribute: u32, address: Address) -> u64 {
        let mut value = 0_u64;
        cu!(cuPointerGetAttribute((&raw mut value).cast(), attribute, address))?;
        Ok(value)
    }

    /// Sets an attribute of an address whose value is a number of 32 bits.
    unsafe fn set_pointer_attribute(attribute: u32, value: u32, address: Address) -> () {
        cu!(cuPointerSetAttribute((&raw const value).cast(), attribute, address))
    }

    /// A DMA-buf of whole pages.
    unsafe fn dmabuf(address: Address, len: usize) -> OwnedFd {
        let mut fd = -1_i32;
        cu!(cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, len, DMA_BUF_FD, 0))?;
        // SAFETY: the driver just made it, for the caller alone.
        unsafe { descriptor("cuMemGetHandleForAddressRange", fd) }
    }

    /// Makes what a NIC has written visible to the current device, or to all.
    unsafe fn flush(to_all: bool) -> () {
        cu!(cuFlushGPUDirectRDMAWrites(CURRENT_CONTEXT, if to_all { TO_ALL_DEVICES } else { TO_OWNER }))
    }

    /// The unit of virtual memory of a device.
    unsafe fn granularity(device: i32, gpu_direct_rdma: bool) -> usize {
        let prop = AllocationProp::of(device, gpu_direct_rdma);
        let mut bytes = 0;
        cu!(cuMemGetAllocationGranularity(&mut bytes, (&raw const prop).cast(), MINIMUM))?;
        let is_sound = (1..=crate::soft::MAX_REGION).contains(&bytes);
        let nonsense = || nonsense("cuMemGetAllocationGranularity", format!("a unit of {bytes} bytes"));
        is_sound.then_some(bytes).ok_or_else(nonsense)
    }

    /// Physical memory of a device, which can be passed to other processes.
    unsafe fn create(device: i32, gpu_direct_rdma: bool, len: usize) -> u64 {
        let prop = AllocationProp::of(device, gpu_direct_rdma);
        let mut handle = 0;
        cu!(cuMemCreate(&mut handle, len, (&raw const prop).cast(), 0))?;
        Ok(handle)
    }

    /// Lets go of it; what is mapped stays until it is unmapped.
    unsafe fn release(handle: u64) -> () {
        cu!(cuMemRelease(handle))
    }

    /// Addresses that nothing is mapped at.
    unsafe fn reserve(len: usize) -> Address {
        let mut address = 0;
        cu!(cuMemAddressReserve(&mut address, len, 0, 0, 0))?;
        Ok(address)
    }

    /// Gives them back.
    unsafe fn unreserve(address: Address, len: usize) -> () {
        cu!(cuMemAddressFree(address, len))
    }

    /// Maps physical memory.
    unsafe fn map(address: Address, len: usize, handle: u64) -> () {
        cu!(cuMemMap(address, len, 0, handle, 0))
    }

    /// Unmaps it.
    unsafe fn unmap(address: Address, len: usize) -> () {
        cu!(cuMemUnmap(address, len))
    }

    /// Lets a device read and write what is mapped.
    unsafe fn allow(address: Address, len: usize, device: i32) -> () {
        let access = AccessDesc { location: Location { kind: DEVICE, id: device }, flags: READ_WRITE };
        cu!(cuMemSetAccess(address, len, (&raw const access).cast(), 1))
    }

    /// A descriptor of physical memory for another process.
    unsafe fn export(handle: u64) -> OwnedFd {
        let mut fd = -1_i32;
        cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, FILE_DESCRIPTOR, 0))?;
        // SAFETY: as above.
        unsafe { descriptor("cuMemExportToShareableHandle", fd) }
    }

    /// Where the allocation begins that has an address, and its length.
    unsafe fn extent(address: Address) -> (Address, usize) {
        let (mut base, mut len) = (0, 0);
        cu!(cuMemGetAddressRange_v2(&mut base, &mut len, address))?;
        if address.checked_sub(base).is_none_or(|inside| inside >= len as u64) {
            let what = format!("{len} bytes from {base:#x} on for what is at {address:#x}");
            return Err(nonsense("cuMemGetAddressRange", what));
        }
        Ok((base, len))
    }

    /// A handle of an allocation of `cuMemAlloc` for another process.
    unsafe fn ipc_handle(base: Address) -> [u8; 64] {
        let mut handle = IpcHandle { bytes: [0; 64] };
        cu!(cuIpcGetMemHandle(&mut handle, base))?;
        Ok(handle.bytes)
    }

    /// Opens what another process's handle stands for; as often as that, it is closed.
    unsafe fn ipc_open(handle: [u8; 64]) -> Address {
        let mut base = 0;
        cu!(cuIpcOpenMemHandle_v2(&mut base, IpcHandle { bytes: handle }, LAZY_PEER_ACCESS))?;
        Ok(base)
    }

    /// Closes it.
    unsafe fn ipc_close(base: Address) -> () {
        cu!(cuIpcCloseMemHandle(base))
    }

    /// The physical memory of a descriptor.
    unsafe fn import(fd: i32) -> u64 {
        let mut handle = 0;
        let fd = std::ptr::without_provenance_mut(fd as usize);
        cu!(cuMemImportFromShareableHandle(&mut handle, fd, FILE_DESCRIPTOR))?;
        Ok(handle)
    }
}

/// A descriptor that the driver made.
///
/// # Safety
/// Nobody else has it.
#[cfg(feature = "cuda")]
unsafe fn descriptor(call: &'static str, fd: i32) -> Result<OwnedFd, GpuError> {
    if fd < 0 {
        return Err(nonsense(call, format!("descriptor {fd}")));
    }
    // SAFETY: by contract.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(feature = "cuda")]
fn nonsense(call: &'static str, what: String) -> GpuError {
    GpuError::Nonsense { call, what }
}

/// A text that ends with 0.
#[cfg(feature = "cuda")]
fn text(bytes: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use super::*;
    use crate::Gpu;

    #[test]
    fn a_program_without_it_says_how_to_build_one_with_it() {
        assert_eq!(Gpu::count(), Err(GpuError::NotBuilt));
        let error = Gpu::open(0).unwrap_err();
        assert!(error.to_string().contains("build it with the feature `cuda`"), "{error}");
    }
}
