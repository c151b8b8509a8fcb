//! Memory of an operation: ordinary while its messages are copied, exposed while peers reach it.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use qpair_verbs::calc::{Calc, DataType, Scale, combine};
use qpair_verbs::{
    Access, ExposedRegion, Gpu, GpuBuffer, GpuRegion, Local, MemoryError, ProtectionDomain, RegionSlice, RemoteSlice,
    RevokeBlocked, Rkey,
};

use super::block::Block;
use super::steps::Span;
use crate::bootstrap::Alarm;
use crate::error::CollectiveError;

/// Memory of an operation.
#[derive(Debug, Default)]
pub(crate) enum Memory {
    /// No bytes.
    #[default]
    None,
    /// Ours alone.
    Plain(Block),
    /// Peers may read and write it.
    Exposed(Region),
    /// A device does not end its registration of so many bytes: they are never freed, nor used.
    Kept { len: usize },
}

/// Memory that peers may read and write.
#[derive(Debug)]
pub(crate) enum Region {
    Host(ExposedRegion),
    Gpu(GpuRegion),
}

impl Region {
    fn new(block: Block, domain: &ProtectionDomain) -> Result<Self, (MemoryError, Option<Block>)> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        match block {
            Block::Host(buffer) => {
                buffer.expose(access).map(Region::Host).map_err(|failed| (failed.error, failed.buffer.map(Block::Host)))
            }
            Block::Gpu(buffer) => domain
                .register_gpu(buffer, access)
                .map(Region::Gpu)
                .map_err(|failed| (failed.error, failed.buffer.map(Block::Gpu))),
        }
    }

    fn len(&self) -> usize {
        match self {
            Region::Host(region) => region.len(),
            Region::Gpu(region) => region.len(),
        }
    }

    fn rkey(&self) -> Rkey {
        match self {
            Region::Host(region) => region.rkey(),
            Region::Gpu(region) => region.rkey(),
        }
    }

    fn remote(&self) -> RemoteSlice {
        match self {
            Region::Host(region) => region.remote(0..region.len()),
            Region::Gpu(region) => region.remote(0..region.len()),
        }
    }

    fn local(&self, start: usize, len: usize) -> RegionSlice {
        match self {
            Region::Host(region) => region.local(start..start + len),
            Region::Gpu(region) => region.local(start..start + len),
        }
    }

    /// The memory; the region, if a peer is in the middle of reaching it, or of what else it is held up; neither where a
    /// device keeps it for ever.
    fn try_revoke(self) -> Result<Block, Option<(RevokeBlocked, Region)>> {
        match self {
            Region::Host(region) => {
                region.try_revoke().map(Block::Host).map_err(|failed| Some((failed.why, Region::Host(failed.region))))
            }
            Region::Gpu(region) => region
                .try_revoke()
                .map(Block::Gpu)
                .map_err(|failed| failed.region.map(|region| (failed.why, Region::Gpu(region)))),
        }
    }
}

impl Memory {
    /// Lets peers read and write it.
    pub(super) fn expose(&mut self, domain: &ProtectionDomain) -> Result<(), MemoryError> {
        *self = match std::mem::take(self) {
            Memory::Plain(block) => {
                let len = block.len();
                match Region::new(block, domain) {
                    Ok(region) => Memory::Exposed(region),
                    Err((error, block)) => {
                        *self = block.map_or(Memory::Kept { len }, Memory::Plain);
                        return Err(error);
                    }
                }
            }
            other => other,
        };
        Ok(())
    }

    /// Ends the access of peers: none begins to reach it any more. It stays exposed where a peer that is in the middle of
    /// reaching it does not leave, or where requests of this rank hold it.
    pub(crate) fn withdraw(self, grace: &mut Grace<'_>) -> Memory {
        let Memory::Exposed(mut region) = self else { return self };
        let len = region.len();
        loop {
            let (why, back) = match region.try_revoke() {
                Ok(block) => return Memory::Plain(block),
                Err(Some(failed)) => failed,
                Err(None) => return Memory::Kept { len },
            };
            if why != RevokeBlocked::PeerAccess || !grace.pause() {
                return Memory::Exposed(back);
            }
            region = back;
        }
    }

    /// Takes it back from the peers. Where one that does not run is in the middle of reaching it, gives other memory with
    /// the same contents, and keeps the first from use.
    ///
    /// # Errors
    /// [`CollectiveError::Withheld`] if there is no other memory; [`CollectiveError::Memory`] if a GPU fails.
    #[inline]
    pub(crate) fn into_buffer(
        self,
        domain: &ProtectionDomain,
        grace: &mut Grace<'_>,
    ) -> Result<Option<Block>, CollectiveError> {
        match self {
            Memory::None => Ok(None),
            Memory::Plain(block) => Ok(Some(block)),
            other => other.taken_back(domain, grace),
        }
    }

    fn taken_back(self, domain: &ProtectionDomain, grace: &mut Grace<'_>) -> Result<Option<Block>, CollectiveError> {
        // For the program's kernels, also those behind a hold.
        self.make_visible()?;
        let region = match self.withdraw(grace) {
            Memory::None => return Ok(None),
            Memory::Kept { len } => {
                let source = MemoryError::Refused { len, source: ErrorKind::ResourceBusy.into() };
                return Err(CollectiveError::Withheld { len, source: source.into() });
            }
            Memory::Plain(block) => return Ok(Some(block)),
            Memory::Exposed(region) => region,
        };
        let len = region.len();
        let copied = match &region {
            Region::Host(region) => {
                domain.alloc(len).and_then(|mut copy| region.read(0, &mut copy).map(|()| Block::Host(copy)))
            }
            Region::Gpu(region) => region.copy().map(Block::Gpu),
        };
        withhold(region);
        copied.map(Some).map_err(|source| CollectiveError::Withheld { len, source: source.into() })
    }

    /// The same, without a copy.
    #[inline]
    pub(crate) fn into_plain(self, grace: &mut Grace<'_>) -> Option<Block> {
        match self {
            Memory::None => None,
            Memory::Plain(block) => Some(block),
            other => other.withdrawn(grace),
        }
    }

    fn withdrawn(self, grace: &mut Grace<'_>) -> Option<Block> {
        match self.withdraw(grace) {
            Memory::None | Memory::Kept { .. } => None,
            Memory::Plain(block) => Some(block),
            Memory::Exposed(region) => {
                withhold(region);
                None
            }
        }
    }

    /// The bytes of a span, if no peer can reach them.
    #[inline]
    pub(super) fn bytes(&self, span: Span) -> Option<&[u8]> {
        match self {
            Memory::Plain(Block::Host(buffer)) => buffer.get(span.start..span.start + span.len),
            Memory::None if span.len == 0 => Some(&[]),
            Memory::None | Memory::Kept { .. } | Memory::Plain(Block::Gpu(_)) | Memory::Exposed(_) => None,
        }
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn bytes_mut(&mut self, span: Span) -> Option<&mut [u8]> {
        match self {
            Memory::Plain(Block::Host(buffer)) => buffer.get_mut(span.start..span.start + span.len),
            Memory::None | Memory::Kept { .. } | Memory::Plain(Block::Gpu(_)) | Memory::Exposed(_) => None,
        }
    }

    /// The memory, if no peer can reach it.
    pub(crate) fn plain_mut(&mut self) -> Option<&mut Block> {
        match self {
            Memory::Plain(block) => Some(block),
            Memory::None | Memory::Kept { .. } | Memory::Exposed(_) => None,
        }
    }

    /// The GPU whose memory it is, if no peer can reach it.
    pub(crate) fn gpu(&self) -> Option<Gpu> {
        if let Memory::Plain(block) = self { block.gpu() } else { None }
    }

    /// Memory of a GPU, if no peer can reach it.
    pub(super) fn on_gpu(&self) -> Option<&GpuBuffer> {
        if let Memory::Plain(Block::Gpu(buffer)) = self { Some(buffer) } else { None }
    }

    /// The same, to be changed.
    pub(super) fn on_gpu_mut(&mut self) -> Option<&mut GpuBuffer> {
        if let Memory::Plain(Block::Gpu(buffer)) = self { Some(buffer) } else { None }
    }

    /// Whether it is a GPU's.
    pub(super) fn is_on_gpu(&self) -> bool {
        matches!(self, Memory::Plain(Block::Gpu(_)) | Memory::Exposed(Region::Gpu(_)))
    }

    /// A span of it, if peers may reach it.
    pub(super) fn slice(&self, span: Span) -> Option<RegionSlice> {
        match self {
            Memory::Exposed(region) => Some(region.local(span.start, span.len)),
            Memory::None | Memory::Kept { .. } | Memory::Plain(_) => None,
        }
    }

    /// Makes what NICs have written to a GPU's memory visible to what the GPU does from now on, where it does not order such writes by
    /// itself. Without a way to do so, messages of its memory go by slots.
    pub(super) fn make_visible(&self) -> Result<(), MemoryError> {
        match self {
            Memory::Exposed(Region::Gpu(region)) => region.flush().map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Scales a span of a GPU's memory.
    pub(super) fn scale(&mut self, span: Span, data_type: DataType, by: Scale) -> Result<(), String> {
        if let Some(own) = self.on_gpu_mut() {
            return own.scale(span.start, span.len, data_type, by).map_err(|error| error.to_string());
        }
        self.make_visible().map_err(|error| error.to_string())?;
        let slice = self.slice(span).ok_or("a span of memory that peers do not reach")?;
        slice.scale(data_type, by).map_err(|error| error.to_string())
    }

    /// The name of a part for peers, if they may reach it.
    pub(super) fn remote_part(&self, span: Span) -> Option<RemoteSlice> {
        match self {
            Memory::Exposed(region) => {
                let whole = region.remote();
                let (start, end) = (span.start as u64, (span.start + span.len) as u64);
                (end <= whole.len).then(|| whole.slice(start..end))
            }
            Memory::None | Memory::Kept { .. } | Memory::Plain(_) => None,
        }
    }

    /// Its name for peers, if they may reach it.
    pub(super) fn remote(&self) -> Option<RemoteSlice> {
        match self {
            Memory::Exposed(region) => Some(region.remote()),
            Memory::None | Memory::Kept { .. } | Memory::Plain(_) => None,
        }
    }

    /// A span as the local memory of a read or write, if peers may reach it.
    #[inline]
    pub(super) fn local(&self, span: Span) -> Option<Local> {
        self.slice(span).map(Local::Region)
    }

    /// Puts `from` into a span, or combines it with what is there. The lengths are equal.
    #[inline]
    pub(super) fn put(&mut self, span: Span, from: &[u8], calc: Option<Calc>) -> Result<(), String> {
        match self {
            Memory::Plain(Block::Gpu(_)) if from.is_empty() => Ok(()),
            Memory::Plain(Block::Gpu(_)) => Err(NOT_COPIED.into()),
            Memory::Plain(Block::Host(buffer)) => {
                let into = buffer.get_mut(span.start..span.start + span.len).ok_or("a span outside the buffer")?;
                put(into, from, calc)
            }
            Memory::Exposed(region) => {
                let slice = region.local(span.start, span.len);
                let done = match calc {
                    Some(calc) => slice.combine(0, calc, from),
                    None => slice.write(0, from),
                };
                done.map_err(|error| error.to_string())
            }
            Memory::None if from.is_empty() => Ok(()),
            Memory::None | Memory::Kept { .. } => Err("a message for no memory".into()),
        }
    }

    /// Puts a span of other memory of this process into one, or combines it with what is there; `None` if that can not be done
    /// at once. The lengths are equal.
    #[inline]
    pub(super) fn put_from(
        &mut self,
        dst: Span,
        (from, src): (&Memory, Span),
        calc: Option<Calc>,
    ) -> Option<Result<(), String>> {
        if let Some(from) = from.bytes(src) {
            return Some(self.put(dst, from, calc));
        }
        let from = from.slice(src)?;
        match (self.slice(dst), calc) {
            (Some(into), calc) => Some(put_exposed(&into, &from, calc)),
            (None, Some(_)) => None,
            (None, None) => Some(from.read(0, self.bytes_mut(dst)?).map_err(|error| error.to_string())),
        }
    }

    /// Copies a span to another, or combines it with that; `None` if the two share bytes. The lengths are equal.
    #[inline]
    pub(super) fn put_within(&mut self, src: Span, dst: Span, calc: Option<Calc>) -> Option<Result<(), String>> {
        if let Memory::Plain(Block::Host(buffer)) = self {
            let ranges = [src, dst].map(|span| span.start..span.start + span.len);
            let [from, into] = buffer.get_disjoint_mut(ranges).ok()?;
            return Some(put(into, from, calc));
        }
        if src.start.abs_diff(dst.start) < src.len {
            return None;
        }
        Some(put_exposed(&self.slice(dst)?, &self.slice(src)?, calc))
    }

    /// Copies out a part of a span, which may be exposed.
    pub(super) fn read(&self, start: usize, into: &mut [u8]) -> Result<(), String> {
        match self {
            Memory::Plain(Block::Gpu(_)) => Err(NOT_COPIED.into()),
            Memory::Plain(Block::Host(buffer)) => {
                let from = buffer.get(start..start + into.len()).ok_or("a span outside the buffer")?;
                into.copy_from_slice(from);
                Ok(())
            }
            Memory::Exposed(region) => region.local(start, into.len()).read(0, into).map_err(|error| error.to_string()),
            Memory::None | Memory::Kept { .. } => Err("a copy from no memory".into()),
        }
    }
}

/// The same of memory that peers may reach.
fn put_exposed(into: &RegionSlice, from: &RegionSlice, calc: Option<Calc>) -> Result<(), String> {
    match calc {
        Some(calc) => into.combine_from(from, calc),
        None => into.copy_from(from),
    }
    .map_err(|error| error.to_string())
}

#[inline]
fn put(into: &mut [u8], from: &[u8], calc: Option<Calc>) -> Result<(), String> {
    match calc {
        Some(calc) => combine(calc, into, from).map_err(|error| error.to_string()),
        None if into.len() == from.len() => {
            into.copy_from_slice(from);
            Ok(())
        }
        None => Err("a message of another length than its receive".into()),
    }
}

/// How long peers are waited for that are in the middle of reaching the memory of an operation: of all its memory
/// together, and from the first that is found in use.
pub(crate) struct Grace<'a> {
    until: Option<Instant>,
    /// How often it was waited.
    pauses: u32,
    /// What ends it early.
    alarm: Option<&'a Alarm>,
}

impl<'a> Grace<'a> {
    pub(crate) fn new(alarm: Option<&'a Alarm>) -> Self {
        Grace { until: None, pauses: 0, alarm }
    }

    /// Waits a little, and then longer. False if the time is over.
    fn pause(&mut self) -> bool {
        self.pauses += 1;
        if self.pauses <= SPINS {
            std::hint::spin_loop();
            return true;
        }
        if self.pauses <= SPINS + YIELDS {
            std::thread::yield_now();
            return true;
        }
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + GRACE);
        let over = now >= until || self.alarm.is_some_and(Alarm::is_raised);
        if !over {
            std::thread::sleep(PAUSE);
        }
        !over
    }
}

/// Keeps memory from use for good: a peer may reach it at any time.
fn withhold(region: Region) {
    tracing::error!(rkey = %region.rkey(), "a peer sits in the middle of reaching memory; it is withheld");
    std::mem::forget(region);
}

/// Operations on GPUs' memory expose it, or go by slots, so that it never comes to this.
const NOT_COPIED: &str = "a message that is copied, of memory of a GPU";

/// A peer that said that it is done may not have left yet: what it said comes by another cache line than that it leaves.
const SPINS: u32 = 100;
/// It may share its core.
const YIELDS: u32 = 50;
/// A peer that runs is done long before, also where it shares its core with many.
const GRACE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;

    #[test]
    fn peers_are_waited_for_until_the_time_is_over_or_the_alarm_raised() {
        let alarm = Alarm::new(2);
        let mut grace = Grace::new(Some(&alarm));
        assert!(grace.pause());
        alarm.raise(Fault::Gone { rank: 1 });
        // What takes no time is tried in any case.
        assert_eq!((1..).find(|_| !grace.pause()), Some(SPINS + YIELDS));
        let mut grace = Grace::new(None);
        let start = Instant::now();
        while grace.pause() {}
        assert!(start.elapsed() >= GRACE && !grace.pause());
    }
}
