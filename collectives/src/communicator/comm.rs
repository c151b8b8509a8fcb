//! The communicator.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use qpair_transport::Near;
use qpair_verbs::calc::{Element, ReduceOp};
use qpair_verbs::{Gpu, GpuBuffer, MemoryError};

use super::buffer::CommBuffer;
use super::core::Core;
use super::explain::Explanation;
use super::location::{Location, OnGpu};
use super::seats::{core_mates, patience, seats};
use crate::algorithms::{Algorithm, RecipeError};
use crate::bootstrap::{Environment, Member, Watch};
use crate::cost::{CostModel, ModelError};
use crate::error::{BootstrapError, CollectiveError};
use crate::execute::{Key, Net, OwnPlan, Straight, has_too_many_messages};
use crate::fault::Fault;
use crate::machine::{Known, Origin};
use crate::plan::{Collective, Counts, Elements, Plan, Ranks, Spec};
use crate::trace::{Recorder, Trace};
use crate::tune::{Fastest, Tuner, Tuning};

/// One rank of a group that works together. All ranks call the same operations in the same order.
///
/// It makes progress only within its calls, and belongs to one thread at a time. An error that
/// [is fatal](CollectiveError::is_fatal) ends it, on all ranks: each later call returns the same error at once, and
/// buffers are the caller's again.
///
/// Dropping it says goodbye to the other ranks, after what was [started](Self::start) and not waited for: that has 5 s, or the
/// time of [`set_timeout`](Self::set_timeout) if that is less, while nothing comes. Where the others do not come to it in that time,
/// the communicator ends on all ranks, with [`CollectiveError::RankFailed`]. So wait for what was started before it is dropped.
///
/// ```
/// use qpair_collectives::{Communicator, ReduceOp};
///
/// let ranks = Communicator::group(3)?; // as threads of this process; `from_env` for processes
/// std::thread::scope(|scope| {
///     for comm in ranks {
///         scope.spawn(move || {
///             let mut vector = comm.buffer::<f32>(1000)?;
///             vector.fill(comm.rank() as f32);
///             comm.all_reduce(&mut vector, ReduceOp::Sum)?;
///             assert_eq!(vector[..], [3.0; 1000]);
///             Ok::<(), qpair_collectives::CollectiveError>(())
///         });
///     }
/// });
/// # Ok::<(), qpair_collectives::BootstrapError>(())
/// ```
#[derive(Debug)]
pub struct Communicator {
    core: RefCell<Core>,
    id: u64,
    rank: u32,
    size: u32,
    local_rank: u32,
    members: Vec<Member>,
    /// The address at which others reach this rank.
    ip: IpAddr,
    /// What its connections are near to.
    near: Near,
    wishes: RefCell<Wishes>,
}

/// The algorithms asked for, by collective.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wishes([Wish; Collective::ALL.len()]);

/// An algorithm that was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Wish {
    algorithm: Algorithm,
    /// Whether nothing else can be asked for any more.
    fixed: bool,
    /// Whether another is taken where it does not do what is to be done.
    lenient: bool,
}

impl Wishes {
    fn of(&self, collective: Collective) -> Wish {
        self.0[Self::place(collective)]
    }

    fn set(&mut self, collective: Collective, wish: Wish) {
        let before = &mut self.0[Self::place(collective)];
        if wish.fixed || !before.fixed {
            *before = wish;
        }
    }

    fn place(collective: Collective) -> usize {
        match collective {
            Collective::AllReduce => 0,
            Collective::ReduceScatter => 1,
            Collective::AllGather => 2,
            Collective::AllToAll => 3,
            Collective::Broadcast { .. } => 4,
            Collective::Reduce { .. } => 5,
            Collective::Scatter { .. } => 6,
            Collective::Gather { .. } => 7,
            Collective::Transfer { .. } => 8,
            Collective::Barrier => 9,
        }
    }
}

impl Communicator {
    /// One of the ranks that a launcher started as processes: `qpair launch`, torchrun, Slurm's srun, the mpirun of Open MPI
    /// or MPICH. Waits for the other ranks, for 60 s at most; see [`Environment`].
    ///
    /// # Errors
    /// [`BootstrapError`], which says what to do.
    pub fn from_env() -> Result<Self, BootstrapError> {
        Environment::from_env()?.connect()
    }

    pub(crate) fn new(net: Net, watch: Watch, local_rank: u32, members: Vec<Member>, cost: Known) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (rank, size) = (net.me, net.ranks());
        let waits = (patience(rank, &members), Straight::beside(core_mates(rank, &members)));
        let seats = seats(&members);
        let cost = cost.with_gpu_islands(members.iter().filter_map(|rank| rank.whereabouts.gpu_island?.outside));
        let (ip, near) = (net.address().ip(), net.near().clone());
        Communicator {
            core: RefCell::new(Core::new(net, watch, waits, seats, cost)),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rank,
            size,
            local_rank,
            members,
            ip,
            near,
            wishes: RefCell::default(),
        }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// This rank's number on its host, from 0.
    pub fn local_rank(&self) -> usize {
        self.local_rank as usize
    }

    /// The number of ranks on this rank's host.
    pub fn local_size(&self) -> usize {
        let own = &self.members[self.rank()].whereabouts.machine;
        self.members.iter().filter(|other| other.whereabouts.machine == *own).count()
    }

    /// The number of this rank's node among those of the communicator, in the order of their first ranks. The ranks of a node
    /// reach each other's memory: they are on one host, and there in one network namespace, which containers may have of
    /// their own.
    pub fn node(&self) -> usize {
        self.node_of(self.rank())
    }

    /// The number of another rank's node.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn node_of(&self, rank: usize) -> usize {
        assert!(rank < self.size(), "there is no rank {rank} among {}", self.size());
        self.core.borrow().tuner.seats.nodes.of(rank as u32) as usize
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        1 + (0..self.size()).map(|rank| self.node_of(rank)).max().unwrap_or(0)
    }

    /// Ends the communicator on all ranks, with what is under way: each gets [`CollectiveError::Aborted`], at once where it
    /// waits, else from its next call. Of a reason longer than a page the beginning counts. Rank 0 hands it on: once that has done its part
    /// and dropped its communicator, the others see that the connection to this rank ends, and not why
    /// ([`CollectiveError::RankGone`]).
    pub fn abort(&self, reason: impl Into<String>) {
        let fault = Fault::Aborted { rank: self.rank, reason: reason.into() }.to_tell();
        let mut core = self.core.borrow_mut();
        if core.error().is_none() {
            core.fail_all(fault, None);
        }
    }

    /// A vector of `len` elements, all zero, in memory registered for this communicator.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`] if there is no memory.
    pub fn buffer<T: Element>(&self, len: usize) -> Result<CommBuffer<T>, CollectiveError> {
        let memory = match len.saturating_mul(T::TYPE.size()) {
            0 => None,
            bytes => Some(self.core.borrow().domain().alloc(bytes)?),
        };
        Ok(CommBuffer::new(memory, self.id))
    }

    /// A vector of `len` zeroes in memory of a GPU, for this communicator's operations on GPUs.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`] if there is none.
    pub fn gpu_buffer<T: Element>(&self, gpu: Gpu, len: usize) -> Result<CommBuffer<T, OnGpu>, CollectiveError> {
        self.core.borrow_mut().gpu = Some(gpu);
        let memory = match len.saturating_mul(T::TYPE.size()) {
            0 => None,
            bytes => Some(gpu.alloc(bytes).map_err(MemoryError::from)?),
        };
        Ok(CommBuffer::new(memory, self.id))
    }

    /// Memory of a GPU as a vector, such as another library's that was [adopted](Gpu::adopt). What is left at its end, less than
    /// an element, takes no part.
    pub fn gpu_vector<T: Element>(&self, memory: GpuBuffer) -> CommBuffer<T, OnGpu> {
        self.core.borrow_mut().gpu = Some(memory.gpu());
        CommBuffer::new(Some(memory), self.id)
    }

    /// Which algorithm to use for the collectives that it does; [`Algorithm::Auto`] for all. All ranks must ask for the
    /// same.
    pub fn set_algorithm(&self, algorithm: Algorithm) {
        for collective in Collective::ALL.into_iter().filter(|&collective| algorithm.does(collective)) {
            self.wishes.borrow_mut().set(collective, Wish { algorithm, ..Wish::default() });
        }
    }

    /// Uses an algorithm for a collective whatever the program asks for later; or for all that it does, as far as it can do what
    /// they are to do.
    pub(crate) fn fix_algorithm(&self, collective: Option<Collective>, algorithm: Algorithm) {
        let wish = Wish { algorithm, fixed: true, lenient: collective.is_none() };
        let all = Collective::ALL.into_iter().filter(|&other| algorithm.does(other));
        for collective in all.filter(|&other| collective.is_none_or(|collective| collective.name() == other.name())) {
            self.wishes.borrow_mut().set(collective, wish);
        }
    }

    /// Uses what another communicator uses whatever the program asks for, as far as plans are for as many ranks.
    pub(super) fn inherit(&self, from: &Communicator) {
        let fixed = from.wishes.borrow().0.map(|wish| if wish.fixed { wish } else { Wish::default() });
        self.wishes.replace(Wishes(fixed));
        let plans = &from.core.borrow().own_plans;
        let fitting = plans.iter().filter(|own| own.fixed && own.plan.spec.ranks.0 == self.size);
        self.core.borrow_mut().own_plans.extend(fitting.cloned());
    }

    /// Runs that plan for operations that are what its [`spec`](Plan::spec) says, instead of one that an algorithm makes. It
    /// takes the place of an earlier plan for the same. All ranks must set the same, between the same operations. What was
    /// [started](Self::start) before is run to its end first, so that it waits for the other ranks.
    ///
    /// # Errors
    /// [`CollectiveError::OwnPlan`] if it is for another number of ranks, for what no operation is, as a gather in place, or is not
    /// [proved right](Plan::verify). Where the communicator has ended, also by what was started before, its error.
    pub fn set_plan(&self, plan: Plan) -> Result<(), CollectiveError> {
        self.use_plan(plan, false)
    }

    /// The same; a plan that is `fixed` is used whatever the program asks for.
    pub(crate) fn use_plan(&self, mut plan: Plan, fixed: bool) -> Result<(), CollectiveError> {
        let wrong = |why: String| CollectiveError::OwnPlan(why.into());
        if plan.spec.ranks.0 != self.size {
            let (ranks, size) = (plan.spec.ranks.0, self.size);
            return Err(wrong(format!(
                "it is for {ranks} ranks, and there are {size}: make one for as many (-n {size})"
            )));
        }
        if let Some(why) = plan.spec.why_no_operation() {
            return Err(wrong(format!("no operation would go by it: {why}")));
        }
        let proof = plan.verify().map_err(|error| wrong(format!("{error}; `qpair plan verify` shows where")))?;
        plan.spec = plan.spec.of_operation();
        // As all ranks find, and not only those two.
        if plan.programs.iter().any(has_too_many_messages) {
            return Err(wrong("it has more messages from one rank to another than can be numbered".to_owned()));
        }
        let mut core = self.core.borrow_mut();
        core.run_all();
        if let Some(error) = core.error() {
            return Err(error.clone());
        }
        let before = core.own_plans.iter().position(|other| other.plan.spec == plan.spec);
        let own = OwnPlan { plan, canonical: proof.canonical, fixed };
        match before.and_then(|at| core.own_plans.get_mut(at)) {
            Some(before) if before.fixed && !fixed => {}
            Some(before) => *before = own,
            None => core.own_plans.push(own),
        }
        core.cache.clear();
        Ok(())
    }

    /// How collectives go, where that is not left to the cost model. With other segments or copies than by default, what was
    /// [measured](crate::tune::Fastest) of algorithms counts for nothing. All ranks must set the same, between the same operations.
    ///
    /// No more than 16 KiB is copied where ranks are on one node, and where they are on several no more than is copied there
    /// [by default](Tuning::eager), however large that is.
    ///
    /// What was [started](Self::start) before is run to its end first, so that it waits for the other ranks. How that ended its
    /// [`Pending`](crate::Pending) tells.
    pub fn set_tuning(&self, tuning: Tuning) {
        let mut core = self.core.borrow_mut();
        core.run_all();
        let most = core.tuner.most_eager();
        core.tuner.tuning = Tuning { eager: tuning.eager.map(|eager| eager.min(most)), ..tuning };
        core.cache.clear();
    }

    /// What operations cost, by which algorithms are chosen, instead of what rank 0 measured, also of the
    /// [algorithms](crate::tune::Fastest) themselves. All ranks must set the same, between the same operations. What was
    /// [started](Self::start) before is run to its end first, so that it waits for the other ranks; how that ended its
    /// [`Pending`](crate::Pending) tells.
    ///
    /// # Errors
    /// [`ModelError`] if a parameter makes no sense.
    pub fn set_cost_model(&self, model: CostModel) -> Result<(), ModelError> {
        model.check()?;
        let mut core = self.core.borrow_mut();
        core.run_all();
        (core.tuner.model, core.tuner.fastest, core.origin) = (model, Fastest::default(), Origin::Set);
        core.cache.clear();
        Ok(())
    }

    /// What algorithms are chosen by: the same on all ranks.
    ///
    /// ```
    /// # use qpair_collectives::{Algorithm, Communicator, Elements, Ranks, Spec};
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let spec = Spec::all_reduce(Ranks(comm.size() as u32), Elements(1 << 20), 4);
    /// for candidate in comm.tuner().candidates(&spec) {
    ///     println!("{}: {:.1} us", candidate.algorithm, candidate.price.seconds * 1e6);
    /// }
    /// # Ok::<(), qpair_collectives::BootstrapError>(())
    /// ```
    pub fn tuner(&self) -> Tuner {
        self.core.borrow().tuner.clone()
    }

    /// The algorithm that an operation which is that `spec` goes by now, with vectors in memory of GPUs or not:
    /// [`Algorithm::Listed`] for a [plan](Self::set_plan) of its own. What was [asked for](Self::set_algorithm) counts, and what
    /// QPAIR_ALGORITHM and QPAIR_PLANS say (see [`Environment`]).
    ///
    /// ```
    /// # use qpair_collectives::{Algorithm, Communicator, Elements, Ranks, Spec};
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let spec = Spec::all_reduce(Ranks(comm.size() as u32), Elements(1 << 20), 4);
    /// comm.set_algorithm(Algorithm::Ring);
    /// assert_eq!(comm.algorithm(&spec, false)?, Algorithm::Ring);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RecipeError`] if what was asked for does not do that.
    pub fn algorithm(&self, spec: &Spec, on_gpu: bool) -> Result<Algorithm, RecipeError> {
        let Wish { algorithm: wish, lenient, .. } = self.wishes.borrow().of(spec.collective);
        let key = Key { spec: spec.clone(), data_type: None, op: None, wish, lenient, on_gpu };
        let core = self.core.borrow();
        Ok(key.decide(&core.tuner.where_vectors_are(on_gpu), &core.own_plans)?.algorithm())
    }

    /// What communicators know that are made of this one's ranks.
    pub(super) fn known(&self) -> Known {
        let core = self.core.borrow();
        Known { model: core.tuner.model, fastest: core.tuner.fastest.clone(), origin: core.origin.clone() }
    }

    /// How long this rank waits for another before it gives up, 300 s unless set. Time in which nothing comes counts.
    pub fn set_timeout(&self, limit: Duration) {
        self.core.borrow_mut().limit = limit;
    }

    /// Records from now on what this rank does when, operation by operation and step by step, and keeps the last `events`.
    /// It costs two readings of the clock per step, and what short operations save that run straight: with their steps recorded they
    /// go by the engine, as longer ones do. After an error the record tells what came before it.
    pub fn record(&self, events: usize) {
        if let Some(net) = &mut self.core.borrow_mut().net {
            net.recorder = Some(Box::new(Recorder::new(events)));
        }
    }

    /// What was [recorded](Self::record) so far, or up to the error that ended the communicator.
    pub fn trace(&self) -> Trace {
        self.core.borrow().trace()
    }

    /// What was decided, and why: ranks and hosts, how this rank waits, algorithms, connections.
    pub fn explain(&self) -> Explanation {
        Explanation::new(&self.core.borrow(), self.rank, &self.members)
    }

    /// What an operation on elements `T` is looked up by.
    #[inline]
    pub(super) fn key<T: Element, L: Location>(
        &self,
        collective: Collective,
        counts: Counts,
        in_place: bool,
        op: Option<ReduceOp>,
    ) -> Key {
        let spec = Spec {
            collective,
            ranks: Ranks(self.size),
            counts,
            element_size: T::TYPE.size() as u32,
            in_place,
            finish: op.is_some_and(|op| op.scale_after(self.size).is_some()),
        };
        let Wish { algorithm: wish, lenient, .. } = self.wishes.borrow().of(collective);
        Key { spec, data_type: Some(T::TYPE), op, wish, lenient, on_gpu: L::ON_GPU }
    }

    pub(super) fn barrier_key(&self) -> Key {
        let spec = Spec::new(Collective::Barrier, Ranks(self.size), Elements(0), 1);
        let Wish { algorithm: wish, lenient, .. } = self.wishes.borrow().of(Collective::Barrier);
        Key { spec, data_type: None, op: None, wish, lenient, on_gpu: false }
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The address at which others reach this rank.
    pub(super) fn ip(&self) -> IpAddr {
        self.ip
    }

    /// What connections among these ranks are near to. Those of one host go over its memory; others keep the NICs that were
    /// divided among all.
    pub(super) fn near_among(&self, mut ranks: impl Iterator<Item = usize>) -> Option<Near> {
        let one_host = ranks.all(|rank| self.node_of(rank) == self.node());
        (!one_host).then(|| self.near.clone())
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.core.borrow().limit
    }

    pub(super) fn core(&self) -> &RefCell<Core> {
        &self.core
    }

    /// How many operations were run straight, and how many of those to begin with alone.
    #[cfg(test)]
    pub(crate) fn run_straight(&self) -> [u32; 2] {
        self.core.borrow().straight.ended
    }

    /// How many messages were taken before they were waited for.
    #[cfg(test)]
    pub(crate) fn taken_ahead(&self) -> u32 {
        self.core.borrow().straight.ahead
    }

    pub(super) fn core_mut(&mut self) -> &mut Core {
        self.core.get_mut()
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let core = self.core.get_mut();
        if std::thread::panicking() {
            core.watch.report(Fault::Failed { rank: self.rank, reason: "it panicked".into() });
        } else {
            core.run_last();
        }
        core.watch.leave(self.rank);
        core.say_goodbye();
    }
}
