//! The worker's own memory for long messages: blocks in power-of-two classes, used again and again.

use std::collections::VecDeque;

use qpair_verbs::{Buffer, MemoryError, ProtectionDomain, Slab};

/// Free blocks by class; each block is at least as long as its class says.
#[derive(Debug)]
struct Classes<T> {
    free: [Vec<T>; CLASSES],
}

/// Buffers for copies of payloads on their way out, and slabs for payloads without a posted receive.
#[derive(Debug)]
pub(crate) struct Pool {
    pd: ProtectionDomain,
    limit: usize,
    buffers: Classes<Buffer>,
    buffer_bytes: usize,
    slabs: Classes<Slab>,
    slab_bytes: usize,
    /// Slabs of which the application has a part.
    lent: VecDeque<Slab>,
}

impl Pool {
    pub(crate) fn new(pd: &ProtectionDomain, limit: usize) -> Self {
        Pool {
            pd: pd.clone(),
            limit,
            buffers: Classes::new(),
            buffer_bytes: 0,
            slabs: Classes::new(),
            slab_bytes: 0,
            lent: VecDeque::new(),
        }
    }

    /// A buffer of at least `len` bytes.
    pub(crate) fn buffer(&mut self, len: usize) -> Result<Buffer, MemoryError> {
        let (class, size) = class_of(len);
        if let Some(buffer) = self.buffers.take(class) {
            return Ok(buffer);
        }
        if self.buffer_bytes.saturating_add(size) > self.limit {
            self.buffer_bytes -= self.buffers.clear();
        }
        if self.buffer_bytes.saturating_add(size) > self.limit {
            return Err(MemoryError::Length { len, limit: self.limit - self.buffer_bytes });
        }
        let buffer = self.pd.alloc(size)?;
        self.buffer_bytes += size;
        Ok(buffer)
    }

    pub(crate) fn give_buffer(&mut self, buffer: Buffer) {
        let (class, _) = class_of(buffer.len());
        self.buffers.give(class, buffer);
    }

    /// A slab of at least `len` bytes. `None`: wait until the application has dropped some.
    ///
    /// # Errors
    /// [`MemoryError`] if no waiting helps.
    pub(crate) fn slab(&mut self, len: usize) -> Result<Option<Slab>, MemoryError> {
        let (class, size) = class_of(len);
        if let Some(slab) = self.slabs.take(class) {
            return Ok(Some(slab));
        }
        if self.slab_bytes.saturating_add(size) > self.limit {
            self.slab_bytes -= self.slabs.clear();
        }
        // One message is always taken, however long: else it could never be received.
        if self.slab_bytes.saturating_add(size) > self.limit && self.slab_bytes > 0 {
            return Ok(None);
        }
        match self.pd.alloc(size) {
            Ok(buffer) => {
                self.slab_bytes += size;
                Ok(Some(buffer.into_slab()))
            }
            Err(_) if self.slab_bytes > 0 => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn give_slab(&mut self, slab: Slab) {
        let (class, _) = class_of(slab.len());
        self.slabs.give(class, slab);
    }

    /// Keeps a slab of which the application has a part.
    pub(crate) fn lend(&mut self, slab: Slab) {
        self.lent.push_back(slab);
    }

    pub(crate) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Looks at the slab lent first; true if it is free again.
    #[inline]
    pub(crate) fn reclaim(&mut self) -> bool {
        let Some(slab) = self.lent.pop_front() else { return false };
        if slab.is_unique() {
            self.give_slab(slab);
            return true;
        }
        self.lent.push_back(slab);
        false
    }
}

impl<T: std::ops::Deref<Target = [u8]>> Classes<T> {
    fn new() -> Self {
        Classes { free: std::array::from_fn(|_| Vec::new()) }
    }

    fn take(&mut self, class: usize) -> Option<T> {
        self.free.get_mut(class)?.pop()
    }

    fn give(&mut self, class: usize, block: T) {
        if let Some(free) = self.free.get_mut(class) {
            free.push(block);
        }
    }

    /// Frees all; the number of bytes.
    fn clear(&mut self) -> usize {
        let blocks = self.free.iter_mut().flat_map(|free| free.drain(..));
        blocks.map(|block| block.len()).sum()
    }
}

/// Class and size of a block for `len` bytes.
fn class_of(len: usize) -> (usize, usize) {
    let size = len.clamp(LEAST, 1 << 62).next_power_of_two();
    (size.trailing_zeros().saturating_sub(LEAST.trailing_zeros()) as usize, size)
}

const LEAST: usize = 16 << 10;
/// 16 KiB to 1 TiB.
const CLASSES: usize = 27;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        assert_eq!(class_of(1), (0, 16 << 10));
        assert_eq!(class_of(16 << 10), (0, 16 << 10));
        assert_eq!(class_of((16 << 10) + 1), (1, 32 << 10));
        assert_eq!(class_of(1 << 40), (26, 1 << 40));
    }
}
