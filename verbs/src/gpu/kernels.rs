//! The kernels that combine, scale and change words, each loaded into a GPU's context when it is first used.
//!
//! Their text is PTX, which every later driver compiles for every later GPU. It is made by `verbs/kernels/regenerate` from
//! the source beside that. A kernel is loaded alone: compiling one takes some tenths of a second, all of them several.

use std::ffi::CString;
use std::sync::OnceLock;

use super::device::Device;
use super::driver::Handle;
use crate::calc::{Calc, DataType, Scale};
use crate::error::GpuError;
use crate::memory::Atomic;

/// The kernels of one GPU.
pub(super) struct Kernels {
    /// By type and operation.
    combine: [[OnceLock<Handle>; Calc::FIXED]; DataType::ALL.len()],
    /// Divisions and products, by type.
    scale: [[OnceLock<Handle>; 2]; DataType::ALL.len()],
    /// Of FETCH_ADD and CMP_SWAP.
    atomic: [OnceLock<Handle>; 2],
}

/// For every GPU since Pascal, and with what Hopper converts by itself.
#[cfg(feature = "cuda")]
const VECTORS: [&str; 2] = [include_str!("kernels/combine.sm_60.ptx"), include_str!("kernels/combine.sm_90.ptx")];
/// For every GPU since Pascal.
#[cfg(feature = "cuda")]
const WORDS: &str = include_str!("kernels/atomic.sm_60.ptx");
/// Where there is no GPU there is none to run them.
#[cfg(not(feature = "cuda"))]
const VECTORS: [&str; 2] = [""; 2];
#[cfg(not(feature = "cuda"))]
const WORDS: &str = "";

/// What each kernel begins with.
const ENTRY: &str = ".visible .entry ";

impl Kernels {
    pub(super) const fn new() -> Self {
        Kernels {
            combine: [const { [const { OnceLock::new() }; Calc::FIXED] }; DataType::ALL.len()],
            scale: [const { [const { OnceLock::new() }; 2] }; DataType::ALL.len()],
            atomic: [const { OnceLock::new() }; 2],
        }
    }

    /// The kernel of a reduction.
    ///
    /// # Errors
    /// [`GpuError::NotCalculated`] of a program's own operation, [`GpuError::Driver`].
    pub(super) fn combine(&self, device: &Device, calc: Calc) -> Result<Handle, GpuError> {
        let Some(operation) = calc.fixed() else {
            return Err(GpuError::NotCalculated { what: calc.to_string() });
        };
        let place = &self.combine[calc.data_type() as usize][operation];
        find(device, place, of_vectors(device), || format!("qpair_{}_{}", calc.name(), calc.data_type()))
    }

    /// The kernel of a division or product.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub(super) fn scale(&self, device: &Device, data_type: DataType, scale: Scale) -> Result<Handle, GpuError> {
        let (which, name) = match scale {
            Scale::Divide(_) => (0, "divide"),
            Scale::Multiply(_) => (1, "multiply"),
        };
        let place = &self.scale[data_type as usize][which];
        find(device, place, of_vectors(device), || format!("qpair_{name}_{data_type}"))
    }

    /// The kernel of an atomic operation on a word.
    ///
    /// # Errors
    /// [`GpuError::NotCalculated`] without the feature `cuda`, [`GpuError::Driver`].
    pub(super) fn atomic(&self, device: &Device, operation: Atomic) -> Result<Handle, GpuError> {
        let (which, name) = match operation {
            Atomic::FetchAdd(_) => (0, "qpair_fetch_add"),
            Atomic::CompareSwap(..) => (1, "qpair_compare_swap"),
        };
        find(device, &self.atomic[which], WORDS, || name.to_owned())
    }
}

/// The text of the kernels of vectors for a GPU.
fn of_vectors(device: &Device) -> &'static str {
    VECTORS[usize::from(device.attributes().capability >= (9, 0))]
}

/// A kernel of a text, loaded now if it was not before.
fn find(
    device: &Device,
    place: &OnceLock<Handle>,
    text: &str,
    name: impl FnOnce() -> String,
) -> Result<Handle, GpuError> {
    if let Some(found) = place.get() {
        return Ok(*found);
    }
    let name = name();
    let Some(module) = alone(text, &name) else { return Err(GpuError::NotCalculated { what: name }) };
    let name = CString::new(name).unwrap_or_default();
    let _entered = device.enter()?;
    // SAFETY: the context is this thread's, the text ends with 0, and the module stays with the context.
    let found = unsafe {
        let module = device.driver.load_module(module.as_ptr().cast())?;
        device.driver.function(module, &name)?
    };
    Ok(*place.get_or_init(|| found))
}

/// One kernel of a text as a text of its own: what all have in front, and the kernel.
fn alone(text: &str, name: &str) -> Option<CString> {
    let mut parts = text.split(ENTRY);
    let head = parts.next()?;
    let kernel = parts.find(|kernel| kernel.split('(').next() == Some(name))?;
    CString::new([head, ENTRY, kernel].concat()).ok()
}
