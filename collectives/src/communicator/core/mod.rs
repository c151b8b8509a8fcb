//! The inside of a communicator: the operations that run, those that wait, and what ended it.

mod ending;
mod holds;
mod queue;

use std::time::Duration;

use qpair_verbs::calc::ReduceOp;
use qpair_verbs::{Gpu, ProtectionDomain};

use self::holds::Holding;
use self::queue::Queue;
use super::operands::{Ended, Operands, Ticket};
use crate::bootstrap::Watch;
use crate::cost::Seats;
use crate::error::CollectiveError;
use crate::execute::{
    Block, Compiled, Course, Engine, Kept, Key, Net, OwnPlan, Patience, PlanCache, Run, Runs, Straight, Wait,
};
use crate::fault::{Fault, Outcome};
use crate::machine::{Known, Origin};
use crate::trace::{Activity, Trace};
use crate::tune::Tuner;

/// The inside of a communicator.
#[derive(Debug)]
pub(super) struct Core {
    /// `None` once the communicator is of no use any more.
    pub(super) net: Option<Net>,
    pub(super) watch: Watch,
    pub(super) cache: PlanCache,
    pub(super) tuner: Tuner,
    /// Where its model comes from.
    pub(super) origin: Origin,
    pub(super) patience: Patience,
    pub(super) limit: Duration,
    domain: ProtectionDomain,
    /// Where the last vector on a GPU is: one without elements does not say it.
    pub(super) gpu: Option<Gpu>,
    me: u32,
    /// Plans of the user's own, each for what its spec says.
    pub(super) own_plans: Vec<OwnPlan>,
    /// The operations under way, in the order in which they were started.
    runs: Runs,
    /// What served former operations, so that nothing is allocated once they have served the largest plans.
    spare: Runs,
    wait: Wait,
    pub(super) straight: Straight,
    /// What was recorded up to the end of the communicator.
    last_trace: Trace,
    error: Option<CollectiveError>,
    /// Whether the communicator is being dropped, with what was started.
    leaving: bool,
    queue: Queue,
    done: Vec<Done>,
    forgotten: Vec<Ticket>,
    /// Streams that wait for the end of operations. Dropping one lets it go on.
    holds: Vec<Holding>,
    /// Memory of GPUs that is freed once no stream is held: a driver may wait for all streams until it has freed it, and those that
    /// are held go on by what this thread does then.
    spent: Vec<Block>,
    next: u64,
}

/// How far an operation was run straight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ran {
    Not,
    InPart,
    Whole,
}

#[derive(Debug)]
struct Done {
    ticket: Ticket,
    ended: Ended,
}

impl Core {
    pub(super) fn new(
        net: Net,
        watch: Watch,
        (patience, straight): (Patience, Straight),
        seats: Seats,
        cost: Known,
    ) -> Self {
        let me = net.me;
        Core {
            own_plans: Vec::new(),
            domain: net.domain().clone(),
            gpu: None,
            net: Some(net),
            watch,
            cache: PlanCache::default(),
            tuner: Tuner { model: cost.model, seats, fastest: cost.fastest, ..Tuner::default() },
            origin: cost.origin,
            patience,
            limit: LIMIT,
            me,
            runs: Vec::new(),
            spare: Vec::new(),
            wait: Wait::default(),
            straight,
            last_trace: Trace::default(),
            error: None,
            leaving: false,
            queue: Queue::default(),
            done: Vec::new(),
            forgotten: Vec::new(),
            holds: Vec::new(),
            spent: Vec::new(),
            next: 0,
        }
    }

    /// Runs an operation to its end.
    #[inline]
    pub(super) fn operate(&mut self, key: &Key, mut operands: Operands) -> Ended {
        if !self.runs.is_empty() || !self.queue.is_empty() {
            let ticket = self.enqueue(key.clone(), operands);
            return self.wait_for(ticket);
        }
        if self.is_over() {
            return self.refuse(operands);
        }
        // Each has one, as on the other ranks, whether or not it runs straight here.
        let ticket = self.ticket();
        let found = self.find(key);
        let ran = found.as_ref().map_or(Ran::Not, |plan| self.run_straight(*plan, key, &mut operands));
        if ran == Ran::Whole {
            return operands.back(Ok(()));
        }
        if let Err(ended) = self.begin(ticket, (key, found), operands, ran) {
            return ended;
        }
        let complete = match self.engine() {
            Ok(mut engine) => engine.complete(0),
            Err(fault) => Err(fault),
        };
        match complete {
            Ok(()) => self.finish(0),
            Err(fault) => self.fail_all(*fault, Some(ticket)),
        }
    }

    /// Runs an operation straight, if it is one that may be.
    #[inline]
    fn run_straight(&mut self, plan: usize, key: &Key, operands: &mut Operands) -> Ran {
        let (Some(net), Some(plan)) = (&mut self.net, self.cache.get(plan)) else { return Ran::Not };
        let is_plain = operands.limit.is_none() && operands.after.is_none();
        let is_given = is_plain && !matches!(key.op, Some(ReduceOp::PreMulSum(_)));
        if !is_given || !plan.is_straight(net) || !self.straight.has_scratch_for(plan, &self.domain) {
            return Ran::Not;
        }
        let (Operands { input, data, .. }, alarm) = (operands, self.watch.alarm());
        let (wait, patience, books) = (&mut self.wait, self.patience, &mut self.straight);
        if (Course { net, plan, input, data, wait, patience, alarm, books }).run() { Ran::Whole } else { Ran::InPart }
    }

    /// Starts an operation, if there is room for it beside those under way.
    pub(super) fn start(&mut self, key: Key, operands: Operands) -> Ticket {
        let ticket = self.enqueue(key, operands);
        self.progress();
        ticket
    }

    /// Does what can be done at once.
    pub(super) fn progress(&mut self) {
        for _ in 0..ROUNDS {
            self.start_waiting();
            if self.runs.is_empty() {
                return;
            }
            match self.engine().and_then(|mut engine| Ok(engine.advance()? && !engine.is_due())) {
                Ok(goes_on) => {
                    self.keep_complete();
                    if !goes_on {
                        self.look_up();
                        return;
                    }
                }
                Err(fault) => _ = self.fail_all(*fault, None),
            }
        }
    }

    /// Looks at what no event tells of: the alarm, the clock, and ranks that have left.
    fn look_up(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let alarm = self.watch.alarm();
        let raised = if alarm.is_raised() { alarm.fault() } else { None };
        let late = || self.engine().and_then(|mut engine| engine.look_up()).err().map(|fault| *fault);
        if let Some(fault) = raised.or_else(late) {
            self.fail_all(fault, None);
        }
    }

    /// Runs operations until that one is done.
    pub(super) fn wait_for(&mut self, ticket: Ticket) -> Ended {
        self.wait.reset();
        loop {
            if let Some(ended) = self.take_done(ticket) {
                return ended;
            }
            self.start_waiting();
            let own = self.runs.iter().position(|run| run.id == ticket.0);
            match own {
                Some(at) if self.queue.is_empty() => self.complete(at),
                None if self.runs.is_empty() && !self.queue.is_held() => {
                    // It could not be started, and is among those that are done, unless its end was taken before.
                    let ended = self.take_done(ticket);
                    return ended.unwrap_or_else(|| Ended { input: None, data: None, result: Err(self.unknown()) });
                }
                // There may be room for others before it is done, which other ranks may wait for.
                _ => self.go_on(),
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
        self.wait.reset();
        loop {
            self.start_waiting();
            if !self.queue.is_empty() {
                self.go_on();
            } else if self.runs.is_empty() {
                return;
            } else {
                self.complete(0);
            }
        }
    }

    /// Nobody waits for that operation any more; it is carried out all the same.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        match self.take_done(ticket) {
            Some(ended) => self.free(ended),
            None => self.forgotten.push(ticket),
        }
    }

    /// What was recorded; nothing unless that was asked for.
    pub(super) fn trace(&self) -> Trace {
        match &self.net {
            Some(net) => net.recorder.as_ref().map_or_else(Trace::default, |recorder| recorder.trace(self.me)),
            None => self.last_trace.clone(),
        }
    }

    /// What ended the communicator.
    pub(super) fn error(&self) -> Option<&CollectiveError> {
        self.error.as_ref()
    }

    /// Whether the communicator is of no use any more.
    #[inline]
    fn is_over(&self) -> bool {
        self.error.is_some() || self.watch.alarm().is_raised()
    }

    fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        ticket
    }

    /// Where an operation is among those under way, or would be.
    #[inline]
    fn place_of(&self, ticket: Ticket) -> usize {
        self.runs.partition_point(|run| run.id < ticket.0)
    }

    /// The place of the plan for `key`.
    #[inline]
    fn find(&mut self, key: &Key) -> Result<usize, CollectiveError> {
        let runs = &self.runs;
        self.cache.find(key, self.me, &self.tuner, &self.own_plans, |at| runs.iter().any(|run| run.plan == at))
    }

    /// Runs the operation at a place to its end, and keeps how it ended; so with others that are complete then.
    fn complete(&mut self, at: usize) {
        match self.engine().and_then(|mut engine| engine.complete(at)) {
            Ok(()) => self.keep_complete(),
            Err(fault) => _ = self.fail_all(*fault, None),
        }
    }

    /// Keeps how the operations ended that are complete.
    fn keep_complete(&mut self) {
        let mut at = 0;
        while at < self.runs.len() {
            if self.engine().and_then(|mut engine| Ok(engine.exec(at)?.is_complete())).unwrap_or(false) {
                let ticket = Ticket(self.runs[at].id);
                let ended = self.finish(at);
                self.keep(ticket, ended);
            } else {
                at += 1;
            }
        }
    }

    /// Starts an operation by the plan at the place that was found; or goes on with one that was run straight in part.
    #[inline]
    fn begin(
        &mut self,
        ticket: Ticket,
        (key, found): (&Key, Result<usize, CollectiveError>),
        mut operands: Operands,
        ran: Ran,
    ) -> Result<(), Ended> {
        let plan = match found {
            Ok(plan) => plan,
            Err(error) => return Err(operands.back(Err(error))),
        };
        let Some(compiled) = self.cache.get(plan) else { return Err(operands.back(Err(self.unknown()))) };
        let mut places = operands.places();
        if compiled.call().on_gpu {
            // A rank that has none of the elements may pass on those of others.
            places[0] = places[0].map(|gpu| gpu.or(self.gpu));
        }
        let mut run = Run::fitting(&mut self.spare, places, compiled.scratch());
        let memory = (&self.domain, &mut self.spent);
        match operands.scale(key, self.me, |gpu, len| run.alloc(Kept::Input, (gpu, len), memory)) {
            Ok(own) => run.own_input = own,
            Err(why) => return Err(self.not_scaled(run, operands, why)),
        }
        (run.id, run.plan, run.limit) = (ticket.0, plan, operands.limit);
        if let Some(recorder) = self.net.as_mut().and_then(|net| net.recorder.as_mut()) {
            recorder.begin(ticket.0, Activity::Operation(*compiled.call()));
        }
        let slots = match &mut self.net {
            Some(net) if compiled.needs_slots() => make_slots(net, places),
            _ => Ok(()),
        };
        let memory = (&self.domain, &mut self.spent);
        let prepared = run.prepare(compiled, (operands.input, operands.data), places[0].flatten(), memory);
        let prepared = slots.and(prepared);
        let at = self.place_of(ticket);
        self.runs.insert(at, run);
        self.free_spent();
        if let Err(error) = prepared {
            // The other ranks have begun, or will.
            return Err(self.fail_all(Fault::Failed { rank: self.me, reason: error.to_string() }, Some(ticket)));
        }
        let started = match ran {
            Ran::InPart => self.go_on_from_straight(),
            Ran::Not | Ran::Whole => match self.engine() {
                Ok(mut engine) => engine.start(at),
                Err(fault) => Err(fault),
            },
        };
        started.map_err(|fault| self.fail_all(*fault, Some(ticket)))
    }

    #[cold]
    fn go_on_from_straight(&mut self) -> Outcome<()> {
        let mut straight = std::mem::take(&mut self.straight);
        let resumed = self.engine().and_then(|mut engine| engine.resume(&mut straight));
        self.straight = straight;
        resumed
    }

    /// What runs the operations under way. Made where it is used, as a copy of it would have the processor wait until what it
    /// wrote for peers has left it: a load of two stores is not forwarded.
    #[inline(always)]
    fn engine(&mut self) -> Outcome<Engine<'_>> {
        match &mut self.net {
            Some(net) => Ok(Engine {
                net,
                cache: &mut self.cache,
                runs: &mut self.runs,
                wait: &mut self.wait,
                alarm: self.watch.alarm(),
                patience: self.patience,
                limit: self.limit,
                waiting: self.queue.first_limit(),
            }),
            None => Err(Box::new(Fault::Failed { rank: self.me, reason: "there is no operation".into() })),
        }
    }

    pub(super) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(super) fn plans(&self) -> impl Iterator<Item = &Compiled> {
        self.cache.iter()
    }
}

/// Makes the slots for vectors on those GPUs.
#[cold]
fn make_slots(net: &mut Net, places: [Option<Option<Gpu>>; 2]) -> Result<(), CollectiveError> {
    Ok(places.into_iter().flatten().flatten().try_for_each(|gpu| net.make_slots(gpu))?)
}

/// How long a rank waits for another unless told otherwise. Ranks may load data or compute for minutes in between.
const LIMIT: Duration = Duration::from_secs(300);

/// Rounds of one call that does not wait.
const ROUNDS: u32 = 64;

/// Between two looks at a GPU, once a rank sleeps: little beside what has taken so long.
const NAP: Duration = Duration::from_millis(1);
