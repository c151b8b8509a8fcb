//! Messages that go without copies in between: reads and writes of the peers' exposed memory.

use std::cmp::Reverse;

use qpair_transport::{OneSidedFailure, OpId};

use super::exec::Exec;
use super::lower::Way;
use super::run::{Posted, State, Word};
use super::steps::{PlanPeer, Span, Step};
use super::tag::Kind;
use crate::fault::{Fault, Outcome};
use crate::plan::What;

impl Exec<'_> {
    /// A step whose message is not copied by the processor may start.
    pub(super) fn start_direct(&mut self, number: u32) -> Outcome<()> {
        let Step { what, way, slot, message, .. } = self.plan.steps[number as usize];
        let state = &mut self.run.states[number as usize];
        if *state == State::Done {
            return Ok(());
        }
        if way.is_staged() {
            return self.start_staged(number);
        }
        let offered = *state == State::Offered;
        *state = State::Started;
        let begun = self.run.begun[slot as usize].is_some();
        match (what, way) {
            (What::Send, Way::Read { told: true, .. }) => {
                self.say(Word { slot, kind: Kind::Data, message, step: None })?;
            }
            (What::Send, Way::Written { .. }) if begun => self.run.queue(number),
            (What::Recv | What::RecvReduce, Way::Read { told, .. }) if if told { offered } else { begun } => {
                self.run.queue(number);
            }
            // The peer does it, or has to begin.
            _ => {}
        }
        Ok(())
    }

    /// Posts reads and writes that may be done. Within a node one read at a time, so that what it brings is given away while it is
    /// in the cache: on shared memory all is done when it is posted, and more at a time would gain nothing.
    #[inline]
    pub(super) fn transfer(&mut self) -> Outcome<()> {
        while let Some(&Reverse(number)) = self.run.transfers.peek() {
            let get = self.plan.steps[number as usize].what != What::Send;
            if get && self.run.gets >= self.net.gets {
                return Ok(());
            }
            match self.post(number)? {
                Progress::None => return Ok(()),
                Progress::Piece => {}
                Progress::All => _ = self.run.transfers.pop(),
            }
        }
        Ok(())
    }

    /// Posts the read or write of a step, or the next piece of it, if there is room for it now.
    fn post(&mut self, number: u32) -> Outcome<Progress> {
        let step = &self.plan.steps[number as usize];
        let Step { slot, message, way, .. } = *step;
        let send = step.what == What::Send;
        let whole = if send { step.src } else { step.dst };
        let most = self.net.piece(self.plan.call.on_gpu);
        let (span, remote, last) = if whole.len <= most {
            (whole, step.remote, true)
        } else {
            self.next_piece(number, most, whole, step.remote)
        };
        self.prepare(number, span)?;
        let step = &self.plan.steps[number as usize];
        let calc = if step.what == What::RecvReduce { self.plan.calc } else { None };
        let memory = self.run.memory(span.buffer);
        let PlanPeer { ep, rank, .. } = self.plan.peers[slot as usize];
        let remote = self.run.begun[slot as usize].and_then(|reach| reach.part(remote));
        let (Some(ep), Some(local)) = (ep, memory.local(span)) else { return Err(self.inconsistent(number)) };
        let Some(remote) = remote else { return Err(self.unfit(number)) };
        let worker = &mut self.net.worker;
        let posted = if send { worker.put(ep, local, remote) } else { worker.get(ep, remote, local, calc) };
        match posted {
            Ok(op) => {
                self.run.prepared = None;
                self.net.moved += span.len;
                self.run.posted.push_back(Posted { op, step: number, last });
                self.run.gets += u32::from(!send);
                if whole.len > span.len {
                    self.piece_posted(number, span.len, last);
                }
                if send && last {
                    if way == (Way::Written { told: true }) {
                        self.say(Word { slot, kind: Kind::Data, message, step: None })?;
                    }
                    self.reached(slot)?;
                }
                Ok(if last { Progress::All } else { Progress::Piece })
            }
            Err(refused) => match refused.error {
                // Where it is closed, the event that says why is on its way.
                OneSidedFailure::WouldBlock | OneSidedFailure::Closed(_) if self.is_up(slot) => Ok(Progress::None),
                OneSidedFailure::Closed(_) => Err(Box::new(Fault::Gone { rank })),
                error => Err(self.failed(error.to_string())),
            },
        }
    }

    /// Has in place what a read into `span` combines with, or what is sent on: once, though it may be posted again where there was no
    /// room.
    #[inline]
    fn prepare(&mut self, number: u32, span: Span) -> Outcome<()> {
        let Step { what, src, dst, .. } = self.plan.steps[number as usize];
        if what == What::Send || self.run.prepared == Some((number, span.start)) {
            return Ok(());
        }
        let done = if src.len > 0 {
            let from = Span { start: src.start + span.start - dst.start, len: span.len, ..src };
            self.run.local(from, span, None)
        } else if what == What::RecvReduce && span.start == dst.start {
            // What NICs wrote before the step, a GPU combines with.
            self.run.memory(span.buffer).make_visible().map_err(|error| error.to_string())
        } else {
            return Ok(());
        };
        done.map_err(|reason| self.failed(reason))?;
        self.run.prepared = Some((number, span.start));
        Ok(())
    }

    /// What of a long message comes next, with the peer's memory of it, and whether it is the last.
    #[cold]
    fn next_piece(&self, number: u32, most: usize, whole: Span, remote: Span) -> (Span, Span, bool) {
        let posted = self.run.pieces.iter().find(|(step, _)| *step == number).map_or(0, |(_, posted)| *posted);
        let len = most.min(whole.len - posted);
        let part = |span: Span| Span { start: span.start + posted, len, ..span };
        (part(whole), part(remote), posted + len == whole.len)
    }

    #[cold]
    fn piece_posted(&mut self, number: u32, len: usize, last: bool) {
        let pieces = &mut self.run.pieces;
        match pieces.iter_mut().find(|(step, _)| *step == number) {
            Some((_, posted)) => *posted += len,
            None => pieces.push((number, len)),
        }
        if last {
            pieces.retain(|(step, _)| *step != number);
        }
    }

    /// A read or write is done.
    #[inline]
    pub(super) fn transferred(&mut self, op: OpId) -> Outcome<()> {
        let at = self.run.posted.iter().position(|posted| posted.op == op);
        let Some(Posted { step: number, last, .. }) = at.and_then(|at| self.run.posted.remove(at)) else {
            return Ok(());
        };
        let Step { what, way, slot, message, .. } = self.plan.steps[number as usize];
        self.run.gets -= u32::from(what != What::Send);
        if !last {
            return Ok(());
        }
        self.complete(number);
        if what != What::Send {
            if matches!(way, Way::Read { acknowledged: true, .. }) {
                self.say(Word { slot, kind: Kind::Read, message, step: None })?;
            }
            self.reached(slot)?;
        }
        Ok(())
    }

    /// One thing less to do to the peer's memory. After the last the peer is told.
    fn reached(&mut self, slot: u16) -> Outcome<()> {
        let left = &mut self.run.reaches[slot as usize];
        *left -= 1;
        if *left == 0 {
            self.say(Word { slot, kind: Kind::End, message: 0, step: None })?;
        }
        Ok(())
    }
}

/// How much of a step was posted.
enum Progress {
    None,
    Piece,
    All,
}
