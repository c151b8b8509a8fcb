//! The committed PTX on the first GPU of this machine: `QPAIR_TEST_GPU=sm_90` (or `sm_60`) before the tests.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::Mutex;

use libloading::{Library, Symbol};

use crate::ptx::{alone, read, text};
use crate::run::{Arguments, Grid, Run, Vector};

pub struct Gpu {
    cuda: Library,
    vectors: String,
    words: String,
    /// The kernels that were asked for so far, by name. One test at a time has it.
    loaded: Mutex<HashMap<String, Function>>,
}

type Handle = *mut c_void;

/// A kernel in its context.
#[derive(Clone, Copy)]
struct Function {
    context: Handle,
    function: Handle,
}

// SAFETY: the driver's handles are for any thread of the process.
unsafe impl Send for Function {}

type Address = u64;

/// Calls a function of the driver by its name, with these types of arguments, and asserts that it succeeds.
macro_rules! call {
    ($gpu:expr, $name:literal, $($argument:expr => $of:ty),*) => {{
        let function: Symbol<'_, unsafe extern "C" fn($($of),*) -> c_int> = $gpu.cuda.get($name.as_bytes()).unwrap();
        assert_eq!(function($($argument),*), 0, "{}", $name);
    }};
}

impl Gpu {
    pub fn open(target: String) -> Self {
        let open = || -> Result<Library, libloading::Error> {
            // SAFETY: the driver's library, which may be loaded at any time.
            unsafe { Library::new("libcuda.so.1") }
        };
        let cuda = open().expect("QPAIR_TEST_GPU asks for NVIDIA's driver: unset it for tests on the host");
        let (vectors, words) = (read(&target), text("atomic", "sm_60"));
        let gpu = Self { cuda, vectors, words, loaded: Mutex::default() };
        // SAFETY: signature of CUDA's driver interface.
        unsafe { call!(gpu, "cuInit", 0 => c_uint) };
        gpu
    }

    /// The kernel, compiled for the GPU; it stays as long as the process.
    fn load(&self, name: &str, text: &str) -> Function {
        let (mut context, mut module, mut function): (Handle, Handle, Handle) = (null_mut(), null_mut(), null_mut());
        let (ptx, symbol) = (CString::new(alone(text, name)).unwrap(), CString::new(name).unwrap());
        // SAFETY: signatures of CUDA's driver interface; both texts end with a zero and live during the calls.
        unsafe {
            call!(self, "cuDevicePrimaryCtxRetain", from_mut(&mut context) => *mut Handle, 0 => c_int);
            call!(self, "cuCtxSetCurrent", context => Handle);
            call!(self, "cuModuleLoadData", from_mut(&mut module) => *mut Handle, ptx.as_ptr().cast() => *const c_void);
            call!(self, "cuModuleGetFunction",
                from_mut(&mut function) => *mut Handle, module => Handle, symbol.as_ptr().cast() => *const c_void);
        }
        Function { context, function }
    }

    /// A copy of a vector's memory, and where in it the vector begins.
    ///
    /// # Safety
    /// A context is current.
    unsafe fn copy(&self, vector: &Vector) -> (Address, Address) {
        let (mut memory, bytes) = (0, vector.memory());
        // SAFETY: signatures of CUDA's driver interface; the context is the caller's to keep.
        unsafe {
            call!(self, "cuMemAlloc_v2", from_mut(&mut memory) => *mut Address, bytes.len() => usize);
            call!(self, "cuMemcpyHtoD_v2", memory => Address, bytes.as_ptr() => *const u8, bytes.len() => usize);
        }
        (memory, memory + vector.shift() as Address)
    }
}

impl Run for Gpu {
    fn run(&self, name: &str, into: &mut Vector, count: u64, arguments: Arguments<'_>, (blocks, threads): Grid) {
        let mut loaded = self.loaded.lock().unwrap();
        let found = loaded.entry(name.to_owned()).or_insert_with(|| self.load(name, &self.vectors));
        let Function { context, function } = *found;
        // SAFETY: signatures of CUDA's driver interface. The kernel takes these arguments (kernels/combine.cu), each of which
        // lives until the launch, and has `count` elements in each vector, which is freed after the kernel has ended.
        unsafe {
            call!(self, "cuCtxSetCurrent", context => Handle);
            let (memory, at) = self.copy(into);
            let mut memories = vec![memory];
            let mut copied = |vector: &Vector| {
                let (memory, at) = self.copy(vector);
                memories.push(memory);
                at
            };
            // Eight bytes each, of which a kernel reads as many as its parameter has.
            let words: Vec<u64> = match arguments {
                Arguments::Combine(a, b) => vec![at, a.map_or(at, &mut copied), copied(b), count],
                Arguments::Divide(divisor) => vec![at, count, divisor.into()],
                Arguments::Multiply(factor) => vec![at, count, factor.to_bits()],
                Arguments::MultiplyWhole(factor) => vec![at, count, factor as u64],
            };
            let mut parameters: Vec<*const u64> = words.iter().map(from_ref).collect();
            call!(self, "cuLaunchKernel", function => Handle, blocks => c_uint, 1 => c_uint, 1 => c_uint,
                threads => c_uint, 1 => c_uint, 1 => c_uint, 0 => c_uint, null_mut() => Handle,
                parameters.as_mut_ptr() => *mut *const u64, null_mut() => Handle);
            call!(self, "cuCtxSynchronize",);
            let bytes = into.memory_mut();
            call!(self, "cuMemcpyDtoH_v2", bytes.as_mut_ptr() => *mut u8, memory => Address, bytes.len() => usize);
            for memory in memories {
                call!(self, "cuMemFree_v2", memory => Address);
            }
        }
    }

    fn change(&self, name: &str, word: &mut u64, operands: &[u64]) -> u64 {
        let mut loaded = self.loaded.lock().unwrap();
        let found = loaded.entry(name.to_owned()).or_insert_with(|| self.load(name, &self.words));
        let Function { context, function } = *found;
        let mut words = [*word, 0];
        // SAFETY: signatures of CUDA's driver interface. The kernel takes these arguments (kernels/atomic.cu), each of which lives
        // until the launch; the two words are freed after it has ended.
        unsafe {
            let mut memory: Address = 0;
            call!(self, "cuCtxSetCurrent", context => Handle);
            call!(self, "cuMemAlloc_v2", from_mut(&mut memory) => *mut Address, size_of_val(&words) => usize);
            call!(self, "cuMemcpyHtoD_v2",
                memory => Address, words.as_ptr().cast() => *const u8, size_of_val(&words) => usize);
            let arguments: Vec<u64> = [&[memory], operands, &[memory + 8]].concat();
            let mut parameters: Vec<*const u64> = arguments.iter().map(from_ref).collect();
            call!(self, "cuLaunchKernel", function => Handle, 1 => c_uint, 1 => c_uint, 1 => c_uint,
                1 => c_uint, 1 => c_uint, 1 => c_uint, 0 => c_uint, null_mut() => Handle,
                parameters.as_mut_ptr() => *mut *const u64, null_mut() => Handle);
            call!(self, "cuCtxSynchronize",);
            call!(self, "cuMemcpyDtoH_v2",
                words.as_mut_ptr().cast() => *mut u8, memory => Address, size_of_val(&words) => usize);
            call!(self, "cuMemFree_v2", memory => Address);
        }
        *word = words[0];
        words[1]
    }
}
