//! What the peer of a queue pair has asked for, and what is done of it. Each call of the engine is checked against that.

mod datagrams;
mod reliable;
mod unreliable;

pub use datagrams::{Datagram, Datagrams, contents};
pub use reliable::Reliable;
pub use unreliable::Unreliable;

use qpair_roce::{AccessError, Extra, Incoming, Op, Remote, Right};

use super::noise::noise;

/// A request, as its sender knows it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub op: Op,
    pub len: u32,
    /// Where its contents begin.
    pub noise: u16,
    pub solicited: bool,
}

/// What a queue pair may be asked for, by its service.
#[derive(Debug)]
pub enum Oracle {
    Reliable(Reliable),
    Unreliable(Unreliable),
    Datagrams(Datagrams),
}

impl Oracle {
    pub fn check(&mut self, at: Remote, len: u32, right: Right) -> Result<(), AccessError> {
        match self {
            Oracle::Reliable(reliable) => reliable.check(at, len, right),
            Oracle::Unreliable(unreliable) => unreliable.check(at, len, right),
            Oracle::Datagrams(_) => panic!("a datagram reaches no memory"),
        }
    }

    pub fn write(&mut self, at: Remote, bytes: &[u8]) -> Result<(), AccessError> {
        match self {
            Oracle::Reliable(reliable) => reliable.write(at, bytes),
            Oracle::Unreliable(unreliable) => unreliable.write(at, bytes),
            Oracle::Datagrams(_) => panic!("a datagram writes no memory"),
        }
    }

    /// A receive has ended with a message.
    pub fn received(&mut self, message: Incoming, buffer: &[u8]) {
        match self {
            Oracle::Reliable(reliable) => reliable.received(message, buffer),
            Oracle::Unreliable(unreliable) => unreliable.received(message, buffer),
            Oracle::Datagrams(datagrams) => datagrams.received(message, buffer),
        }
    }
}

impl Request {
    /// The message that its receive gets, if it takes one.
    fn message(&self) -> Option<Incoming> {
        let (extra, is_write) = match self.op {
            Op::Send(extra) => (extra, false),
            Op::Write(_, Some(immediate)) => (Extra::Immediate(immediate), true),
            _ => return None,
        };
        Some(Incoming { len: self.len, extra, is_write, solicited: self.solicited, source: None })
    }

    /// Its contents.
    fn bytes(&self, offset: u32, len: usize) -> &'static [u8] {
        noise(self.noise, offset, len)
    }
}
