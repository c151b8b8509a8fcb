//! The kernels of GPUs, without one: compiled for the host and compared with the arithmetic of this crate, bit for bit, and
//! the PTX that is committed looked over. What the device's conversions of 8-bit floats give is for a device to show.
//!
//! Values are drawn from a seed that is printed; `QPAIR_SEED` runs it again.

mod combine;
mod host;
mod ptx;
mod scale;
mod values;
