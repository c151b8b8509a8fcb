//! Memory of a vector, wherever it is.

use qpair_verbs::calc::{DataType, Scale, scale};
use qpair_verbs::{Buffer, Gpu, GpuBuffer, MemoryError, ProtectionDomain};

use crate::error::CollectiveError;

/// Memory of the processor's or of a GPU's.
// Public, as what a sealed trait names has to be; nobody outside finds it.
#[derive(Debug)]
pub enum Block {
    /// Registered with the rank's domain.
    Host(Buffer),
    /// Registered for each operation, as which peers know it again.
    Gpu(GpuBuffer),
}

/// Where memory is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Gpu(Gpu),
}

impl Block {
    /// Memory at a place.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`].
    pub(crate) fn alloc(place: Place, len: usize, domain: &ProtectionDomain) -> Result<Self, CollectiveError> {
        match place {
            Place::Host => Ok(Block::Host(domain.alloc(len)?)),
            Place::Gpu(gpu) => Ok(Block::Gpu(gpu.alloc(len).map_err(on_gpu)?)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Block::Host(buffer) => buffer.len(),
            Block::Gpu(buffer) => buffer.len(),
        }
    }

    pub(crate) fn place(&self) -> Place {
        match self {
            Block::Host(_) => Place::Host,
            Block::Gpu(buffer) => Place::Gpu(buffer.gpu()),
        }
    }

    /// Copies another that is as long, or shorter, to the front. Both are of one place.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`].
    pub(crate) fn copy_from(&mut self, from: &Block) -> Result<(), CollectiveError> {
        match (self, from) {
            (Block::Host(to), Block::Host(from)) => to[..from.len()].copy_from_slice(from),
            (Block::Gpu(to), Block::Gpu(from)) => to.copy_from(0, from, 0, from.len()).map_err(on_gpu)?,
            (Block::Gpu(to), Block::Host(from)) => to.write(0, from).map_err(on_gpu)?,
            (Block::Host(to), Block::Gpu(from)) => from.read(0, &mut to[..from.len()]).map_err(on_gpu)?,
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

/// What a GPU has refused.
fn on_gpu(error: qpair_verbs::GpuError) -> CollectiveError {
    MemoryError::from(Box::new(error)).into()
}
