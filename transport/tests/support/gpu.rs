//! Memory of GPUs, and what is in it.

use qpair_verbs::{Gpu, GpuBuffer};

/// Memory of a GPU with these bytes.
pub fn filled(gpu: Gpu, bytes: &[u8]) -> GpuBuffer {
    let mut buffer = gpu.alloc(bytes.len()).expect("memory");
    buffer.write(0, bytes).expect("its own memory");
    buffer
}

/// What is in it.
pub fn contents(buffer: &GpuBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).expect("its own memory");
    bytes
}
