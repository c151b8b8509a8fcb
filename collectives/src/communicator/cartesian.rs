//! Ranks as a grid.

use super::comm::Communicator;
use crate::error::{CollectiveError, SplitError};

/// The ranks of a communicator as a grid, the last dimension running fastest.
///
/// ```
/// use qpair_collectives::Cartesian;
///
/// let grid = Cartesian::new(&[2, 3], &[false, true]);
/// assert_eq!(grid.coordinates(4), [1, 1]);
/// assert_eq!(grid.rank(&[1, 1]), Some(4));
/// // One step along the second dimension, which is a ring: whom rank 5 receives from, and whom it sends to.
/// assert_eq!(grid.shift(5, 1, 1), (Some(4), Some(3)));
/// // The first is not.
/// assert_eq!(grid.shift(5, 0, 1), (Some(2), None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cartesian {
    dims: Vec<usize>,
    periodic: Vec<bool>,
}

impl Cartesian {
    /// A grid of these dimensions; those that are periodic are rings.
    ///
    /// # Panics
    /// If it is not told for each dimension whether it is periodic, a dimension is 0, or there are more places than a `usize` counts.
    pub fn new(dims: &[usize], periodic: &[bool]) -> Self {
        assert_eq!(dims.len(), periodic.len(), "say for each dimension whether it is periodic");
        assert!(dims.iter().all(|&dim| dim > 0), "a dimension of 0 holds no ranks");
        let places = dims.iter().try_fold(1, |places: usize, &dim| places.checked_mul(dim));
        assert!(places.is_some(), "a grid of {dims:?} has more places than can be counted");
        Self { dims: dims.to_vec(), periodic: periodic.to_vec() }
    }

    /// The lengths of `dimensions` dimensions of a grid of `ranks` ranks, as near to each other as that number allows: the
    /// longest, which comes first, is as short as can be, then the next.
    ///
    /// ```
    /// # use qpair_collectives::Cartesian;
    /// assert_eq!(Cartesian::balanced(48, 3), [4, 4, 3]);
    /// assert_eq!(Cartesian::balanced(72, 2), [9, 8]);
    /// assert_eq!(Cartesian::balanced(7, 2), [7, 1]);
    /// ```
    ///
    /// # Panics
    /// If either is 0.
    pub fn balanced(ranks: usize, dimensions: usize) -> Vec<usize> {
        assert!(ranks > 0 && dimensions > 0, "a grid has a rank and a dimension");
        let dims = shortest(ranks, dimensions, ranks);
        dims.unwrap_or_else(|| unreachable!("one dimension can have all ranks, and the others one"))
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.dims.iter().product()
    }

    /// The number of dimensions.
    pub fn dimensions(&self) -> usize {
        self.dims.len()
    }

    /// The coordinates of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn coordinates(&self, rank: usize) -> Vec<usize> {
        assert!(rank < self.size(), "there is no rank {rank} in a grid of {}", self.size());
        let mut rest = rank;
        let mut coordinates: Vec<usize> = self.dims.iter().rev().map(|&dim| (rest % dim, rest /= dim).0).collect();
        coordinates.reverse();
        coordinates
    }

    /// The rank at these coordinates; `None` outside.
    pub fn rank(&self, coordinates: &[usize]) -> Option<usize> {
        if coordinates.len() != self.dims.len() {
            return None;
        }
        let inside = coordinates.iter().zip(&self.dims).all(|(at, dim)| at < dim);
        inside.then(|| coordinates.iter().zip(&self.dims).fold(0, |rank, (at, dim)| rank * dim + at))
    }

    /// Whom `rank` receives from and sends to where all send `by` places along a dimension; `None` beyond an edge.
    ///
    /// # Panics
    /// If there is no such rank or dimension.
    pub fn shift(&self, rank: usize, dimension: usize, by: isize) -> (Option<usize>, Option<usize>) {
        let own = self.coordinates(rank);
        // Wide enough for any place and any distance.
        let (by, place, dim) = (by as i128, own[dimension] as i128, self.dims[dimension] as i128);
        let neighbour = |by: i128| {
            let at = place + by;
            let at = if self.periodic[dimension] { at.rem_euclid(dim) } else { at };
            let inside = (0..dim).contains(&at);
            let mut coordinates = own.clone();
            coordinates[dimension] = at.max(0) as usize;
            inside.then(|| self.rank(&coordinates)).flatten()
        };
        (neighbour(-by), neighbour(by))
    }
}

impl Communicator {
    /// A communicator of the ranks that differ from this one only along the `kept` dimensions of the grid: its row, say, or
    /// its plane. All ranks call it with the same dimensions.
    ///
    /// # Errors
    /// As [`split`](Self::split); [`CollectiveError::Length`] if the grid has not as many places as there are ranks.
    ///
    /// # Panics
    /// If there is no such dimension.
    pub fn split_grid(&self, grid: &Cartesian, kept: &[usize]) -> Result<Communicator, SplitError> {
        if grid.size() != self.size() {
            let (len, expected) = (grid.size(), self.size());
            let hint = "give the grid a place for each rank";
            return Err(CollectiveError::Length { what: "grid", len, expected, hint }.into());
        }
        let own = grid.coordinates(self.rank());
        kept.iter().for_each(|&dimension| assert!(dimension < own.len(), "there is no dimension {dimension}"));
        let others = (0..own.len()).filter(|dimension| !kept.contains(dimension));
        let color = others.fold(0, |color, dimension| color * grid.dims[dimension] + own[dimension]);
        let part = self.split(Some(color as u32), 0)?;
        part.ok_or_else(|| {
            SplitError::Collective(CollectiveError::NoSuchPeer { rank: self.rank(), ranks: self.size() })
        })
    }
}

/// Lengths whose product is `ranks`, none longer than `longest`, the first as short as can be, then the next.
fn shortest(ranks: usize, dimensions: usize, longest: usize) -> Option<Vec<usize>> {
    if dimensions == 1 {
        return (ranks <= longest).then(|| vec![ranks]);
    }
    let lengths = (1..=longest.min(ranks)).filter(|length| ranks.is_multiple_of(*length));
    lengths.into_iter().find_map(|length| {
        let mut rest = shortest(ranks / length, dimensions - 1, length)?;
        rest.insert(0, length);
        Some(rest)
    })
}
