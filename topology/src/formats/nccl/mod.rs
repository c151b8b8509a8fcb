//! The topology files of NCCL and RCCL: `system`, `cpu`, `pci`, and in it `gpu` with `nvlink`, `xgmi`
//! and `c2c`, or `nic` with `net`.

mod gpu;
mod models;
mod nic;
mod read;
mod write;

pub use read::NcclError;
