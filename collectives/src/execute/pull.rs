//! What a step does that is not one message copied: large messages, which their receiver reads, and local work.

use std::cmp::Reverse;

use qpair_transport::{OpId, Payload, Tag};

use super::compile::{Span, Step, What};
use super::exec::Exec;
use super::run::State;
use super::tag::{Fields, Kind};
use crate::fault::Outcome;
use crate::plan::Buffer;

impl Exec<'_> {
    /// Offers a message for its receiver to read.
    pub(super) fn offer(&mut self, number: u32, step: &Step) -> Outcome<()> {
        let tag = self.tag(step.message);
        let remote = self.run.memory(step.src.buffer).remote(step.src);
        let ep = self.plan.peers[step.slot as usize].ep;
        let (Some(ep), Some(remote)) = (ep, remote) else { return Err(self.inconsistent(number)) };
        match self.net.worker.send(ep, tag, Payload::Exposed(remote)) {
            Ok(op) => {
                self.run.sends.push_back((op, number));
                Ok(())
            }
            // The event that says why is on its way; the step stays open.
            Err(_) if self.is_up(step.slot) => Ok(()),
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    /// The peer has read a message.
    #[inline]
    pub(super) fn given(&mut self, op: OpId) {
        // Announcements are not listed.
        if let Some(at) = self.run.sends.iter().position(|(sent, _)| *sent == op)
            && let Some((_, number)) = self.run.sends.remove(at)
        {
            self.complete(number);
        }
    }

    /// A message is there to be read.
    #[inline]
    pub(super) fn offered(&mut self, number: u32, len: u64) -> Outcome<()> {
        if len != self.plan.steps[number as usize].dst.len as u64 {
            return Err(self.inconsistent(number));
        }
        match self.run.states[number as usize] {
            State::Started => self.run.pulls.push(Reverse(number)),
            State::Waiting => self.run.states[number as usize] = State::Offered,
            State::Offered | State::Given | State::Done => return Err(self.inconsistent(number)),
        }
        Ok(())
    }

    /// Reads a message that is offered, or combines it with what is there.
    pub(super) fn pull(&mut self, number: u32) -> Outcome<()> {
        let step = self.plan.steps[number as usize];
        let calc = if step.what == What::RecvReduce { self.plan.calc } else { None };
        let peer = &self.plan.peers[step.slot as usize];
        let local = match step.dst.buffer {
            Buffer::Data => self.run.data.local(step.dst),
            Buffer::Scratch => self.run.scratch.local(step.dst),
        };
        let (Some(ep), Some(plan), Some(local)) = (peer.ep, peer.theirs, local) else {
            return Err(self.inconsistent(number));
        };
        let (rank, sequence) = (peer.rank, self.run.sequence());
        let tag = Fields { kind: Kind::Data, rank, plan, sequence, message: step.message }.encode();
        match self.net.worker.recv_into(ep, tag, local, calc) {
            Ok(_) => Ok(()),
            Err(_) if self.is_up(step.slot) => Ok(()),
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    /// A message was read.
    #[inline]
    pub(super) fn pulled(&mut self, tag: Tag, len: usize) -> Outcome<()> {
        let fields = Fields::decode(tag).filter(|fields| fields.sequence == self.run.sequence());
        let step = fields.and_then(|fields| self.plan.receive(self.plan.slot(fields.rank)?, fields.message));
        let Some(number) = step else { return Ok(()) };
        if len != self.plan.steps[number as usize].dst.len {
            return Err(self.inconsistent(number));
        }
        self.complete(number);
        Ok(())
    }

    /// Copies or combines within this rank, in parts that stay in the first-level cache.
    pub(super) fn local(&mut self, step: &Step) -> Outcome<()> {
        let calc = if step.what == What::Reduce { self.plan.calc } else { None };
        let mut part = [0_u8; PART];
        let mut done = 0;
        while done < step.src.len {
            let len = PART.min(step.src.len - done);
            let from = match step.src.buffer {
                Buffer::Data => &self.run.data,
                Buffer::Scratch => &self.run.scratch,
            };
            let into = Span { buffer: step.dst.buffer, start: step.dst.start + done, len };
            let copied = from.read(step.src.start + done, &mut part[..len]);
            let put = copied.and_then(|()| self.run.memory(into.buffer).put(into, &part[..len], calc));
            put.map_err(|reason| self.failed(reason))?;
            done += len;
        }
        Ok(())
    }
}

/// A multiple of every element's size.
const PART: usize = 8 << 10;
