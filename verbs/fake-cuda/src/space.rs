//! The unified address space: which address is what.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backing::{Arena, Backing, Piece};

/// All that has addresses in this process.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) arena: Arena,
    /// By their first address.
    pub(crate) ranges: BTreeMap<u64, Range>,
    /// What was freed: its length and name.
    pub(crate) dead: BTreeMap<u64, (u64, String)>,
}

/// Some addresses, from the one it is listed by.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) len: u64,
    pub(crate) device: usize,
    /// Its number among those of its kind on the device.
    pub(crate) number: u64,
    /// Whether synchronous copies of it are done when they return, as a program asked.
    pub(crate) synchronous: bool,
    pub(crate) what: What,
}

/// What is there.
#[derive(Debug)]
pub(crate) enum What {
    /// Device memory of `cuMemAlloc`, from an offset in its pages.
    Alloc(Arc<Backing>, u64),
    /// Such memory of another process, and how often it was opened.
    Ipc(Arc<Backing>, u64, u32),
    /// Addresses of `cuMemAddressReserve`, with what is mapped to them, by its distance from the first.
    Reserved(BTreeMap<u64, Segment>),
    /// Host memory: made by `cuMemHostAlloc`, or registered.
    Pinned(bool),
}

/// Physical memory mapped to reserved addresses.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) len: u64,
    /// The handle of the physical memory, and where in it this begins.
    pub(crate) physical: u64,
    pub(crate) backing: Arc<Backing>,
    pub(crate) offset: u64,
    /// The rights of devices: 1 to read, 3 to read and write.
    pub(crate) access: BTreeMap<usize, u32>,
}

/// Who wants to access memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    /// The device.
    pub(crate) device: usize,
    pub(crate) write: bool,
    /// Whether by a kernel, which reaches no further than what is mapped for its device.
    pub(crate) kernel: bool,
    /// Whether kernels may use all host memory.
    pub(crate) pageable: bool,
    /// Devices whose memory the context may access.
    pub(crate) peers: &'a [usize],
}

impl Space {
    /// What has this address.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Range)> {
        let (base, range) = self.ranges.range(..=address).next_back()?;
        (address - base < range.len).then_some((*base, range))
    }

    /// The same, to be changed.
    pub(crate) fn find_mut(&mut self, address: u64) -> Option<(u64, &mut Range)> {
        let (base, range) = self.ranges.range_mut(..=address).next_back()?;
        (address - base < range.len).then_some((*base, range))
    }

    /// Whether it is the address of a device, or host memory that devices can access.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        self.arena.has(address) || self.find(address).is_some()
    }

    /// Takes a range out.
    pub(crate) fn remove(&mut self, base: u64) -> Option<Range> {
        let range = self.ranges.remove(&base)?;
        if !matches!(range.what, What::Pinned(_)) {
            self.dead.insert(base, (range.len, range.name()));
        }
        Some(range)
    }

    /// The memory at some addresses, or what is wrong with them.
    pub(crate) fn resolve(&self, address: u64, len: u64, access: Access<'_>) -> Result<Vec<Piece>, String> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let Some((base, range)) = self.find(address) else { return self.resolve_other(address, len, access) };
        let at = address - base;
        if range.len - at < len {
            return Err(format!("{len} bytes at {address:#x} run over the end of {}", range.name()));
        }
        let reached = !access.kernel || range.device == access.device || access.peers.contains(&range.device);
        match &range.what {
            What::Alloc(..) | What::Ipc(..) if !reached => {
                Err(format!("{address:#x} is of device {}, and peer access is not enabled", range.device))
            }
            What::Alloc(backing, offset) | What::Ipc(backing, offset, _) => {
                Ok(vec![Piece::Device(backing.clone(), offset + at, len as usize)])
            }
            What::Pinned(_) => Ok(vec![Piece::Host(address, len as usize)]),
            What::Reserved(segments) => resolve_reserved(&range.name(), segments, at, len, access),
        }
    }

    fn resolve_other(&self, address: u64, len: u64, access: Access<'_>) -> Result<Vec<Piece>, String> {
        if self.arena.has(address) {
            let dead = self.dead.range(..=address).next_back().filter(|(base, (len, _))| address - **base < *len);
            return Err(match dead {
                Some((_, (_, name))) => format!("{address:#x} is of {name}, which was freed before"),
                None => format!("{address:#x} belongs to nothing"),
            });
        }
        if address < crate::backing::PAGE {
            return Err(format!("{address:#x} is no address"));
        }
        if access.kernel && !access.pageable {
            return Err(format!("{address:#x} is host memory that is not pinned"));
        }
        Ok(vec![Piece::Host(address, len as usize)])
    }

    /// A range's names, as those that are left are listed.
    pub(crate) fn names(&self, device: usize) -> impl Iterator<Item = String> {
        let of_device = self.ranges.iter().filter(move |(_, range)| range.device == device);
        of_device.flat_map(|(base, range)| {
            let mapped = match &range.what {
                What::Reserved(segments) => segments
                    .iter()
                    .map(|(at, segment)| format!("mapping of {} bytes at {:#x}", segment.len, base + at))
                    .collect(),
                _ => Vec::new(),
            };
            std::iter::once(format!("{} of {} bytes at {base:#x}", range.name(), range.len)).chain(mapped)
        })
    }
}

impl Range {
    /// What it is, and its number.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.kind(), self.number)
    }

    /// What it is.
    pub(crate) fn kind(&self) -> &'static str {
        match self.what {
            What::Alloc(..) => "allocation",
            What::Ipc(..) => "opening",
            What::Reserved(_) => "reservation",
            What::Pinned(true) => "host",
            What::Pinned(false) => "registration",
        }
    }
}

fn resolve_reserved(
    name: &str,
    segments: &BTreeMap<u64, Segment>,
    mut at: u64,
    mut len: u64,
    access: Access<'_>,
) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    while len > 0 {
        let found = segments.range(..=at).next_back().filter(|(start, segment)| at - **start < segment.len);
        let Some((start, segment)) = found else { return Err(format!("nothing is mapped at {at:#x} of {name}")) };
        let right = segment.access.get(&access.device).copied().unwrap_or(0);
        if right & if access.write { 2 } else { 1 } == 0 {
            let what = if access.write { "write" } else { "read" };
            return Err(format!("device {} has no right to {what} at {at:#x} of {name}", access.device));
        }
        let inside = at - start;
        let part = len.min(segment.len - inside);
        pieces.push(Piece::Device(segment.backing.clone(), segment.offset + inside, part as usize));
        at += part;
        len -= part;
    }
    Ok(pieces)
}
