//! Messages of the protocol's own that wait for a credit.

use std::collections::VecDeque;

use crate::engine::wire::Kind;

/// A message of the protocol's own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// A payload of the peer was read.
    Finished { id: u32, len: u64 },
    /// A payload of the peer will not be read.
    Withdrawn { id: u32 },
    /// A payload of this side is no longer wanted.
    Cancel { id: u32 },
    /// A payload of the peer is wanted, part by part.
    Want { id: u32 },
}

impl Word {
    /// What its header says: kind, message id and length.
    pub(super) fn says(self) -> (Kind, u32, u64) {
        match self {
            Word::Finished { id, len } => (Kind::Finished, id, len),
            Word::Withdrawn { id } => (Kind::Withdrawn, id, 0),
            Word::Cancel { id } => (Kind::Cancel, id, 0),
            Word::Want { id } => (Kind::Want, id, 0),
        }
    }

    /// True if it answers an offer of the peer.
    fn is_answer(self) -> bool {
        matches!(self, Word::Finished { .. } | Word::Withdrawn { .. })
    }
}

/// Those that wait, the oldest first of each kind.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The answer to a part that took no credit, which takes none either.
    to_uncredited: Option<Word>,
    waiting: VecDeque<Word>,
    /// What is wanted: of these one may go without a credit.
    wants: VecDeque<Word>,
    /// How many answer offers.
    answers: usize,
}

impl Words {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.wants.is_empty() && self.to_uncredited.is_none()
    }

    /// How many of them answer offers.
    pub(super) fn answers(&self) -> usize {
        self.answers
    }

    pub(super) fn push(&mut self, word: Word) {
        self.answers += usize::from(word.is_answer());
        match word {
            Word::Want { .. } => self.wants.push_back(word),
            _ => self.waiting.push_back(word),
        }
    }

    /// The same of the answer to a part that took no credit. There is one at a time: a peer whose offers have one number gets one
    /// answer so.
    pub(super) fn push_to_uncredited(&mut self, word: Word) {
        if self.to_uncredited.is_some() {
            return self.push(word);
        }
        self.answers += usize::from(word.is_answer());
        self.to_uncredited = Some(word);
    }

    /// The next, where there is a credit, or where there is none, which says whether it is a want's turn.
    pub(super) fn pop(&mut self, has_credit: bool, may_want: bool) -> Option<Word> {
        let mut word = self.to_uncredited.take();
        if has_credit {
            word = word.or_else(|| self.waiting.pop_front());
        }
        if has_credit || may_want {
            word = word.or_else(|| self.wants.pop_front());
        }
        let word = word?;
        self.answers -= usize::from(word.is_answer());
        Some(word)
    }

    /// What a payload was to be asked for has come about: it is not asked for any more.
    pub(super) fn forget_cancel(&mut self, over: u64) {
        self.waiting.retain(|word| !matches!(word, Word::Cancel { id } if u64::from(*id) == over));
    }

    pub(super) fn clear(&mut self) {
        *self = Words::default();
    }
}
