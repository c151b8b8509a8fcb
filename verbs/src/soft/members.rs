//! The queue pairs that complete in a queue: those that a poll looks at in turn, and those that rest.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::at::At;
use super::barrier;
use super::cq_shared::{Entry, News, Seat};
use super::qp::SoftQp;
use super::rest::{Board, PLACES};
use super::roce::Network;
use crate::wc::Current;

/// The queue pairs of one completion queue.
#[derive(Debug, Default)]
pub(crate) struct Members {
    awake: Vec<Member>,
    /// Those that rest, by the numbers of their seats.
    resting: Vec<Option<Member>>,
    rest_count: usize,
    boards: Vec<At<Board>>,
    /// Where the next poll begins, so that no queue pair starves others.
    cursor: usize,
    /// Looks that found nothing since it was asked last who may rest.
    idle_looks: usize,
    /// Where the search for those who may rest goes on.
    search: usize,
    /// Empty: keeps its memory from one search to the next.
    chosen: Vec<Member>,
    /// Most completions that can ever wait, but for those of shared receive queues; these with their depths and users.
    most_own: u64,
    shared: HashMap<usize, (u32, usize)>,
}

/// A queue pair that completes here.
#[derive(Debug)]
pub(crate) struct Member {
    qp: Arc<SoftQp>,
    seat: Arc<Seat>,
    sends: bool,
    receives: bool,
    /// The last completion was of a send: a receive is next, if there is one.
    sent_last: bool,
    /// Something came since it was asked last whether it may rest.
    is_busy: bool,
}

impl Members {
    /// Takes note of who came and went.
    pub(crate) fn apply(&mut self, news: News, boards: Vec<At<Board>>) {
        self.boards = boards;
        let gone: HashSet<u32> = news.went.into_iter().collect();
        for &seat in &gone {
            if let Some(member) = self.resting.get_mut(seat as usize).and_then(Option::take) {
                self.rest_count -= 1;
                self.uncount(&member);
            }
        }
        if !gone.is_empty() {
            let leaving: Vec<_> = self.awake.extract_if(.., |member| gone.contains(&member.seat.number())).collect();
            leaving.iter().for_each(|member| self.uncount(member));
        }
        for member in news.came.into_values().filter_map(Member::of) {
            let seats = member.seat.number() as usize + 1;
            if self.resting.len() < seats {
                self.resting.resize_with(seats, || None);
            }
            self.count(&member);
            self.awake.push(member);
        }
        self.cursor = 0;
    }

    fn count(&mut self, member: &Member) {
        self.most_own += member.most();
        if let Some((srq, depth)) = member.shared_receives() {
            self.shared.entry(srq).or_insert((depth, 0)).1 += 1;
        }
    }

    fn uncount(&mut self, member: &Member) {
        self.most_own -= member.most();
        if let Some((srq, _)) = member.shared_receives()
            && let Some((_, users)) = self.shared.get_mut(&srq)
        {
            *users -= 1;
            if *users == 0 {
                self.shared.remove(&srq);
            }
        }
    }

    /// Most completions that can ever wait.
    pub(crate) fn most(&self) -> u64 {
        // Queue pairs of one shared receive queue share its receives.
        self.most_own + self.shared.values().map(|(depth, _)| u64::from(*depth)).sum::<u64>()
    }

    /// The network that some of them are on.
    pub(crate) fn network(&self) -> Option<Arc<Network>> {
        self.all().find_map(|member| member.qp.network().cloned())
    }

    /// How many rest.
    pub(crate) fn resting(&self) -> usize {
        self.rest_count
    }

    /// Takes all of them to the error state.
    pub(crate) fn fail(&self) {
        self.all().for_each(|member| member.qp.fail());
    }

    fn all(&self) -> impl Iterator<Item = &Member> {
        self.awake.iter().chain(self.resting.iter().flatten())
    }

    /// Takes the next completion that is there, looking at each in turn; false if there is none.
    #[inline(always)]
    pub(crate) fn take_next(&mut self, into: &mut Current) -> bool {
        self.rouse();
        let count = self.awake.len();
        for looks in 0..count {
            let place = self.cursor;
            let Some(member) = self.awake.get_mut(place) else {
                self.cursor = 0;
                continue;
            };
            self.cursor = if place + 1 >= count { 0 } else { place + 1 };
            if member.poll(into) {
                member.is_busy = true;
                // Where there is always something, it is found behind many that have nothing.
                if looks > AWAKE {
                    self.looked_in_vain(looks);
                }
                return true;
            }
        }
        self.looked_in_vain(count);
        false
    }

    /// True if a poll would give something.
    pub(crate) fn has_completion(&mut self) -> bool {
        self.rouse();
        let found = self.awake.iter().position(Member::has_completion);
        match found {
            Some(place) => self.cursor = place,
            None => self.looked_in_vain(self.awake.len()),
        }
        found.is_some()
    }

    /// Number of completions that wait, counted up to a little more than `limit`.
    pub(crate) fn waiting(&mut self, limit: u32) -> u32 {
        self.rouse();
        let mut waiting = 0;
        for member in &self.awake {
            waiting += member.waiting(limit);
            if waiting > limit {
                break;
            }
        }
        waiting
    }

    /// Looks again at those who rest and are called.
    #[inline(always)]
    fn rouse(&mut self) {
        if self.rest_count > 0 && self.boards.iter().any(|board| board.is_marked()) {
            self.rouse_called();
        }
    }

    #[cold]
    fn rouse_called(&mut self) {
        for (number, board) in self.boards.iter().enumerate() {
            board.take(|place| {
                let seat = number * PLACES as usize + place as usize;
                // A late call may be for one who does not rest, or is gone.
                let Some(mut member) = self.resting.get_mut(seat).and_then(Option::take) else { return };
                member.seat.rest().end();
                member.is_busy = true;
                self.rest_count -= 1;
                self.awake.push(member);
            });
        }
    }

    #[inline(always)]
    fn looked_in_vain(&mut self, looks: usize) {
        self.idle_looks += looks;
        if self.idle_looks > IDLE_LOOKS {
            self.let_rest();
        }
    }

    /// Puts those to rest who were idle since they were asked last, some at a time.
    #[cold]
    fn let_rest(&mut self) {
        self.idle_looks = 0;
        if self.awake.len() <= AWAKE {
            return;
        }
        for _ in 0..self.awake.len().min(AT_A_TIME) {
            if self.search >= self.awake.len() {
                self.search = 0;
            }
            let member = &mut self.awake[self.search];
            if std::mem::take(&mut member.is_busy) || !member.seat.may_rest() || member.is_needed() {
                self.search += 1;
                continue;
            }
            member.seat.rest().begin();
            self.chosen.push(self.awake.swap_remove(self.search));
        }
        if self.chosen.is_empty() {
            return;
        }
        barrier::heavy();
        for member in self.chosen.drain(..) {
            let seat = member.seat.number() as usize;
            if member.is_needed() {
                member.seat.rest().end();
                self.awake.push(member);
            } else if let Some(place) = self.resting.get_mut(seat) {
                *place = Some(member);
                self.rest_count += 1;
            }
        }
        self.cursor = 0;
    }
}

impl Member {
    fn of(entry: Entry) -> Option<Self> {
        let Entry { qp, seat, sends, receives } = entry;
        Some(Member { qp: qp.downcast().ok()?, seat, sends, receives, sent_last: false, is_busy: true })
    }

    #[inline(always)]
    fn poll(&mut self, into: &mut Current) -> bool {
        self.qp.progress();
        if self.sent_last && self.receives && self.qp.poll_message(into) {
            self.sent_last = false;
            return true;
        }
        if self.sends && self.qp.send_queue().poll(self.qp.qpn(), into) {
            self.sent_last = true;
            return true;
        }
        self.receives && self.qp.poll_receive(into)
    }

    fn has_completion(&self) -> bool {
        self.qp.progress();
        self.sends && self.qp.send_queue().has_completion() || self.receives && self.qp.has_receive()
    }

    /// True if polls have to look at it. One that failed is looked at for good, since receives that are posted to it complete
    /// without anybody's doing.
    fn is_needed(&self) -> bool {
        self.qp.is_stalled() || self.qp.has_failed() || self.has_completion()
    }

    fn waiting(&self, limit: u32) -> u32 {
        let sends = if self.sends { self.qp.send_queue().waiting(limit) } else { 0 };
        let receives = if self.receives { self.qp.waiting_receives(limit) } else { 0 };
        sends + receives
    }

    /// The shared receive queue whose receives complete here, by where it lies, and its depth.
    fn shared_receives(&self) -> Option<(usize, u32)> {
        let srq = self.qp.shared_receives().filter(|_| self.receives)?;
        Some((Arc::as_ptr(srq).addr(), srq.depth()))
    }

    /// Most completions of its own that can ever wait.
    fn most(&self) -> u64 {
        let sends = if self.sends { self.qp.send_queue().depth() } else { 0 };
        let receives = if self.receives { self.qp.own_recv_depth() } else { 0 };
        u64::from(sends) + u64::from(receives)
    }
}

/// Looks in vain after which it is asked who may rest: some hundred microseconds of them, so that the barrier which that takes
/// is no more than some percent.
const IDLE_LOOKS: usize = 1 << 15;
/// As few as this are always looked at: calling one who rests costs its peer more than they cost a poll.
const AWAKE: usize = 4;
/// Most that are asked at a time: the poll that does it takes some ten microseconds.
const AT_A_TIME: usize = 1024;
