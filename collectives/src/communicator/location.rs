//! Where a vector is: in memory of the processor, or of a GPU.

use std::fmt;

use qpair_verbs::{Buffer, GpuBuffer};

use crate::execute::Block;

/// Where the elements of a [`CommBuffer`](super::CommBuffer) are: [`OnHost`] or [`OnGpu`].
///
/// All ranks have the vectors of an operation at the same; on which GPU does not matter.
pub trait Location: sealed::Location + fmt::Debug + Send + Sync + 'static {}

/// Memory of the processor.
#[derive(Clone, Copy, Debug)]
pub struct OnHost;

/// Memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct OnGpu;

impl Location for OnHost {}
impl Location for OnGpu {}

/// Memory that is given back as it was lent: the operations of a rank never change where it is.
mod sealed {
    use super::Block;

    pub trait Location {
        const ON_GPU: bool;
        type Memory;
        #[doc(hidden)]
        fn len(memory: &Self::Memory) -> usize;
        #[doc(hidden)]
        fn lend(memory: Self::Memory) -> Block;
        #[doc(hidden)]
        fn back(block: Block) -> Option<Self::Memory>;
    }
}

impl sealed::Location for OnHost {
    const ON_GPU: bool = false;
    type Memory = Buffer;

    #[inline]
    fn len(memory: &Buffer) -> usize {
        memory.len()
    }

    #[inline]
    fn lend(memory: Buffer) -> Block {
        Block::Host(memory)
    }

    #[inline]
    fn back(block: Block) -> Option<Buffer> {
        match block {
            Block::Host(buffer) => Some(buffer),
            Block::Gpu(_) => None,
        }
    }
}

impl sealed::Location for OnGpu {
    const ON_GPU: bool = true;
    type Memory = GpuBuffer;

    fn len(memory: &GpuBuffer) -> usize {
        memory.len()
    }

    fn lend(memory: GpuBuffer) -> Block {
        Block::Gpu(memory)
    }

    fn back(block: Block) -> Option<GpuBuffer> {
        match block {
            Block::Gpu(buffer) => Some(buffer),
            Block::Host(_) => None,
        }
    }
}
