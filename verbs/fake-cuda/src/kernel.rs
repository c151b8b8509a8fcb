//! Modules of PTX, and the kernels in them that the fake knows by their name: it calculates as the software device does.

use std::str::FromStr;

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
    /// The addresses of the vectors: the first is written.
    pub(crate) vectors: Vec<u64>,
    pub(crate) count: u64,
    /// The bits of a divisor or factor.
    pub(crate) number: u64,
    /// What it ends in whatever it does.
    pub(crate) fault: Option<Code>,
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
        let (does, data_type) = name.strip_prefix("qpair_")?.split_once('_')?;
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

    /// How many vectors it takes.
    pub(crate) fn vectors(self) -> usize {
        if matches!(self, Kernel::Combine(_)) { 3 } else { 1 }
    }

    /// The bytes of the number after the count.
    pub(crate) fn number_len(self) -> usize {
        match self {
            Kernel::Combine(_) => 0,
            Kernel::Divide(_) => 4,
            Kernel::Multiply(_) => 8,
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Kernel::Combine(calc) => calc.data_type(),
            Kernel::Divide(data_type) | Kernel::Multiply(data_type) => data_type,
        }
    }
}

impl Launch {
    /// The memory that it accesses: address, bytes, whether to be written.
    pub(crate) fn operands(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        let len = self.count.saturating_mul(self.kernel.data_type().size() as u64);
        self.vectors.iter().enumerate().map(move |(at, address)| (*address, len, at == 0))
    }
}

impl World {
    /// Does what a kernel does. The error is its context's from then on.
    pub(crate) fn launched(&self, device: usize, launch: &Launch) -> Result<(), (Code, String)> {
        if let Some(fault) = launch.fault {
            return Err((fault, String::new()));
        }
        let size = launch.kernel.data_type().size() as u64;
        let mut operands = Vec::new();
        for (address, len, write) in launch.operands() {
            if !address.is_multiple_of(size) && len > 0 {
                return Err((code::MISALIGNED_ADDRESS, format!("{address:#x} is no multiple of {size}")));
            }
            operands.push(self.resolve(device, address, len, write, true)?);
        }
        let from = |at: usize| backing::gather(&operands[at]).map_err(|error| (error, String::new()));
        let mut into = from(if operands.len() > 1 { 1 } else { 0 })?;
        let done = match launch.kernel {
            Kernel::Combine(calc) => calc::combine(calc, &mut into, &from(2)?),
            // Integers divided by 0 are anything; floats are what the device makes of it, which the fake does not say.
            Kernel::Divide(data_type) => calc::scale(data_type, &mut into, Scale::Divide(launch.number as u32)),
            Kernel::Multiply(data_type) => {
                let factor =
                    if data_type.is_integer() { launch.number as i64 as f64 } else { f64::from_bits(launch.number) };
                calc::scale(data_type, &mut into, Scale::Multiply(factor))
            }
        };
        done.map_err(|error| (code::LAUNCH_FAILED, error.to_string()))?;
        backing::scatter(&operands[0], &into).map_err(|error| (error, String::new()))
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
