//! The kernels, compiled by the host's C++ compiler into a library.

use std::ffi::c_void;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use libloading::{Library, Symbol};

use crate::run::{Arguments, Grid, Run, Vector};

/// `None` where there is no compiler.
pub fn compile() -> Option<Host> {
    let folder = tempfile::Builder::new().prefix("qpair-kernels-").tempdir().unwrap();
    let (source, library) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/host.cpp"), folder.path().join("kernels.so"));
    let mut command = Command::new("c++");
    command.args(["-std=c++11", "-O0", "-shared", "-fPIC"]);
    // What the host lets pass and a device does not, such as an access that is not aligned, is an illegal instruction.
    command.args(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]);
    // As the device's compiler: each operation rounded by itself; memory has no one type.
    command.args(["-ffp-contract=off", "-fno-strict-aliasing", "-o"]).arg(&library).arg(source);
    let out = match command.output() {
        Ok(out) => out,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => panic!("{command:?}: {error}"),
    };
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    // SAFETY: the library has no initialisers of its own. Once it is loaded, its file is no longer needed.
    Some(Host(unsafe { Library::new(&library) }.unwrap()))
}

pub struct Host(Library);

type Combine = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, u64);
type FetchAdd = unsafe extern "C" fn(*mut u64, u64, *mut u64);
type CompareSwap = unsafe extern "C" fn(*mut u64, u64, u64, *mut u64);
type Divide = unsafe extern "C" fn(*mut c_void, u64, u32);
type Multiply<Factor> = unsafe extern "C" fn(*mut c_void, u64, Factor);
type Place = unsafe extern "C" fn(u32, u32, u32, u32);

impl Run for Host {
    fn run(&self, name: &str, into: &mut Vector, count: u64, arguments: Arguments<'_>, grid: Grid) {
        let at = into.at_mut();
        // SAFETY: a kernel of this name takes these arguments (kernels/combine.cu), and has `count` elements in each vector, of
        // which the one that it writes is borrowed exclusively.
        unsafe {
            match arguments {
                Arguments::Combine(a, b) => {
                    let kernel: Symbol<'_, Combine> = self.kernel(name);
                    let a = a.map_or(at.cast_const(), Vector::at);
                    self.each(grid, || kernel(at, a, b.at(), count));
                }
                Arguments::Divide(divisor) => {
                    let kernel: Symbol<'_, Divide> = self.kernel(name);
                    self.each(grid, || kernel(at, count, divisor));
                }
                Arguments::Multiply(factor) => {
                    let kernel: Symbol<'_, Multiply<f64>> = self.kernel(name);
                    self.each(grid, || kernel(at, count, factor));
                }
                Arguments::MultiplyWhole(factor) => {
                    let kernel: Symbol<'_, Multiply<i64>> = self.kernel(name);
                    self.each(grid, || kernel(at, count, factor));
                }
            }
        }
    }

    fn change(&self, name: &str, word: &mut u64, operands: &[u64]) -> u64 {
        let mut before = 0;
        // SAFETY: a kernel of this name takes these arguments (kernels/atomic.cu).
        unsafe {
            match *operands {
                [add] => self.kernel::<FetchAdd>(name)(word, add, &mut before),
                [compare, swap] => self.kernel::<CompareSwap>(name)(word, compare, swap, &mut before),
                _ => panic!("{name} takes no such operands"),
            }
        }
        before
    }
}

impl Host {
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
