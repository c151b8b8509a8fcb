//! The kernels, compiled by the host's C++ compiler into a library.

use std::ffi::c_void;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use libloading::{Library, Symbol};
use qpair_verbs::calc::{Calc, DataType, Scale};

/// Its blocks and the threads of each.
pub type Grid = (u32, u32);

/// The kernels; `None`, and a line that says why, where there is no compiler.
pub fn kernels() -> Option<&'static Kernels> {
    static KERNELS: OnceLock<Option<Kernels>> = OnceLock::new();
    let kernels = KERNELS.get_or_init(compile).as_ref();
    if kernels.is_none() {
        println!("SKIPPED: no C++ compiler `c++`; install one, for example with: apt install g++");
    }
    kernels
}

fn compile() -> Option<Kernels> {
    let folder = tempfile::Builder::new().prefix("qpair-kernels-").tempdir().unwrap();
    let (source, library) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/host.cpp"), folder.path().join("kernels.so"));
    let mut command = Command::new("c++");
    command.args(["-std=c++11", "-O0", "-shared", "-fPIC"]);
    // As the device's compiler: each operation rounded by itself; memory has no one type.
    command.args(["-ffp-contract=off", "-fno-strict-aliasing", "-o"]).arg(&library).arg(source);
    let out = match command.output() {
        Ok(out) => out,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{command:?}: {error}"),
    };
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    // SAFETY: the library has no initialisers of its own. Once it is loaded, its file is no longer needed.
    Some(Kernels(unsafe { Library::new(&library) }.unwrap()))
}

/// Memory of a vector that kernels get: a whole number of elements, `shift` bytes from a multiple of 16.
pub struct Vector {
    memory: Vec<u128>,
    shift: usize,
    len: usize,
}

impl Vector {
    pub fn new(bytes: &[u8], shift: usize) -> Self {
        let mut vector = Self { memory: vec![GUARD; (shift + bytes.len()).div_ceil(16) + 1], shift, len: bytes.len() };
        vector.bytes_mut()[shift..shift + bytes.len()].copy_from_slice(bytes);
        vector
    }

    /// Its bytes, if those around it are as they were.
    pub fn checked(&self) -> &[u8] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.memory);
        let (before, rest) = bytes.split_at(self.shift);
        let (vector, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&byte| byte == GUARD as u8), "a kernel wrote beyond its vector");
        vector
    }

    fn at(&self) -> *const c_void {
        bytemuck::cast_slice::<u128, u8>(&self.memory)[self.shift..].as_ptr().cast()
    }

    fn at_mut(&mut self) -> *mut c_void {
        let shift = self.shift;
        self.bytes_mut()[shift..].as_mut_ptr().cast()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }
}

const GUARD: u128 = u128::from_ne_bytes([0xa5; 16]);

pub struct Kernels(Library);

type Combine = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, u64);
type Divide = unsafe extern "C" fn(*mut c_void, u64, u32);
type Multiply<Factor> = unsafe extern "C" fn(*mut c_void, u64, Factor);
type Place = unsafe extern "C" fn(u32, u32, u32, u32);

impl Kernels {
    /// `into[i] = a[i] op b[i]`, in place where there is no `a`.
    pub fn combine(&self, calc: Calc, into: &mut Vector, a: Option<&Vector>, b: &Vector, grid: Grid) {
        let count = self.count(calc.data_type(), into);
        assert!(a.is_none_or(|a| a.len == into.len) && b.len == into.len);
        let name = format!("qpair_{}_{}", calc.name(), calc.data_type());
        let (into, b) = (into.at_mut(), b.at());
        let a = a.map_or(into.cast_const(), Vector::at);
        // SAFETY: a kernel of this name has this signature (kernels/combine.cu); all three vectors have `count` elements, and
        // the one that is written is borrowed exclusively.
        unsafe {
            let kernel: Symbol<'_, Combine> = self.kernel(&name);
            self.each(grid, || kernel(into, a, b, count));
        }
    }

    /// What [`scale`](qpair_verbs::calc::scale()) does, where it is not refused.
    pub fn scale(&self, data_type: DataType, vector: &mut Vector, scale: Scale, grid: Grid) {
        let count = self.count(data_type, vector);
        let at = vector.at_mut();
        // SAFETY: a kernel of this name has this signature (kernels/combine.cu); the vector has `count` elements and is
        // borrowed exclusively.
        unsafe {
            match scale {
                Scale::Divide(divisor) => {
                    let kernel: Symbol<'_, Divide> = self.kernel(&format!("qpair_divide_{data_type}"));
                    self.each(grid, || kernel(at, count, divisor));
                }
                Scale::Multiply(factor) if data_type.is_integer() => {
                    let kernel: Symbol<'_, Multiply<i64>> = self.kernel(&format!("qpair_multiply_{data_type}"));
                    self.each(grid, || kernel(at, count, factor as i128 as i64));
                }
                Scale::Multiply(factor) => {
                    let kernel: Symbol<'_, Multiply<f64>> = self.kernel(&format!("qpair_multiply_{data_type}"));
                    self.each(grid, || kernel(at, count, factor));
                }
            }
        }
    }

    fn count(&self, data_type: DataType, vector: &Vector) -> u64 {
        assert!(vector.shift.is_multiple_of(data_type.size()) && vector.len.is_multiple_of(data_type.size()));
        (vector.len / data_type.size()) as u64
    }

    /// # Safety
    /// `T` is the type of the function.
    unsafe fn kernel<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the caller's to keep.
        unsafe { self.0.get(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Each thread of a grid, backwards: no order is promised.
    fn each(&self, (blocks, threads): Grid, call: impl Fn()) {
        // SAFETY: its signature in kernels/host.cpp. It sets variables of this thread.
        unsafe {
            let place: Symbol<'_, Place> = self.kernel("qpair_place");
            for (block, thread) in
                (0..blocks).rev().flat_map(|block| (0..threads).rev().map(move |thread| (block, thread)))
            {
                place(block, blocks, thread, threads);
                call();
            }
        }
    }
}
