//! Tag matching and rendezvous, receiver's side. Arrivals of one tag are delivered in the order in which they were sent:
//! a short message waits behind a long one of its tag that is still being read.

use std::collections::VecDeque;

use super::wire::Offer;

/// Which lengths a posted receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Greatest length in bytes.
    pub(crate) limit: u64,
    /// The length must be a multiple of this.
    pub(crate) granule: u32,
}

/// A receive for one tag.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Posted<M> {
    pub(crate) op: u64,
    pub(crate) tag: u64,
    pub(crate) fit: Fit,
    /// A payload is read into memory of the transport's own first.
    pub(crate) staged: bool,
    pub(crate) memory: M,
}

/// What becomes of an eager message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<M> {
    /// For the application as it is.
    Unmatched,
    /// For this receive.
    Matched(Posted<M>),
    /// It waits behind another of its tag.
    Held,
    /// The posted receive can not take it and fails; the message goes to the application, or waits if `held`.
    Misfit { posted: Posted<M>, held: bool },
}

/// What becomes of a ready-to-send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Offered<M> {
    /// It can be read now.
    Startable,
    /// It waits for a receive.
    Held,
    /// The posted receive can not take it and fails; it can be read without, or waits for another if `held`.
    Misfit { posted: Posted<M>, held: bool },
}

/// What became of a receive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Placed<M> {
    /// It waits for a message, or for one that is held already.
    Waits,
    /// It matched an offer, which can be read now.
    Startable,
    /// The message that is next for it does not fit.
    Misfit { posted: Posted<M>, len: u64 },
}

/// A payload to be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Start<M> {
    pub(crate) key: u32,
    pub(crate) offer: Offer,
    pub(crate) len: u64,
    /// Where to; without a receive, memory of the transport's own.
    pub(crate) posted: Option<Posted<M>>,
}

/// A payload that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pulled {
    /// The receive that it was for.
    pub(crate) op: Option<u64>,
    pub(crate) tag: u64,
    pub(crate) len: u64,
    pub(crate) id: u32,
}

/// A message that waited and is to be delivered now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held<M, B> {
    pub(crate) tag: u64,
    pub(crate) body: B,
    pub(crate) posted: Option<Posted<M>>,
}

/// Posted receives, and arrivals that are not delivered yet.
#[derive(Debug)]
pub(crate) struct Inbox<M, B> {
    posted: VecDeque<Posted<M>>,
    waiting: VecDeque<Waiting<M, B>>,
    next_key: u32,
    unmatched: Unmatched,
    /// The transport has no memory of its own at the moment.
    stalled: bool,
    wanted: usize,
    held: usize,
}

/// What becomes of offers without a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmatched {
    /// They wait for one, instead of being read into memory of the transport's own.
    pub(crate) hold: bool,
    /// Longer ones wait in any case.
    pub(crate) longest: u64,
}

#[derive(Debug)]
struct Waiting<M, B> {
    key: u32,
    tag: u64,
    len: u64,
    stage: Stage<M, B>,
}

#[derive(Debug)]
enum Stage<M, B> {
    /// An offer that waits for a receive.
    Offered(Offer),
    /// To be read as soon as a send slot, and memory, are there.
    Wanted(Offer, Option<Posted<M>>),
    /// Being read.
    Pulling { id: u32, op: Option<u64> },
    /// A whole message behind another of its tag.
    Arrived(B, Option<Posted<M>>),
}

impl Fit {
    fn takes(&self, len: u64) -> bool {
        len <= self.limit && (self.granule <= 1 || len.is_multiple_of(u64::from(self.granule)))
    }
}

impl<M> Posted<M> {
    /// True if a payload is read straight into its memory.
    fn is_direct(&self) -> bool {
        !self.staged
    }
}

impl<M, B> Inbox<M, B> {
    pub(crate) fn new(unmatched: Unmatched) -> Self {
        Inbox {
            posted: VecDeque::new(),
            waiting: VecDeque::new(),
            next_key: 0,
            unmatched,
            stalled: false,
            wanted: 0,
            held: 0,
        }
    }

    /// True if no receive is posted and no message waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty() && self.waiting.is_empty()
    }

    /// An eager message came; `body` makes what is kept of it, if it must wait.
    pub(crate) fn eager(&mut self, tag: u64, len: u64, body: impl FnOnce() -> B) -> Arrival<M> {
        let behind = self.waiting.iter().any(|other| other.tag == tag);
        // While an earlier one of its tag has no receive, there is none for this one either.
        let posted = self.take_posted(tag);
        let (posted, misfit) = match posted {
            Some(posted) if !posted.fit.takes(len) => (None, Some(posted)),
            posted => (posted, None),
        };
        match (behind, posted, misfit) {
            (false, None, None) => Arrival::Unmatched,
            (false, Some(posted), _) => Arrival::Matched(posted),
            (false, None, Some(posted)) => Arrival::Misfit { posted, held: false },
            (true, posted, misfit) => {
                self.wait(tag, len, Stage::Arrived(body(), posted));
                self.held += 1;
                misfit.map_or(Arrival::Held, |posted| Arrival::Misfit { posted, held: true })
            }
        }
    }

    /// A ready-to-send came.
    pub(crate) fn offer(&mut self, tag: u64, len: u64, offer: Offer) -> Offered<M> {
        let (posted, misfit) = match self.take_posted(tag) {
            Some(posted) if !posted.fit.takes(len) => (None, Some(posted)),
            posted => (posted, None),
        };
        // One that lost its receive is delivered all the same, if there can be memory for it.
        let Unmatched { hold, longest } = self.unmatched;
        let held = posted.is_none() && (len > longest || hold && misfit.is_none());
        if held {
            self.wait(tag, len, Stage::Offered(offer));
        } else {
            self.wait(tag, len, Stage::Wanted(offer, posted));
            self.wanted += 1;
        }
        match misfit {
            Some(posted) => Offered::Misfit { posted, held },
            None if held => Offered::Held,
            None => Offered::Startable,
        }
    }

    /// Posts a receive.
    pub(crate) fn post(&mut self, posted: Posted<M>) -> Placed<M> {
        if self.waiting.is_empty() {
            self.posted.push_back(posted);
            return Placed::Waits;
        }
        let next = self.waiting.iter_mut().find(|entry| {
            let free = matches!(entry.stage, Stage::Offered(_) | Stage::Wanted(_, None) | Stage::Arrived(_, None));
            entry.tag == posted.tag && free
        });
        let Some(entry) = next else {
            self.posted.push_back(posted);
            return Placed::Waits;
        };
        if !posted.fit.takes(entry.len) {
            return Placed::Misfit { posted, len: entry.len };
        }
        match &mut entry.stage {
            Stage::Offered(offer) => {
                entry.stage = Stage::Wanted(*offer, Some(posted));
                self.wanted += 1;
                Placed::Startable
            }
            Stage::Wanted(_, free) => {
                *free = Some(posted);
                Placed::Startable
            }
            Stage::Arrived(_, free) => {
                *free = Some(posted);
                Placed::Waits
            }
            Stage::Pulling { .. } => Placed::Misfit { posted, len: entry.len },
        }
    }

    /// True if [`start`](Inbox::start) may give something.
    #[inline]
    pub(crate) fn is_startable(&self) -> bool {
        self.wanted > 0
    }

    /// The next payload to read, in the order of arrival within a tag. It counts as being read from now on.
    pub(crate) fn start(&mut self) -> Option<Start<M>> {
        if self.wanted == 0 {
            return None;
        }
        let stalled = self.stalled;
        let index = (0..self.waiting.len()).find(|&index| {
            let entry = &self.waiting[index];
            let ready = match &entry.stage {
                Stage::Wanted(_, posted) => !stalled || posted.as_ref().is_some_and(Posted::is_direct),
                _ => false,
            };
            let unread = |other: &Waiting<M, B>| {
                other.tag == entry.tag && matches!(other.stage, Stage::Wanted(..) | Stage::Offered(_))
            };
            ready && !self.waiting.iter().take(index).any(unread)
        })?;
        let entry = &mut self.waiting[index];
        let Stage::Wanted(offer, posted) = &mut entry.stage else { return None };
        let (offer, posted) = (*offer, posted.take());
        entry.stage = Stage::Pulling { id: offer.id, op: posted.as_ref().map(|posted| posted.op) };
        self.wanted -= 1;
        Some(Start { key: entry.key, offer, len: entry.len, posted })
    }

    /// Undoes [`start`](Inbox::start) for want of memory; until [`resume`](Inbox::resume) no other starts that needs any.
    pub(crate) fn stall(&mut self, start: Start<M>) {
        self.stalled = true;
        if let Some(entry) = self.waiting.iter_mut().find(|entry| entry.key == start.key) {
            entry.stage = Stage::Wanted(start.offer, start.posted);
            self.wanted += 1;
        }
    }

    /// Undoes [`start`](Inbox::start) of an offer whose receive failed. Gives the receive, and the offer's tag and length
    /// if it waits for another.
    pub(crate) fn unmatch(&mut self, key: u32, offer: Offer) -> Option<(u64, Option<(u64, u64)>)> {
        let entry = self.waiting.iter_mut().find(|entry| entry.key == key)?;
        let Stage::Pulling { op: Some(op), .. } = entry.stage else { return None };
        if entry.len > self.unmatched.longest {
            entry.stage = Stage::Offered(offer);
            return Some((op, Some((entry.tag, entry.len))));
        }
        entry.stage = Stage::Wanted(offer, None);
        self.wanted += 1;
        Some((op, None))
    }

    /// There is memory of the transport's own again. True if something waits for it.
    pub(crate) fn resume(&mut self) -> bool {
        std::mem::take(&mut self.stalled)
    }

    /// Unmatched offers do not wait for a receive any more, but for those for which there is never memory.
    pub(crate) fn release_offers(&mut self) {
        self.unmatched.hold = false;
        for entry in &mut self.waiting {
            if let Stage::Offered(offer) = entry.stage
                && entry.len <= self.unmatched.longest
            {
                entry.stage = Stage::Wanted(offer, None);
                self.wanted += 1;
            }
        }
    }

    /// A payload was read.
    pub(crate) fn pulled(&mut self, key: u32) -> Option<Pulled> {
        let index = self.waiting.iter().position(|entry| entry.key == key)?;
        let Stage::Pulling { id, op } = self.waiting[index].stage else { return None };
        let entry = self.waiting.remove(index)?;
        Some(Pulled { op, tag: entry.tag, len: entry.len, id })
    }

    /// The next message that does not have to wait any more.
    #[inline]
    pub(crate) fn next_held(&mut self) -> Option<Held<M, B>> {
        if self.held == 0 {
            return None;
        }
        let index = (0..self.waiting.len()).find(|&index| {
            let entry = &self.waiting[index];
            matches!(entry.stage, Stage::Arrived(..))
                && !self.waiting.iter().take(index).any(|other| other.tag == entry.tag)
        })?;
        let entry = self.waiting.remove(index)?;
        let Stage::Arrived(body, posted) = entry.stage else { return None };
        self.held -= 1;
        Some(Held { tag: entry.tag, body, posted })
    }

    /// Receives that can not come true any more, since the connection ends. Those being read come with their completion.
    pub(crate) fn drain(&mut self) -> Vec<Posted<M>> {
        let mut left: Vec<_> = self.posted.drain(..).collect();
        self.waiting.retain_mut(|entry| {
            if let Stage::Wanted(_, posted) | Stage::Arrived(_, posted) = &mut entry.stage {
                left.extend(posted.take());
            }
            matches!(entry.stage, Stage::Pulling { .. })
        });
        (self.wanted, self.held) = (0, 0);
        left
    }

    /// Offers that are not read.
    pub(crate) fn offers(&self) -> usize {
        self.waiting.len() - self.held
    }

    /// Posted receives, and arrivals that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.posted.len(), self.waiting.len())
    }

    fn take_posted(&mut self, tag: u64) -> Option<Posted<M>> {
        let index = self.posted.iter().position(|posted| posted.tag == tag)?;
        self.posted.remove(index)
    }

    fn wait(&mut self, tag: u64, len: u64, stage: Stage<M, B>) {
        self.next_key = self.next_key.wrapping_add(1);
        self.waiting.push_back(Waiting { key: self.next_key, tag, len, stage });
    }
}
