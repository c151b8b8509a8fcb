//! Messages of GPUs whose memory a device does not reach, part by part through slots: the receiver says that it is ready, the
//! sender fills slots and offers each, the receiver reads it into a slot of its own and drains that into its GPU.
//!
//! A slot is taken only for what goes on as soon as the peer calls its communicator: a sender's once the receiver is ready, a
//! receiver's once a part is offered. So none waits for another message, and there are always some again.

use qpair_transport::{OpId, RecvFailure, SendFailure, Tag};
use qpair_verbs::{Gpu, GpuBuffer};

use super::exec::Exec;
use super::net::Net;
use super::run::{State, Word};
use super::slots::Direction;
use super::steps::{PlanPeer, Step};
use super::tag::{Fields, Kind};
use crate::cost::{SLOT, SLOTS};
use crate::fault::{Fault, Outcome};
use crate::plan::What;

/// How far the messages of an operation are that go by slots.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Sends whose receiver is ready.
    sends: Vec<Send>,
    /// Receives that are ready.
    receives: Vec<Receive>,
    /// Parts that peers offer and that have no slot yet.
    offers: Vec<Offer>,
    /// Slots in use, in the order in which they were taken.
    parts: Vec<Part>,
}

/// A send whose receiver is ready.
#[derive(Clone, Copy, Debug)]
struct Send {
    step: u32,
    /// Bytes that have had a slot, and that the peer has read. Parts may be read in another order than they are offered.
    filled: usize,
    read: usize,
}

/// A receive that is ready.
#[derive(Clone, Copy, Debug)]
struct Receive {
    step: u32,
    /// Bytes that were offered, and that are there.
    offered: usize,
    there: usize,
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    step: u32,
    tag: Tag,
    start: usize,
    len: usize,
}

/// A part of a message, in a slot.
#[derive(Clone, Copy, Debug)]
struct Part {
    step: u32,
    gpu: Gpu,
    direction: Direction,
    slot: usize,
    start: usize,
    len: usize,
    phase: Phase,
}

/// How far a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its slot is filled.
    Filling,
    /// The peer reads it.
    Offered(OpId),
    /// It is read.
    Reading(OpId),
    /// It is copied to where it belongs, or combined with what is there.
    Draining,
}

impl Staged {
    /// Whether there is nothing to do.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.sends.is_empty() && self.offers.is_empty()
    }

    /// Whether a GPU copies, of which no event tells.
    pub(super) fn is_copying(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.phase, Phase::Filling | Phase::Draining))
    }

    /// Whether all of a receive's message of so many bytes has come, and only the GPU is not done with it.
    pub(super) fn came(&self, step: u32, len: usize) -> bool {
        let all = self.receives.iter().any(|receive| receive.step == step && receive.offered == len);
        let read = |part: &Part| part.step != step || part.phase == Phase::Draining;
        all && self.offers.iter().all(|offer| offer.step != step) && self.parts.iter().all(read)
    }

    /// Whether an operation of the worker's is for one of its slots.
    #[inline]
    pub(super) fn has_posted(&self, op: OpId) -> bool {
        self.part_of(op).is_some()
    }

    fn part_of(&self, op: OpId) -> Option<usize> {
        let its = |part: &Part| matches!(part.phase, Phase::Offered(its) | Phase::Reading(its) if its == op);
        self.parts.iter().position(its)
    }

    /// Makes room for so many messages, with so many peers.
    pub(super) fn reserve(&mut self, messages: usize, peers: usize) {
        self.sends.reserve(messages);
        self.receives.reserve(messages);
        self.offers.reserve(peers * SLOTS);
        self.parts.reserve(2 * SLOTS);
    }

    /// Forgets all of it. The slots stay with what was posted on them.
    pub(super) fn clear(&mut self) {
        self.sends.clear();
        self.receives.clear();
        self.offers.clear();
        self.parts.clear();
    }
}

impl Exec<'_> {
    /// A step whose message goes by slots may start.
    pub(super) fn start_staged(&mut self, number: u32) -> Outcome<()> {
        let Step { what, slot, .. } = self.plan.steps[number as usize];
        let state = &mut self.run.states[number as usize];
        let wanted = *state == State::Offered;
        *state = State::Started;
        if what == What::Send {
            if wanted {
                self.send_staged(number);
            }
            return Ok(());
        }
        if self.plan.named_apart && self.run.begun[slot as usize].is_none() {
            return Ok(());
        }
        self.want(number)
    }

    /// Says that a receive is ready.
    pub(super) fn want(&mut self, number: u32) -> Outcome<()> {
        let Step { slot, message, .. } = self.plan.steps[number as usize];
        self.run.states[number as usize] = State::Queued;
        self.run.staged.receives.push(Receive { step: number, offered: 0, there: 0 });
        self.say(Word { slot, kind: Kind::Want, message, step: None })?;
        Ok(())
    }

    /// A peer is ready for a message.
    pub(super) fn wanted(&mut self, slot: u16, message: u32) -> bool {
        let Some(number) = self.plan.send(slot, message) else { return false };
        if !self.plan.steps[number as usize].way.is_staged() {
            return false;
        }
        match self.run.states[number as usize] {
            State::Waiting => self.run.states[number as usize] = State::Offered,
            State::Started => self.send_staged(number),
            _ => return false,
        }
        true
    }

    fn send_staged(&mut self, number: u32) {
        self.run.states[number as usize] = State::Queued;
        self.run.staged.sends.push(Send { step: number, filled: 0, read: 0 });
    }

    /// A peer offers the next part of a message.
    pub(super) fn offered(&mut self, slot: u16, (fields, tag): (Fields, Tag), len: u64) -> Outcome<()> {
        self.note(slot, fields)?;
        let number = if fields.kind == Kind::Data { self.plan.receive(slot, fields.message) } else { None };
        let receives = &mut self.run.staged.receives;
        let Some(receive) = receives.iter_mut().find(|receive| Some(receive.step) == number) else {
            return Err(self.differs(fields));
        };
        let whole = self.plan.steps[receive.step as usize].dst.len;
        let due = SLOT.min(whole - receive.offered);
        if len != due as u64 || due == 0 {
            let number = receive.step;
            return Err(self.unfit(number));
        }
        self.run.staged.offers.push(Offer { step: receive.step, tag, start: receive.offered, len: due });
        receive.offered += due;
        Ok(())
    }

    /// Moves on what goes by slots. False if nothing could be.
    pub(super) fn stage(&mut self) -> Outcome<bool> {
        let moved = [self.offer_filled()?, self.fill()?, self.take_offers()?, self.end_drained()?];
        self.start_ready()?;
        Ok(moved.contains(&true))
    }

    /// Fills slots for sends whose receivers are ready: one for each in turn, as long as there are some. Where they are to several
    /// peers, none of these has more than half of the slots, so that one who does other things leaves room.
    fn fill(&mut self) -> Outcome<bool> {
        let (mut moved, mut again) = (false, true);
        let peer = |send: &Send| self.plan.steps[send.step as usize].slot;
        let first = self.run.staged.sends.first().map(peer);
        let is_one = self.run.staged.sends.iter().all(|send| Some(peer(send)) == first);
        while std::mem::take(&mut again) {
            for at in 0..self.run.staged.sends.len() {
                let Send { step, filled, .. } = self.run.staged.sends[at];
                let Step { slot: peer, src, .. } = self.plan.steps[step as usize];
                let len = SLOT.min(src.len - filled);
                if len == 0 || (!is_one && self.slots_out(peer) >= SLOTS / 2) {
                    continue;
                }
                let Some(from) = self.run.memory(src.buffer).on_gpu() else { return Err(self.inconsistent(step)) };
                let (gpu, direction) = (from.gpu(), Direction::Out);
                let Some(stage) = self.net.slots.of(gpu, direction) else { return Err(self.inconsistent(step)) };
                // Of another GPU there may be some.
                let Some(slot) = stage.take() else { continue };
                let start = src.start + filled;
                if let Err(error) = stage.fill(slot, from, start..start + len) {
                    return Err(self.failed(error.to_string()));
                }
                let phase = Phase::Filling;
                self.run.staged.parts.push(Part { step, gpu, direction, slot, start: filled, len, phase });
                self.run.staged.sends[at].filled += len;
                (moved, again) = (true, true);
            }
        }
        Ok(moved)
    }

    /// Slots that are filled for a peer, or that it is to read.
    fn slots_out(&self, peer: u16) -> usize {
        let is_its =
            |part: &&Part| part.direction == Direction::Out && self.plan.steps[part.step as usize].slot == peer;
        self.run.staged.parts.iter().filter(is_its).count()
    }

    /// Offers what slots were filled with, in order.
    fn offer_filled(&mut self) -> Outcome<bool> {
        let mut moved = false;
        for at in 0..self.run.staged.parts.len() {
            let Part { step, slot: place, len, phase, .. } = self.run.staged.parts[at];
            if phase != Phase::Filling {
                continue;
            }
            if !self.is_copied(at)? {
                break;
            }
            let Step { slot, message, .. } = self.plan.steps[step as usize];
            let tag = self.tag(Word { slot, kind: Kind::Data, message, step: None });
            let PlanPeer { ep, rank, .. } = self.plan.peers[slot as usize];
            let Some(ep) = ep else { return Err(self.inconsistent(step)) };
            let Net { worker, slots, .. } = &mut *self.net;
            let part = self.run.staged.parts[at];
            let Some(stage) = slots.of(part.gpu, part.direction) else { return Err(self.inconsistent(step)) };
            let remote = worker.remote(stage.region(), stage.range(place, len));
            match worker.send(ep, tag, remote) {
                Ok(op) => self.run.staged.parts[at].phase = Phase::Offered(op),
                Err(refused) => match refused.error {
                    SendFailure::QueueFull { .. } => break,
                    // The event that says why is on its way.
                    SendFailure::Unknown(_) | SendFailure::Closing(_) if self.is_up(slot) => break,
                    SendFailure::Unknown(_) | SendFailure::Closing(_) => return Err(Box::new(Fault::Gone { rank })),
                    error => return Err(self.failed(format!("it could not send to rank {rank}: {error}"))),
                },
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Reads what is offered into slots, as far as there are some.
    fn take_offers(&mut self) -> Outcome<bool> {
        let mut moved = false;
        while let Some(&Offer { step, tag, start, len }) = self.run.staged.offers.first() {
            let Step { slot, dst, .. } = self.plan.steps[step as usize];
            let gpu = self.run.memory(dst.buffer).on_gpu().map(GpuBuffer::gpu);
            let PlanPeer { ep, rank, .. } = self.plan.peers[slot as usize];
            let (Some(gpu), Some(ep)) = (gpu, ep) else { return Err(self.inconsistent(step)) };
            let direction = Direction::Into;
            let Net { worker, slots, .. } = &mut *self.net;
            let Some(stage) = slots.of(gpu, direction) else { return Err(self.inconsistent(step)) };
            let Some(place) = stage.take() else { break };
            match worker.recv_into(ep, tag, stage.local(place, len), None) {
                Ok(op) => {
                    let phase = Phase::Reading(op);
                    self.run.staged.parts.push(Part { step, gpu, direction, slot: place, start, len, phase });
                }
                Err(refused) => {
                    stage.give(place);
                    match refused.error {
                        RecvFailure::Closed(_) if self.is_up(slot) => break,
                        RecvFailure::Closed(_) => return Err(Box::new(Fault::Gone { rank })),
                        error => return Err(self.failed(format!("it could not receive of rank {rank}: {error}"))),
                    }
                }
            }
            self.run.staged.offers.remove(0);
            moved = true;
        }
        Ok(moved)
    }

    /// The worker is done with a slot: a peer has read it, or so much was received into it.
    pub(super) fn slot_is_done(&mut self, op: OpId, came: Option<usize>) -> Outcome<()> {
        let Some(at) = self.run.staged.part_of(op) else { return Ok(()) };
        let Part { step, gpu, direction, slot, start, len, phase } = self.run.staged.parts[at];
        // What was offered may have been taken back, and something else sent.
        if came.is_some_and(|came| came != len) {
            return Err(self.unfit(step));
        }
        if matches!(phase, Phase::Offered(_)) {
            self.free_slot(at);
            let sends = &mut self.run.staged.sends;
            let Some(place) = sends.iter().position(|send| send.step == step) else { return Ok(()) };
            sends[place].read += len;
            if sends[place].read == self.plan.steps[step as usize].src.len {
                sends.remove(place);
                self.complete(step);
            }
            return Ok(());
        }
        let Step { what, dst, .. } = self.plan.steps[step as usize];
        let calc = if what == What::RecvReduce { self.plan.calc } else { None };
        let into = self.run.memory_mut(dst.buffer).on_gpu_mut();
        let (Some(into), Some(stage)) = (into, self.net.slots.of(gpu, direction)) else {
            return Err(self.inconsistent(step));
        };
        let from = dst.start + start;
        if let Err(error) = stage.drain(slot, into, from..from + len, calc) {
            return Err(self.failed(error.to_string()));
        }
        self.run.staged.parts[at].phase = Phase::Draining;
        Ok(())
    }

    /// Frees the slots that were drained. The receives whose last part is there are complete.
    fn end_drained(&mut self) -> Outcome<bool> {
        let mut moved = false;
        let mut at = 0;
        while let Some(&Part { step, len, phase, .. }) = self.run.staged.parts.get(at) {
            if phase != Phase::Draining || !self.is_copied(at)? {
                at += 1;
                continue;
            }
            self.free_slot(at);
            moved = true;
            let receives = &mut self.run.staged.receives;
            let Some(place) = receives.iter().position(|receive| receive.step == step) else { continue };
            receives[place].there += len;
            if receives[place].there == self.plan.steps[step as usize].dst.len {
                receives.swap_remove(place);
                self.complete(step);
            }
        }
        Ok(moved)
    }

    /// Whether the GPU is done with a part's slot.
    fn is_copied(&mut self, at: usize) -> Outcome<bool> {
        let Part { step, gpu, direction, slot, .. } = self.run.staged.parts[at];
        let Some(stage) = self.net.slots.of(gpu, direction) else { return Err(self.inconsistent(step)) };
        stage.is_done(slot).map_err(|error| self.failed(error.to_string()))
    }

    /// Nobody uses the slot of a part any more, which is over.
    fn free_slot(&mut self, at: usize) {
        let Part { gpu, direction, slot, .. } = self.run.staged.parts.remove(at);
        if let Some(stage) = self.net.slots.of(gpu, direction) {
            stage.give(slot);
        }
    }
}
