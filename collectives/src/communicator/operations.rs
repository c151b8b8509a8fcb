//! The operations that return when they are done.
//!
//! Those that end in `_into` take what is given from one vector, which stays as it is, and put the result into another.

use std::ops::Range;

use qpair_verbs::calc::{Element, ReduceOp};

use super::buffer::CommBuffer;
use super::comm::Communicator;
use super::keys::roles;
use super::location::Location;
use super::operands::{Ended, Operands};
use crate::error::CollectiveError;
use crate::execute::Key;
use crate::plan::{Collective, Counts};

impl Communicator {
    /// Combines the vectors of all ranks, element by element: each rank's becomes the result, with the same bits on all.
    ///
    /// # Errors
    /// [`CollectiveError`]; what is then in the vector is not specified. So with all operations.
    #[inline]
    pub fn all_reduce<T: Element, L: Location>(
        &self,
        vector: &mut CommBuffer<T, L>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let key = self.whole::<T, L>(Collective::AllReduce, vector.len(), true, Some(op));
        self.operate(&key, vector)
    }

    /// Combines the `input` of all ranks, element by element: each rank's `output`, of the same length, becomes the result.
    ///
    /// # Errors
    /// [`CollectiveError`].
    #[inline]
    pub fn all_reduce_into<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let key = self.whole::<T, L>(Collective::AllReduce, input.len(), false, Some(op));
        self.operate_into(&key, input, output)
    }

    /// The part of a vector of `len` elements that is `rank`'s, where it is cut into one block per rank.
    ///
    /// ```
    /// let comm = &qpair_collectives::Communicator::group(4)?[1];
    /// assert_eq!(comm.block(100, comm.rank()), 25..50);
    /// # Ok::<(), qpair_collectives::BootstrapError>(())
    /// ```
    ///
    /// # Panics
    /// If `len` is not a multiple of the number of ranks, or there is no such rank.
    pub fn block(&self, len: usize, rank: usize) -> Range<usize> {
        assert!(len.is_multiple_of(self.size()), "{len} elements are not cut evenly among {} ranks", self.size());
        assert!(rank < self.size(), "there is no rank {rank} among {}", self.size());
        let block = len / self.size();
        rank * block..(rank + 1) * block
    }

    /// Combines the vectors of all ranks, element by element: each rank's own [block](Self::block) becomes that of the
    /// result. What is in the other blocks afterwards is not specified.
    ///
    /// ```
    /// # use qpair_collectives::{Communicator, ReduceOp};
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let mut gradient = comm.buffer::<f32>(1 << 10)?;
    /// comm.reduce_scatter(&mut gradient, ReduceOp::Sum)?;
    /// let own = comm.block(gradient.len(), comm.rank());
    /// println!("{:?}", gradient[own].first());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the length is not a multiple of the number of ranks.
    #[inline]
    pub fn reduce_scatter<T: Element, L: Location>(
        &self,
        vector: &mut CommBuffer<T, L>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let key = self.blocks::<T, L>(Collective::ReduceScatter, vector.len(), true, Some(op))?;
        self.operate(&key, vector)
    }

    /// Combines the `input` of all ranks, element by element: each rank's `output` becomes its block of the result.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the input is not as long as all outputs.
    #[inline]
    pub fn reduce_scatter_into<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let counts = Counts::Even(output.len() as u64);
        let key = self.key::<T, L>(Collective::ReduceScatter, counts, false, Some(op));
        self.operate_into(&key, input, output)
    }

    /// [`reduce_scatter_into`](Self::reduce_scatter_into) with blocks of these lengths, by rank, the same on all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if vectors are not as long as `counts` say.
    pub fn reduce_scatter_v<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let key = self.key::<T, L>(Collective::ReduceScatter, self.ragged(counts)?, false, Some(op));
        self.operate_into(&key, input, output)
    }

    /// Collects the blocks of all ranks: each gives its own [block](Self::block) of the vector, and gets those of the
    /// others.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the length is not a multiple of the number of ranks.
    #[inline]
    pub fn all_gather<T: Element, L: Location>(&self, vector: &mut CommBuffer<T, L>) -> Result<(), CollectiveError> {
        let key = self.blocks::<T, L>(Collective::AllGather, vector.len(), true, None)?;
        self.operate(&key, vector)
    }

    /// Collects the `input` of all ranks, one after the other, in `output`.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the output is not as long as all inputs.
    #[inline]
    pub fn all_gather_into<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
    ) -> Result<(), CollectiveError> {
        let key = self.key::<T, L>(Collective::AllGather, Counts::Even(input.len() as u64), false, None);
        self.operate_into(&key, input, output)
    }

    /// [`all_gather_into`](Self::all_gather_into) with inputs of these lengths, by rank, the same on all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if vectors are not as long as `counts` say.
    pub fn all_gather_v<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let key = self.key::<T, L>(Collective::AllGather, self.ragged(counts)?, false, None);
        self.operate_into(&key, input, output)
    }

    /// Gives block b of the vector to rank b, and puts what rank b gives in its place.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the length is not a multiple of the number of ranks.
    #[inline]
    pub fn all_to_all<T: Element, L: Location>(&self, vector: &mut CommBuffer<T, L>) -> Result<(), CollectiveError> {
        let key = self.blocks::<T, L>(Collective::AllToAll, vector.len(), true, None)?;
        self.operate(&key, vector)
    }

    /// Gives block b of `input` to rank b, and puts what rank b gives into block b of `output`.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the two have not the same length, or that is not a
    /// multiple of the number of ranks.
    #[inline]
    pub fn all_to_all_into<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
    ) -> Result<(), CollectiveError> {
        let key = self.blocks::<T, L>(Collective::AllToAll, input.len(), false, None)?;
        self.operate_into(&key, input, output)
    }

    /// The same with blocks of any lengths: rank b is given `gives[b]` elements of `input`, one block after the other, and
    /// gives `gets[b]`, which come one after the other in `output`. What one rank gives must be what the other gets.
    ///
    /// ```
    /// # use qpair_collectives::Communicator;
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let (mut tokens, mut routed) = (comm.buffer::<f32>(3)?, comm.buffer::<f32>(3)?);
    /// comm.all_to_all_v(&mut tokens, &[3], &mut routed, &[3])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if vectors are not as long as the counts say, or this rank gives
    /// itself another number than it gets from itself. If a rank gives another number than is expected of it, both are named.
    pub fn all_to_all_v<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        gives: &[usize],
        output: &mut CommBuffer<T, L>,
        gets: &[usize],
    ) -> Result<(), CollectiveError> {
        let key = self.pairs::<T, L>(gives, gets)?;
        self.operate_into(&key, input, output)
    }

    /// Gives the root's vector to all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`].
    #[inline]
    pub fn broadcast<T: Element, L: Location>(
        &self,
        vector: &mut CommBuffer<T, L>,
        root: usize,
    ) -> Result<(), CollectiveError> {
        let root = self.root(root)?;
        let key = self.whole::<T, L>(Collective::Broadcast { root }, vector.len(), true, None);
        self.operate(&key, vector)
    }

    /// Combines the vectors of all ranks, element by element: the root's becomes the result. What is in those of other ranks
    /// afterwards is not specified.
    ///
    /// # Errors
    /// [`CollectiveError`].
    #[inline]
    pub fn reduce<T: Element, L: Location>(
        &self,
        vector: &mut CommBuffer<T, L>,
        op: ReduceOp,
        root: usize,
    ) -> Result<(), CollectiveError> {
        let root = self.root(root)?;
        let key = self.whole::<T, L>(Collective::Reduce { root }, vector.len(), true, Some(op));
        self.operate(&key, vector)
    }

    /// Combines the `input` of all ranks, element by element: the root's `output` becomes the result; those of other ranks
    /// are empty.
    ///
    /// # Errors
    /// [`CollectiveError`].
    #[inline]
    pub fn reduce_into<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        op: ReduceOp,
        root: usize,
    ) -> Result<(), CollectiveError> {
        let root = self.root(root)?;
        let key = self.whole::<T, L>(Collective::Reduce { root }, input.len(), false, Some(op));
        self.operate_into(&key, input, output)
    }

    /// Gives each rank its block of the root's `input`, in `output`; the inputs of other ranks are empty.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the root's input is not as long as all outputs.
    pub fn scatter<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        root: usize,
    ) -> Result<(), CollectiveError> {
        let root = self.root(root)?;
        let key = self.key::<T, L>(Collective::Scatter { root }, Counts::Even(output.len() as u64), false, None);
        self.operate_into(&key, input, output)
    }

    /// [`scatter`](Self::scatter) with blocks of these lengths, by rank, the same on all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if vectors are not as long as `counts` say.
    pub fn scatter_v<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        counts: &[usize],
        root: usize,
    ) -> Result<(), CollectiveError> {
        let root = self.root(root)?;
        let key = self.key::<T, L>(Collective::Scatter { root }, self.ragged(counts)?, false, None);
        self.operate_into(&key, input, output)
    }

    /// Collects the `input` of all ranks, one after the other, in the root's `output`; the outputs of other ranks are empty.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if the root's output is not as long as all inputs.
    pub fn gather<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        root: usize,
    ) -> Result<(), CollectiveError> {
        let root = self.root(root)?;
        let key = self.key::<T, L>(Collective::Gather { root }, Counts::Even(input.len() as u64), false, None);
        self.operate_into(&key, input, output)
    }

    /// [`gather`](Self::gather) with inputs of these lengths, by rank, the same on all ranks.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if vectors are not as long as `counts` say.
    pub fn gather_v<T: Element, L: Location>(
        &self,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
        counts: &[usize],
        root: usize,
    ) -> Result<(), CollectiveError> {
        let root = self.root(root)?;
        let key = self.key::<T, L>(Collective::Gather { root }, self.ragged(counts)?, false, None);
        self.operate_into(&key, input, output)
    }

    /// Sends a vector to another rank, which [receives](Self::recv) one of the same length. A short vector may be on its way
    /// when it returns; a long one has been taken. Others have no part in it: only between the two does it count which
    /// operation comes when.
    ///
    /// Two ranks that both send long vectors to each other first wait for each other: [start](Self::start) one of the two.
    ///
    /// ```
    /// use qpair_collectives::Communicator;
    ///
    /// fn rank(comm: Communicator) -> Result<(), qpair_collectives::CollectiveError> {
    ///     let mut activations = comm.buffer::<f32>(1000)?;
    ///     if comm.rank() == 0 {
    ///         activations.fill(0.5);
    ///         comm.send(&mut activations, 1)?;
    ///     } else {
    ///         comm.recv(&mut activations, 0)?;
    ///         assert_eq!(activations[..], [0.5; 1000]);
    ///     }
    ///     comm.barrier()
    /// }
    ///
    /// std::thread::scope(|scope| {
    ///     for comm in Communicator::group(2)? {
    ///         scope.spawn(|| rank(comm).expect("a transfer"));
    ///     }
    ///     Ok::<(), qpair_collectives::BootstrapError>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CollectiveError`]; [`NoSuchPeer`](CollectiveError::NoSuchPeer) if `to` is no other rank.
    pub fn send<T: Element, L: Location>(
        &self,
        vector: &mut CommBuffer<T, L>,
        to: usize,
    ) -> Result<(), CollectiveError> {
        let key = self.transfer::<T, L>(vector.len(), Some(to), None)?;
        self.operate(&key, vector)
    }

    /// Receives a vector that another rank [sends](Self::send).
    ///
    /// # Errors
    /// [`CollectiveError`]; [`NoSuchPeer`](CollectiveError::NoSuchPeer) if `from` is no other rank. If that sends another
    /// length or type, both are named.
    pub fn recv<T: Element, L: Location>(
        &self,
        vector: &mut CommBuffer<T, L>,
        from: usize,
    ) -> Result<(), CollectiveError> {
        let key = self.transfer::<T, L>(vector.len(), None, Some(from))?;
        self.operate(&key, vector)
    }

    /// Returns once all ranks have called it.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        self.core().borrow_mut().operate(&self.barrier_key(), Operands::default()).result
    }

    #[inline]
    fn operate<T: Element, L: Location>(
        &self,
        key: &Key,
        vector: &mut CommBuffer<T, L>,
    ) -> Result<(), CollectiveError> {
        if vector.owner() != self.id() {
            return Err(CollectiveError::ForeignBuffer);
        }
        let [input, data] = roles(&key.spec, self.rank() as u32, [None, vector.take().map(L::lend)]);
        let Ended { input, data, result } = self.core().borrow_mut().operate(key, Operands::new(input, data));
        vector.put(data.or(input).and_then(L::back));
        result
    }

    #[inline]
    fn operate_into<T: Element, L: Location>(
        &self,
        key: &Key,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
    ) -> Result<(), CollectiveError> {
        if input.owner() != self.id() || output.owner() != self.id() {
            return Err(CollectiveError::ForeignBuffer);
        }
        self.check_lengths(&key.spec, input.len(), output.len())?;
        let operands = Operands::new(input.take().map(L::lend), output.take().map(L::lend));
        let ended = self.core().borrow_mut().operate(key, operands);
        input.put(ended.input.and_then(L::back));
        output.put(ended.data.and_then(L::back));
        ended.result
    }
}
