//! The kernels that combine and scale: loaded into a GPU's context when they are first used.
//!
//! Their text is PTX, which every later driver compiles for every later GPU. It is made by `verbs/kernels/regenerate` from
//! the source beside that.

use std::ffi::CString;
use std::sync::OnceLock;

use super::device::Device;
use super::driver::Handle;
use crate::calc::{Calc, DataType, Scale};
use crate::error::GpuError;

/// The kernels of one GPU.
pub(super) struct Kernels {
    module: Handle,
    /// By type and operation.
    combine: [[OnceLock<Handle>; Calc::FIXED]; DataType::ALL.len()],
    /// Divisions and products, by type.
    scale: [[OnceLock<Handle>; 2]; DataType::ALL.len()],
}

/// For every GPU since Pascal.
const EVERYWHERE: &str = concat!(include_str!("kernels/combine.sm_60.ptx"), "\0");
/// With what Hopper converts by itself.
const HOPPER: &str = concat!(include_str!("kernels/combine.sm_90.ptx"), "\0");

impl Kernels {
    pub(super) fn load(device: &Device) -> Result<Self, GpuError> {
        let text = if device.attributes().capability >= (9, 0) { HOPPER } else { EVERYWHERE };
        let _entered = device.enter()?;
        // SAFETY: the context is this thread's, and the text ends with 0.
        let module = unsafe { device.driver.load_module(text.as_ptr().cast()) }?;
        Ok(Kernels {
            module,
            combine: [const { [const { OnceLock::new() }; Calc::FIXED] }; DataType::ALL.len()],
            scale: [const { [const { OnceLock::new() }; 2] }; DataType::ALL.len()],
        })
    }

    /// The kernel of a reduction.
    ///
    /// # Errors
    /// [`GpuError::NotCalculated`] of a program's own operation.
    pub(super) fn combine(&self, device: &Device, calc: Calc) -> Result<Handle, GpuError> {
        let Some(operation) = calc.fixed() else {
            return Err(GpuError::NotCalculated { what: calc.to_string() });
        };
        let place = &self.combine[calc.data_type() as usize][operation];
        self.find(device, place, || format!("qpair_{}_{}", calc.name(), calc.data_type()))
    }

    /// The kernel of a division or product.
    pub(super) fn scale(&self, device: &Device, data_type: DataType, scale: Scale) -> Result<Handle, GpuError> {
        let (which, name) = match scale {
            Scale::Divide(_) => (0, "divide"),
            Scale::Multiply(_) => (1, "multiply"),
        };
        let place = &self.scale[data_type as usize][which];
        self.find(device, place, || format!("qpair_{name}_{data_type}"))
    }

    fn find(
        &self,
        device: &Device,
        place: &OnceLock<Handle>,
        name: impl FnOnce() -> String,
    ) -> Result<Handle, GpuError> {
        if let Some(found) = place.get() {
            return Ok(*found);
        }
        let name = CString::new(name()).unwrap_or_default();
        let _entered = device.enter()?;
        // SAFETY: the module stays with the context.
        let found = unsafe { device.driver.function(self.module, &name) }?;
        Ok(*place.get_or_init(|| found))
    }
}
