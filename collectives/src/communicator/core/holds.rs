//! Streams that wait for the end of operations, and memory that is freed once none does.

use qpair_verbs::GpuHold;

use super::{Core, Done};
use crate::communicator::operands::{Ended, Ticket};

/// A stream that waits for the end of operations.
#[derive(Debug)]
pub(super) struct Holding {
    until: Ticket,
    /// More of them.
    others: Vec<Ticket>,
    _hold: GpuHold,
}

impl Core {
    /// Holds a stream up until those operations have ended, however they do; not at all if they have, or the communicator.
    pub(in crate::communicator) fn hold(&mut self, until: impl Iterator<Item = Ticket>, hold: GpuHold) {
        let mut until = until.filter(|ticket| !self.is_done(*ticket));
        if self.error.is_none()
            && let Some(first) = until.next()
        {
            let holding = Holding { until: first, others: until.collect(), _hold: hold };
            self.holds.push(holding);
        }
    }

    /// Keeps how an operation ended, for who waits for it. Its memory is the program's again, and so streams may go on.
    pub(super) fn keep(&mut self, ticket: Ticket, ended: Ended) {
        if !self.holds.is_empty() {
            self.holds.retain_mut(|holding| holding.goes_on(ticket));
            self.free_spent();
        }
        match self.forgotten.iter().position(|forgotten| *forgotten == ticket) {
            Some(at) => {
                self.forgotten.swap_remove(at);
                self.free(ended);
            }
            None => self.done.push(Done { ticket, ended }),
        }
    }

    /// Frees the memory of an operation for whose end nobody waits, once it may be.
    pub(super) fn free(&mut self, ended: Ended) {
        let memory = [ended.input, ended.data].into_iter().flatten();
        self.spent.extend(memory.filter(|block| block.gpu().is_some()));
        self.free_spent();
    }

    /// Frees what is to be freed once no stream is held, if none is.
    #[inline]
    pub(super) fn free_spent(&mut self) {
        if self.holds.is_empty() {
            self.spent.clear();
        }
    }
}

impl Holding {
    /// Whether it goes on once that operation has ended.
    fn goes_on(&mut self, ended: Ticket) -> bool {
        self.others.retain(|other| *other != ended);
        if self.until != ended {
            return true;
        }
        match self.others.pop() {
            Some(other) => {
                self.until = other;
                true
            }
            None => false,
        }
    }
}
