//! The device around one end: memory in vectors, and a list of what completed.

use std::collections::VecDeque;
use std::time::Duration;

use qpair_roce::{AccessError, Cause, Change, Completion, Host, Qpn, Receive, Remote, Right, Rkey};

/// One end's device.
#[derive(Debug, Default)]
pub struct Side {
    /// Memory that the peer may reach, at `BASE`, with `KEY`.
    pub memory: Vec<u8>,
    /// What the peer may not do with it.
    pub forbidden: Option<Right>,
    /// What the queue pair does not let the peer do at all.
    pub refused: Option<Right>,
    /// Buffers that are gone.
    pub gone: Vec<usize>,
    /// All memory is there and does not do what is asked of it.
    pub is_broken: bool,
    pub failed: Vec<Cause>,
    /// Memory of requests; a request names it by its place.
    pub buffers: Vec<Vec<u8>>,
    pub receives: VecDeque<Receive<usize>>,
    pub completions: Vec<Completion<usize>>,
    pub invalidated: Vec<Rkey>,
    /// Answers that have begun: how far into the memory, and their lengths.
    pub begun: Vec<(u64, u32)>,
    /// How long acknowledgments may wait for requests.
    pub patience: Duration,
}

pub const BASE: u64 = 0x7000_0000_0000;
pub const KEY: Rkey = Rkey(0x1234_5678);

impl Side {
    pub fn new(memory: usize) -> Self {
        Side { memory: vec![0; memory], ..Side::default() }
    }

    /// A buffer with such contents.
    pub fn buffer(&mut self, contents: Vec<u8>) -> usize {
        self.buffers.push(contents);
        self.buffers.len() - 1
    }

    /// Posts a receive of so many bytes.
    pub fn receive(&mut self, id: u64, len: u32) {
        let local = self.buffer(vec![0xee; len as usize]);
        self.receives.push_back(Receive { id, local, len });
    }

    fn range(&self, at: Remote, len: usize, right: Right) -> Result<std::ops::Range<usize>, AccessError> {
        if self.refused == Some(right) {
            return Err(AccessError::QueuePair);
        }
        if len == 0 {
            return Ok(0..0);
        }
        let start = at.va.checked_sub(BASE).ok_or(AccessError::Key)? as usize;
        let end = start.checked_add(len).filter(|end| *end <= self.memory.len()).ok_or(AccessError::Key)?;
        if at.rkey == KEY && self.forbidden != Some(right) { Ok(start..end) } else { Err(AccessError::Key) }
    }

    fn there(&self, buffer: usize) -> Result<(), AccessError> {
        if self.gone.contains(&buffer) { Err(AccessError::Key) } else { self.works() }
    }

    fn works(&self) -> Result<(), AccessError> {
        if self.is_broken { Err(AccessError::Operation) } else { Ok(()) }
    }
}

impl Host for Side {
    type Local = usize;

    fn gather(&self, from: usize, offset: u32, to: &mut [u8]) -> Result<(), AccessError> {
        self.there(from)?;
        to.copy_from_slice(&self.buffers[from][offset as usize..][..to.len()]);
        Ok(())
    }

    fn scatter(&mut self, to: usize, offset: u32, bytes: &[u8]) -> Result<(), AccessError> {
        self.there(to)?;
        self.buffers[to][offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn take_receive(&mut self, _qpn: Qpn, room: u32) -> Option<Receive<usize>> {
        self.receives.front().filter(|receive| receive.len >= room)?;
        self.receives.pop_front()
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn check(&self, _qpn: Qpn, at: Remote, len: u32, right: Right) -> Result<(), AccessError> {
        self.range(at, len as usize, right).map(drop)
    }

    fn write(&mut self, _qpn: Qpn, at: Remote, bytes: &[u8]) -> Result<(), AccessError> {
        let range = self.range(at, bytes.len(), Right::Write)?;
        self.works()?;
        self.memory[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, _qpn: Qpn, at: Remote, to: &mut [u8]) -> Result<(), AccessError> {
        let range = self.range(at, to.len(), Right::Read)?;
        self.works()?;
        to.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    fn begin_read(&mut self, _qpn: Qpn, at: Remote, len: u32) {
        self.begun.push((at.va - BASE, len));
    }

    fn atomic(&mut self, _qpn: Qpn, at: Remote, change: Change) -> Result<u64, AccessError> {
        let range = self.range(at, 8, Right::Atomic)?;
        self.works()?;
        let place: &mut [u8; 8] = (&mut self.memory[range]).try_into().expect("eight bytes");
        let original = u64::from_ne_bytes(*place);
        let new = match change {
            Change::CompareSwap { compare, swap } if compare == original => swap,
            Change::CompareSwap { .. } => original,
            Change::FetchAdd(add) => original.wrapping_add(add),
        };
        *place = new.to_ne_bytes();
        Ok(original)
    }

    fn invalidate(&mut self, _qpn: Qpn, rkey: Rkey) -> Result<(), AccessError> {
        self.invalidated.push(rkey);
        Ok(())
    }

    fn complete(&mut self, _qpn: Qpn, completion: Completion<usize>) {
        self.completions.push(completion);
    }

    fn failed(&mut self, _qpn: Qpn, cause: Cause) {
        self.failed.push(cause);
    }
}
