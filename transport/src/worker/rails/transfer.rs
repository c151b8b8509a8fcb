//! A payload that is read over rails, slice by slice.

use std::ops::Range;

use qpair_verbs::{DividedMemory, Local, PostError, QpState, RemoteSlice};

use super::lanes::{Lane, LaneQp};
use super::request::LaneWork;
use crate::engine::RailKeys;
use crate::worker::endpoint::{InFlight, OneSided, Reading};
use crate::worker::ids::EndpointId;

/// A payload that is read over rails.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) work: InFlight,
    memory: DividedMemory,
    /// The keys of the payload, for the rails.
    keys: RailKeys,
    /// The rails whose devices do not know the memory, as bits.
    barred: u8,
    len: u64,
    slice: u64,
    /// What was never posted begins there.
    next: u64,
    /// What came back unread.
    again: Vec<Range<u64>>,
    /// Bytes that were read.
    read: u64,
    /// Slices with devices.
    pub(super) out: u32,
    /// Nobody waits for it any more.
    given_up: bool,
    /// It is among those that wait.
    pub(super) waits: bool,
}

impl Transfer {
    /// All of a payload is to be read, in slices of so many bytes.
    pub(super) fn new(reading: Reading, memory: DividedMemory, slice: u64) -> Self {
        let (len, keys) = (reading.remote.len(), reading.remote.rails);
        let work = InFlight { number: 0, order: 0, awaited: true, len, what: OneSided::Pull(reading) };
        let again = Vec::new();
        Transfer {
            work,
            memory,
            keys,
            barred: 0,
            len,
            slice,
            next: 0,
            again,
            read: 0,
            out: 0,
            given_up: false,
            waits: true,
        }
    }

    /// True if it can be read over that rail.
    pub(super) fn is_on(&self, rail: usize) -> bool {
        self.keys.is_on(rail) && self.barred >> rail & 1 == 0
    }

    /// The device of that rail does not know the memory.
    pub(super) fn bar(&mut self, rail: usize) {
        self.barred |= 1 << rail;
    }

    /// Bytes that are still to be posted.
    pub(super) fn unposted(&self) -> u64 {
        let again: u64 = self.again.iter().map(|range| range.end - range.start).sum();
        self.len - self.next + again
    }

    /// The next bytes to post.
    pub(super) fn next_slice(&mut self) -> Option<Range<u64>> {
        if let Some(range) = self.again.pop() {
            return Some(range);
        }
        let start = self.next;
        self.next = self.len.min(start + self.slice);
        (start < self.next).then_some(start..self.next)
    }

    /// Nobody waits for it any more: what memory of the worker's own takes is read on, for another receive.
    pub(super) fn is_unwanted(&self) -> bool {
        let OneSided::Pull(reading) = &self.work.what else { return false };
        !self.work.awaited && reading.pooled == 0
    }

    /// Gives the bytes that are not posted any more.
    pub(super) fn give_up(&mut self) -> u64 {
        let unposted = self.unposted();
        self.given_up = true;
        self.next = self.len;
        self.again.clear();
        unposted
    }

    /// True if nothing is with a device, and nothing more is to be.
    pub(super) fn is_over(&self) -> bool {
        self.out == 0 && (self.given_up || self.read == self.len)
    }

    /// Posts a slice.
    ///
    /// # Errors
    /// Of the queue pair, or [`PostError::WrongDomain`] for memory that its device does not know.
    pub(super) fn post(
        &mut self,
        ep: EndpointId,
        rail: usize,
        lane: &mut Lane,
        range: Range<u64>,
    ) -> Result<(), PostError> {
        let (OneSided::Pull(reading), LaneQp::Connected(qp)) = (&self.work.what, &mut lane.qp) else {
            return Err(PostError::State(QpState::Err));
        };
        let remote = reading.remote.remote;
        let Some(rkey) = self.keys.on(rail, remote.rkey) else { return Err(PostError::WrongDomain) };
        let remote = RemoteSlice { rkey, ..remote.slice(range.clone()) };
        let id = LaneWork { ep, rail, is_probe: false }.id();
        let part = self.memory.part(range.start as usize..range.end as usize);
        let request = qp.read(part, remote);
        request.id(id).signaled().post().map_err(|rejected| rejected.error)?;
        self.out += 1;
        Ok(())
    }

    /// A slice is to be posted later.
    pub(super) fn put_back(&mut self, range: Range<u64>) {
        self.again.push(range);
    }

    /// A slice came back. True if it was not read, and is to be posted again.
    pub(super) fn came_back(&mut self, range: Range<u64>, was_read: bool) -> bool {
        self.out -= 1;
        if was_read {
            self.read += range.end - range.start;
        } else if !self.given_up {
            self.again.push(range);
            return true;
        }
        false
    }

    /// What it was about and its memory, of which nothing is with a device.
    pub(super) fn end(self) -> (InFlight, Local) {
        match self.memory.join() {
            Ok(memory) => (self.work, memory),
            // Each slice gave its part back with its completion.
            Err(memory) => unreachable!("a part is out: {memory:?}"),
        }
    }
}
