//! Something for each buffer of a rank.

use std::ops::{Index, IndexMut};

use super::program::Program;
use super::spec::Spec;
use super::step::Buffer;

/// One for each [`Buffer`], by which it is indexed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffers<T> {
    input: T,
    data: T,
    scratch: T,
}

impl<T> Buffers<T> {
    /// What `make` gives for each.
    pub(crate) fn all(make: impl Fn() -> T) -> Self {
        Self { input: make(), data: make(), scratch: make() }
    }

    /// What `with` makes of each.
    pub(crate) fn map<U>(self, with: impl Fn(T) -> U) -> Buffers<U> {
        Buffers { input: with(self.input), data: with(self.data), scratch: with(self.scratch) }
    }
}

impl Spec {
    /// Elements of each buffer of `rank`, which does what `program` says.
    pub(crate) fn sizes(&self, rank: u32, program: &Program) -> Buffers<u64> {
        Buffers { input: self.input_len(rank), data: self.data_len(rank), scratch: program.scratch() }
    }
}

impl<T> Index<Buffer> for Buffers<T> {
    type Output = T;

    #[inline]
    fn index(&self, buffer: Buffer) -> &T {
        match buffer {
            Buffer::Input => &self.input,
            Buffer::Data => &self.data,
            Buffer::Scratch => &self.scratch,
        }
    }
}

impl<T> IndexMut<Buffer> for Buffers<T> {
    #[inline]
    fn index_mut(&mut self, buffer: Buffer) -> &mut T {
        match buffer {
            Buffer::Input => &mut self.input,
            Buffer::Data => &mut self.data,
            Buffer::Scratch => &mut self.scratch,
        }
    }
}
