//! Registered memory of a communicator, as a slice of elements; or memory of a GPU.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use qpair_verbs::calc::Element;
use qpair_verbs::{Buffer, GpuBuffer, GpuError};

use super::location::{Location, OnGpu, OnHost};

/// A vector in registered memory, for the operations of the communicator that made it. It derefs to `[T]`.
///
/// ```
/// # let comm = qpair_collectives::Communicator::group(1)?.remove(0);
/// let mut vector = comm.buffer::<f32>(3)?;
/// assert_eq!(vector[..], [0.0; 3]);
/// vector[2] = 1.5;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// One that is [on a GPU](OnGpu), made by [`Communicator::gpu_buffer`](super::Communicator::gpu_buffer), yields no slice:
/// elements are copied in and out, and kernels take its [address](CommBuffer::address).
pub struct CommBuffer<T: Element, L: Location = OnHost> {
    /// `None` where there are no elements.
    memory: Option<L::Memory>,
    owner: u64,
    element: PhantomData<T>,
}

impl<T: Element, L: Location> CommBuffer<T, L> {
    pub(super) fn new(memory: Option<L::Memory>, owner: u64) -> Self {
        CommBuffer { memory, owner, element: PhantomData }
    }

    /// Its elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, L::len) / T::TYPE.size()
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which communicator made it.
    #[inline]
    pub(super) fn owner(&self) -> u64 {
        self.owner
    }

    /// Takes the memory, for an operation. Until it is put back there are no elements.
    #[inline]
    pub(super) fn take(&mut self) -> Option<L::Memory> {
        self.memory.take()
    }

    #[inline]
    pub(super) fn put(&mut self, memory: Option<L::Memory>) {
        self.memory = memory;
    }
}

impl<T: Element> CommBuffer<T, OnGpu> {
    /// The address of the first element, for kernels; 0 if there is none. Whoever starts one waits for it before an operation
    /// takes the vector.
    pub fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, GpuBuffer::address)
    }

    /// Copies elements to `offset` on. They are there when this returns.
    ///
    /// # Errors
    /// [`GpuError::Range`], [`GpuError::Driver`].
    pub fn write(&mut self, offset: usize, from: &[T]) -> Result<(), GpuError> {
        match &mut self.memory {
            Some(memory) => memory.write(offset.saturating_mul(T::TYPE.size()), bytemuck::cast_slice(from)),
            None => outside(offset, from.len()),
        }
    }

    /// Copies elements from `offset` on into `into`.
    ///
    /// # Errors
    /// [`GpuError::Range`], [`GpuError::Driver`].
    pub fn read(&self, offset: usize, into: &mut [T]) -> Result<(), GpuError> {
        match &self.memory {
            Some(memory) => memory.read(offset.saturating_mul(T::TYPE.size()), bytemuck::cast_slice_mut(into)),
            None => outside(offset, into.len()),
        }
    }

    /// Copies `len` elements from memory of a GPU, from its element `start` on, to `offset` on. They are there when this returns.
    ///
    /// # Errors
    /// [`GpuError::Range`], [`GpuError::Driver`].
    pub fn copy_from(&mut self, offset: usize, from: &GpuBuffer, start: usize, len: usize) -> Result<(), GpuError> {
        let bytes = |elements: usize| elements.saturating_mul(T::TYPE.size());
        match &mut self.memory {
            Some(memory) => memory.copy_from(bytes(offset), from, bytes(start), bytes(len)),
            None => outside(offset, len),
        }
    }

    /// The memory, which is the program's again; `None` if there are no elements.
    pub fn into_gpu_buffer(self) -> Option<GpuBuffer> {
        self.memory
    }
}

/// What is copied of a vector without elements.
fn outside(offset: usize, len: usize) -> Result<(), GpuError> {
    if offset == 0 && len == 0 {
        Ok(())
    } else {
        Err(GpuError::Range { start: offset, end: offset.saturating_add(len), len: 0 })
    }
}

impl<T: Element> Deref for CommBuffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.memory.as_ref().map_or(&[], |memory: &Buffer| bytemuck::cast_slice(memory))
    }
}

impl<T: Element> DerefMut for CommBuffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.as_mut().map_or(&mut [], |memory| bytemuck::cast_slice_mut(memory))
    }
}

impl<T: Element, L: Location> fmt::Debug for CommBuffer<T, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if L::ON_GPU { " on a GPU" } else { "" };
        write!(f, "CommBuffer({} {}{place})", self.len(), T::TYPE)
    }
}
