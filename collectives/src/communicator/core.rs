//! The inside of a communicator: the operation that runs, those that wait, and what ended it.

use std::collections::VecDeque;
use std::time::Duration;

use qpair_verbs::calc::scale;
use qpair_verbs::{Buffer, ProtectionDomain};

use crate::algorithms::Nodes;
use crate::bootstrap::Watch;
use crate::error::CollectiveError;
use crate::execute::{Buffers, Compiled, Exec, Grace, Key, Memory, Net, Patience, PlanCache, Run};
use crate::fault::{Fault, Outcome};
use crate::plan::Plan;
use crate::tune::Tuning;

/// The inside of a communicator.
#[derive(Debug)]
pub(super) struct Core {
    /// `None` once the communicator is of no use any more.
    pub(super) net: Option<Net>,
    pub(super) watch: Watch,
    pub(super) cache: PlanCache,
    pub(super) tuning: Tuning,
    pub(super) patience: Patience,
    pub(super) limit: Duration,
    domain: ProtectionDomain,
    me: u32,
    nodes: Nodes,
    /// Plans of the user's own, each for what its spec says.
    pub(super) own_plans: Vec<Plan>,
    run: Run,
    error: Option<CollectiveError>,
    /// The operation that runs, if it was started to be waited for later.
    running: Option<Ticket>,
    waiting: VecDeque<Waiting>,
    done: Vec<Done>,
    forgotten: Vec<Ticket>,
    next: u64,
}

/// An operation that was started to be waited for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    key: Key,
    operands: Operands,
}

/// The memory that an operation is on.
#[derive(Debug, Default)]
pub(super) struct Operands {
    /// What is given, where that stays as it is.
    pub(super) input: Memory,
    /// What the result is put into; in place, what is given too.
    pub(super) data: Memory,
}

#[derive(Debug)]
struct Done {
    ticket: Ticket,
    ended: Ended,
}

/// How an operation ended, with its memory.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) input: Option<Buffer>,
    pub(super) data: Option<Buffer>,
    pub(super) result: Result<(), CollectiveError>,
}

impl Operands {
    /// One vector that is given and gets the result.
    pub(super) fn in_place(data: Option<Buffer>) -> Self {
        Self { input: Memory::None, data: data.map_or(Memory::None, Memory::Plain) }
    }

    /// One vector that is given, and another for the result.
    pub(super) fn separate(input: Option<Buffer>, data: Option<Buffer>) -> Self {
        let [input, data] = [input, data].map(|memory| memory.map_or(Memory::None, Memory::Plain));
        Self { input, data }
    }

    /// Multiplies what this rank gives, for a pre-multiplied sum.
    #[inline]
    fn scale(&mut self, key: &Key, me: u32) -> Result<(), CollectiveError> {
        let by = key.op.and_then(|op| op.scale_before());
        let Some((op, (data_type, by))) = key.op.zip(key.data_type.zip(by)) else { return Ok(()) };
        let memory = if key.spec.in_place { &mut self.data } else { &mut self.input };
        let given = key.spec.contribution(me);
        let size = data_type.size();
        let Some(bytes) = memory.plain_mut(given.offset as usize * size, given.len as usize * size) else {
            return Ok(());
        };
        scale(data_type, bytes, by).map_err(|_| CollectiveError::Unsupported { op, data_type })
    }

    /// The memory of an operation that was not started.
    fn back(self, result: Result<(), CollectiveError>) -> Ended {
        let mut grace = Grace::new(None);
        let [input, data] = [self.input, self.data].map(|memory| memory.into_plain(&mut grace));
        Ended { input, data, result }
    }
}

impl Core {
    pub(super) fn new(net: Net, watch: Watch, patience: Patience, nodes: Nodes) -> Self {
        let (me, ranks) = (net.me, net.ranks());
        Core {
            nodes,
            own_plans: Vec::new(),
            domain: net.domain().clone(),
            net: Some(net),
            watch,
            cache: PlanCache::default(),
            tuning: Tuning::default(),
            patience,
            limit: LIMIT,
            me,
            run: Run::new(ranks),
            error: None,
            running: None,
            waiting: VecDeque::new(),
            done: Vec::new(),
            forgotten: Vec::new(),
            next: 0,
        }
    }

    /// Runs an operation to its end, after those that were started before.
    #[inline]
    pub(super) fn operate(&mut self, key: &Key, operands: Operands) -> Ended {
        if self.run.is_active() || !self.waiting.is_empty() {
            let ticket = self.enqueue(key.clone(), operands);
            return self.wait_for(ticket);
        }
        if let Err(ended) = self.begin(key, operands) {
            return ended;
        }
        match self.exec().and_then(|mut exec| exec.complete_all()) {
            Ok(()) => self.finish(),
            Err(fault) => self.fail(*fault),
        }
    }

    /// Starts an operation, if none is before it.
    pub(super) fn start(&mut self, key: Key, operands: Operands) -> Ticket {
        let ticket = self.enqueue(key, operands);
        self.progress();
        ticket
    }

    /// Does what can be done at once.
    pub(super) fn progress(&mut self) {
        for _ in 0..ROUNDS {
            if self.running.is_none() && !self.start_next() {
                return;
            }
            let advanced = self.exec().and_then(|mut exec| Ok((exec.advance()?, exec.is_complete())));
            match advanced {
                Ok((_, true)) => self.end_running(),
                Ok((true, false)) => {}
                Ok((false, false)) => return,
                Err(fault) => self.fail_running(*fault),
            }
        }
    }

    /// Runs operations until that one is done.
    pub(super) fn wait_for(&mut self, ticket: Ticket) -> Ended {
        loop {
            if let Some(ended) = self.take_done(ticket) {
                return ended;
            }
            if self.running.is_some() || self.start_next() {
                self.run_to_end();
            } else {
                // None that waited could be started. It is among them, unless its end was taken before.
                return self.take_done(ticket).unwrap_or_else(|| Ended {
                    input: None,
                    data: None,
                    result: Err(self.unknown()),
                });
            }
        }
    }

    /// Whether that operation is done.
    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        self.done.iter().any(|done| done.ticket == ticket)
    }

    pub(super) fn take_done(&mut self, ticket: Ticket) -> Option<Ended> {
        let at = self.done.iter().position(|done| done.ticket == ticket)?;
        Some(self.done.swap_remove(at).ended)
    }

    /// Runs what was started to its end.
    pub(super) fn run_all(&mut self) {
        while self.running.is_some() || self.start_next() {
            self.run_to_end();
        }
    }

    /// Nobody waits for that operation any more; it is carried out all the same.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        if self.take_done(ticket).is_none() {
            self.forgotten.push(ticket);
        }
    }

    /// What ended the communicator.
    pub(super) fn error(&self) -> Option<&CollectiveError> {
        self.error.as_ref()
    }

    fn enqueue(&mut self, key: Key, operands: Operands) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.push_back(Waiting { ticket, key, operands });
        ticket
    }

    /// Starts the next operation; those that can not start are done. False if none waits.
    fn start_next(&mut self) -> bool {
        while let Some(Waiting { ticket, key, operands }) = self.waiting.pop_front() {
            match self.begin(&key, operands) {
                Ok(()) => {
                    self.running = Some(ticket);
                    return true;
                }
                Err(ended) => self.keep(ticket, ended),
            }
        }
        false
    }

    fn run_to_end(&mut self) {
        if self.running.is_none() {
            return;
        }
        match self.exec().and_then(|mut exec| exec.complete_all()) {
            Ok(()) => self.end_running(),
            Err(fault) => self.fail_running(*fault),
        }
    }

    fn end_running(&mut self) {
        let Some(ticket) = self.running.take() else { return };
        let ended = self.finish();
        self.keep(ticket, ended);
    }

    fn fail_running(&mut self, fault: Fault) {
        let ended = self.fail(fault);
        if let Some(ticket) = self.running.take() {
            self.keep(ticket, ended);
        }
    }

    /// Keeps how an operation ended until someone asks.
    fn keep(&mut self, ticket: Ticket, ended: Ended) {
        match self.forgotten.iter().position(|forgotten| *forgotten == ticket) {
            Some(at) => drop(self.forgotten.swap_remove(at)),
            None => self.done.push(Done { ticket, ended }),
        }
    }

    /// Starts an operation.
    #[inline]
    fn begin(&mut self, key: &Key, mut operands: Operands) -> Result<(), Ended> {
        if self.error.is_some() || self.watch.alarm().is_raised() {
            return Err(self.refuse(operands));
        }
        let eager = self.tuning.eager as usize;
        if let Err(error) = self.cache.find(key, self.me, &self.tuning, (&self.nodes, &self.own_plans), eager) {
            return Err(operands.back(Err(error)));
        }
        if let Err(error) = operands.scale(key, self.me) {
            return Err(operands.back(Err(error)));
        }
        let Some(plan) = self.cache.current() else { return Err(operands.back(Err(self.unknown()))) };
        let domain = &self.domain;
        let alloc = |len| domain.alloc(len).map_err(CollectiveError::from);
        if let Err(error) = self.run.prepare(plan, (operands.input, operands.data), alloc) {
            // The other ranks have begun, or will.
            return Err(self.fail(Fault::Failed { rank: self.me, reason: error.to_string() }));
        }
        match self.exec().and_then(|mut exec| exec.start()) {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.fail(*fault)),
        }
    }

    /// The executor on the current operation.
    #[inline]
    fn exec(&mut self) -> Outcome<Exec<'_>> {
        match (&mut self.net, self.cache.current()) {
            (Some(net), Some(plan)) => Ok(Exec {
                net,
                plan,
                run: &mut self.run,
                alarm: self.watch.alarm(),
                patience: self.patience,
                limit: self.limit,
            }),
            _ => Err(Box::new(Fault::Failed { rank: self.me, reason: "there is no operation".into() })),
        }
    }

    /// Ends the operation that is complete.
    #[inline]
    fn finish(&mut self) -> Ended {
        let Buffers { input, data, scratch } = self.run.finish();
        let mut grace = Grace::new(Some(self.watch.alarm()));
        self.run.keep_scratch(scratch.into_plain(&mut grace));
        let input = input.into_buffer(&self.domain, &mut grace);
        match (input, data.into_buffer(&self.domain, &mut grace)) {
            (Ok(input), Ok(data)) => Ended { input, data, result: Ok(()) },
            (Err(error), data) => Ended { input: None, data: data.unwrap_or_default(), result: Err(error) },
            (Ok(input), Err(error)) => Ended { input, data: None, result: Err(error) },
        }
    }

    /// Lets go of the connections, and of the operation that runs. Gives its input and data.
    #[cold]
    pub(super) fn let_go(&mut self) -> (Option<Buffer>, Option<Buffer>) {
        let Buffers { input, data, scratch } = self.run.abandon();
        let mut grace = Grace::new(None);
        // While the queue pairs are there, which show the peers that are in the middle of reaching it.
        let [input, data, scratch] = [input, data, scratch].map(|memory| memory.withdraw(&mut grace));
        // Requests that are not done hold it too.
        self.net = None;
        drop(scratch.into_plain(&mut grace));
        let [input, data] =
            [input, data].map(|memory| memory.into_buffer(&self.domain, &mut grace).unwrap_or_default());
        (input, data)
    }

    /// The communicator ends, here and on all ranks. Gives the memory of the operation.
    #[cold]
    fn fail(&mut self, fault: Fault) -> Ended {
        let verdict = self.watch.report(fault);
        let rank = match &verdict {
            Fault::Gone { rank } | Fault::Left { rank } | Fault::Failed { rank, .. } => Some(*rank),
            Fault::TimedOut { .. } | Fault::Differs(_) => None,
        };
        let place = self.exec().ok().and_then(|exec| exec.place(rank));
        let error = CollectiveError::new(verdict, place);
        tracing::debug!(rank = self.me, %error, "the communicator ends");
        self.error = Some(error.clone());
        let (input, data) = self.let_go();
        Ended { input, data, result: Err(error) }
    }

    /// The communicator has ended before.
    #[cold]
    fn refuse(&mut self, operands: Operands) -> Ended {
        let error = match &self.error {
            Some(error) => error.clone(),
            None => {
                let fault = self.watch.alarm().fault();
                let fault = fault.unwrap_or(Fault::Failed { rank: self.me, reason: "aborted".into() });
                let error = CollectiveError::new(fault, None);
                self.error = Some(error.clone());
                self.let_go();
                error
            }
        };
        operands.back(Err(error))
    }

    #[cold]
    fn unknown(&self) -> CollectiveError {
        let fault = Fault::Failed { rank: self.me, reason: "there is no such operation".into() };
        CollectiveError::new(fault, None)
    }

    pub(super) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(super) fn plans(&self) -> impl Iterator<Item = &Compiled> {
        self.cache.iter()
    }
}

/// How long a rank waits for another unless told otherwise. Ranks may load data or compute for minutes in between.
const LIMIT: Duration = Duration::from_secs(300);

/// Rounds of one call that does not wait.
const ROUNDS: u32 = 64;
