//! Modules of PTX, and the kernels in them that the fake knows by their name: it calculates as the software device does.

use std::str::FromStr;
use std::sync::atomic::Ordering;

use qpair_verbs::calc::{self, Calc, DataType, ReduceOp, Scale};

use crate::backing;
use crate::code::{self, Code, Outcome};
use crate::world::World;

/// A module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) entries: Vec<String>,
    pub(crate) functions: Vec<u64>,
}

/// A function of a module.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
}

/// A kernel with its arguments.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    /// The bits of each argument.
    pub(crate) arguments: Vec<u64>,
    /// What it ends in whatever it does.
    pub(crate) fault: Option<Code>,
}

/// Memory that a kernel accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) at: u64,
    pub(crate) len: u64,
    is_written: bool,
    /// Of an element: its address is a multiple.
    size: u64,
}

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kernel {
    /// `qpair_OP_TYPE(into, a, b, count)`.
    Combine(Calc),
    /// `qpair_divide_TYPE(vector, count, u32)`.
    Divide(DataType),
    /// `qpair_multiply_TYPE(vector, count, f64)`, or `i64` for integers.
    Multiply(DataType),
    /// `qpair_fetch_add(word, add, before)`.
    FetchAdd,
    /// `qpair_compare_swap(word, compare, swap, before)`.
    CompareSwap,
}

impl Module {
    /// Reads PTX for a device of a capability and a driver of a version.
    pub(crate) fn parse(text: &str, capability: u32, driver: u32) -> Outcome<Module> {
        let (major, minor) = directive(text, ".version").and_then(|v| v.split_once('.')).ok_or(code::INVALID_PTX)?;
        let version = (number(major)?, number(minor)?);
        if version > newest_ptx(driver) {
            return Err(code::UNSUPPORTED_PTX_VERSION);
        }
        let target = directive(text, ".target").and_then(|target| target.strip_prefix("sm_"));
        let target = target.ok_or(code::INVALID_PTX)?;
        let end = target.find(|c: char| !c.is_ascii_digit()).unwrap_or(target.len());
        let (architecture, suffix) = target.split_at(end);
        let architecture = number(architecture)?;
        // `sm_90a` runs on 9.0 and nothing else.
        let other = !suffix.starts_with(',') && !suffix.is_empty() && architecture != capability;
        if architecture > capability || other {
            return Err(code::NO_BINARY_FOR_GPU);
        }
        let entries = text.split(".entry").skip(1).filter_map(|rest| {
            let (name, _) = rest.split_once('(')?;
            Some(name.trim().to_owned())
        });
        Ok(Module { entries: entries.collect(), functions: Vec::new() })
    }
}

impl Kernel {
    /// The kernel of a name, if the fake knows it.
    pub(crate) fn named(name: &str) -> Option<Kernel> {
        let name = name.strip_prefix("qpair_")?;
        match name {
            "fetch_add" => return Some(Kernel::FetchAdd),
            "compare_swap" => return Some(Kernel::CompareSwap),
            _ => {}
        }
        let (does, data_type) = name.split_once('_')?;
        let data_type = DataType::from_str(data_type).ok()?;
        match does {
            "divide" => Some(Kernel::Divide(data_type)),
            "multiply" => Some(Kernel::Multiply(data_type)),
            op => Calc::new(data_type, ReduceOp::from_str(op).ok()?)
                .ok()
                .filter(|calc| calc.name() == op)
                .map(Kernel::Combine),
        }
    }

    /// The bytes of each argument that it takes.
    pub(crate) fn arguments(self) -> &'static [usize] {
        match self {
            Kernel::Combine(_) | Kernel::CompareSwap => &[8, 8, 8, 8],
            Kernel::Divide(_) => &[8, 8, 4],
            Kernel::Multiply(_) | Kernel::FetchAdd => &[8, 8, 8],
        }
    }
}

impl Launch {
    /// The memory that it accesses.
    pub(crate) fn operands(&self) -> Vec<Operand> {
        let operand = |argument: usize, is_written, size: usize, count: u64| {
            let size = size as u64;
            Operand { at: self.arguments[argument], len: count.saturating_mul(size), is_written, size }
        };
        match self.kernel {
            Kernel::Combine(calc) => {
                let each = |argument| operand(argument, argument == 0, calc.data_type().size(), self.arguments[3]);
                (0..3).map(each).collect()
            }
            Kernel::Divide(data_type) | Kernel::Multiply(data_type) => {
                vec![operand(0, true, data_type.size(), self.arguments[1])]
            }
            Kernel::FetchAdd => vec![operand(0, true, 8, 1), operand(2, true, 8, 1)],
            Kernel::CompareSwap => vec![operand(0, true, 8, 1), operand(3, true, 8, 1)],
        }
    }
}

impl World {
    /// Does what a kernel does. The error is its context's from then on.
    pub(crate) fn launched(&self, device: usize, launch: &Launch) -> Result<(), (Code, String)> {
        if let Some(fault) = launch.fault {
            return Err((fault, String::new()));
        }
        let mut operands = Vec::new();
        for operand in launch.operands() {
            let Operand { at, len, is_written, size } = operand;
            if !at.is_multiple_of(size) && len > 0 {
                return Err((code::MISALIGNED_ADDRESS, format!("{at:#x} is no multiple of {size}")));
            }
            operands.push(self.resolve(device, at, len, is_written, true)?);
        }
        let plain = |error| (error, String::new());
        let from = |at: usize| backing::gather(&operands[at]).map_err(plain);
        let number = launch.arguments[launch.arguments.len() - 1];
        let scaled = |data_type, by| {
            let mut vector = from(0)?;
            Ok(calc::scale(data_type, &mut vector, by).map(|()| vector))
        };
        let done = match launch.kernel {
            Kernel::Combine(calc) => {
                let mut vector = from(1)?;
                calc::combine(calc, &mut vector, &from(2)?).map(|()| vector)
            }
            // Integers divided by 0 are anything; floats are what the device makes of it, which the fake does not say.
            Kernel::Divide(data_type) => scaled(data_type, Scale::Divide(number as u32))?,
            Kernel::Multiply(data_type) => {
                let factor = if data_type.is_integer() { number as i64 as f64 } else { f64::from_bits(number) };
                scaled(data_type, Scale::Multiply(factor))?
            }
            Kernel::FetchAdd | Kernel::CompareSwap => {
                let (first, second) = (launch.arguments[1], launch.arguments[2]);
                let before = backing::change(&operands[0], |word| match launch.kernel {
                    Kernel::FetchAdd => word.fetch_add(first, Ordering::SeqCst),
                    _ => {
                        word.compare_exchange(first, second, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|it| it)
                    }
                });
                let before = before.map_err(plain)?.to_ne_bytes();
                return backing::scatter(&operands[1], &before).map_err(plain);
            }
        };
        let vector = done.map_err(|error| (code::LAUNCH_FAILED, error.to_string()))?;
        backing::scatter(&operands[0], &vector).map_err(plain)
    }
}

/// What stands after a directive, up to the next space.
fn directive<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().map(str::trim).find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()
}

fn number(text: &str) -> Outcome<u32> {
    text.parse().map_err(|_| code::INVALID_PTX)
}

/// The newest PTX that a driver reads: 8.4 with 12.4, one less from 12.8 on.
fn newest_ptx(driver: u32) -> (u32, u32) {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    let skipped = u32::from(major == 12 && minor >= 8);
    (major.saturating_sub(4), minor - skipped)
}
