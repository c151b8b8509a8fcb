//! A completion queue as its queue pairs know it: whom to wake, and who completes here.

use std::any::Any;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use super::arming::Arming;
use super::at::At;
use super::barrier;
use super::bell::Bell;
use super::home::Home;
use super::layout::{CqPublic, PlaceInfo};
use super::rest::{Board, PLACES, Rest};
use crate::error::CreateError;
use crate::sync::{AtomicU32, Ordering, fence, lock};

/// What queue pairs know of their completion queue.
#[derive(Debug)]
pub(crate) struct CqShared {
    home: Arc<Home>,
    depth: u32,
    bell: Bell,
    bell_number: u64,
    public: NonNull<CqPublic>,
    offset: usize,
    /// For which arming the bell was rung last, by this process.
    rung: AtomicU32,
    roll: Mutex<Roll>,
    version: AtomicU32,
    /// True if this process's light barriers do without a fence.
    asymmetric: bool,
}

// SAFETY: the pointer names atomics in a mapping that `home` keeps.
unsafe impl Send for CqShared {}
// SAFETY: as above.
unsafe impl Sync for CqShared {}

/// Seats of queue pairs, and what the owner does not know yet.
#[derive(Debug, Default)]
struct Roll {
    boards: Vec<(usize, At<Board>)>,
    /// Seats handed out so far, and those given back.
    seats: u32,
    free: Vec<u32>,
    news: News,
}

/// Who came and went since the owner asked last.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// By the number of the seat.
    pub(crate) came: HashMap<u32, Entry>,
    pub(crate) went: Vec<u32>,
    /// Something changed about queue pairs that are known.
    pub(crate) changed: bool,
}

/// A queue pair that completes here. Its type stands above this file; the owner's end knows it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) qp: Arc<dyn Any + Send + Sync>,
    pub(crate) seat: Arc<Seat>,
    pub(crate) sends: bool,
    pub(crate) receives: bool,
}

/// The place of a queue pair among those that complete in a queue, and how this process tells the owner of completions.
#[derive(Debug)]
pub(crate) struct Seat {
    queue: Arc<CqShared>,
    number: u32,
    /// Where the owner is told of it while it rests, with its place there; without one it never rests.
    board: Option<(usize, At<Board>)>,
    rest: At<Rest>,
    /// For which rest this process called last.
    called: AtomicU32,
}

impl CqShared {
    pub(crate) fn new(home: &Arc<Home>, depth: u32, bell: Bell) -> Result<Arc<Self>, CreateError> {
        if depth == 0 || depth > MAX_CQE {
            let limit = MAX_CQE.into();
            return Err(CreateError::OutOfRange { what: "a completion queue", asked: depth.into(), limit });
        }
        let full = || CreateError::Exhausted { what: "completion queue" };
        let offset = home.take_public(size_of::<CqPublic>()).ok_or_else(full)?;
        // SAFETY: the type is made of atomics, and the block is ours.
        let public = unsafe { home.public().at::<CqPublic>(offset) }.ok_or_else(full)?;
        Ok(Arc::new(CqShared {
            home: home.clone(),
            depth,
            bell,
            bell_number: NEXT_BELL.fetch_add(1, Ordering::Relaxed),
            public,
            offset,
            rung: AtomicU32::new(0),
            roll: Mutex::default(),
            version: AtomicU32::new(0),
            asymmetric: barrier::registered(),
        }))
    }

    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// What tells the bell from all others of this process.
    pub(crate) fn bell_number(&self) -> u64 {
        self.bell_number
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    #[inline(always)]
    fn public(&self) -> &CqPublic {
        // SAFETY: mapped as long as `home` lives.
        unsafe { self.public.as_ref() }
    }

    /// How the owner asks to be woken.
    pub(crate) fn arming(&self) -> &Arming {
        &self.public().arming
    }

    /// A seat for a queue pair whose word `rest` is.
    pub(crate) fn seat(self: &Arc<Self>, rest: At<Rest>) -> Arc<Seat> {
        let mut roll = self.roll();
        let number = roll.free.pop().unwrap_or_else(|| {
            roll.seats += 1;
            roll.seats - 1
        });
        let board = (number / PLACES) as usize;
        if board == roll.boards.len() {
            // Without room for another board those who come now are always looked at.
            roll.boards.extend(self.home.take_board());
        }
        let board = roll.boards.get(board).cloned();
        drop(roll);
        Arc::new(Seat { queue: self.clone(), number, board, rest, called: AtomicU32::new(0) })
    }

    /// Enters a queue pair that completes here.
    pub(crate) fn join(&self, entry: Entry) {
        self.roll().news.came.insert(entry.seat.number, entry);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Takes a queue pair out.
    pub(crate) fn leave(&self, seat: &Seat) {
        let mut roll = self.roll();
        let unknown = roll.news.came.remove(&seat.number);
        if unknown.is_none() {
            roll.news.went.push(seat.number);
        }
        drop(roll);
        self.version.fetch_add(1, Ordering::Release);
        // Dropping the last hold on a queue pair comes back here: not under the lock.
        drop(unknown);
    }

    /// Has the owner look at its queue pairs anew.
    pub(crate) fn changed(&self) {
        self.roll().news.changed = true;
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Who came and went since this was asked last, all boards, and a count that tells when that changes.
    pub(crate) fn news(&self) -> (News, Vec<At<Board>>, u32) {
        let mut roll = self.roll();
        let boards = roll.boards.iter().map(|(_, board)| board.clone()).collect();
        (std::mem::take(&mut roll.news), boards, self.version.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    fn roll(&self) -> MutexGuard<'_, Roll> {
        lock(&self.roll)
    }
}

impl Seat {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn rest(&self) -> &Rest {
        &self.rest
    }

    /// True if its queue pair may rest: there is a way to call it.
    pub(crate) fn may_rest(&self) -> bool {
        self.board.is_some()
    }

    /// Where peers call its queue pair.
    pub(crate) fn place(&self) -> Option<PlaceInfo> {
        self.board.as_ref().map(|&(board, _)| PlaceInfo { board, place: self.number % PLACES })
    }

    /// Wakes the owner if it sleeps, and has it look here. After publishing a completion of this process's own.
    #[inline(always)]
    pub(crate) fn notify(&self, solicited: bool) {
        self.call();
        let queue = &self.queue;
        if queue.arming().must_ring(solicited, &queue.rung) {
            queue.bell.rope().ring();
        }
    }

    /// Orders what was stored before what is looked at next, as [`barrier::light`].
    #[inline(always)]
    pub(crate) fn order(&self) {
        barrier::light(self.queue.asymmetric);
    }

    /// Has the owner look here when it polls next, though it may rest.
    #[inline(always)]
    pub(crate) fn call(&self) {
        self.order();
        if self.rest.must_call(&self.called) {
            self.call_out();
        }
    }

    #[cold]
    fn call_out(&self) {
        if let Some((_, board)) = &self.board {
            call(board, self.number % PLACES);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.queue.roll().free.push(self.number);
    }
}

/// Calls out a place, before the caller looks whether the poller sleeps.
pub(crate) fn call(board: &Board, place: u32) {
    board.call(place);
    fence(Ordering::SeqCst);
}

impl Drop for CqShared {
    fn drop(&mut self) {
        // Peers look at the arming only inside a connection to a queue pair that completes here, and those are gone.
        self.home.give_public(self.offset, size_of::<CqPublic>());
        self.roll().boards.drain(..).for_each(|(offset, _)| self.home.give_board(offset));
    }
}

static NEXT_BELL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

const MAX_CQE: u32 = 1 << 22;
