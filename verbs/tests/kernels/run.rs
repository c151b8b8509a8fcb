//! What runs the kernels: this host, or a GPU.

use std::ffi::c_void;
use std::io::Write;
use std::sync::OnceLock;

use qpair_verbs::calc::{Calc, DataType, Scale};

use crate::{gpu, host};

/// Blocks, and the threads of each.
pub type Grid = (u32, u32);

/// What a kernel gets beside the vector that it writes and the count.
#[derive(Clone, Copy)]
pub enum Arguments<'a> {
    /// Two vectors; the one that is written for the first that is not there.
    Combine(Option<&'a Vector>, &'a Vector),
    Divide(u32),
    Multiply(f64),
    /// Of integers.
    MultiplyWhole(i64),
}

pub trait Run: Send + Sync {
    fn run(&self, name: &str, into: &mut Vector, count: u64, arguments: Arguments<'_>, grid: Grid);

    /// Runs a kernel that changes a word; what it says that the word was before.
    fn change(&self, name: &str, word: &mut u64, operands: &[u64]) -> u64;
}

/// What runs them; `None`, and a line that says why at the first call, where there is no compiler for this host.
pub fn kernels() -> Option<Kernels> {
    static KERNELS: OnceLock<Option<Box<dyn Run>>> = OnceLock::new();
    let run = KERNELS.get_or_init(|| {
        if let Ok(target) = std::env::var("QPAIR_TEST_GPU") {
            return Some(Box::new(gpu::Gpu::open(target)));
        }
        let Some(host) = host::compile() else {
            // Past the test harness's capture.
            let why = "no C++ compiler `c++`; install one, for example with: apt install g++";
            let _ = writeln!(std::io::stderr(), "skipped: the kernels on this host: {why}");
            return None;
        };
        Some(Box::new(host))
    });
    run.as_deref().map(Kernels)
}

#[derive(Clone, Copy)]
pub struct Kernels(&'static dyn Run);

impl Kernels {
    /// `into[i] = a[i] op b[i]`, in place where there is no `a`.
    pub fn combine(self, calc: Calc, into: &mut Vector, a: Option<&Vector>, b: &Vector, grid: Grid) {
        let count = into.count(calc.data_type());
        assert!(b.len == into.len && a.is_none_or(|a| a.len == into.len));
        let name = format!("qpair_{}_{}", calc.name(), calc.data_type());
        self.0.run(&name, into, count, Arguments::Combine(a, b), grid);
    }

    /// Adds to a word; what it was.
    pub fn fetch_add(self, word: &mut u64, add: u64) -> u64 {
        self.0.change("qpair_fetch_add", word, &[add])
    }

    /// Replaces a word if it is as expected; what it was.
    pub fn compare_swap(self, word: &mut u64, compare: u64, swap: u64) -> u64 {
        self.0.change("qpair_compare_swap", word, &[compare, swap])
    }

    /// What [`scale`](qpair_verbs::calc::scale()) does, where that does not refuse.
    pub fn scale(self, data_type: DataType, vector: &mut Vector, scale: Scale, grid: Grid) {
        let (verb, arguments) = match scale {
            Scale::Divide(divisor) => ("divide", Arguments::Divide(divisor)),
            // Of `u64` the same bits.
            Scale::Multiply(factor) if data_type.is_integer() => {
                ("multiply", Arguments::MultiplyWhole(factor as i128 as i64))
            }
            Scale::Multiply(factor) => ("multiply", Arguments::Multiply(factor)),
        };
        let count = vector.count(data_type);
        self.0.run(&format!("qpair_{verb}_{data_type}"), vector, count, arguments, grid);
    }
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
        vector.memory_mut()[shift..shift + bytes.len()].copy_from_slice(bytes);
        vector
    }

    /// Its bytes, if those around it are as they were.
    pub fn checked(&self) -> &[u8] {
        let (before, rest) = self.memory().split_at(self.shift);
        let (vector, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&byte| byte == GUARD as u8), "a kernel wrote beyond its vector");
        vector
    }

    fn count(&self, data_type: DataType) -> u64 {
        assert!(self.shift.is_multiple_of(data_type.size()) && self.len.is_multiple_of(data_type.size()));
        (self.len / data_type.size()) as u64
    }

    pub fn at(&self) -> *const c_void {
        self.memory()[self.shift..].as_ptr().cast()
    }

    pub fn at_mut(&mut self) -> *mut c_void {
        let shift = self.shift;
        self.memory_mut()[shift..].as_mut_ptr().cast()
    }

    pub fn shift(&self) -> usize {
        self.shift
    }

    /// What lies around it too.
    pub fn memory(&self) -> &[u8] {
        bytemuck::cast_slice(&self.memory)
    }

    pub fn memory_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }
}

const GUARD: u128 = u128::from_ne_bytes([0xa5; 16]);
