//! Answers that the peer is owed, in order. Whatever the peer sends, there are few at a time.

use std::collections::VecDeque;

use crate::types::{Msn, Psn};
use crate::wire::{Nak, Syndrome};
use crate::work::Remote;

/// An answer that the peer is owed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Sequence number of its next packet.
    pub(super) psn: Psn,
    /// Messages that were done with what is answered.
    pub(super) msn: Msn,
    pub(super) kind: Kind,
}

/// What is answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// All up to there is done.
    Done,
    /// That one was not done.
    Refused(Syndrome),
    /// Bytes of memory.
    Read(Reading),
    /// What was there before an atomic; true if it is answered once more.
    Atomic(u64, bool),
}

/// The rest of the answer to a READ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The READ: sequence number of the first packet of the whole answer.
    pub(super) of: Psn,
    /// The next bytes.
    pub(super) from: Remote,
    /// How many there are.
    pub(super) left: u32,
    /// None of this answer was sent.
    pub(super) is_first: bool,
    /// It is answered once more.
    pub(super) is_repeat: bool,
}

/// Answers that the peer is owed.
#[derive(Debug)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    /// READs and atomics among them that are answered for the first time.
    fresh: usize,
    /// Most of these: what the peer may have under way.
    room: usize,
}

impl Answers {
    pub(super) fn new(room: u8) -> Self {
        let room = usize::from(room);
        // Each READ or atomic once or once more, an acknowledgment before each, and one behind.
        Answers { queue: VecDeque::with_capacity(4 * room + 2), fresh: 0, room }
    }

    /// True if the peer has as many READs and atomics under way as it may: one more is none of a peer that obeys.
    pub(super) fn are_all_taken(&self) -> bool {
        self.fresh >= self.room
    }

    /// Owes an acknowledgment of all up to `psn`; of two in a row the further one is left. True if it takes the place of what would
    /// have the peer send again.
    pub(super) fn done(&mut self, psn: Psn, msn: Msn) -> bool {
        let done = Answer { psn, msn, kind: Kind::Done };
        match self.queue.back_mut() {
            Some(last) if matches!(last.kind, Kind::Done) => {
                if psn.relative_to(last.psn) > 0 {
                    *last = done;
                }
            }
            Some(last) if last.is_about_a_retry() => {
                // That one was done meanwhile; if not, the peer learns of what is before it all the same.
                let was_done = psn.relative_to(last.psn) >= 0;
                if was_done {
                    *last = done;
                }
                return was_done;
            }
            _ => self.queue.push_back(done),
        }
        false
    }

    /// Owes a refusal. It says that all before is done, so that it takes the place of an acknowledgment.
    pub(super) fn refused(&mut self, psn: Psn, msn: Msn, syndrome: Syndrome) {
        let answer = Answer { psn, msn, kind: Kind::Refused(syndrome) };
        match self.queue.back_mut() {
            Some(last) if matches!(last.kind, Kind::Done) || last.is_about_a_retry() => *last = answer,
            _ => self.queue.push_back(answer),
        }
    }

    /// Owes the answer to a READ or an atomic.
    pub(super) fn answer(&mut self, answer: Answer) {
        self.fresh += 1;
        self.queue.push_back(answer);
    }

    /// Owes an answer once more. One that is owed still begins where the peer asks for it now; another goes before those to what the
    /// peer asked for behind it, which are nothing to the peer until it has this one.
    pub(super) fn again(&mut self, answer: Answer) {
        let same = |owed: &&mut Answer| match (owed.kind, answer.kind) {
            (Kind::Read(owed), Kind::Read(asked)) => owed.of == asked.of,
            (Kind::Atomic(..), Kind::Atomic(..)) => owed.psn == answer.psn,
            _ => false,
        };
        match (self.queue.iter_mut().find(same), answer.kind) {
            (None, _) => {
                let behind = self.queue.iter().position(|owed| owed.psn.relative_to(answer.psn) > 0);
                self.queue.insert(behind.unwrap_or(self.queue.len()), answer);
                debug_assert!(self.queue.len() <= 4 * self.room + 2, "a peer makes them many");
            }
            (Some(Answer { psn, kind: Kind::Read(owed), .. }), Kind::Read(asked)) => {
                *psn = answer.psn;
                *owed = Reading { is_repeat: owed.is_repeat, ..asked };
            }
            (Some(_), _) => {}
        }
    }

    /// The oldest answer. It stays until [`pop`](Answers::pop).
    pub(super) fn front(&mut self) -> Option<&mut Answer> {
        self.queue.front_mut()
    }

    /// The oldest answer is given.
    pub(super) fn pop(&mut self) {
        let given = self.queue.pop_front();
        self.fresh -= usize::from(given.is_some_and(|answer| answer.is_fresh()));
    }

    /// True if an acknowledgment is owed, and nothing else.
    pub(super) fn is_one_acknowledgment(&self) -> bool {
        self.queue.len() == 1 && matches!(self.queue.front(), Some(Answer { kind: Kind::Done, .. }))
    }

    /// True if more than one answer is owed.
    pub(super) fn has_several(&self) -> bool {
        self.queue.len() > 1
    }

    /// True if bytes of memory are owed.
    pub(super) fn have_reads(&self) -> bool {
        self.queue.iter().any(|answer| matches!(answer.kind, Kind::Read(_)))
    }

    /// Owes nothing any more.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.fresh = 0;
    }

    /// Owes nothing any more but what says that requests are done, or were refused for good, up to the first that needs
    /// memory. `has_answer`: of a packet, whether it has an answer of its own.
    pub(super) fn cut_short(&mut self, has_answer: impl Fn(Psn) -> bool) {
        let owed = self.queue.iter().take_while(|answer| !matches!(answer.kind, Kind::Read(_))).count();
        self.queue.truncate(owed);
        self.fresh = self.queue.iter().filter(|answer| answer.is_fresh()).count();
        if let Some(&last) = self.queue.back().filter(|last| last.is_about_a_retry()) {
            // A retry would find nobody; what is before it is done.
            self.queue.pop_back();
            let before = last.psn.back(1);
            if !has_answer(before) {
                self.done(before, last.msn);
            }
        }
    }
}

impl Answer {
    /// True if it is the first answer to a READ or an atomic.
    fn is_fresh(&self) -> bool {
        match self.kind {
            Kind::Read(reading) => !reading.is_repeat,
            Kind::Atomic(_, is_repeat) => !is_repeat,
            Kind::Done | Kind::Refused(_) => false,
        }
    }

    /// True if it asks the peer to send something again, or later.
    fn is_about_a_retry(&self) -> bool {
        matches!(self.kind, Kind::Refused(Syndrome::Nak(Nak::Sequence) | Syndrome::ReceiverNotReady(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Rkey;
    use crate::wire::RnrTimer;

    const SEQUENCE: Syndrome = Syndrome::Nak(Nak::Sequence);
    const LATER: Syndrome = Syndrome::ReceiverNotReady(RnrTimer::from_code(1));

    fn reading(of: u32, is_repeat: bool) -> Kind {
        let from = Remote { va: 0, rkey: Rkey(0) };
        Kind::Read(Reading { of: Psn::new(of), from, left: 10, is_first: true, is_repeat })
    }

    fn owed(answers: &Answers) -> Vec<(u32, &'static str)> {
        let name = |answer: &Answer| match answer.kind {
            Kind::Done => "done",
            Kind::Refused(SEQUENCE) => "sequence",
            Kind::Refused(_) => "refused",
            Kind::Read(_) => "read",
            Kind::Atomic(..) => "atomic",
        };
        answers.queue.iter().map(|answer| (answer.psn.get(), name(answer))).collect()
    }

    #[test]
    fn what_is_owed_last_goes_further() {
        let mut answers = Answers::new(2);
        answers.done(Psn::new(1), Msn::new(1));
        answers.done(Psn::new(3), Msn::new(3));
        assert_eq!(owed(&answers), [(3, "done")]);
        answers.refused(Psn::new(4), Msn::new(3), SEQUENCE);
        assert!(!answers.done(Psn::new(3), Msn::new(3)));
        assert_eq!(owed(&answers), [(4, "sequence")]);
        assert!(answers.done(Psn::new(4), Msn::new(4)));
        assert_eq!(owed(&answers), [(4, "done")]);
        answers.refused(Psn::new(5), Msn::new(4), Syndrome::Nak(Nak::RemoteAccess));
        answers.done(Psn::new(9), Msn::new(9));
        assert_eq!(owed(&answers), [(5, "refused"), (9, "done")], "a refusal for good stays");
    }

    #[test]
    fn no_peer_makes_them_many() {
        let mut answers = Answers::new(2);
        answers.answer(Answer { psn: Psn::new(0), msn: Msn::new(1), kind: reading(0, false) });
        for number in 0..1000 {
            answers.done(Psn::new(number), Msn::new(1));
            answers.refused(Psn::new(number + 1), Msn::new(1), if number % 2 == 0 { SEQUENCE } else { LATER });
            answers.again(Answer { psn: Psn::new(number % 3), msn: Msn::new(1), kind: reading(number % 3, true) });
        }
        assert!(answers.queue.len() <= 8, "{:?}", owed(&answers));
    }

    #[test]
    fn what_is_asked_for_again_goes_before_what_is_behind_it() {
        let mut answers = Answers::new(4);
        for of in [5, 10, 20, 30] {
            answers.answer(Answer { psn: Psn::new(of), msn: Msn::new(of), kind: reading(of, false) });
        }
        answers.pop();
        answers.front().unwrap().psn = Psn::new(13);
        answers.again(Answer { psn: Psn::new(7), msn: Msn::new(5), kind: reading(5, true) });
        assert_eq!(owed(&answers).iter().map(|owed| owed.0).collect::<Vec<_>>(), [7, 13, 20, 30]);
        // As the peer goes on, that of which some was given begins anew where it is.
        for of in [10, 20, 30] {
            answers.again(Answer { psn: Psn::new(of), msn: Msn::new(of), kind: reading(of, true) });
        }
        assert_eq!(owed(&answers).iter().map(|owed| owed.0).collect::<Vec<_>>(), [7, 10, 20, 30]);
        // Behind what is done before it.
        answers.done(Psn::new(40), Msn::new(40));
        answers.again(Answer { psn: Psn::new(45), msn: Msn::new(45), kind: reading(41, true) });
        assert_eq!(owed(&answers).last(), Some(&(45, "read")));
    }

    #[test]
    fn a_read_that_is_owed_begins_where_it_is_asked_for() {
        let mut answers = Answers::new(2);
        answers.answer(Answer { psn: Psn::new(5), msn: Msn::new(1), kind: reading(3, false) });
        assert!(!answers.are_all_taken());
        answers.again(Answer { psn: Psn::new(3), msn: Msn::new(1), kind: reading(3, true) });
        assert_eq!(owed(&answers), [(3, "read")]);
        answers.answer(Answer { psn: Psn::new(9), msn: Msn::new(2), kind: Kind::Atomic(1, false) });
        assert!(answers.are_all_taken());
        answers.again(Answer { psn: Psn::new(9), msn: Msn::new(2), kind: Kind::Atomic(1, true) });
        assert_eq!(owed(&answers), [(3, "read"), (9, "atomic")]);
        answers.pop();
        answers.pop();
        assert!(!answers.are_all_taken() && answers.front().is_none());
    }
}
