//! What a script may do.

use arbitrary::Arbitrary;
use qpair_roce::Psn;

/// A script: how the ends are made, and what happens.
#[derive(Arbitrary, Debug)]
pub struct Script {
    pub setup: Setup,
    pub ops: Vec<Op>,
}

/// How the ends are made.
#[derive(Arbitrary, Debug)]
pub struct Setup {
    pub psns: [i8; 2],
    pub window: u8,
    pub reads: [u8; 2],
    pub retries: Option<u8>,
    pub rnr_retries: Option<u8>,
    pub is_controlled: bool,
    pub counts: bool,
    pub is_v6: bool,
}

/// A step. Ends, queue pairs and packets are named by any number, modulo how many there are.
#[derive(Arbitrary, Debug)]
pub enum Op {
    /// A request is posted.
    Post { end: bool, qp: u8, kind: Kind, len: Length, at: u16, solicited: bool, fence: bool },
    /// A receive is posted.
    Receive { end: bool, len: u16 },
    /// An end sends so many times.
    Send { end: bool, times: u8, segments: u8 },
    /// The oldest packets on their way arrive.
    Arrive { count: u8, is_marked: bool },
    /// Another packet arrives before them.
    Overtake(u16),
    /// A packet is lost.
    Lose(u16),
    /// A packet comes twice.
    Repeat(u16),
    /// A byte of a packet is changed, and its CRC if it is `sealed`.
    Change { packet: u16, at: u16, by: u8, sealed: bool },
    /// A packet that nobody sent.
    Forge(Forged),
    /// Any bytes, with a CRC if they are `sealed`.
    Bytes { end: bool, bytes: Vec<u8>, sealed: bool },
    /// Time passes.
    Wait { micros: u16 },
    /// All is sent and arrives, some times over.
    Exchange(u8),
    /// Memory is withdrawn, and given again.
    Withdraw { end: bool, local: bool },
    /// A queue pair is closed.
    Close { end: bool, qp: u8 },
    /// A queue pair is closed and made anew, as it was at the beginning.
    Remake { end: bool, qp: u8 },
}

/// What is posted.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Kind {
    Send,
    SendImmediate,
    SendInvalidate,
    Write,
    WriteImmediate,
    Read,
    CompareSwap,
    FetchAdd,
}

/// Bytes of a message.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Length {
    Few(u8),
    Some(u16),
    /// As many as an atomic has.
    Eight,
    Any(u32),
}

/// A packet that nobody sent, with the headers that its operation has.
#[derive(Arbitrary, Debug)]
pub struct Forged {
    pub end: bool,
    pub qp: u8,
    pub opcode: u8,
    /// Its number, from the last one of a request that went there, or that it may answer.
    pub psn: Near,
    pub answers: bool,
    pub ack_request: bool,
    pub at: u16,
    pub wrong_key: bool,
    pub len: Length,
    pub code: u8,
    pub msn: u16,
    pub payload: Payload,
    pub sealed: bool,
}

/// A sequence number.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Near {
    Same,
    Next,
    Before(u8),
    Behind(u8),
    Far,
}

/// What a packet carries.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Payload {
    Nothing,
    /// As much as the MTU.
    Full,
    Few(u8),
    Some(u16),
}

impl Near {
    pub fn to(self, psn: Psn) -> Psn {
        match self {
            Near::Same => psn,
            Near::Next => psn.advance(1),
            Near::Before(count) => psn.back(count.into()),
            Near::Behind(count) => psn.advance(count.into()),
            Near::Far => psn.advance(1 << 23),
        }
    }
}

impl Payload {
    pub const LONGEST: usize = 600;

    pub fn bytes(self) -> &'static [u8] {
        let len = match self {
            Payload::Nothing => 0,
            Payload::Full => 256,
            Payload::Few(len) => len.into(),
            Payload::Some(len) => usize::from(len) % Payload::LONGEST,
        };
        &[7; Payload::LONGEST][..len]
    }
}

impl Length {
    pub fn get(self) -> u32 {
        match self {
            Length::Few(len) => len.into(),
            Length::Some(len) => len.into(),
            Length::Eight => 8,
            Length::Any(len) => len,
        }
    }
}
