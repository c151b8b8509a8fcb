//! Registered memory of a communicator, as a slice of elements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use qpair_verbs::Buffer;
use qpair_verbs::calc::Element;

/// A vector in registered memory, for the operations of the communicator that made it. It derefs to `[T]`.
///
/// ```
/// # let comm = qpair_collectives::Communicator::group(1)?.remove(0);
/// let mut vector = comm.buffer::<f32>(3)?;
/// assert_eq!(vector[..], [0.0; 3]);
/// vector[2] = 1.5;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CommBuffer<T: Element> {
    /// `None` where there are no elements.
    memory: Option<Buffer>,
    owner: u64,
    element: PhantomData<T>,
}

impl<T: Element> CommBuffer<T> {
    pub(super) fn new(memory: Option<Buffer>, owner: u64) -> Self {
        CommBuffer { memory, owner, element: PhantomData }
    }

    /// Which communicator made it.
    #[inline]
    pub(super) fn owner(&self) -> u64 {
        self.owner
    }

    /// Takes the memory, for an operation. Until it is put back there are no elements.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.memory.take()
    }

    #[inline]
    pub(super) fn put(&mut self, memory: Option<Buffer>) {
        self.memory = memory;
    }
}

impl<T: Element> Deref for CommBuffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.memory.as_ref().map_or(&[], |memory| bytemuck::cast_slice(memory))
    }
}

impl<T: Element> DerefMut for CommBuffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.as_mut().map_or(&mut [], |memory| bytemuck::cast_slice_mut(memory))
    }
}

impl<T: Element> fmt::Debug for CommBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommBuffer({} {})", self.len(), T::TYPE)
    }
}
