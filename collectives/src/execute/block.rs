//! Memory of a vector, wherever it is.

use qpair_verbs::calc::{DataType, Scale, scale};
use qpair_verbs::{Buffer, Gpu, GpuBuffer, MemoryError, ProtectionDomain};

/// Memory of the processor's or of a GPU's.
// Public, as what a sealed trait names has to be; nobody outside finds it.
#[derive(Debug)]
pub enum Block {
    /// Registered with the rank's domain.
    Host(Buffer),
    /// Registered for each operation, as which peers know it again.
    Gpu(GpuBuffer),
}

impl Block {
    /// Memory of a GPU, or of the processor where none is given.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn alloc(gpu: Option<Gpu>, len: usize, domain: &ProtectionDomain) -> Result<Self, MemoryError> {
        match gpu {
            None => domain.alloc(len).map(Block::Host),
            Some(gpu) => Ok(Block::Gpu(gpu.alloc(len)?)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Block::Host(buffer) => buffer.len(),
            Block::Gpu(buffer) => buffer.len(),
        }
    }

    /// The GPU whose memory it is.
    pub(crate) fn gpu(&self) -> Option<Gpu> {
        match self {
            Block::Host(_) => None,
            Block::Gpu(buffer) => Some(buffer.gpu()),
        }
    }

    /// Copies another that is as long, or shorter, to the front.
    ///
    /// # Errors
    /// [`MemoryError::Gpu`].
    pub(crate) fn copy_from(&mut self, from: &Block) -> Result<(), MemoryError> {
        match (self, from) {
            (Block::Host(to), Block::Host(from)) => to[..from.len()].copy_from_slice(from),
            (Block::Gpu(to), Block::Gpu(from)) => to.copy_from(0, from, 0, from.len())?,
            (Block::Gpu(to), Block::Host(from)) => to.write(0, from)?,
            (Block::Host(to), Block::Gpu(from)) => from.read(0, &mut to[..from.len()])?,
        }
        Ok(())
    }

    /// Scales `len` bytes from `offset` on.
    pub(crate) fn scale(&mut self, offset: usize, len: usize, data_type: DataType, by: Scale) -> Result<(), String> {
        match self {
            Block::Host(buffer) => {
                let bytes = buffer.get_mut(offset..offset + len).ok_or("a span outside the buffer")?;
                scale(data_type, bytes, by).map_err(|error| error.to_string())
            }
            Block::Gpu(buffer) => buffer.scale(offset, len, data_type, by).map_err(|error| error.to_string()),
        }
    }
}
