//! What came: whether it may, and what it means for slots, offers and answers.

use super::words::Word;
use super::{Link, Phase};
use crate::engine::exposed::{self, Exposed};
use crate::engine::inbox::EntryKey;
use crate::engine::violation::Violation;
use crate::engine::wire::{Header, Kind};

impl<P> Link<P> {
    /// Checks an arriving header against the session and takes note of its credits.
    #[inline(always)]
    pub(crate) fn accept(&mut self, header: &Header) -> Result<(), Violation> {
        if header.epoch != self.peer_epoch || header.sequence != self.next_in {
            return Err(self.strange(header));
        }
        // Before its slot is counted, which is posted again with what is refused.
        if self.peer_closed && !matches!(header.kind, Kind::Finished | Kind::Withdrawn | Kind::Want | Kind::Credit) {
            return Err(Violation::AfterClose);
        }
        self.next_in = self.next_in.wrapping_add(header.kind.is_sequenced().into());
        self.credits.update(header.credits)?;
        self.keepalive.heard();
        if header.takes_credit() {
            self.grants.receive()?;
        }
        Ok(())
    }

    /// A ready-to-send came. Its slot is given back here, at once or when fewer wait: a peer can not fill memory with
    /// offers.
    ///
    /// # Errors
    /// A peer that takes no answers could fill memory with these; so could one with parts that take no credit.
    pub(crate) fn offered(&mut self, header: &Header, id: u32) -> Result<(), Violation> {
        self.see_uncredited_want(header);
        if header.envelope.is_uncredited() {
            if self.peers_uncredited_part.is_some() {
                return Err(Violation::NoCredit);
            }
            self.peers_uncredited_part = Some(id);
        }
        if self.offers + self.words.answers() >= exposed::LIMIT {
            return Err(Violation::TooManyOffers { limit: exposed::LIMIT });
        }
        self.offers += 1;
        self.owed += u32::from(header.takes_credit());
        self.give_owed();
        Ok(())
    }

    /// A payload of the peer can be read: [`next_step`](Link::next_step) says when.
    pub(crate) fn want(&mut self, key: EntryKey) {
        self.startable.push_back(key);
    }

    /// A payload was read; the peer is told with the next steps.
    pub(crate) fn read(&mut self, id: u32, len: u64) {
        self.answer(Word::Finished { id, len });
    }

    /// A payload will not be read, as the peer wishes; it is told with the next steps.
    pub(crate) fn withdrawn(&mut self, id: u32) {
        self.answer(Word::Withdrawn { id });
    }

    /// The peer has read a payload, or will not; it comes back.
    pub(crate) fn on_finished(&mut self, header: &Header) -> Result<Exposed<P>, Violation> {
        // What it was to be asked for has come about; nothing more may be said of it, least of all after CLOSE.
        self.words.forget_cancel(header.envelope.tag);
        self.see_uncredited_want(header);
        let exposed = match header.kind {
            Kind::Withdrawn => self.exposures.withdraw(header.envelope.tag)?,
            _ => self.exposures.finish(header.envelope.tag, header.length)?,
        };
        self.uncredited_part &= !exposed.envelope.is_uncredited();
        Ok(exposed)
    }

    /// A payload of the peer is to come in parts: it is told with the next steps.
    pub(crate) fn want_parts(&mut self, id: u32) {
        if self.phase != Phase::Closed {
            self.words.push(Word::Want { id });
        }
    }

    /// The peer wants a payload in parts. Gives its length.
    ///
    /// # Errors
    /// There is none that has parts, or it was wanted before.
    pub(crate) fn on_want(&mut self, header: &Header) -> Result<u64, Violation> {
        self.exposures.want(header.envelope.tag)
    }

    /// The payload that the peer reads, or is to read, under that message id.
    pub(crate) fn exposed(&self, id: u32) -> Option<&P> {
        self.exposures.get(id)
    }

    /// The peer sends nothing more.
    pub(crate) fn on_close(&mut self) {
        self.peer_closed = true;
        self.finish_sending();
    }

    /// A receive slot is free again.
    #[inline]
    pub(crate) fn give_slot(&mut self) {
        self.grants.give();
    }

    /// Slots that the peer gives up, which has had nothing to send for a while.
    pub(crate) fn on_credit(&mut self, header: &Header) -> Result<u32, Violation> {
        self.see_uncredited_want(header);
        let slots = u32::try_from(header.length).map_err(|_| Violation::NoCredit)?;
        self.grants.given_up(slots)?;
        Ok(slots)
    }

    /// True if the peer has used all slots that it knows of.
    #[inline(always)]
    pub(crate) fn is_used_up(&self) -> bool {
        self.grants.is_used_up()
    }

    /// Gives the peer so many slots more; it has used all that it knows of.
    pub(crate) fn grow(&mut self, slots: u32) {
        self.grants.grow(slots);
    }

    /// Receive slots of the peer in all.
    pub(crate) fn window(&self) -> u32 {
        self.grants.window()
    }

    /// Receive slots that the peer may still take, now or when it is told of them.
    pub(crate) fn outstanding_slots(&self) -> u32 {
        self.grants.outstanding() + self.owed
    }

    /// Another want may go without a credit, if the peer says that it has the last that did.
    fn see_uncredited_want(&mut self, header: &Header) {
        let after = |sequence: u32| header.acknowledged.wrapping_sub(sequence as u16).wrapping_sub(1);
        self.uncredited_want.take_if(|sequence| after(*sequence) < 1 << 15);
    }

    fn give_owed(&mut self) {
        // A peer that has to send again answers nothing before all of that has gone out, which it needs slots for: one that waited
        // for its answers would wait for ever. Offers have a limit of their own too.
        let excess = if self.peer_repeats() { 0 } else { self.offers.saturating_sub(self.offers_limit) };
        while self.owed as usize > excess {
            self.owed -= 1;
            self.grants.give();
        }
    }

    fn answer(&mut self, word: Word) {
        self.offers = self.offers.saturating_sub(1);
        self.give_owed();
        match word {
            _ if self.phase == Phase::Closed => {}
            Word::Finished { id, .. } if self.peers_uncredited_part == Some(id) => self.words.push_to_uncredited(word),
            _ => self.words.push(word),
        }
    }

    #[cold]
    fn strange(&self, header: &Header) -> Violation {
        if header.epoch != self.peer_epoch {
            return Violation::Epoch { expected: self.peer_epoch, got: header.epoch };
        }
        Violation::Sequence { expected: self.next_in, got: header.sequence }
    }
}
