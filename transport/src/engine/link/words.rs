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
    pub(super) fn is_answer(self) -> bool {
        matches!(self, Word::Finished { .. } | Word::Withdrawn { .. })
    }
}

/// Those that wait, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Words {
    waiting: VecDeque<Word>,
    /// How many of them answer offers.
    answers: usize,
}

impl Words {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many of them answer offers.
    pub(super) fn answers(&self) -> usize {
        self.answers
    }

    pub(super) fn push(&mut self, word: Word) {
        self.answers += usize::from(word.is_answer());
        self.waiting.push_back(word);
    }

    /// The first of which that is so.
    pub(super) fn pop_first(&mut self, is_it: impl Fn(&Word) -> bool) -> Option<Word> {
        let word = self.waiting.remove(self.waiting.iter().position(is_it)?)?;
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
