//! The device of an end: it holds what the engines do to what was asked for.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::time::Duration;

use qpair_roce::wire::Credits;
use qpair_roce::{
    AccessError, Cause, Change, Completion, Host, NumberTable, Outcome, Qpn, Receive, Remote, Right, Rkey,
};

use super::noise::noise;
use super::oracle::{Oracle, contents};
use super::track::Track;

/// Local memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Contents that begin there.
    Noise(u16),
    /// A datagram's: its number, and contents by that.
    Numbered(u32),
    /// A buffer.
    Buffer(u32),
    /// Memory that is not there any more.
    Gone,
}

/// One end's device.
pub struct Device {
    tracks: RefCell<NumberTable<Track>>,
    /// Receives that several queue pairs take.
    shared: VecDeque<Receive<Local>>,
    /// Receives that an engine has taken and not ended.
    taken: Vec<(u64, Qpn)>,
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    longest: usize,
    /// How long acknowledgments may wait for requests.
    patience: Duration,
    posted: u64,
    /// What the engines told of since it was looked at.
    pub failed: Vec<(Qpn, Cause)>,
    pub succeeded: Vec<Qpn>,
    /// Requests that have ended, and messages that came.
    pub ended: u64,
    pub received: u64,
}

impl Device {
    /// With buffers of such a length.
    pub fn new(longest: usize, patience: Duration) -> Self {
        Device {
            tracks: RefCell::default(),
            shared: VecDeque::new(),
            taken: Vec::new(),
            buffers: Vec::new(),
            free: Vec::new(),
            longest,
            patience,
            posted: 0,
            failed: Vec::new(),
            succeeded: Vec::new(),
            ended: 0,
            received: 0,
        }
    }

    pub fn add(&mut self, qpn: Qpn, track: Track) {
        self.tracks.get_mut().add(qpn, track).expect("a free number");
    }

    pub fn track(&mut self, qpn: Qpn) -> &mut Track {
        self.tracks.get_mut().get_mut(qpn).expect("a queue pair")
    }

    fn shown(&self, qpn: Qpn) -> RefMut<'_, Track> {
        RefMut::map(self.tracks.borrow_mut(), |tracks| tracks.get_mut(qpn).expect("a queue pair"))
    }

    /// A buffer with nothing of use in it.
    pub fn buffer(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.buffers.push(vec![0; self.longest]);
            self.buffers.len() as u32 - 1
        })
    }

    /// Posts a receive of so many bytes for a queue pair alone; its memory is gone if `is_gone`.
    pub fn receive(&mut self, qpn: Qpn, len: u32, is_gone: bool) {
        let local = if is_gone { Local::Gone } else { Local::Buffer(self.buffer()) };
        self.posted += 1;
        let track = self.track(qpn);
        assert!(!track.shares);
        if track.is_failed {
            self.give(local);
        } else {
            let id = self.posted;
            self.track(qpn).receives.push_back(Receive { id, local, len });
        }
    }

    /// Posts a receive for all that share.
    pub fn receive_shared(&mut self, len: u32) {
        let local = Local::Buffer(self.buffer());
        self.posted += 1;
        self.shared.push_back(Receive { id: self.posted, local, len });
    }

    /// Gives back what the receive had.
    fn give(&mut self, local: Local) {
        if let Local::Buffer(buffer) = local {
            self.free.push(buffer);
        }
    }

    /// A queue pair is gone: nothing may be left of it.
    pub fn remove(&mut self, qpn: Qpn) {
        let track = self.tracks.get_mut().remove(qpn).expect("a queue pair");
        track.is_over();
        assert!(track.is_failed && self.taken.iter().all(|(_, by)| *by != qpn), "{qpn} keeps a receive");
    }

    /// Nothing at all is left.
    pub fn is_over(&mut self) {
        while let Some(receive) = self.shared.pop_front() {
            self.give(receive.local);
        }
        assert!(self.tracks.get_mut().is_empty() && self.taken.is_empty());
        assert_eq!(self.free.len(), self.buffers.len(), "a buffer is still in use");
    }
}

impl Host for Device {
    type Local = Local;

    fn gather(&self, from: Local, offset: u32, to: &mut [u8]) -> Result<(), AccessError> {
        match from {
            Local::Noise(start) => to.copy_from_slice(noise(start, offset, to.len())),
            Local::Numbered(number) => {
                to.copy_from_slice(contents(number, offset, to.len()));
                if let Some(place) = to.first_chunk_mut().filter(|_| offset == 0) {
                    *place = number.to_le_bytes();
                }
            }
            Local::Buffer(buffer) => panic!("nothing is sent from buffer {buffer}"),
            Local::Gone => return Err(AccessError::Key),
        }
        Ok(())
    }

    fn scatter(&mut self, to: Local, offset: u32, bytes: &[u8]) -> Result<(), AccessError> {
        match to {
            Local::Buffer(buffer) => {
                self.buffers[buffer as usize][offset as usize..][..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Local::Gone => Err(AccessError::Key),
            other => panic!("nothing comes to {other:?}"),
        }
    }

    fn take_receive(&mut self, qpn: Qpn, room: u32) -> Option<Receive<Local>> {
        let track = self.tracks.get_mut().get_mut(qpn).expect("a queue pair");
        let receives = if track.shares { &mut self.shared } else { &mut track.receives };
        receives.front().filter(|receive| receive.len >= room)?;
        let receive = receives.pop_front();
        self.taken.extend(receive.map(|receive| (receive.id, qpn)));
        receive
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn credits(&self, qpn: Qpn) -> Credits {
        match &*self.shown(qpn) {
            Track { shares: false, counts: true, receives, .. } => Credits::at_most(receives.len() as u32),
            _ => Credits::UNLIMITED,
        }
    }

    fn check(&self, qpn: Qpn, at: Remote, len: u32, right: Right) -> Result<(), AccessError> {
        self.shown(qpn).oracle.check(at, len, right)
    }

    fn write(&mut self, qpn: Qpn, at: Remote, bytes: &[u8]) -> Result<(), AccessError> {
        self.track(qpn).oracle.write(at, bytes)
    }

    fn read(&self, qpn: Qpn, at: Remote, to: &mut [u8]) -> Result<(), AccessError> {
        match &self.shown(qpn).oracle {
            Oracle::Reliable(reliable) => reliable.read(at, to),
            other => panic!("{other:?} is not read"),
        }
    }

    fn atomic(&mut self, qpn: Qpn, at: Remote, change: Change) -> Result<u64, AccessError> {
        match &mut self.track(qpn).oracle {
            Oracle::Reliable(reliable) => reliable.atomic(at, change),
            other => panic!("{other:?} has no atomics"),
        }
    }

    fn invalidate(&mut self, qpn: Qpn, rkey: Rkey) -> Result<(), AccessError> {
        match &mut self.track(qpn).oracle {
            Oracle::Reliable(reliable) => reliable.invalidate(rkey),
            other => panic!("{other:?} withdraws no key"),
        }
    }

    fn complete(&mut self, qpn: Qpn, completion: Completion<Local>) {
        let track = self.tracks.get_mut().get_mut(qpn).expect("a queue pair");
        match completion {
            Completion::Sent { id, outcome, local } => {
                let posted = track.sent(id, outcome);
                self.ended += 1;
                if outcome == Outcome::Success {
                    self.succeeded.push(qpn);
                    if let (Some(answer), Local::Buffer(buffer)) = (&posted.answer, local) {
                        let brought = &self.buffers[buffer as usize][..answer.bytes.len()];
                        assert!(brought == answer.bytes, "request {id} of {qpn} brought {brought:x?}: {answer:x?}");
                    }
                }
                self.give(local);
            }
            Completion::Received { id, outcome, local, message } => {
                let taken = self.taken.iter().position(|taken| *taken == (id, qpn));
                self.taken.remove(taken.expect("a receive that was taken, and ends once"));
                match outcome {
                    Outcome::Success => {
                        let buffer = match local {
                            Local::Buffer(buffer) => &self.buffers[buffer as usize][..],
                            // It had nothing to hold.
                            _ => &[],
                        };
                        track.oracle.received(message, buffer);
                        self.received += 1;
                    }
                    Outcome::Flushed => {}
                    other => assert!(track.allowed.contains(&other), "receive {id} ends by {other:?}"),
                }
                self.give(local);
            }
        }
    }

    fn failed(&mut self, qpn: Qpn, cause: Cause) {
        self.failed.push((qpn, cause));
        let track = self.tracks.get_mut().get_mut(qpn).expect("a queue pair");
        assert!(!std::mem::replace(&mut track.is_failed, true), "{qpn} failed before");
        for receive in std::mem::take(&mut track.receives) {
            self.give(receive.local);
        }
    }
}
