//! Words: short messages about the memory of an operation, and messages that are copied. To a peer they go in the order
//! in which they are said, since some mean nothing before others.

use qpair_transport::{SendCopyError, Tag};
use qpair_verbs::{RemoteSlice, Rkey};

use super::exec::Exec;
use super::lower::Way;
use super::reach::{REACH, Reach};
use super::run::{State, Word};
use super::steps::Span;
use super::tag::{Fields, Kind};
use crate::fault::{Fault, Outcome};

impl Exec<'_> {
    /// Tells the peers that will reach this rank's memory where it is.
    pub(super) fn begin(&mut self) -> Outcome<()> {
        for slot in 0..self.plan.peers.len() as u16 {
            if self.plan.peers[slot as usize].reached || self.plan.peers[slot as usize].named {
                self.say(Word { slot, kind: Kind::Begin, message: 0, step: None })?;
            }
        }
        Ok(())
    }

    /// Says something to a peer, now or when it has room. True if now.
    #[inline]
    pub(super) fn say(&mut self, word: Word) -> Outcome<bool> {
        let said = self.try_say(word)?;
        if !said {
            self.run.blocked.push_back(word);
        }
        Ok(said)
    }

    /// Says something to a peer. False if it has no room for it now, or other words to it wait for room.
    #[inline]
    pub(super) fn try_say(&mut self, word: Word) -> Outcome<bool> {
        if self.run.blocked.iter().any(|before| before.slot == word.slot) {
            return Ok(false);
        }
        self.send(word)
    }

    /// Says what had to wait for room.
    #[cold]
    pub(super) fn retry(&mut self) -> Outcome<()> {
        let mut at = 0;
        while let Some(&word) = self.run.blocked.get(at) {
            let behind = self.run.blocked.iter().take(at).any(|before| before.slot == word.slot);
            if behind || !self.send(word)? {
                at += 1;
                continue;
            }
            self.run.blocked.remove(at);
            if let Some(number) = word.step {
                self.complete(number);
            }
        }
        self.start_ready()
    }

    #[inline]
    fn send(&mut self, word: Word) -> Outcome<bool> {
        let tag = self.tag(word);
        let mut reach = [0; REACH];
        let contents: &[u8] = match (word.kind, word.step) {
            (Kind::Begin, _) => self.reach(word.slot).encode(&mut reach),
            (_, Some(number)) => {
                let span = self.plan.steps[number as usize].src;
                let bytes = if span.len == 0 { Some(&[][..]) } else { self.run.memory(span.buffer).bytes(span) };
                let Some(bytes) = bytes else { return Err(self.inconsistent(number)) };
                bytes
            }
            (_, None) => &[],
        };
        let peer = &self.plan.peers[word.slot as usize];
        let Some(ep) = peer.ep else { return Err(self.inconsistent(0)) };
        match self.net.worker.send_copy(ep, tag, contents) {
            Ok(()) => Ok(true),
            // What is under way makes room, and gives memory back.
            Err(SendCopyError::WouldBlock | SendCopyError::NoMemory { .. }) => Ok(false),
            // The event that says why is on its way.
            Err(SendCopyError::Closed(_)) if self.is_up(word.slot) => Ok(false),
            Err(SendCopyError::Closed(_)) => Err(Box::new(Fault::Gone { rank: peer.rank })),
            Err(error) => Err(self.failed(format!("it could not send to rank {}: {error}", peer.rank))),
        }
    }

    /// What a peer is told of this rank's memory.
    fn reach(&self, slot: u16) -> Reach {
        if self.plan.named_apart {
            let given = self.plan.send(slot, 0).map(|number| self.plan.steps[number as usize].src);
            // Of what goes by slots the length counts alone.
            let length = |span: Span| RemoteSlice { addr: 0, len: span.len as u64, rkey: Rkey(0) };
            let input = if self.plan.staged {
                given.map(length)
            } else {
                given.and_then(|span| self.run.memory(span.buffer).remote_part(span))
            };
            return Reach { input, ..Reach::default() };
        }
        let (input, data, scratch) = (&self.run.input, &self.run.data, &self.run.scratch);
        Reach { input: input.remote(), data: data.remote(), scratch: scratch.remote() }
    }

    /// The tag of a message of this rank.
    #[inline]
    pub(super) fn tag(&self, Word { slot, kind, message, .. }: Word) -> Tag {
        let sequence = self.run.numbers[slot as usize].sequence();
        Fields { kind, rank: self.net.me, plan: self.plan.number, sequence, message }.encode()
    }

    /// A peer has something to say about messages that are not copied. Each word is taken once, and where it is due.
    pub(super) fn told(&mut self, slot: u16, fields: Fields, contents: &[u8]) -> Outcome<()> {
        let due = self.plan.large
            && match fields.kind {
                Kind::Begin => self.begun(slot, contents)?,
                Kind::End => self.ended(slot),
                Kind::Read => self.was_read(slot, fields.message),
                Kind::Data => self.is_there(slot, fields.message),
                Kind::Want => self.wanted(slot, fields.message),
                Kind::Hello | Kind::Announce | Kind::Waits => false,
            };
        if due { Ok(()) } else { Err(self.differs(fields)) }
    }

    /// A peer has begun: its memory may be reached.
    fn begun(&mut self, slot: u16, contents: &[u8]) -> Outcome<bool> {
        let peer = &self.plan.peers[slot as usize];
        if self.run.begun[slot as usize].is_some() || (peer.reaches == 0 && !self.plan.named_apart) {
            return Ok(false);
        }
        let Some(reach) = Reach::decode(contents) else {
            let reason = "it told of its memory in a way that this release does not know".into();
            return Err(Box::new(Fault::Failed { rank: peer.rank, reason }));
        };
        if self.plan.named_apart {
            let given = reach.input.map_or(0, |input| input.len);
            if given != self.expects(slot) {
                return Err(self.gives_other(slot, given));
            }
        }
        self.run.begun[slot as usize] = Some(reach);
        for at in 0..peer.opened.len() {
            let number = self.plan.peers[slot as usize].opened[at];
            if self.run.states[number as usize] != State::Started {
                continue;
            }
            if self.plan.steps[number as usize].way.is_staged() {
                self.want(number)?;
            } else {
                self.run.queue(number);
            }
        }
        Ok(true)
    }

    /// A peer does nothing more to this rank's memory.
    fn ended(&mut self, slot: u16) -> bool {
        if !std::mem::replace(&mut self.run.reached[slot as usize], false) {
            return false;
        }
        self.run.open -= 1;
        for at in 0..self.plan.peers[slot as usize].ended.len() {
            self.complete(self.plan.peers[slot as usize].ended[at]);
        }
        true
    }

    /// A peer has read a message.
    fn was_read(&mut self, slot: u16, message: u32) -> bool {
        let Some(number) = self.plan.send(slot, message) else { return false };
        let said = matches!(self.plan.steps[number as usize].way, Way::Read { acknowledged: true, .. });
        let due = said && self.run.states[number as usize] == State::Started;
        if due {
            self.complete(number);
        }
        due
    }

    /// A message may be read, or was written.
    fn is_there(&mut self, slot: u16, message: u32) -> bool {
        let Some(number) = self.plan.receive(slot, message) else { return false };
        let begun = self.run.begun[slot as usize].is_some();
        match (self.plan.steps[number as usize].way, self.run.states[number as usize]) {
            (Way::Written { told: true }, State::Waiting | State::Started) => self.complete(number),
            (Way::Read { told: true, .. }, State::Waiting) if begun => {
                self.run.states[number as usize] = State::Offered;
            }
            (Way::Read { told: true, .. }, State::Started) if begun => self.run.queue(number),
            _ => return false,
        }
        true
    }
}
