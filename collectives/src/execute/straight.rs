//! Short operations, run straight: step by step, without the books that it takes to have several operations under way, or steps
//! that wait for different peers.
//!
//! That is done where a rank waits for its operation, nothing else is under way, all messages are copied, and none would have to
//! wait longer so than it does by the plan ([`straight_order`]). A message that comes before it is waited for is taken where its step
//! may be done. Whatever else happens, [`Engine`] goes on from there with the same plan: a peer that has no room, or keeps this
//! rank waiting, or sends something else.
//!
//! [`Engine`]: super::Engine

use qpair_transport::{EndpointId, Event, Polled, Tag, WorkerError};
use qpair_verbs::ProtectionDomain;
use qpair_verbs::calc::{Calc, scale};

use super::block::Block;
use super::compile::Compiled;
use super::memory::Memory;
use super::net::Net;
use super::numbers::Number;
use super::run::{apart, named};
use super::stash::Early;
use super::steps::{Span, Step};
use super::tag::{Fields, Kind};
use super::wait::{Patience, Wait};
use crate::bootstrap::Alarm;
use crate::plan::{Program, What};

/// Steps of a plan that is run straight, at most: as many as a mask has bits.
const MOST: usize = u64::BITS as usize;

/// Bytes of scratch of such a plan, at most.
pub(super) const SCRATCH: usize = 64 << 10;

/// How the steps of a plan are run straight.
#[derive(Debug)]
pub(super) struct Order {
    /// All steps.
    steps: Box<[u32]>,
    /// By step: those that have to be done before.
    after: Box<[u64]>,
    /// How far a message goes before others to the same peer, at most; by [turns](super::turns) there has to be more room than that.
    pub(super) overtakes: u32,
}

impl Order {
    /// The steps in the order in which they are done, but for messages that come before they are waited for.
    pub(super) fn steps(&self) -> &[u32] {
        &self.steps
    }
}

/// The order in which the steps of a plan are run straight, none of whose messages goes otherwise than by a copy: messages are
/// sent as soon as they may be, and waited for last, in the order of the program. `None` where that does not do, as
/// a message would be sent after another has been waited for that it does not have to wait for by the plan, and that does not
/// come before one from the same peer that it has to wait for.
pub(super) fn straight_order(steps: &[Step], given: &[u32], program: &Program) -> Option<Order> {
    if steps.len() > MOST {
        return None;
    }
    let order = in_order(steps, program);
    let after = |step| program.deps(step).iter().fold(0, |all, dep| all | 1 << dep);
    let after = (0..steps.len() as u32).map(after).collect();
    let overtakes = overtakes(steps, given, &order);
    waits_for_no_other(steps, &order, program).then_some(Order { steps: order, after, overtakes })
}

/// How far a message goes before others to the same peer, at most: counted from the first of these, in messages.
fn overtakes(steps: &[Step], given: &[u32], order: &[u32]) -> u32 {
    let step = |number: u32| &steps[number as usize];
    let (mut gone, mut most) = (0_u64, 0);
    for number in order {
        let Step { what, sends: (start, end), .. } = *step(*number);
        // What a copy gives away goes with it.
        let go = if what == What::Send { std::slice::from_ref(number) } else { &given[start as usize..end as usize] };
        for &send in go {
            let Step { slot, message, .. } = *step(send);
            let is_open = |at: &u32| step(*at).what == What::Send && step(*at).slot == slot && gone >> at & 1 == 0;
            // What was given away is counted where it went.
            if gone >> send & 1 == 0 {
                most = most.max((0..send).find(is_open).map_or(0, |first| message - step(first).message));
            }
            gone |= 1 << send;
        }
    }
    most
}

fn in_order(steps: &[Step], program: &Program) -> Box<[u32]> {
    let urgency = |step: &Step| match step.what {
        What::Send => 0,
        What::Copy if step.gives() => 0,
        What::Copy | What::Reduce | What::Finish => 1,
        What::Recv | What::RecvReduce => 2,
    };
    let (mut order, mut done) = (Vec::with_capacity(steps.len()), 0_u64);
    let is_done = |done: u64, step: u32| done >> step & 1 == 1;
    while order.len() < steps.len() {
        let open = (0..steps.len() as u32).filter(|&step| !is_done(done, step));
        let ready = open.filter(|&step| program.deps(step).iter().all(|dep| is_done(done, dep)));
        let Some(next) = ready.min_by_key(|&step| (urgency(&steps[step as usize]), step)) else { break };
        done |= 1 << next;
        order.push(next);
    }
    order.into()
}

fn waits_for_no_other(steps: &[Step], order: &[u32], program: &Program) -> bool {
    let step = |number: u32| &steps[number as usize];
    // By step: those that it waits for, and those that they wait for.
    let mut behind = [0_u64; MOST];
    for (place, &number) in order.iter().enumerate() {
        let deps = program.deps(number).iter();
        let awaited = deps.fold(0, |all, dep| all | 1 << dep | behind[dep as usize]);
        behind[number as usize] = awaited;
        let is_awaited = |number: u32| awaited >> number & 1 == 1;
        let before = &order[..place];
        let comes_first = |at: usize| {
            let mut later = before[at..].iter().filter(|&&later| is_awaited(later) && step(later).what.is_recv());
            later.any(|&later| step(later).slot == step(before[at]).slot)
        };
        let sends = step(number).what == What::Send || step(number).gives();
        if sends && !(0..place).all(|at| !step(before[at]).what.is_recv() || comes_first(at)) {
            return false;
        }
    }
    order.len() == steps.len()
}

/// What is known of an operation that is run straight, or was up to where that stopped.
#[derive(Debug, Default)]
pub(crate) struct Straight {
    /// Ranks that run on this one's core, in order.
    mates: Box<[u32]>,
    pub(super) scratch: Memory,
    /// By slot: the number of the operation with that peer.
    pub(super) numbers: Vec<Number>,
    /// By step: sends whose messages went when what they give away was to be copied.
    pub(super) given: u64,
    /// By step: those that are done, of which some receives are ahead of the order in which they are run.
    over: u64,
    /// What came that no step may take.
    pub(super) came: Option<Came>,
    /// How many operations were run to their end, and how many were not.
    #[cfg(test)]
    pub(crate) ended: [u32; 2],
    /// How many messages were taken before they were waited for.
    #[cfg(test)]
    pub(crate) ahead: u32,
}

/// What came while something else was waited for.
#[derive(Debug)]
pub(super) enum Came {
    Event(Event),
    /// What is for that step, and it does not fit.
    Unfit(u32),
    /// Nothing comes any more.
    Broken(WorkerError),
}

/// What it takes to run a plan straight.
pub(crate) struct Course<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) plan: &'a Compiled,
    /// What is given, where that stays as it is.
    pub(crate) input: &'a mut Memory,
    /// What the result is put into.
    pub(crate) data: &'a mut Memory,
    pub(crate) wait: &'a mut Wait,
    pub(crate) patience: Patience,
    pub(crate) alarm: &'a Alarm,
    pub(crate) books: &'a mut Straight,
}

impl Straight {
    /// Of a rank on whose core those `mates` run, in order.
    pub(crate) fn beside(mates: Box<[u32]>) -> Self {
        Straight { mates, ..Straight::default() }
    }

    /// Whether that step is done.
    #[inline]
    pub(super) fn is_over(&self, number: u32) -> bool {
        self.over >> number & 1 == 1
    }

    /// Gives up what it holds of memory.
    pub(crate) fn let_go(&mut self) {
        (self.scratch, self.came) = (Memory::None, None);
    }

    /// Whether it has the scratch that a plan needs: some is taken if need be.
    #[inline]
    pub(crate) fn has_scratch_for(&mut self, plan: &Compiled, domain: &ProtectionDomain) -> bool {
        plan.scratch == 0 || !matches!(self.scratch, Memory::None) || self.take_scratch(domain)
    }

    #[cold]
    fn take_scratch(&mut self, domain: &ProtectionDomain) -> bool {
        self.scratch = Block::alloc(None, SCRATCH, domain).map_or(Memory::None, Memory::Plain);
        !matches!(self.scratch, Memory::None)
    }
}

impl Course<'_> {
    /// Runs the plan. False if that stopped before the end.
    #[inline]
    pub(crate) fn run(mut self) -> bool {
        let plan = self.plan;
        self.wait.reset();
        (self.books.given, self.books.over) = (0, 0);
        self.books.numbers.clear();
        for peer in &plan.peers {
            self.books.numbers.push(self.net.enlist(peer.rank, plan.call));
        }
        let complete = plan.straight.iter().flat_map(|order| &order.steps).all(|&number| {
            let done = self.books.is_over(number) || self.step(number);
            self.books.over |= u64::from(done) << number;
            done
        }) && !self.has_more();
        #[cfg(test)]
        {
            self.books.ended[usize::from(!complete)] += 1;
        }
        complete
    }

    /// Whether something came of this operation that no step has taken.
    #[inline]
    fn has_more(&self) -> bool {
        !self.net.stash.is_empty() && self.net.stash.iter().any(|early| self.is_of_this(early.fields))
    }

    #[inline]
    fn is_of_this(&self, fields: Fields) -> bool {
        let number = |slot: u16| self.books.numbers[slot as usize].sequence();
        self.plan.slot(fields.rank).map(number) == Some(fields.sequence)
    }

    #[inline]
    fn step(&mut self, number: u32) -> bool {
        let step = &self.plan.steps[number as usize];
        match step.what {
            What::Send => self.books.given >> number & 1 == 1 || self.send(step, step.src),
            What::Copy if step.gives() => self.give(step),
            What::Copy => self.local(step, None),
            What::Reduce => self.local(step, self.plan.calc),
            What::Finish => self.finish(step.dst),
            What::Recv | What::RecvReduce => self.receive(number, step),
        }
    }

    /// Sends a step's message, which is those bytes.
    #[inline]
    fn send(&mut self, step: &Step, src: Span) -> bool {
        let (rank, plan, sequence) = (self.net.me, self.plan.number, self.books.numbers[step.slot as usize].sequence());
        let tag = Fields { kind: Kind::Data, rank, plan, sequence, message: step.message }.encode();
        let contents = named((self.input, self.data, &mut self.books.scratch), src.buffer).bytes(src);
        let ep = self.plan.peers[step.slot as usize].ep;
        ep.zip(contents).is_some_and(|(ep, contents)| self.net.worker.send_copy(ep, tag, contents).is_ok())
    }

    /// Sends what a copy would copy, as the messages of the sends that wait for it.
    #[inline]
    fn give(&mut self, copy: &Step) -> bool {
        let plan = self.plan;
        plan.given[copy.sends.0 as usize..copy.sends.1 as usize].iter().all(|&send| {
            let said = self.send(&plan.steps[send as usize], copy.src);
            self.books.given |= u64::from(said) << send;
            said
        })
    }

    /// Copies or combines within this rank.
    #[inline]
    fn local(&mut self, step: &Step, calc: Option<Calc>) -> bool {
        let (src, dst) = (step.src, step.dst);
        if src.buffer == dst.buffer {
            return self.memory(dst).put_within(src, dst, calc).is_some_and(|done| done.is_ok());
        }
        let (from, into) = apart((self.input, self.data, &mut self.books.scratch), src.buffer, dst.buffer);
        into.put_from(dst, (from, src), calc).is_some_and(|done| done.is_ok())
    }

    fn finish(&mut self, span: Span) -> bool {
        let Some((data_type, by)) = self.plan.finish else { return true };
        self.memory(span).bytes_mut(span).is_some_and(|bytes| scale(data_type, bytes, by).is_ok())
    }

    #[inline]
    fn memory(&mut self, span: Span) -> &mut Memory {
        named((self.input, self.data, &mut self.books.scratch), span.buffer)
    }

    /// Waits for a step's message, and takes it.
    #[inline]
    fn receive(&mut self, number: u32, step: &Step) -> bool {
        let peer = &self.plan.peers[step.slot as usize];
        let (Some(from), Some(plan)) = (peer.ep, peer.theirs) else { return false };
        let sequence = self.books.numbers[step.slot as usize].sequence();
        let due = Fields { kind: Kind::Data, rank: peer.rank, plan, sequence, message: step.message };
        if !self.net.stash.is_empty()
            && let Some(contents) = self.net.stash.take_message(due)
        {
            return take(self.plan, step, self.memory(step.dst), &contents) || self.stop(Came::Unfit(number));
        }
        let (due, patience) = (due.encode(), self.patience_with(peer.rank));
        loop {
            let Course { net, plan, input, data, books, .. } = self;
            let Straight { numbers, scratch, over, .. } = &mut **books;
            let find =
                |ep, tag| if (ep, tag) == (from, due) { Some(number) } else { ahead(plan, numbers, *over, ep, tag) };
            let polled = net.worker.poll_for_any(find, |number, message| {
                let step = &plan.steps[number as usize];
                let memory = named((input, data, scratch), step.dst.buffer);
                (number, take(plan, step, memory, message))
            });
            match polled {
                Ok(Polled::Message((taken, true))) => {
                    self.wait.reset();
                    if taken == number {
                        return true;
                    }
                    self.books.over |= 1 << taken;
                    #[cfg(test)]
                    {
                        self.books.ahead += 1;
                    }
                }
                Ok(Polled::Message((taken, false))) => return self.stop(Came::Unfit(taken)),
                Ok(Polled::Event(Event::Received { ep, tag, message })) => match self.early(ep, tag) {
                    Some(fields) if self.net.stash.has_room(fields.rank) => {
                        self.net.stash.push(Early { fields, contents: message.into(), meant: None })
                    }
                    _ => return self.stop(Came::Event(Event::Received { ep, tag, message })),
                },
                Ok(Polled::Event(event)) => return self.stop(Came::Event(event)),
                Ok(_) if self.may_wait(patience) => {}
                Ok(_) => return false,
                Err(error) => return self.stop(Came::Broken(error)),
            }
        }
    }

    /// Leaves what came to the engine.
    #[cold]
    fn stop(&mut self, came: Came) -> bool {
        self.books.came = Some(came);
        false
    }

    /// Whether something is a message that another step of this plan may take, or one of an operation that has not begun.
    fn early(&self, ep: EndpointId, tag: Tag) -> Option<Fields> {
        let fields =
            Fields::decode(tag).filter(|fields| !matches!(fields.kind, Kind::Hello | Kind::Announce | Kind::Waits))?;
        let due = if self.is_of_this(fields) {
            let theirs = self.plan.slot(fields.rank).and_then(|slot| self.plan.peers[slot as usize].theirs);
            fields.kind == Kind::Data && theirs == Some(fields.plan)
        } else {
            self.net.is_to_come(fields.rank, fields.sequence)
        };
        (due && self.net.is_up(ep, fields.rank)).then_some(fields)
    }

    /// How a rank is waited for.
    #[inline]
    fn patience_with(&self, rank: u32) -> Patience {
        let mates = &self.books.mates;
        let on_this_core = !mates.is_empty() && mates.binary_search(&rank).is_ok();
        if on_this_core { self.patience.at_once() } else { self.patience }
    }

    /// Waits a little. False if it was long enough for what takes longer to be done by the engine.
    #[inline]
    fn may_wait(&mut self, patience: Patience) -> bool {
        !self.alarm.is_raised() && self.wait.pause_briefly(patience)
    }
}

/// The receive of a message that may be taken though another is waited for: nothing that it has to follow is left to do. `over`:
/// what is done.
fn ahead(plan: &Compiled, numbers: &[Number], over: u64, ep: EndpointId, tag: Tag) -> Option<u32> {
    let fields = Fields::decode(tag).filter(|fields| fields.kind == Kind::Data)?;
    let slot = plan.slot(fields.rank)?;
    let peer = &plan.peers[slot as usize];
    let is_of_this = numbers[slot as usize].sequence() == fields.sequence;
    if !is_of_this || (peer.ep, peer.theirs) != (Some(ep), Some(fields.plan)) {
        return None;
    }
    let number = plan.receive(slot, fields.message)?;
    let after = plan.straight.as_ref()?.after[number as usize];
    (over >> number & 1 == 0 && after & !over == 0).then_some(number)
}

/// Puts a message where its receive wants it.
#[inline]
fn take(plan: &Compiled, step: &Step, memory: &mut Memory, message: &[u8]) -> bool {
    let calc = if step.what == What::RecvReduce { plan.calc } else { None };
    message.len() == step.dst.len && memory.put(step.dst, message, calc).is_ok()
}
