//! Writes GPU memory that came, packets that lie together at once.

use qpair_roce::Qpn;

use super::{PerGpu, SLOTS, log};
use crate::calc::Calc;
use crate::error::GpuError;
use crate::gpu::{self, HostSlots, Place};

/// Bytes that came and are not in their memory, of all GPUs. Nobody may be told of them before they are
/// [settled](WriteBehind::settle).
pub(in crate::soft::roce) struct WriteBehind {
    gpus: PerGpu<Behind>,
    /// True while there are such bytes.
    pending: bool,
    /// Queue pairs of which bytes are lost.
    lost: Vec<Qpn>,
}

/// Bytes of a packet, and what is to be done with them.
#[derive(Clone, Copy)]
pub(in crate::soft::roce) struct Bytes<'a> {
    pub(in crate::soft::roce) qpn: Qpn,
    /// The request that they answer, by its running number; `None` of what the peer sends.
    pub(in crate::soft::roce) request: Option<u32>,
    /// They are combined with what is there; the same for all of a request.
    pub(in crate::soft::roce) calc: Option<Calc>,
    pub(in crate::soft::roce) bytes: &'a [u8],
}

/// Bytes for one GPU.
struct Behind {
    place: Place,
    stage: HostSlots,
    batches: [Batch; SLOTS],
    /// Counts batches.
    count: u64,
}

/// What is in a slot: bytes of one queue pair that lie together.
#[derive(Clone, Copy)]
struct Batch {
    state: State,
    qpn: Qpn,
    request: Option<u32>,
    calc: Option<Calc>,
    to: u64,
    len: usize,
    number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// More may come. A queue pair has one at most, so that what it writes twice is written in order.
    Open,
    UnderWay,
}

impl WriteBehind {
    pub(in crate::soft::roce) const fn new() -> Self {
        WriteBehind { gpus: PerGpu::new(), pending: false, lost: Vec::new() }
    }

    /// Takes bytes for the memory at `to`. `None` if it has no slots.
    ///
    /// # Errors
    /// [`GpuError::Driver`]: they are lost, and those of the queue pair before them.
    ///
    /// # Safety
    /// As many bytes at `to` are memory of the GPU at `place` until they are [settled](WriteBehind::settle).
    pub(in crate::soft::roce) unsafe fn put(
        &mut self,
        (to, place): (*mut u8, Place),
        bytes: Bytes<'_>,
    ) -> Option<Result<(), GpuError>> {
        let behind = self.gpus.get(place, |stage| Behind::new(place, stage))?;
        self.pending = true;
        // SAFETY: passed on to the caller.
        let put = unsafe { behind.put(to as u64, bytes, &mut self.lost) };
        if put.is_err() {
            self.lost.push(bytes.qpn);
        }
        Some(put)
    }

    /// Has all bytes in their memory, or lost. Does not panic.
    pub(in crate::soft::roce) fn settle(&mut self) {
        if std::mem::take(&mut self.pending) {
            for behind in self.gpus.all() {
                behind.settle(&mut self.lost);
            }
        }
    }

    /// Whether bytes of a queue pair are lost.
    pub(in crate::soft::roce) fn has_lost(&self, qpn: Qpn) -> bool {
        self.lost.contains(&qpn)
    }

    /// A queue pair of which bytes were lost since this was asked last.
    pub(in crate::soft::roce) fn take_lost(&mut self) -> Option<Qpn> {
        self.lost.pop()
    }
}

impl Behind {
    fn new(place: Place, stage: HostSlots) -> Self {
        let none = Batch { state: State::Free, qpn: Qpn(0), request: None, calc: None, to: 0, len: 0, number: 0 };
        Behind { place, stage, batches: [none; SLOTS], count: 0 }
    }

    /// # Safety
    /// As [`WriteBehind::put`].
    unsafe fn put(&mut self, mut to: u64, bytes: Bytes<'_>, lost: &mut Vec<Qpn>) -> Result<(), GpuError> {
        let Bytes { qpn, request, calc, mut bytes } = bytes;
        while !bytes.is_empty() {
            let open = self.batches.iter().position(|batch| batch.state == State::Open && batch.qpn == qpn);
            let slot = match open {
                Some(slot) if self.batches[slot].goes_on(to, request) => slot,
                other => {
                    if let Some(slot) = other {
                        self.start(slot)?;
                    }
                    let slot = self.room(lost);
                    self.count += 1;
                    let number = self.count;
                    self.batches[slot] = Batch { state: State::Open, qpn, request, calc, to, len: 0, number };
                    slot
                }
            };
            let batch = &mut self.batches[slot];
            let (part, others) = bytes.split_at((self.stage.slot_len() - batch.len).min(bytes.len()));
            self.stage.put(slot, batch.len, part);
            batch.len += part.len();
            to += part.len() as u64;
            bytes = others;
            // It goes while more comes.
            if batch.len == self.stage.slot_len() {
                self.start(slot)?;
            }
        }
        Ok(())
    }

    /// A free slot: one whose copy is done, else the one to be done first.
    fn room(&mut self, lost: &mut Vec<Qpn>) -> usize {
        for slot in 0..SLOTS {
            if self.batches[slot].state == State::UnderWay {
                match self.stage.is_done(slot) {
                    Ok(false) => {}
                    over => self.finish(slot, over.map(|_| ()), lost),
                }
            }
            if self.batches[slot].state == State::Free {
                return slot;
            }
        }
        let key = |slot: &usize| (self.batches[*slot].state == State::Open, self.batches[*slot].number);
        let oldest = (0..SLOTS).min_by_key(key).unwrap_or(0);
        self.end(oldest, lost);
        oldest
    }

    /// Starts the copy of an open batch. It is over if that fails.
    fn start(&mut self, slot: usize) -> Result<(), GpuError> {
        let Batch { calc, to, len, .. } = self.batches[slot];
        self.batches[slot].state = State::Free;
        let to = std::ptr::without_provenance_mut(to as usize);
        let Some(calc) = calc else {
            // SAFETY: memory of the GPU until it is settled, by the word of who put the bytes; the slot is not free before.
            unsafe { self.stage.drain(slot, to, len) }?;
            self.batches[slot].state = State::UnderWay;
            return Ok(());
        };
        let from = (self.stage.at(slot, 0, len).as_ptr(), Place::HOST);
        // SAFETY: as above; the slot's bytes lie elsewhere. What was put there before is there: requests are settled one by one.
        unsafe { gpu::combine((to, self.place), from, len, calc) }
    }

    /// Ends a batch, whatever it takes.
    fn end(&mut self, slot: usize, lost: &mut Vec<Qpn>) {
        if self.batches[slot].state == State::Open
            && let Err(error) = self.start(slot)
        {
            return self.finish(slot, Err(error), lost);
        }
        let over = self.stage.wait(slot);
        self.finish(slot, over, lost);
    }

    fn finish(&mut self, slot: usize, over: Result<(), GpuError>, lost: &mut Vec<Qpn>) {
        let Batch { qpn, state, .. } = &mut self.batches[slot];
        *state = State::Free;
        if let Err(error) = over {
            lost.push(*qpn);
            log(&error);
        }
    }

    fn settle(&mut self, lost: &mut Vec<Qpn>) {
        // All are started before the first is waited for. The order among queue pairs is nobody's concern.
        for slot in 0..SLOTS {
            if self.batches[slot].state == State::Open
                && let Err(error) = self.start(slot)
            {
                self.finish(slot, Err(error), lost);
            }
        }
        for slot in 0..SLOTS {
            if self.batches[slot].state == State::UnderWay {
                self.end(slot, lost);
            }
        }
    }
}

impl Batch {
    /// True if bytes for `to` lie behind these, and are of the same request.
    fn goes_on(&self, to: u64, request: Option<u32>) -> bool {
        self.request == request && self.to + self.len as u64 == to
    }
}
