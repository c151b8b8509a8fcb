//! The kernels of GPUs, without one: compiled for the host and compared with the arithmetic of this crate, bit for bit, and
//! the PTX that is committed looked over. What the conversions of a device give is for a device to show: on a machine with
//! one, `QPAIR_TEST_GPU=sm_90` or `sm_60` runs the same comparisons on it with the PTX for that.
//!
//! Values are drawn from a seed that is printed; `QPAIR_SEED` runs it again.

mod combine;
mod gpu;
mod host;
mod ptx;
mod run;
mod scale;
mod values;
mod words;
