//! A reliable connection's peer: each request is done once, in order, and memory is as if nothing had happened on the way.

use std::collections::VecDeque;

use qpair_roce::{AccessError, Change, Extra, Incoming, Op, Remote, Right, Rkey};

use super::Request;

/// What the peer asked for, and the memory that it may reach.
#[derive(Debug)]
pub struct Reliable {
    /// What is to be done, and of atomics what they are to find.
    asked: VecDeque<(Request, u64)>,
    /// Bytes of the oldest that were written.
    progress: u32,
    /// How many are done.
    pub done: u64,
    rkey: Rkey,
    /// Why the peer may reach nothing any more.
    pub withdrawn: Option<AccessError>,
    memory: Vec<u8>,
    /// Memory once all is done that was asked for.
    model: Vec<u8>,
}

impl Reliable {
    pub fn new(rkey: Rkey, memory: usize) -> Self {
        Reliable {
            asked: VecDeque::new(),
            progress: 0,
            done: 0,
            rkey,
            withdrawn: None,
            memory: vec![0; memory],
            model: vec![0; memory],
        }
    }

    /// Some of its memory.
    pub fn at(&self, offset: u64) -> Remote {
        Remote { va: BASE + offset, rkey: self.rkey }
    }

    /// The peer asks for something; what is to come back to it.
    pub fn ask(&mut self, request: Request) -> Vec<u8> {
        let range = |remote: Remote, len: u32| (remote.va - BASE) as usize..(remote.va - BASE) as usize + len as usize;
        let (mut original, mut answer) = (0, Vec::new());
        match request.op {
            Op::Send(_) => {}
            Op::Write(remote, _) => {
                self.model[range(remote, request.len)].copy_from_slice(request.bytes(0, request.len as usize));
            }
            Op::Read(remote) => answer = self.model[range(remote, request.len)].to_vec(),
            Op::CompareSwap { remote, compare, swap } => {
                original = change(&mut self.model[range(remote, 8)], Change::CompareSwap { compare, swap });
                answer = original.to_ne_bytes().to_vec();
            }
            Op::FetchAdd { remote, add } => {
                original = change(&mut self.model[range(remote, 8)], Change::FetchAdd(add));
                answer = original.to_ne_bytes().to_vec();
            }
        }
        self.asked.push_back((request, original));
        answer
    }

    /// What will be at an address when all is done that was asked for.
    pub fn word(&self, offset: u64) -> u64 {
        u64::from_ne_bytes(*self.model[offset as usize..].first_chunk().expect("eight bytes"))
    }

    fn next(&self) -> (Request, u64) {
        *self.asked.front().expect("something is done that nobody asked for")
    }

    fn over(&mut self) {
        self.asked.pop_front();
        self.progress = 0;
        self.done += 1;
    }

    fn allows(&self, len: u32) -> Result<(), AccessError> {
        self.withdrawn.filter(|_| len > 0).map_or(Ok(()), Err)
    }

    pub fn check(&mut self, at: Remote, len: u32, right: Right) -> Result<(), AccessError> {
        let (request, _) = self.next();
        let (Op::Write(remote, _) | Op::Read(remote)) = request.op else { panic!("{request:?} is next, not {at:?}") };
        if right == Right::Read {
            // A long one comes in parts.
            assert_eq!(at, remote.advance(self.progress.into()), "{request:?}");
            assert!(len <= request.len - self.progress, "{len} bytes more of {request:?}");
        } else {
            assert_eq!((at, len, self.progress), (remote, request.len, 0), "{request:?}");
        }
        self.allows(len)?;
        match (right, request.op) {
            (Right::Read, Op::Read(_)) if self.progress + len < request.len => self.progress += len,
            (Right::Read, Op::Read(_)) => self.over(),
            (Right::Write, Op::Write(_, immediate)) if len == 0 && immediate.is_none() => self.over(),
            (Right::Write, Op::Write(..)) => {}
            (right, _) => panic!("{right:?} is not what {request:?} takes"),
        }
        Ok(())
    }

    pub fn write(&mut self, at: Remote, bytes: &[u8]) -> Result<(), AccessError> {
        let (request, _) = self.next();
        let Op::Write(remote, immediate) = request.op else { panic!("{request:?} is next, not a WRITE to {at:?}") };
        assert_eq!(at, remote.advance(self.progress.into()), "{request:?}");
        assert!(bytes == request.bytes(self.progress, bytes.len()), "other bytes than those of {request:?}");
        self.allows(request.len)?;
        self.memory[(at.va - BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.progress += bytes.len() as u32;
        if self.progress == request.len && immediate.is_none() {
            self.over();
        }
        Ok(())
    }

    /// The answer to a READ, for the first time or once more.
    pub fn read(&self, at: Remote, to: &mut [u8]) -> Result<(), AccessError> {
        self.allows(to.len() as u32)?;
        assert_eq!(at.rkey, self.rkey);
        to.copy_from_slice(&self.memory[(at.va - BASE) as usize..][..to.len()]);
        Ok(())
    }

    pub fn atomic(&mut self, at: Remote, asked: Change) -> Result<u64, AccessError> {
        let (request, expected) = self.next();
        let wanted = match request.op {
            Op::CompareSwap { remote, compare, swap } => (remote, Change::CompareSwap { compare, swap }),
            Op::FetchAdd { remote, add } => (remote, Change::FetchAdd(add)),
            other => panic!("{other:?} is next, not {asked:?}"),
        };
        assert_eq!((at, asked), wanted);
        self.allows(8)?;
        let original = change(&mut self.memory[(at.va - BASE) as usize..][..8], asked);
        assert_eq!(original, expected, "{request:?}");
        self.over();
        Ok(original)
    }

    pub fn invalidate(&mut self, rkey: Rkey) -> Result<(), AccessError> {
        let (request, _) = self.next();
        assert_eq!(request.op, Op::Send(Extra::Invalidate(rkey)));
        self.allows(1)
    }

    pub fn received(&mut self, message: Incoming, buffer: &[u8]) {
        let (request, _) = self.next();
        assert_eq!(Some(message), request.message());
        if message.is_write {
            assert_eq!(self.progress, request.len, "{request:?}");
        } else {
            let len = message.len as usize;
            assert!(buffer[..len] == *request.bytes(0, len), "other bytes than those of {request:?}");
        }
        self.over();
    }

    /// All is done that was asked for.
    pub fn is_complete(&self) {
        assert_eq!(self.asked.front().map(|(request, _)| request.op), None, "that was not done");
        assert!(self.memory == self.model, "memory is not what it should be");
    }
}

fn change(place: &mut [u8], change: Change) -> u64 {
    let original = u64::from_ne_bytes(*place.first_chunk().expect("eight bytes"));
    let new = match change {
        Change::CompareSwap { compare, swap } if compare == original => swap,
        Change::CompareSwap { .. } => original,
        Change::FetchAdd(add) => original.wrapping_add(add),
    };
    place.copy_from_slice(&new.to_ne_bytes());
    original
}

const BASE: u64 = 0x7000_0000_0000;
