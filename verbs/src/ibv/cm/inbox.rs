//! Requests that wait at a listener, as many as there is room for.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use super::course::{Course, Loss, Words};
use super::id::Raw;
use super::known::Entry;
use crate::soft::EventFd;
use crate::sync::{lock, wait};

/// Requests that wait.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    came: Condvar,
    bell: EventFd,
}

/// A request as it came.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) id: Raw,
    pub(super) entry: Arc<Entry>,
    pub(super) course: Arc<Course>,
    pub(super) words: Words,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Asked>,
    /// Where the next look for those who gave up begins.
    next_look: usize,
    /// Why nobody comes any more.
    end: Option<Loss>,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Inbox { state: Mutex::default(), came: Condvar::new(), bell: EventFd::new()? })
    }

    /// Whether one more finds room, and those who were taken out for it: who asked gave up, and nobody tells of that.
    pub(super) fn make_room(&self, gave_up: impl Fn(&Asked) -> bool) -> (bool, Vec<Asked>) {
        let mut state = lock(&self.state);
        let over = if state.waiting.len() < WAITING { Vec::new() } else { state.take_out(gave_up) };
        (state.waiting.len() < WAITING, over)
    }

    /// One more, for which there is room: who makes room is the only one who brings any.
    pub(super) fn push(&self, asked: Asked) {
        lock(&self.state).waiting.push_back(asked);
        self.came.notify_one();
        self.bell.ring();
    }

    /// Nobody comes any more. The first reason counts. Whoever waits is told, also by the descriptor, and for good.
    pub(super) fn end(&self, why: Loss) {
        lock(&self.state).end.get_or_insert(why);
        self.came.notify_all();
        self.bell.ring();
    }

    /// The next, if one comes until then; none: without end. Once all are taken, why nobody comes any more.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Result<Option<Asked>, Loss> {
        let taken = wait(&self.state, &self.came, deadline, |state| {
            let next = state.waiting.pop_front();
            if state.waiting.is_empty() && state.end.is_none() {
                self.bell.clear();
            }
            next.map(Ok).or(state.end.map(Err))
        });
        taken.transpose()
    }
}

impl State {
    /// Takes out those of the next few who gave up.
    fn take_out(&mut self, gave_up: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        let mut over = Vec::new();
        for _ in 0..LOOKS {
            if self.next_look >= self.waiting.len() {
                self.next_look = 0;
            }
            match self.waiting.get(self.next_look) {
                Some(asked) if gave_up(asked) => over.extend(self.waiting.remove(self.next_look)),
                Some(_) => self.next_look += 1,
                None => break,
            }
        }
        over
    }
}

impl AsRawFd for Inbox {
    fn as_raw_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

/// Requests that wait at a port. As many as the kernel is asked to keep: it counts those alone that nobody has read yet.
pub(super) const WAITING: usize = 1024;
/// How many are looked at for each request that finds no room. A look is a system call, and other connections wait meanwhile;
/// who asks without end is not to have them wait for a thousand.
const LOOKS: usize = 32;

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::super::known::{About, Known};
    use super::*;

    fn asked(number: u32) -> Asked {
        let words = Words { qpn: number, ..Words::default() };
        let course: Arc<Course> = Arc::default();
        let entry = Known::default().add(0, About::Connection(course.clone())).unwrap();
        Asked { id: Raw(NonNull::dangling()), entry, course, words }
    }

    fn full() -> Inbox {
        let inbox = Inbox::new().unwrap();
        for number in 0..WAITING as u32 {
            let (has_room, over) = inbox.make_room(|_| panic!("there is room"));
            assert!(has_room && over.is_empty());
            inbox.push(asked(number));
        }
        inbox
    }

    #[test]
    fn there_is_no_room_for_one_more_than_the_limit() {
        let inbox = full();
        let (has_room, over) = inbox.make_room(|_| false);
        assert!(!has_room && over.is_empty());
        inbox.take(Some(Instant::now())).unwrap().unwrap();
        assert!(inbox.make_room(|_| false).0);
    }

    #[test]
    fn each_who_gave_up_is_found_within_one_round_of_looks() {
        let inbox = full();
        let gave_up = |asked: &Asked| asked.words.qpn == 700;
        let found = (0..WAITING.div_ceil(LOOKS)).find_map(|_| inbox.make_room(gave_up).1.pop());
        assert_eq!(found.map(|asked| asked.words.qpn), Some(700));
        assert!(inbox.make_room(|_| panic!("there is room")).0);
    }

    #[test]
    fn those_who_wait_keep_their_order() {
        let inbox = full();
        let (has_room, over) = inbox.make_room(|asked| asked.words.qpn % 2 == 0);
        assert!(has_room && !over.is_empty());
        let order: Vec<_> =
            std::iter::from_fn(|| inbox.take(Some(Instant::now())).unwrap()).map(|asked| asked.words.qpn).collect();
        assert!(order.is_sorted() && order.len() + over.len() == WAITING);
    }
    #[test]
    fn those_who_came_before_the_end_are_taken_before_it_is_told() {
        let inbox = Inbox::new().unwrap();
        inbox.push(asked(1));
        inbox.end(Loss::Device);
        inbox.end(Loss::Manager);
        assert_eq!(inbox.take(None).unwrap().unwrap().words.qpn, 1);
        for _ in 0..2 {
            assert!(matches!(inbox.take(None), Err(Loss::Device)));
            assert!(is_readable(&inbox), "nobody else tells of it");
        }
    }

    #[test]
    fn the_descriptor_tells_of_an_end_that_comes_while_nobody_waits() {
        let inbox = Inbox::new().unwrap();
        assert!(inbox.take(Some(Instant::now())).unwrap().is_none() && !is_readable(&inbox));
        inbox.end(Loss::Manager);
        assert!(is_readable(&inbox));
    }

    fn is_readable(inbox: &Inbox) -> bool {
        let mut fds = [PollFd::new(&inbox.bell, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }
}
