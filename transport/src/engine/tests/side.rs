//! One side of a simulated connection, and the dice that such are thrown by.

use std::collections::{BTreeMap, VecDeque};

use super::lanes::Repeat;
use super::parts::Gathering;
use crate::engine::*;

/// Xorshift: small, seeded, good enough to shuffle.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// How a message reached the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Received,
    Into(u64),
}

pub(super) struct Side {
    pub(super) link: Link<u64>,
    pub(super) inbox: Inbox<(), (u64, Option<u64>)>,
    /// Payloads that are being read: under a number of the pair's own, their keys and receives.
    pub(super) reading: BTreeMap<u64, (EntryKey, Option<u64>)>,
    /// Payloads that come in parts, by their message ids.
    pub(super) gathering: BTreeMap<u32, Gathering>,
    /// Receive slots that are posted for this connection.
    pub(super) slots: u32,
    pub(super) shares: Shares,
    /// What was being read when the queue pair failed, by the numbers of the requests.
    pub(super) lost: Vec<(u32, Repeat)>,
    pub(super) repeats: VecDeque<Repeat>,
    pub(super) delivered: Vec<(u64, u64, Way)>,
    pub(super) sent: Vec<u64>,
    /// Sends that the end of the connection cut off, or that were cancelled.
    pub(super) cut: Vec<u64>,
    /// Receives that failed.
    pub(super) failed: Vec<u64>,
    /// There is no memory of the transport's own.
    pub(super) starved: bool,
    /// Receives whose memory the device will not take.
    pub(super) refusals: u32,
    /// Serials by the address that was exposed for them.
    pub(super) exposed: BTreeMap<u64, u64>,
    pub(super) last_out: u64,
    pub(super) last_done: u64,
    pub(super) credit_messages: u32,
    pub(super) serials: Vec<(u64, u64)>,
}
