//! The functions of the loaded library, a device of its own for each test, and other processes.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;

use qpair_fake_cuda::abi::{AccessDesc, AllocationProp, IpcHandle, LOCATION_DEVICE, Location};
use qpair_fake_cuda::code::{Code, SUCCESS};
use qpair_fake_cuda::control::{self, Device};

macro_rules! driver {
    ($($name:ident($($argument:ident: $kind:ty),*);)+) => {
        $(
            #[allow(clippy::too_many_arguments, reason = "as many as C has")]
            pub fn $name($($argument: $kind),*) -> Code {
                let library = control::load().expect("the library is built beside the tests");
                // SAFETY: the type is that of the function, and the tests give it what it takes.
                unsafe {
                    let function = library.get(concat!(stringify!($name), "\0").as_bytes()).expect("it is exported");
                    let function: libloading::Symbol<'_, unsafe extern "C" fn($($kind),*) -> Code> = function;
                    function($($argument),*)
                }
            }
        )+
    };
}

driver! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: u32, device: c_int);
    cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxPushCurrent_v2(context: u64);
    cuCtxPopCurrent_v2(context: *mut u64);
    cuCtxSetCurrent(context: u64);
    cuCtxGetCurrent(context: *mut u64);
    cuCtxSynchronize();
    cuCtxEnablePeerAccess(context: u64, flags: u32);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut u64, len: usize);
    cuMemFree_v2(address: u64);
    cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64);
    cuMemHostAlloc(address: *mut *mut c_void, len: usize, flags: u32);
    cuMemFreeHost(address: *mut c_void);
    cuMemHostRegister_v2(address: *mut c_void, len: usize, flags: u32);
    cuMemHostUnregister(address: *mut c_void);
    cuMemHostGetDevicePointer_v2(to: *mut u64, address: *mut c_void, flags: u32);
    cuMemcpy(to: u64, from: u64, len: usize);
    cuMemcpyAsync(to: u64, from: u64, len: usize, stream: u64);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: u64);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: u64);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64);
    cuMemcpyPeerAsync(to: u64, to_context: u64, from: u64, from_context: u64, len: usize, stream: u64);
    cuMemsetD8Async(to: u64, value: u8, len: usize, stream: u64);
    cuStreamCreate(stream: *mut u64, flags: u32);
    cuStreamDestroy_v2(stream: u64);
    cuStreamSynchronize(stream: u64);
    cuStreamQuery(stream: u64);
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
    cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32);
    cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32);
    cuEventCreate(event: *mut u64, flags: u32);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
    cuEventDestroy_v2(event: u64);
    cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64);
    cuModuleLoadData(module: *mut u64, image: *const c_void);
    cuModuleUnload(module: u64);
    cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char);
    cuLaunchKernel(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32,
        shared: u32, stream: u64, params: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: u64, block: c_int, shared: usize);
    cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: u64);
    cuPointerSetAttribute(value: *const c_void, attribute: u32, address: u64);
    cuPointerGetAttributes(count: u32, attributes: *mut u32, data: *mut *mut c_void, address: u64);
    cuMemGetHandleForAddressRange(handle: *mut c_void, address: u64, len: usize, kind: u32, flags: u64);
    cuFlushGPUDirectRDMAWrites(target: u32, scope: u32);
    cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64);
    cuIpcOpenMemHandle_v2(address: *mut u64, handle: IpcHandle, flags: u32);
    cuIpcCloseMemHandle(address: u64);
    cuMemCreate(handle: *mut u64, size: usize, prop: *const AllocationProp, flags: u64);
    cuMemRelease(handle: u64);
    cuMemAddressReserve(address: *mut u64, size: usize, alignment: usize, hint: u64, flags: u64);
    cuMemAddressFree(address: u64, size: usize);
    cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(address: u64, size: usize);
    cuMemSetAccess(address: u64, size: usize, descs: *const AccessDesc, count: usize);
    cuMemExportToShareableHandle(to: *mut c_void, handle: u64, kind: u32, flags: u64);
    cuMemImportFromShareableHandle(handle: *mut u64, from: *mut c_void, kind: u32);
    cuMemGetAllocationGranularity(size: *mut usize, prop: *const AllocationProp, option: u32);
    cuMemGetAllocationPropertiesFromHandle(prop: *mut AllocationProp, handle: u64);
    cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void);
    cuGetErrorName(code: Code, text: *mut *const c_char);
}

/// Asserts that a call went well.
#[track_caller]
pub fn ok(code: Code) {
    assert_eq!(code, SUCCESS);
}

/// What a call that writes one value gives.
#[track_caller]
pub fn get<T: Default>(call: impl FnOnce(*mut T) -> Code) -> T {
    let mut value = T::default();
    ok(call(&mut value));
    value
}

/// A device of its own, whose primary context is the thread's current one.
pub struct Ground {
    pub device: Device,
    pub context: u64,
}

impl Ground {
    pub fn new() -> Ground {
        Ground::on(control::add_device().expect("the library is there"))
    }

    /// One of a device that there is.
    pub fn on(device: Device) -> Ground {
        ok(cuInit(0));
        let context = get(|to| cuDevicePrimaryCtxRetain(to, device.ordinal()));
        ok(cuCtxSetCurrent(context));
        Ground { device, context }
    }

    pub fn ordinal(&self) -> i32 {
        self.device.ordinal()
    }

    /// Does something while its context is the thread's current one, whatever that is otherwise.
    pub fn within<R>(&self, act: impl FnOnce() -> R) -> R {
        ok(cuCtxPushCurrent_v2(self.context));
        let result = act();
        ok(cuCtxPopCurrent_v2(&mut 0));
        result
    }

    /// Gives the context back, and asserts that nothing is left or was done wrong.
    #[track_caller]
    pub fn end(self) {
        ok(cuCtxSetCurrent(0));
        ok(cuDevicePrimaryCtxRelease_v2(self.ordinal()));
        self.device.assert_clean();
    }

    /// The same where something was done wrong, which has these words.
    #[track_caller]
    pub fn end_with(self, words: &[&str]) {
        ok(cuCtxSetCurrent(0));
        ok(cuDevicePrimaryCtxRelease_v2(self.ordinal()));
        assert_eq!(self.device.live(), "");
        let violations = self.device.violations();
        for word in words {
            assert!(violations.contains(word), "no {word:?} in:\n{violations}");
        }
    }
}

pub fn alloc(len: usize) -> u64 {
    get(|to| cuMemAlloc_v2(to, len))
}

pub fn stream() -> u64 {
    get(|to| cuStreamCreate(to, NON_BLOCKING))
}

/// Gives a device memory bytes of the host, and waits.
#[track_caller]
pub fn put(to: u64, bytes: &[u8]) {
    ok(cuMemcpy(to, bytes.as_ptr().expose_provenance() as u64, bytes.len()));
}

/// The bytes of device memory, waited for.
#[track_caller]
pub fn bytes(from: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ok(cuMemcpy(bytes.as_mut_ptr().expose_provenance() as u64, from, len));
    bytes
}

/// A module of PTX.
pub fn load(text: &str) -> (Code, u64) {
    let (text, mut module) = (CString::new(text).expect("no zero"), 0);
    (cuModuleLoadData(&mut module, text.as_ptr().cast()), module)
}

pub fn function(module: u64, name: &str) -> u64 {
    let name = CString::new(name).expect("no zero");
    get(|to| cuModuleGetFunction(to, module, name.as_ptr()))
}

/// Launches a kernel with words as arguments.
pub fn launch(function: u64, stream: u64, words: &[u64]) -> Code {
    let mut words = words.to_vec();
    let mut params: Vec<*mut c_void> = words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
    cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, params.as_mut_ptr(), nothing())
}

pub fn access(device: i32, flags: u32) -> AccessDesc {
    AccessDesc { location: Location { kind: LOCATION_DEVICE, id: device }, flags }
}

/// The rights that the kernel has for an address, as `---s`.
pub fn rights(address: u64) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is there");
    let line = maps.lines().find(|line| {
        let (range, _) = line.split_once(' ').expect("a range, and more");
        let (start, end) = range.split_once('-').expect("two addresses");
        let hex = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
        (hex(start)..hex(end)).contains(&address)
    });
    line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or("").to_owned()
}

/// What another process is to do instead, if the test of this name is in one: what it was given.
pub fn given() -> Option<String> {
    std::env::var(GIVEN).ok()
}

/// Runs a test in a process of its own, with something to do.
pub fn elsewhere(test: &str, what: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads", "1"]);
    command.env(GIVEN, what).env("FAKE_CUDA_DEVICES", "64");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("this program starts")
}

/// Takes a process's lines until one has a word, and gives what stands behind it.
pub fn told(child: &mut Child, word: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    let line = lines.find_map(|line| line.split_once(word).map(|(_, rest)| rest.to_owned()));
    line.expect("it tells").trim().to_owned()
}

/// Asserts that it went well there.
#[track_caller]
pub fn went_well(child: Child) {
    let output = child.wait_with_output().expect("it ends");
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}", output.status);
}

pub fn nothing() -> *mut *mut c_void {
    null_mut()
}

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;
const GIVEN: &str = "FAKE_CUDA_TEST_GIVEN";
