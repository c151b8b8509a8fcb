//! The device of an end: it knows what is posted, and that the engine stays within what it was given.

use std::collections::{BTreeMap, VecDeque};

use qpair_roce::wire::Credits;
use qpair_roce::{AccessError, Cause, Change, Completion, Host, Outcome, Qpn, Receive, Remote, Right, Rkey};

/// Local memory: so many bytes, which are never looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local(pub u32);

/// One end's device.
#[derive(Default)]
pub struct Device {
    memory: Vec<u8>,
    pub is_withdrawn: bool,
    pub is_gone: bool,
    pub counts: bool,
    /// Requests that have not completed, oldest first.
    pub posted: BTreeMap<Qpn, VecDeque<u64>>,
    pub receives: VecDeque<Receive<Local>>,
    /// Receives that were taken and have not ended.
    pub taken: Vec<(u64, Qpn)>,
    pub failed: Vec<Qpn>,
}

impl Device {
    pub fn new(counts: bool) -> Self {
        Device { memory: vec![0; MEMORY as usize], counts, ..Device::default() }
    }

    fn range(&self, at: Remote, len: usize) -> Result<std::ops::Range<usize>, AccessError> {
        if len == 0 {
            return Ok(0..0);
        }
        let start = usize::try_from(at.va.wrapping_sub(BASE)).map_err(|_| AccessError::Key)?;
        let end = start.checked_add(len).filter(|end| *end <= self.memory.len()).ok_or(AccessError::Key)?;
        if at.rkey == KEY && !self.is_withdrawn { Ok(start..end) } else { Err(AccessError::Key) }
    }

    fn reach(&self, local: Local, offset: u32, len: usize) -> Result<(), AccessError> {
        assert!(len > 0 && offset as usize + len <= local.0 as usize, "{len} bytes from {offset} on of {local:?}");
        if self.is_gone { Err(AccessError::Key) } else { Ok(()) }
    }
}

impl Host for Device {
    type Local = Local;

    fn gather(&self, from: Local, offset: u32, to: &mut [u8]) -> Result<(), AccessError> {
        to.fill(offset as u8);
        self.reach(from, offset, to.len())
    }

    fn scatter(&mut self, to: Local, offset: u32, bytes: &[u8]) -> Result<(), AccessError> {
        self.reach(to, offset, bytes.len())
    }

    fn take_receive(&mut self, qpn: Qpn, room: u32) -> Option<Receive<Local>> {
        self.receives.front().filter(|receive| receive.len >= room)?;
        let receive = self.receives.pop_front()?;
        self.taken.push((receive.id, qpn));
        Some(receive)
    }

    fn credits(&self, _qpn: Qpn) -> Credits {
        if self.counts { Credits::at_most(self.receives.len() as u32) } else { Credits::UNLIMITED }
    }

    fn check(&self, _qpn: Qpn, at: Remote, len: u32, _right: Right) -> Result<(), AccessError> {
        self.range(at, len as usize).map(drop)
    }

    fn write(&mut self, _qpn: Qpn, at: Remote, bytes: &[u8]) -> Result<(), AccessError> {
        let range = self.range(at, bytes.len())?;
        self.memory[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, _qpn: Qpn, at: Remote, to: &mut [u8]) -> Result<(), AccessError> {
        to.copy_from_slice(&self.memory[self.range(at, to.len())?]);
        Ok(())
    }

    fn atomic(&mut self, _qpn: Qpn, at: Remote, _change: Change) -> Result<u64, AccessError> {
        let range = self.range(at, 8)?;
        assert!(range.start.is_multiple_of(8), "an atomic that is not aligned");
        self.memory[range.start] = self.memory[range.start].wrapping_add(1);
        Ok(self.memory[range.start].into())
    }

    fn invalidate(&mut self, _qpn: Qpn, rkey: Rkey) -> Result<(), AccessError> {
        if rkey == KEY { Ok(()) } else { Err(AccessError::Key) }
    }

    fn complete(&mut self, qpn: Qpn, completion: Completion<Local>) {
        assert!(!self.failed.contains(&qpn) || self.posted.contains_key(&qpn));
        match completion {
            Completion::Sent { id, .. } => {
                let posted = self.posted.get_mut(&qpn).and_then(VecDeque::pop_front);
                assert_eq!(posted, Some(id), "requests complete once each, in order");
            }
            Completion::Received { id, outcome, local, message } => {
                let place = self.taken.iter().position(|taken| *taken == (id, qpn));
                self.taken.remove(place.expect("a receive that was taken, and ends once"));
                assert!(outcome != Outcome::Success || message.is_write || message.len <= local.0, "{message:?}");
            }
        }
    }

    fn failed(&mut self, qpn: Qpn, _cause: Cause) {
        assert!(!self.failed.contains(&qpn), "{qpn} failed before");
        self.failed.push(qpn);
    }
}

pub const BASE: u64 = 0x7000_0000_0000;
pub const KEY: Rkey = Rkey(0x1234_5678);
pub const MEMORY: u64 = 4096;
