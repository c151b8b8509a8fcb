//! The end of operations, and of the communicator.

use std::time::Duration;

use super::Core;
use crate::communicator::operands::{Ended, NotScaled, Operands, Ticket};
use crate::error::CollectiveError;
use crate::execute::{Block, Buffers, Grace, Kept, Run};
use crate::fault::Fault;

impl Core {
    /// Ends the operation at a place, which is complete.
    #[inline]
    pub(super) fn finish(&mut self, at: usize) -> Ended {
        let mut run = self.runs.remove(at);
        self.queue.look_again();
        if let Some(recorder) = self.net.as_mut().and_then(|net| net.recorder.as_mut()) {
            recorder.end(run.id, None);
        }
        // Whoever waits for another that is under way says so when it sleeps again.
        if self.wait.told {
            self.wait.told = false;
            self.watch.alarm().waits(self.me, None);
        }
        let Buffers { input, data, scratch, copy } = run.finish();
        let mut grace = Grace::new(Some(self.watch.alarm()));
        run.keep(Kept::Scratch, scratch.into_plain(&mut grace));
        run.keep(Kept::Input, copy.into_plain(&mut grace));
        // Large memory is kept once, not for each of those that were ever under way together. But of GPUs it is: to take or free
        // some may take until all streams are idle, also those that will be held until the next operations have ended.
        if run.keeps_large() && self.spare.iter().any(|other| other.keeps_large()) {
            run.let_go();
        }
        self.spare.push(run);
        let mut grace = Grace::new(Some(self.watch.alarm()));
        let input = input.into_buffer(&self.domain, &mut grace);
        let data = data.into_buffer(&self.domain, &mut grace);
        ended(input, data, Ok(()))
    }

    /// Runs what was started to its end, but not for long.
    pub(in crate::communicator) fn run_last(&mut self) {
        if self.error.is_none() {
            self.limit = self.limit.min(LAST_LIMIT);
            self.leaving = true;
            self.run_all();
        }
    }

    /// Parts with the other ranks, which were told before.
    pub(in crate::communicator) fn say_goodbye(&mut self) {
        if let Some(net) = &mut self.net {
            net.say_goodbye();
        }
        self.let_go(None);
    }

    /// Lets go of the connections, and of the operations under way, whose ends are kept but for that of `asked`, which it
    /// gives.
    #[cold]
    pub(in crate::communicator) fn let_go(&mut self, asked: Option<Ticket>) -> Option<Ended> {
        let mut grace = Grace::new(None);
        let mut withdrawn = Vec::new();
        for mut run in self.runs.drain(..) {
            let Buffers { input, data, scratch, copy } = run.abandon();
            // While the queue pairs are there, which show the peers that are in the middle of reaching it.
            let memory = [input, data, scratch, copy].map(|memory| memory.withdraw(&mut grace));
            withdrawn.push((Ticket(run.id), memory));
        }
        // No peer reaches the memory any more, so that streams may go on; and before anything is waited for or freed, which may
        // take until they are idle.
        self.holds.clear();
        if let Some(net) = &mut self.net {
            net.settle();
        }
        self.last_trace = self.trace();
        // Requests that are not done hold it too.
        self.net = None;
        self.spare.clear();
        self.straight.let_go();
        self.free_spent();
        let mut found = None;
        for (ticket, [input, data, scratch, copy]) in withdrawn {
            for memory in [scratch, copy] {
                drop(memory.into_plain(&mut grace));
            }
            let [input, data] = [input, data].map(|memory| memory.into_buffer(&self.domain, &mut grace));
            let ended = ended(input, data, Err(self.error.clone().unwrap_or_else(|| self.unknown())));
            if asked == Some(ticket) {
                found = Some(ended);
            } else {
                self.keep(ticket, ended);
            }
        }
        found
    }

    /// The communicator ends, here and on all ranks, with all operations under way. Gives the end of `asked`.
    #[cold]
    pub(in crate::communicator) fn fail_all(&mut self, fault: Fault, asked: Option<Ticket>) -> Ended {
        // Those have come about.
        self.keep_complete();
        let verdict = self.watch.report(if self.leaving { left_undone(fault) } else { fault });
        let rank = match &verdict {
            Fault::Gone { rank } | Fault::Left { rank } | Fault::Failed { rank, .. } => Some(*rank),
            Fault::TimedOut { .. } | Fault::Differs(_) | Fault::Aborted { .. } => None,
        };
        let place = self.engine().ok().and_then(|mut engine| engine.place(rank));
        let error = CollectiveError::new(verdict, place);
        tracing::debug!(rank = self.me, %error, "the communicator ends");
        self.error = Some(error.clone());
        let ended = self.let_go(asked).or_else(|| self.take_done(asked?));
        ended.unwrap_or(Ended { input: None, data: None, result: Err(error) })
    }

    /// An operation does not begin, as its vector was not multiplied.
    #[cold]
    pub(super) fn not_scaled(&mut self, mut run: Box<Run>, operands: Operands, why: NotScaled) -> Ended {
        let (error, copy) = match why {
            NotScaled::Unsupported(error) => (Ok(error), None),
            NotScaled::Failed(reason, copy) => (Err(reason), copy),
        };
        run.keep(Kept::Input, copy);
        self.spare.push(run);
        self.free_spent();
        let result = match error {
            Ok(error) => Err(error),
            // The other ranks have begun, or will.
            Err(reason) => self.fail_all(Fault::Failed { rank: self.me, reason }, None).result,
        };
        operands.back(result)
    }

    /// The communicator has ended before.
    #[cold]
    pub(super) fn refuse(&mut self, operands: Operands) -> Ended {
        let error = match &self.error {
            Some(error) => error.clone(),
            None => {
                let fault = self.watch.alarm().fault();
                let fault = fault.unwrap_or(Fault::Failed { rank: self.me, reason: "aborted".into() });
                let error = CollectiveError::new(fault, None);
                self.keep_complete();
                self.error = Some(error.clone());
                self.let_go(None);
                error
            }
        };
        operands.back(Err(error))
    }

    #[cold]
    pub(super) fn unknown(&self) -> CollectiveError {
        let fault = Fault::Failed { rank: self.me, reason: "there is no such operation".into() };
        CollectiveError::new(fault, None)
    }
}

/// What it is that operations were not done in time that a rank started, and did not wait for: more time is not what they need.
fn left_undone(fault: Fault) -> Fault {
    match fault {
        Fault::TimedOut { by, place, limit, .. } => Fault::Failed {
            rank: by,
            reason: format!(
                "it dropped its communicator with operations that it had started, and rank {} did not come to {place} within \
                 {limit:?}: wait for what was started before the communicator is dropped",
                place.rank
            ),
        },
        other => other,
    }
}

/// How an operation ended. Memory that a peer holds does not come back, which its owner has to know before anything else.
#[inline]
fn ended(
    input: Result<Option<Block>, CollectiveError>,
    data: Result<Option<Block>, CollectiveError>,
    mut result: Result<(), CollectiveError>,
) -> Ended {
    let mut there = |memory: Result<Option<Block>, CollectiveError>| match memory {
        Ok(memory) => memory,
        Err(error) => {
            result = Err(error);
            None
        }
    };
    let (input, data) = (there(input), there(data));
    Ended { input, data, result }
}

/// How long operations that were started, and not waited for, may take when the communicator is dropped.
const LAST_LIMIT: Duration = Duration::from_secs(5);
