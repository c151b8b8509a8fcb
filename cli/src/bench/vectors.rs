//! The memory of an operation, and the operation itself.

use std::ops::Range;

use qpair::collectives::{CollectiveError, CommBuffer, Communicator, Location, OnGpu, OnHost, Spec};
use qpair::verbs::calc::{Element, ReduceOp};
use qpair::verbs::{Gpu, MemoryError};

use super::operation::{Call, Operation, Placement};
use super::pattern::Pattern;
use super::scalar::Scalar;

/// One rank's vectors for an operation of one size, for each root that it is to have.
#[derive(Debug)]
pub struct Vectors<'a, T: Element> {
    comm: &'a Communicator,
    operation: Operation,
    call: Call,
    /// What the operation is by root: what it is, and which of the pairs it is on.
    by_root: Vec<(Spec, usize)>,
    first_root: usize,
    /// Of the roots, the one whose turn it is.
    next: usize,
    pairs: Vec<Pair<T>>,
    /// The same in memory of a GPU, if that is to be worked on.
    on_gpu: Vec<Pair<T, OnGpu>>,
    gives: Vec<usize>,
    gets: Vec<usize>,
}

/// What is given, if that stays as it is, and what the result is put into.
#[derive(Debug)]
struct Pair<T: Element, L: Location = OnHost> {
    input: CommBuffer<T, L>,
    data: CommBuffer<T, L>,
}

impl<'a, T: Scalar> Vectors<'a, T> {
    /// Memory for `operation`, called so, with each of these roots; of the GPU, if there is one.
    ///
    /// # Errors
    /// [`CollectiveError::Memory`].
    pub fn new(
        comm: &'a Communicator,
        operation: Operation,
        call: Call,
        roots: Range<usize>,
        gpu: Option<Gpu>,
    ) -> Result<Self, CollectiveError> {
        let (rank, ranks) = (comm.rank(), comm.size());
        let first_root = roots.start;
        let (mut by_root, mut pairs, mut on_gpu) = (Vec::new(), Vec::<Pair<T>>::new(), Vec::new());
        for root in roots {
            let spec = operation.spec(&Call { root, ..call }, rank, ranks);
            let (input, data) = (spec.input_len(rank as u32) as usize, spec.data_len(rank as u32) as usize);
            let fits = |pair: &Pair<T>| (pair.input.len(), pair.data.len()) == (input, data);
            let at = pairs.iter().position(fits).unwrap_or(pairs.len());
            if at == pairs.len() {
                pairs.push(Pair { input: comm.buffer(input)?, data: comm.buffer(data)? });
                if let Some(gpu) = gpu {
                    on_gpu.push(Pair { input: comm.gpu_buffer(gpu, input)?, data: comm.gpu_buffer(gpu, data)? });
                }
            }
            by_root.push((spec, at));
        }
        let counts = |pair: &dyn Fn(usize) -> (usize, usize)| -> Vec<usize> {
            (0..ranks).map(|other| operation.pair(call.count, pair(other), ranks)).collect()
        };
        let (gives, gets) = (counts(&|other| (rank, other)), counts(&|other| (other, rank)));
        Ok(Vectors { comm, operation, call, by_root, first_root, next: 0, pairs, on_gpu, gives, gets })
    }

    /// How many roots there are.
    pub fn roots(&self) -> usize {
        self.by_root.len()
    }

    /// Fills all vectors with one value, which the operation leaves as it is however often it is done.
    ///
    /// # Errors
    /// [`CollectiveError`] if a GPU's memory can not be written.
    pub fn rest(&mut self) -> Result<(), CollectiveError> {
        let value = if self.call.op == Some(ReduceOp::Prod) { T::whole(1) } else { T::default() };
        for pair in &mut self.pairs {
            pair.input.fill(value);
            pair.data.fill(value);
        }
        (0..self.on_gpu.len()).try_for_each(|at| self.upload(at))
    }

    /// Does the operation on fresh input with the `root`-th of the roots, and counts wrong elements.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn check(&mut self, pattern: &Pattern<T>, root: usize) -> Result<u64, CollectiveError> {
        let (spec, at) = &self.by_root[root];
        let (spec, at) = (spec.clone(), *at);
        let pair = &mut self.pairs[at];
        pattern.fill(&spec, &mut pair.input, &mut pair.data);
        self.upload(at)?;
        self.operate(root)?;
        self.download(at)?;
        Ok(pattern.wrong(&spec, &self.pairs[at].data))
    }

    /// Does the operation with the next of the roots, in turn.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn operate_next(&mut self) -> Result<(), CollectiveError> {
        let root = self.next;
        self.next = if root + 1 == self.roots() { 0 } else { root + 1 };
        self.operate(root)
    }

    /// Does the operation with the `root`-th of the roots.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn operate(&mut self, root: usize) -> Result<(), CollectiveError> {
        let at = self.by_root[root].1;
        let task = Task {
            comm: self.comm,
            operation: self.operation,
            call: &self.call,
            root: self.first_root + root,
            gives: &self.gives,
            gets: &self.gets,
        };
        match self.on_gpu.get_mut(at) {
            Some(pair) => task.run(pair),
            None => task.run(&mut self.pairs[at]),
        }
    }

    /// Copies a pair to the GPU, if it is to be there.
    fn upload(&mut self, at: usize) -> Result<(), CollectiveError> {
        let Some(there) = self.on_gpu.get_mut(at) else { return Ok(()) };
        let Pair { input, data } = &self.pairs[at];
        let written = there.input.write(0, input).and_then(|()| there.data.write(0, data));
        Ok(written.map_err(MemoryError::from)?)
    }

    /// Copies a result from the GPU, if it is there.
    fn download(&mut self, at: usize) -> Result<(), CollectiveError> {
        let Some(there) = self.on_gpu.get(at) else { return Ok(()) };
        Ok(there.data.read(0, &mut self.pairs[at].data).map_err(MemoryError::from)?)
    }
}

/// One operation, on vectors wherever they are.
struct Task<'a> {
    comm: &'a Communicator,
    operation: Operation,
    call: &'a Call,
    root: usize,
    gives: &'a [usize],
    gets: &'a [usize],
}

impl Task<'_> {
    fn run<T: Element, L: Location>(&self, pair: &mut Pair<T, L>) -> Result<(), CollectiveError> {
        use Operation as O;
        let Pair { input, data } = pair;
        let (comm, root, op) = (self.comm, self.root, self.call.op.unwrap_or(ReduceOp::Sum));
        let in_place = self.call.placement == Placement::InPlace;
        match self.operation {
            O::AllReduce if in_place => comm.all_reduce(data, op),
            O::AllReduce => comm.all_reduce_into(input, data, op),
            O::ReduceScatter if in_place => comm.reduce_scatter(data, op),
            O::ReduceScatter => comm.reduce_scatter_into(input, data, op),
            O::AllGather if in_place => comm.all_gather(data),
            O::AllGather => comm.all_gather_into(input, data),
            O::AllToAll if in_place => comm.all_to_all(data),
            O::AllToAll => comm.all_to_all_into(input, data),
            O::AllToAllV => comm.all_to_all_v(input, self.gives, data, self.gets),
            O::Broadcast => comm.broadcast(data, root),
            O::Reduce if in_place => comm.reduce(data, op, root),
            O::Reduce => comm.reduce_into(input, data, op, root),
            O::Scatter => comm.scatter(input, data, root),
            O::Gather => comm.gather(input, data, root),
            O::Barrier => comm.barrier(),
        }
    }
}
