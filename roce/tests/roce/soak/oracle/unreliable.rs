//! An unreliable connection's peer: its messages come whole, once and in order, or not at all.

use std::collections::VecDeque;

use qpair_roce::{AccessError, Incoming, Op, Remote, Right, Rkey};

use super::Request;

/// What the peer asked for. Each WRITE goes to an address of its own, which names it.
#[derive(Debug, Default)]
pub struct Unreliable {
    asked: VecDeque<Request>,
    /// Number of the oldest that may still come.
    first: u64,
    /// The WRITE that is coming, and how much of it has come.
    open: Option<(u64, u32)>,
}

impl Unreliable {
    /// Where the next WRITE goes.
    pub fn next(&self) -> Remote {
        Remote { va: (self.first + self.asked.len() as u64) << SHIFT, rkey: KEY }
    }

    /// The peer asks for something.
    pub fn ask(&mut self, request: Request) {
        self.asked.push_back(request);
    }

    /// The request of that number comes; none before it will.
    fn come(&mut self, number: u64) -> Request {
        assert!(number >= self.first, "a message comes again, or out of order");
        self.asked.drain(..(number - self.first) as usize);
        self.first = number;
        *self.asked.front().expect("something comes that nobody asked for")
    }

    fn over(&mut self) {
        self.asked.pop_front();
        self.first += 1;
        self.open = None;
    }

    pub fn check(&mut self, at: Remote, len: u32, right: Right) -> Result<(), AccessError> {
        let number = at.va >> SHIFT;
        let request = self.come(number);
        let Op::Write(remote, immediate) = request.op else { panic!("{request:?} is a WRITE to {at:?}") };
        assert_eq!((right, at, len), (Right::Write, remote, request.len));
        self.open = Some((number, 0));
        if len == 0 && immediate.is_none() {
            self.over();
        }
        Ok(())
    }

    pub fn write(&mut self, at: Remote, bytes: &[u8]) -> Result<(), AccessError> {
        let (number, progress) = self.open.expect("a WRITE has begun");
        let request = self.come(number);
        assert_eq!(at.va, (number << SHIFT) + u64::from(progress), "{request:?}");
        assert!(bytes == request.bytes(progress, bytes.len()), "other bytes than those of {request:?}");
        let progress = progress + bytes.len() as u32;
        self.open = Some((number, progress));
        if progress == request.len && matches!(request.op, Op::Write(_, None)) {
            self.over();
        }
        Ok(())
    }

    pub fn received(&mut self, message: Incoming, buffer: &[u8]) {
        let bytes = &buffer[..if message.is_write { 0 } else { message.len as usize }];
        let is_it = |request: &Request| {
            request.message() == Some(message) && (message.is_write || bytes == request.bytes(0, bytes.len()))
        };
        let number = match self.open {
            Some((number, progress)) if message.is_write => {
                assert_eq!(progress, message.len);
                number
            }
            _ => self.first + self.asked.iter().position(is_it).expect("a message that was sent") as u64,
        };
        let request = self.come(number);
        assert!(is_it(&request), "{message:?} is not {request:?}");
        self.over();
    }
}

const SHIFT: u32 = 20;
const KEY: Rkey = Rkey(7);
