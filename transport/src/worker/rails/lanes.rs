//! The rails of one connection: a queue pair on each, and the payloads that are read over them.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use qpair_verbs::{DividedMemory, Local, PostError, Prepared, QueuePair, RemoteSlice, Rkey};
use slab::Slab;

use super::request::LaneWork;
use super::transfer::Transfer;
use crate::engine::{RailStage, Rails, RemoteMemory, SLICED_FROM, slice_len};
use crate::worker::endpoint::{InFlight, OneSided, Reading};
use crate::worker::ids::EndpointId;
use crate::worker::seen::RailState;

/// The rails of one connection.
#[derive(Debug)]
pub(in crate::worker) struct Lanes {
    pub(super) rails: Rails,
    pub(super) lanes: Vec<Lane>,
    /// This side called: it tries failed rails again.
    pub(in crate::worker) caller: bool,
    /// The rails that messages can go over on both sides, as bits, and which of them are on one device with the first there.
    for_messages: u8,
    home: u8,
    transfers: Slab<Transfer>,
    /// Those with bytes that are still to be posted, in the order in which they are read.
    waiting: VecDeque<usize>,
    /// Such bytes of all of them.
    left: u64,
}

/// One side's queue pair on a rail.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) qp: LaneQp,
    /// With the device, oldest first.
    posted: VecDeque<Slice>,
    /// When the probe was posted that is under way, and the last one.
    pub(super) probed: Option<Duration>,
    asked: Duration,
    /// Probes that are still to follow each other: the first may have waited for anything.
    pub(super) to_ask: u8,
    /// Since when it is given up.
    pub(super) failed: Option<Duration>,
    /// When another queue pair was made last.
    pub(super) made: Duration,
}

/// How far a queue pair on a rail is.
#[derive(Debug)]
pub(in crate::worker) enum LaneQp {
    None,
    Prepared(Prepared),
    Connected(QueuePair),
}

#[derive(Debug)]
struct Slice {
    transfer: usize,
    range: Range<u64>,
}

/// What became of posting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// All that there is room for is under way.
    Posted,
    /// That rail's queue pair takes nothing.
    Refused(usize),
    /// That transfer has nothing under way, and needs nothing more.
    Ended(usize),
}

impl Lanes {
    /// Rails on which the queue pairs are that were made; the others are not there.
    pub(super) fn new(lanes: Vec<Option<Prepared>>, caller: bool, patience: Duration) -> Self {
        let rails = Rails::new(lanes.len(), patience);
        let lane = |qp: Option<Prepared>| Lane {
            qp: qp.map_or(LaneQp::None, LaneQp::Prepared),
            posted: VecDeque::new(),
            probed: None,
            asked: Duration::ZERO,
            to_ask: PROBES,
            failed: None,
            made: Duration::ZERO,
        };
        let lanes = lanes.into_iter().map(lane).collect();
        Lanes {
            rails,
            lanes,
            caller,
            for_messages: 1,
            home: 1,
            transfers: Slab::new(),
            waiting: VecDeque::new(),
            left: 0,
        }
    }

    /// The peer has no more than so many rails. Gives those whose queue pairs went.
    pub(super) fn truncate(&mut self, count: usize) -> Vec<usize> {
        let gone = self.queue_pairs().into_iter().filter(|&rail| rail >= count).collect();
        self.lanes.truncate(count);
        self.rails.truncate(count);
        gone
    }

    /// How many rails there are, usable or not.
    pub(in crate::worker) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// The rails that messages can go over, and those on the device of the first, on this side and the peer's.
    pub(in crate::worker) fn agree(&mut self, ours: (u8, u8), theirs: (u8, u8)) {
        self.for_messages = ours.0 & theirs.0 | 1;
        self.home = ours.1 & theirs.1 | 1;
    }

    /// Messages do not go over that rail any more.
    pub(in crate::worker) fn bar(&mut self, rail: usize) {
        self.for_messages &= !(1 << rail);
    }

    /// True if messages can go over that rail.
    pub(in crate::worker) fn is_for_messages(&self, rail: usize) -> bool {
        rail < self.lanes.len() && self.for_messages >> rail & 1 == 1
    }

    /// Where messages go after that rail, the same perhaps. `at_home`: on the device of the first, if one is there, since some
    /// memory of the peer has a key for that alone.
    pub(in crate::worker) fn next_for_messages(&self, rail: usize, at_home: bool) -> Option<usize> {
        let count = self.lanes.len();
        let next = |mask: u8| (1..=count).map(|step| (rail + step) % count).find(|&rail| mask >> rail & 1 == 1);
        let first = at_home.then(|| next(self.for_messages & self.home)).flatten();
        first.or_else(|| next(self.for_messages))
    }

    /// True if payloads of that length are read over rails now.
    pub(super) fn takes(&self, remote: &RemoteMemory) -> bool {
        let on_some = || self.rails.has_up(|rail| remote.rails.is_on(rail));
        remote.len() >= SLICED_FROM && on_some() && self.transfers.len() < TRANSFERS
    }

    /// True if that is the queue pair which the rail has now.
    pub(super) fn is_current(&self, rail: usize, qpn: u32) -> bool {
        matches!(self.lanes.get(rail), Some(Lane { qp: LaneQp::Connected(qp), .. }) if qp.number().0 == qpn)
    }

    /// True if no payload is read.
    pub(in crate::worker) fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    /// The reads for payloads.
    pub(in crate::worker) fn works(&mut self) -> impl Iterator<Item = &mut InFlight> + '_ {
        self.transfers.iter_mut().map(|(_, transfer)| &mut transfer.work)
    }

    /// Begins to read a payload into memory.
    pub(super) fn begin(&mut self, reading: Reading, memory: DividedMemory) {
        let len = reading.remote.len();
        let transfer = Transfer::new(reading, memory, slice_len(len, self.rails.up()));
        self.left += len;
        self.waiting.push_back(self.transfers.insert(transfer));
    }

    /// Posts slices while rails have room for them.
    pub(super) fn feed(&mut self, ep: EndpointId, now: Duration) -> Fed {
        let mut place = 0;
        while let Some(&key) = self.waiting.get(place) {
            let transfer = &mut self.transfers[key];
            if transfer.is_unwanted() {
                self.left -= transfer.give_up();
                transfer.waits = false;
                self.waiting.remove(place);
                if transfer.out == 0 {
                    return Fed::Ended(key);
                }
                continue;
            }
            let Some(range) = transfer.next_slice() else {
                transfer.waits = false;
                self.waiting.remove(place);
                continue;
            };
            let len = range.end - range.start;
            let Some(rail) = self.rails.pick(len, self.left, now, |rail| transfer.is_on(rail)) else {
                transfer.put_back(range);
                if self.rails.has_up(|rail| transfer.is_on(rail)) {
                    return Fed::Posted;
                }
                // Others may go over rails that it can not go over.
                place += 1;
                continue;
            };
            if let Err(error) = transfer.post(ep, rail, &mut self.lanes[rail], range.clone()) {
                transfer.put_back(range);
                if error != PostError::WrongDomain {
                    return Fed::Refused(rail);
                }
                // The rail is sound: other memory goes over it.
                transfer.bar(rail);
                continue;
            }
            self.lanes[rail].posted.push_back(Slice { transfer: key, range });
            self.left -= len;
            self.rails.posted(rail, len, now);
        }
        Fed::Posted
    }

    /// The oldest slice of that rail came back, read or not. Gives its transfer if that has nothing under way and needs
    /// nothing more.
    pub(super) fn came_back(&mut self, rail: usize, was_read: bool, now: Duration) -> Option<usize> {
        let Slice { transfer: key, range } = self.lanes.get_mut(rail)?.posted.pop_front()?;
        let transfer = self.transfers.get_mut(key)?;
        let len = range.end - range.start;
        if was_read {
            self.rails.done(rail, now);
        }
        if transfer.came_back(range, was_read) {
            self.left += len;
            if !std::mem::replace(&mut transfer.waits, true) {
                self.waiting.push_front(key);
            }
        }
        transfer.is_over().then_some(key)
    }

    /// Takes out a transfer that has nothing under way: what it was about, whether it is awaited, and its memory.
    pub(super) fn take(&mut self, key: usize) -> Option<(Reading, bool, Local)> {
        let transfer = self.transfers.try_remove(key)?;
        self.left -= transfer.unposted();
        if transfer.waits {
            self.waiting.retain(|&waiting| waiting != key);
        }
        let (InFlight { awaited, what, .. }, memory) = transfer.end();
        let OneSided::Pull(reading) = what else { return None };
        Some((reading, awaited, memory))
    }

    /// A transfer that waits for rails of which none is left, and of which nothing is under way.
    pub(super) fn stranded(&self) -> Option<usize> {
        self.waiting.iter().copied().find(|&key| {
            let transfer = &self.transfers[key];
            transfer.out == 0 && !self.rails.has_up(|rail| transfer.is_on(rail))
        })
    }

    /// True if no other queue pair was made for that rail just now.
    pub(super) fn has_rested(&self, rail: usize, now: Duration) -> bool {
        self.lanes.get(rail).is_some_and(|lane| now.saturating_sub(lane.made) >= REST)
    }

    /// True if something of that rail is with the device.
    pub(super) fn is_busy(&self, rail: usize) -> bool {
        self.lanes.get(rail).is_some_and(|lane| !lane.posted.is_empty() || lane.probed.is_some())
    }

    /// Since when the device has not given back what it has of a rail that is given up.
    pub(super) fn held_since(&self) -> Option<Duration> {
        self.lanes.iter().filter(|lane| !lane.posted.is_empty()).filter_map(|lane| lane.failed).min()
    }

    /// When the rails are to be looked after next, if there is a reason.
    pub(in crate::worker) fn due(&self, now: Duration) -> Option<Duration> {
        let soon = now + CHORE;
        let again = self.rails.next_try().filter(|_| self.caller);
        let held = self.held_since().is_some() || self.stranded().is_some();
        let due = [again, self.rails.next_limit(), self.rails.is_carrying().then_some(soon), held.then_some(soon)];
        due.into_iter().flatten().min().map(|due| due.max(soon))
    }

    /// A rail that is to be tried again, and of which the device has nothing.
    pub(super) fn to_renew(&self, now: Duration) -> Option<usize> {
        self.rails.due(now, |rail| !self.is_busy(rail)).filter(|_| self.caller)
    }

    /// Posts a probe: a WRITE of nothing. False if there is no queue pair, or it refuses.
    pub(super) fn probe(&mut self, ep: EndpointId, rail: usize, now: Duration) -> bool {
        let Some(lane) = self.lanes.get_mut(rail) else { return false };
        let LaneQp::Connected(qp) = &mut lane.qp else { return false };
        let nowhere = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
        let id = LaneWork { ep, rail, is_probe: true }.id();
        if self.rails.stage(rail) != RailStage::Up {
            self.rails.probing(rail);
        }
        let posted = qp.write(Local::None, nowhere).id(id).signaled().post().is_ok();
        if posted {
            (lane.probed, lane.asked) = (Some(now), now);
        }
        posted
    }

    /// A rail that has nothing to do while payloads are read, and was not probed for a while.
    pub(super) fn unasked(&self, now: Duration) -> Option<usize> {
        let is_due = |(rail, lane): (usize, &Lane)| {
            let is_free = lane.posted.is_empty() && lane.probed.is_none() && self.rails.stage(rail) == RailStage::Up;
            (is_free && now.saturating_sub(lane.asked) >= ASK).then_some(rail)
        };
        if self.is_idle() { None } else { self.lanes.iter().enumerate().find_map(is_due) }
    }

    /// The connection ends: the devices give back what they have. Gives the transfers of which they have nothing.
    pub(in crate::worker) fn end(&mut self) -> Vec<(Reading, bool, Local)> {
        for lane in &mut self.lanes {
            lane.fail();
        }
        let resting: Vec<_> = self.transfers.iter().filter(|(_, one)| one.out == 0).map(|(key, _)| key).collect();
        resting.into_iter().filter_map(|key| self.take(key)).collect()
    }

    /// The connection is removed: its queue pairs, and what the devices did not give back.
    pub(in crate::worker) fn remove(self) -> (Vec<QueuePair>, Vec<InFlight>) {
        let qps = self.lanes.into_iter().filter_map(|lane| match lane.qp {
            LaneQp::Connected(qp) => Some(qp),
            LaneQp::None | LaneQp::Prepared(_) => None,
        });
        (qps.collect(), self.transfers.into_iter().map(|(_, transfer)| transfer.work).collect())
    }

    /// Rails that have a queue pair.
    pub(in crate::worker) fn queue_pairs(&self) -> Vec<usize> {
        (0..self.lanes.len()).filter(|&rail| !matches!(self.lanes[rail].qp, LaneQp::None)).collect()
    }

    /// How they stand, for people.
    pub(in crate::worker) fn states(&self) -> Vec<RailState> {
        let state = |((stage, rate, round_trip, bytes), lane): (_, &Lane)| RailState {
            stage: match stage {
                RailStage::Absent => "one side does not have it",
                RailStage::Down(_) => "left out",
                RailStage::Renewing(_) | RailStage::Probing => "tried again",
                RailStage::Up => "up",
            },
            wire: match &lane.qp {
                LaneQp::Connected(qp) => qp.explain(),
                LaneQp::None | LaneQp::Prepared(_) => String::new(),
            },
            rate,
            round_trip,
            bytes,
        };
        self.rails.seen().zip(&self.lanes).map(state).collect()
    }
}

#[cfg(test)]
impl Lanes {
    /// As if the caller had asked for another queue pair of that rail, until then.
    pub(in crate::worker) fn renew_until(&mut self, rail: usize, until: Duration) {
        self.rails.renewing(rail, until);
    }

    /// The device puts the queue pair of a rail into the error state.
    pub(in crate::worker) fn break_queue_pair(&mut self, rail: usize) {
        if let LaneQp::Connected(qp) = &mut self.lanes[rail].qp {
            let _ = qp.to_error();
        }
    }

    /// It was never there.
    pub(in crate::worker) fn lose(&mut self, rail: usize) {
        self.lanes[rail].qp = LaneQp::None;
        self.rails.lose(rail);
    }

    pub(in crate::worker) fn stage(&self, rail: usize) -> RailStage {
        self.rails.stage(rail)
    }
}

impl Lane {
    /// Has the device give back what it has.
    pub(super) fn fail(&mut self) {
        if let LaneQp::Connected(qp) = &mut self.qp
            && let Err(error) = qp.to_error()
        {
            tracing::debug!(%error, "the queue pair of a rail was in error already");
        }
    }

    /// Takes out the queue pair. Another is probed as if it were the first.
    pub(super) fn take_qp(&mut self) -> LaneQp {
        self.to_ask = PROBES;
        std::mem::replace(&mut self.qp, LaneQp::None)
    }
}

/// Time between two looks at rails of which something is expected at any moment.
const CHORE: Duration = Duration::from_millis(1);
/// Probes when a rail comes into use.
const PROBES: u8 = 2;
/// Time between two probes of a rail that has nothing to do while others have.
const ASK: Duration = Duration::from_secs(1);
/// Time between two queue pairs for a rail that a peer asks for: less than a peer waits that obeys.
const REST: Duration = Duration::from_millis(20);
/// Payloads of a connection that are read over rails at once: more wait in the queue of the messages.
const TRANSFERS: usize = 32;
