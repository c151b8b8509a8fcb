//! Ranks as a graph: who is whose neighbour.

use qpair_verbs::calc::Element;

use super::buffer::CommBuffer;
use super::cartesian::Cartesian;
use super::comm::Communicator;
use super::location::Location;
use crate::error::CollectiveError;

/// Which ranks of a communicator give to which: a directed graph, the same on all ranks.
///
/// ```
/// use qpair_collectives::Neighbors;
///
/// // Rank 0 gives to all others, and each of these to the next.
/// let graph = Neighbors::new(4, [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]);
/// assert_eq!(graph.destinations(0), [1, 2, 3]);
/// assert_eq!(graph.sources(3), [0, 2]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbors {
    destinations: Vec<Vec<usize>>,
    sources: Vec<Vec<usize>>,
}

impl Neighbors {
    /// A graph of `ranks` ranks, with an edge from the first to the second of each pair. A pair that comes twice is one edge.
    ///
    /// # Panics
    /// If an edge names a rank that there is not.
    pub fn new(ranks: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut graph = Self { destinations: vec![Vec::new(); ranks], sources: vec![Vec::new(); ranks] };
        for (from, to) in edges {
            assert!(from.max(to) < ranks, "there is no rank {} in a graph of {ranks}", from.max(to));
            graph.destinations[from].push(to);
            graph.sources[to].push(from);
        }
        for neighbours in graph.destinations.iter_mut().chain(&mut graph.sources) {
            neighbours.sort_unstable();
            neighbours.dedup();
        }
        graph
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.destinations.len()
    }

    /// The ranks that `rank` gives to, in order.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn destinations(&self, rank: usize) -> &[usize] {
        &self.destinations[rank]
    }

    /// The ranks that give to `rank`, in order.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn sources(&self, rank: usize) -> &[usize] {
        &self.sources[rank]
    }
}

impl From<&Cartesian> for Neighbors {
    /// Each rank with those one step away along each dimension, both ways. Along a ring of two ranks both ways lead to the same,
    /// which is one neighbour; along one of one, to the rank itself.
    fn from(grid: &Cartesian) -> Self {
        let steps = |rank| {
            let along = (0..grid.dimensions()).map(move |dimension| grid.shift(rank, dimension, 1));
            along.flat_map(move |(before, after)| [before, after].into_iter().flatten().map(move |to| (rank, to)))
        };
        Self::new(grid.size(), (0..grid.size()).flat_map(steps))
    }
}

impl Communicator {
    /// Gives each destination of this rank its block of `input`, and puts the blocks of its sources into `output`, both in the
    /// order of ranks, whatever direction they are in. All blocks, of all ranks, have the same length. Ranks without neighbours
    /// take part with empty vectors.
    ///
    /// ```
    /// # use qpair_collectives::{Cartesian, Communicator, Neighbors};
    /// # let comm = Communicator::group(1)?.remove(0);
    /// // The edges of a field that lies on a ring of ranks.
    /// let ring = Neighbors::from(&Cartesian::new(&[comm.size()], &[true]));
    /// let neighbours = ring.destinations(comm.rank()).len();
    /// let (mut edges, mut halo) = (comm.buffer::<f32>(64 * neighbours)?, comm.buffer::<f32>(64 * neighbours)?);
    /// comm.neighbor_all_to_all(&ring, &mut edges, &mut halo)?;
    /// for (rank, block) in ring.sources(comm.rank()).iter().zip(halo.chunks(64)) {
    ///     println!("{} values from rank {rank}", block.len());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if a vector is not cut evenly among the neighbours, or the graph
    /// has not as many ranks as there are. If ranks have other graphs or lengths, two that differ are named.
    pub fn neighbor_all_to_all<T: Element, L: Location>(
        &self,
        graph: &Neighbors,
        input: &mut CommBuffer<T, L>,
        output: &mut CommBuffer<T, L>,
    ) -> Result<(), CollectiveError> {
        self.check_graph(graph)?;
        let gives = even("input", input.len(), graph.destinations(self.rank()).len())?;
        let gets = even("output", output.len(), graph.sources(self.rank()).len())?;
        self.exchange(graph, (input, &gives), (output, &gets))
    }

    /// The same with blocks of any lengths. As in [`all_to_all_v`](Self::all_to_all_v), each pair of ranks has a message that tells of
    /// what is given, neighbours or not: among many ranks with few neighbours each, [send and receive](Self::start) take less.
    ///
    /// The i-th destination is given `gives[i]` elements of `input`, and `gets[i]` come
    /// from the i-th source. What one rank gives must be what the other gets.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if there is not a length for each neighbour, vectors are not as
    /// long as all together, or the graph has not as many ranks as there are. If a rank gives another number than is expected of
    /// it, both are named.
    pub fn neighbor_all_to_all_v<T: Element, L: Location>(
        &self,
        graph: &Neighbors,
        input: &mut CommBuffer<T, L>,
        gives: &[usize],
        output: &mut CommBuffer<T, L>,
        gets: &[usize],
    ) -> Result<(), CollectiveError> {
        self.check_graph(graph)?;
        self.exchange(graph, (input, gives), (output, gets))
    }

    /// Along a graph of as many ranks as there are.
    fn exchange<T: Element, L: Location>(
        &self,
        graph: &Neighbors,
        (input, gives): (&mut CommBuffer<T, L>, &[usize]),
        (output, gets): (&mut CommBuffer<T, L>, &[usize]),
    ) -> Result<(), CollectiveError> {
        let gives = by_rank("list of lengths to give", graph.destinations(self.rank()), gives, self.size())?;
        let gets = by_rank("list of lengths to get", graph.sources(self.rank()), gets, self.size())?;
        self.all_to_all_v(input, &gives, output, &gets)
    }

    fn check_graph(&self, graph: &Neighbors) -> Result<(), CollectiveError> {
        let (len, expected) = (graph.size(), self.size());
        let hint = "make it of as many ranks as the communicator has";
        (len == expected).then_some(()).ok_or(CollectiveError::Length {
            what: "graph of neighbours",
            len,
            expected,
            hint,
        })
    }
}

/// The lengths of as many blocks as there are neighbours.
fn even(what: &'static str, len: usize, neighbours: usize) -> Result<Vec<usize>, CollectiveError> {
    let block = len.checked_div(neighbours).unwrap_or(0);
    let hint = "make it a block of the same length for each neighbour";
    let expected = block * neighbours;
    (len == expected).then(|| vec![block; neighbours]).ok_or(CollectiveError::Length { what, len, expected, hint })
}

/// The lengths by rank, of those that are given by neighbour.
fn by_rank(
    what: &'static str,
    neighbours: &[usize],
    lengths: &[usize],
    ranks: usize,
) -> Result<Vec<usize>, CollectiveError> {
    let (len, expected) = (lengths.len(), neighbours.len());
    if len != expected {
        return Err(CollectiveError::Length { what, len, expected, hint: "give a length for each neighbour" });
    }
    let mut all = vec![0; ranks];
    neighbours.iter().zip(lengths).for_each(|(&rank, &length)| all[rank] = length);
    Ok(all)
}
