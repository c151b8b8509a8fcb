//! Memory of which several work requests have a part each, at the same time.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::error::PostError;
use crate::memory::{Backing, Local, Sge};

/// Memory that is divided among work requests: each has a [`MemoryPart`] of it, and different queue pairs may have theirs
/// with their devices at once. Nobody reads or writes it here before all parts are back and it is
/// [joined](DividedMemory::join) again.
///
/// ```
/// use qpair_verbs::{Context, DividedMemory, Local};
///
/// let pd = Context::open("soft0")?.alloc_pd()?;
/// let memory = DividedMemory::of(pd.alloc(100)?).expect("a buffer can be divided");
/// let parts = [memory.part(0..60), memory.part(60..100)];
/// let memory = memory.join().expect_err("two parts are out");
/// drop(parts);
/// assert_eq!(memory.join().expect("all parts are back").len(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DividedMemory {
    memory: Whole,
}

#[derive(Debug)]
enum Whole {
    /// A buffer, or a slab that nobody else has a part of.
    Owned(Local, Arc<Backing>),
    /// Memory that is exposed anyway: whoever has it reads it by copies only.
    Exposed(Local),
}

/// A part of [`DividedMemory`], for one work request.
pub struct MemoryPart {
    backing: Arc<Backing>,
    start: usize,
    len: usize,
}

impl DividedMemory {
    /// Divides a buffer, a slab that is not shared, or part of an exposed region.
    ///
    /// # Errors
    /// The memory, if it is of another form, or a view of the slab is alive.
    pub fn of(memory: impl Into<Local>) -> Result<DividedMemory, Local> {
        let memory = memory.into();
        let backing = match &memory {
            Local::Buffer(buffer) => buffer.backing().clone(),
            Local::Slab(slab) if slab.is_unique() => slab.buffer().backing().clone(),
            Local::Region(_) => return Ok(DividedMemory { memory: Whole::Exposed(memory) }),
            _ => return Err(memory),
        };
        Ok(DividedMemory { memory: Whole::Owned(memory, backing) })
    }

    /// The bytes `range`, to be posted. Parts may overlap: what is there then is anything, as where two devices write.
    ///
    /// # Panics
    /// If the range lies outside, as slices do.
    pub fn part(&self, range: Range<usize>) -> Local {
        match &self.memory {
            Whole::Owned(_, backing) => {
                assert!(range.start <= range.end && range.end <= backing.len(), "range outside the memory");
                Local::Part(MemoryPart { backing: backing.clone(), start: range.start, len: range.len() })
            }
            Whole::Exposed(Local::Region(slice)) => Local::Region(slice.slice(range)),
            Whole::Exposed(_) => unreachable!("only a region's part is divided so"),
        }
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> usize {
        match &self.memory {
            Whole::Owned(_, backing) => backing.len(),
            Whole::Exposed(memory) => memory.len(),
        }
    }

    /// The memory as it came.
    ///
    /// # Errors
    /// Itself, while a part is with a device, or alive. Of an exposed region any part may be out.
    pub fn join(self) -> Result<Local, DividedMemory> {
        match self.memory {
            Whole::Exposed(memory) => Ok(memory),
            Whole::Owned(memory, backing) => {
                // This one, and the memory's own.
                if Arc::strong_count(&backing) > 2 {
                    return Err(DividedMemory { memory: Whole::Owned(memory, backing) });
                }
                // What a device did to a part happened before that was dropped; this makes it happen before what follows.
                fence(Ordering::Acquire);
                Ok(memory)
            }
        }
    }
}

impl MemoryPart {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    pub(crate) fn sge(&self) -> Sge {
        // SAFETY: `start` lies within the block, checked when the part was made.
        let ptr = unsafe { self.backing.base().as_ptr().add(self.start) };
        Sge {
            ptr,
            len: self.len,
            lkey: self.backing.lkey(),
            place: self.backing.place(),
            arena: self.backing.arena().map(|(id, offset)| (id, offset + self.start)),
        }
    }

    pub(crate) fn check_domain(&self, domain: u64) -> Result<(), PostError> {
        if self.backing.is_of(domain) { Ok(()) } else { Err(PostError::WrongDomain) }
    }
}

impl fmt::Debug for MemoryPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryPart({}..{})", self.start, self.start + self.len)
    }
}

impl From<MemoryPart> for Local {
    fn from(part: MemoryPart) -> Self {
        Local::Part(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Context};

    #[test]
    fn memory_comes_back_as_it_was_once_no_part_is_out() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut buffer = pd.alloc(64).unwrap();
        buffer[7] = 9;
        let memory = DividedMemory::of(buffer).unwrap();
        assert_eq!(memory.len(), 64);
        let (first, last) = (memory.part(0..8), memory.part(60..64));
        assert_eq!((first.len(), last.len(), first.form()), (8, 4, "part of divided memory"));
        drop(first);
        let memory = memory.join().unwrap_err();
        drop(last);
        let Ok(Local::Buffer(buffer)) = memory.join() else { panic!("it was a buffer") };
        assert_eq!(buffer[7], 9);
    }

    #[test]
    fn a_slab_that_is_shared_and_memory_in_pieces_are_not_divided() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let slab = pd.alloc(64).unwrap().into_slab();
        let view = slab.share(0..10);
        let Err(Local::Slab(slab)) = DividedMemory::of(slab) else { panic!("a view could see it change") };
        drop(view);
        assert!(matches!(DividedMemory::of(slab).unwrap().join(), Ok(Local::Slab(_))));
        assert!(DividedMemory::of(vec![pd.alloc(8).unwrap()]).is_err() && DividedMemory::of(Local::None).is_err());
        let region = pd.expose(64, Access::REMOTE_READ).unwrap();
        let memory = DividedMemory::of(region.local(8..40)).unwrap();
        assert_eq!((memory.len(), memory.part(4..20).len()), (32, 16));
    }

    #[test]
    #[should_panic(expected = "range outside the memory")]
    fn a_part_lies_within() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let memory = DividedMemory::of(pd.alloc(64).unwrap()).unwrap();
        memory.part(60..65);
    }
}
