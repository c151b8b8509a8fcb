//! The local side of a work request, in all its forms.

use std::ops::Range;

use crate::error::PostError;
use crate::gpu::{GpuBuffer, Place};
use crate::memory::{Backing, Buffer, DmabufSlice, MemoryPart, RegionSlice, Slab};

/// Memory that is posted with a work request and comes back with its completion.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Local {
    /// No memory: a message of length zero, or inline data.
    #[default]
    None,
    /// One buffer.
    Buffer(Buffer),
    /// A slab.
    Slab(Slab),
    /// Several buffers, gathered or scattered in order.
    List(Vec<Buffer>),
    /// Part of a region that is exposed; never a slice in safe code.
    Region(RegionSlice),
    /// Part of a DMA-buf.
    Dmabuf(DmabufSlice),
    /// Part of memory that several work requests have parts of.
    Part(MemoryPart),
    /// Memory of a GPU that is not registered. No work request takes it: it is for layers above, which bring bytes there by
    /// other memory.
    Gpu(GpuBuffer),
}

/// One piece of local memory, as the device sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    /// The key by which the device knows it; 0 on the software device.
    pub(crate) lkey: u32,
    /// Whose memory it is.
    pub(crate) place: Place,
    /// Arena and offset in it, where peers can map the piece.
    pub(crate) arena: Option<(u32, usize)>,
}

impl Local {
    /// The form in words, for messages.
    pub fn form(&self) -> &'static str {
        match self {
            Local::None => "no memory",
            Local::Buffer(_) => "a buffer",
            Local::Slab(_) => "a slab",
            Local::List(_) => "a list of buffers",
            Local::Region(_) => "part of an exposed region",
            Local::Dmabuf(_) => "part of a DMA-buf",
            Local::Part(_) => "part of divided memory",
            Local::Gpu(_) => "memory of a GPU that is not registered",
        }
    }

    /// Total length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Local::None => 0,
            Local::Buffer(buffer) => buffer.backing().len(),
            Local::Slab(slab) => slab.buffer().backing().len(),
            Local::List(list) => list.iter().map(|buffer| buffer.backing().len()).sum(),
            Local::Region(slice) => slice.len(),
            Local::Dmabuf(slice) => slice.len(),
            Local::Part(part) => part.len(),
            Local::Gpu(buffer) => buffer.len(),
        }
    }

    /// True if there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of pieces.
    #[inline]
    pub(crate) fn pieces(&self) -> usize {
        match self {
            Local::None | Local::Gpu(_) => 0,
            Local::List(list) => list.len(),
            Local::Buffer(_) | Local::Slab(_) | Local::Region(_) | Local::Dmabuf(_) | Local::Part(_) => 1,
        }
    }

    /// The one piece of a buffer or slab.
    #[inline(always)]
    pub(crate) fn one_piece(&self) -> Option<Sge> {
        match self {
            Local::Buffer(buffer) => Some(sge(buffer)),
            Local::Slab(slab) => Some(sge(slab.buffer())),
            _ => None,
        }
    }

    /// Piece `index` as the device sees it.
    #[inline]
    pub(crate) fn piece(&self, index: usize) -> Option<Sge> {
        match self {
            Local::Buffer(buffer) if index == 0 => Some(sge(buffer)),
            Local::Slab(slab) if index == 0 => Some(sge(slab.buffer())),
            Local::List(list) => list.get(index).map(sge),
            Local::Region(slice) if index == 0 => Some(slice.sge()),
            Local::Dmabuf(slice) if index == 0 => Some(slice.sge()),
            Local::Part(part) if index == 0 => Some(part.sge()),
            _ => None,
        }
    }

    /// The piece of that index as the device of a queue pair of that domain knows it.
    #[inline(always)]
    pub(crate) fn piece_in(&self, index: usize, domain: u64) -> Option<Sge> {
        let piece = self.piece(index)?;
        match self.backing(index) {
            Some(backing) if backing.domain() != domain => {
                Some(Sge { lkey: backing.further_lkey(domain).unwrap_or(piece.lkey), ..piece })
            }
            _ => Some(piece),
        }
    }

    #[inline(always)]
    fn backing(&self, index: usize) -> Option<&Backing> {
        match self {
            Local::None | Local::Dmabuf(_) | Local::Gpu(_) => None,
            Local::Buffer(buffer) => Some(buffer.backing()),
            Local::Slab(slab) => Some(slab.buffer().backing()),
            Local::List(list) => list.get(index).map(|buffer| &**buffer.backing()),
            Local::Region(slice) => Some(slice.backing()),
            Local::Part(part) => Some(part.backing()),
        }
    }

    /// Whose memory it is: all of it is of one place.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        match self {
            Local::Region(slice) => slice.backing().place(),
            _ => Place::HOST,
        }
    }

    /// True if it is a GPU's.
    #[inline]
    pub(crate) fn is_on_gpu(&self) -> bool {
        !self.place().is_host()
    }

    /// True if the processor reaches it by the addresses that work requests have.
    #[inline]
    pub(crate) fn is_of_processor(&self) -> bool {
        !matches!(self, Local::Dmabuf(_)) && !self.is_on_gpu()
    }

    /// Whether it may be posted on a queue pair of `domain`, whose requests have `max_sge` pieces at most.
    #[inline]
    pub(crate) fn check(&self, domain: u64, range: Option<&Range<usize>>, max_sge: usize) -> Result<(), PostError> {
        match self {
            Local::None => {}
            Local::Buffer(buffer) => buffer.check_domain(domain)?,
            Local::Slab(slab) => {
                slab.buffer().check_domain(domain)?;
                if !slab.is_unique() {
                    return Err(PostError::StillShared);
                }
            }
            Local::List(list) => {
                if list.len() > max_sge {
                    return Err(PostError::TooManyPieces { count: list.len(), limit: max_sge });
                }
                list.iter().try_for_each(|buffer| buffer.check_domain(domain))?;
            }
            Local::Region(slice) => slice.check_domain(domain)?,
            Local::Dmabuf(slice) => slice.check_domain(domain)?,
            Local::Part(part) => part.check_domain(domain)?,
            Local::Gpu(_) => return Err(PostError::NotRegistered),
        }
        match range {
            Some(range) if range.start > range.end || range.end > self.len() => {
                Err(PostError::Range { start: range.start, end: range.end, len: self.len() })
            }
            _ => Ok(()),
        }
    }
}

/// Most pieces of memory in one work request, where the device takes as many.
pub(crate) const MAX_SGE: usize = 4;

/// A buffer as the device sees it.
#[inline(always)]
pub(crate) fn sge(buffer: &Buffer) -> Sge {
    let backing = buffer.backing();
    let (len, lkey, place) = (backing.len(), backing.lkey(), Place::HOST);
    Sge { ptr: backing.base().as_ptr(), len, lkey, place, arena: backing.arena() }
}

impl From<Buffer> for Local {
    fn from(buffer: Buffer) -> Self {
        Local::Buffer(buffer)
    }
}

impl From<Slab> for Local {
    fn from(slab: Slab) -> Self {
        Local::Slab(slab)
    }
}

impl From<Vec<Buffer>> for Local {
    fn from(list: Vec<Buffer>) -> Self {
        Local::List(list)
    }
}

impl From<RegionSlice> for Local {
    fn from(slice: RegionSlice) -> Self {
        Local::Region(slice)
    }
}

impl From<DmabufSlice> for Local {
    fn from(slice: DmabufSlice) -> Self {
        Local::Dmabuf(slice)
    }
}

impl From<GpuBuffer> for Local {
    fn from(buffer: GpuBuffer) -> Self {
        Local::Gpu(buffer)
    }
}
