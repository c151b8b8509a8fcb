//! Tokens that came to their experts.

use std::fmt;
use std::ops::Range;

use qpair_verbs::calc::Element;

use super::dispatch::Dispatch;
use crate::error::CollectiveError;

/// Rows that came from all ranks for this rank's experts, by expert.
///
/// Dropping it leaves the rows where they are; then all ranks must drop it.
#[must_use = "`combine` brings the rows back"]
pub struct Routed<'d, 'a, T: Element> {
    dispatch: &'d mut Dispatch<'a, T>,
    route: Route,
    dropped: Vec<usize>,
    /// Rows by expert; of one expert, by rank.
    rows: Vec<T>,
}

/// Which row goes where.
pub(super) struct Route {
    /// This rank's tokens for each expert of all.
    by_expert: Vec<Vec<usize>>,
    /// The rows that come: of each rank, for each expert of this one.
    came: Vec<usize>,
    ranks: usize,
}

impl<'d, 'a, T: Element> Routed<'d, 'a, T> {
    pub(super) fn new(dispatch: &'d mut Dispatch<'a, T>, route: Route, dropped: Vec<usize>) -> Self {
        let width = dispatch.width();
        let came = dispatch.came();
        let mut rows = Vec::with_capacity(came.len());
        for range in route.pieces() {
            rows.extend_from_slice(&came[range.start * width..range.end * width]);
        }
        Self { dispatch, route, dropped, rows }
    }

    /// This rank's experts, with their rows one after the other: as many as came, of all ranks.
    pub fn experts_mut(&mut self) -> impl Iterator<Item = (usize, &mut [T])> {
        let width = self.dispatch.width();
        let mut rest = &mut self.rows[..];
        let counts = self.route.rows_by_expert();
        self.dispatch.own_experts().zip(counts).map(move |(expert, rows)| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(rows * width);
            rest = others;
            (expert, own)
        })
    }

    /// This rank's tokens that did not go to their expert, since that takes no more, in order. They do not come back.
    pub fn dropped(&self) -> &[usize] {
        &self.dropped
    }

    /// Brings the rows back to where they came from. Calls `take` with each of this rank's tokens that went, in order, and its
    /// row.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn combine(self, mut take: impl FnMut(usize, &[T])) -> Result<(), CollectiveError> {
        let Self { dispatch, route, rows, .. } = self;
        let width = dispatch.width();
        let came = dispatch.came();
        let mut at = 0;
        for range in route.pieces() {
            let len = range.len() * width;
            came[range.start * width..][..len].copy_from_slice(&rows[at..at + len]);
            at += len;
        }
        let back = dispatch.send_back(&route)?;
        let mut places: Vec<_> = route.tokens().enumerate().map(|(row, token)| (token, row)).collect();
        places.sort_unstable();
        for (token, row) in places {
            take(token, &back[row * width..][..width]);
        }
        Ok(())
    }
}

impl<T: Element> fmt::Debug for Routed<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: usize = self.route.came.iter().sum();
        write!(f, "Routed({rows} rows by {:?}, {} dropped)", self.dispatch, self.dropped.len())
    }
}

impl Route {
    pub(super) fn new(by_expert: Vec<Vec<usize>>, came: Vec<usize>, ranks: usize) -> Self {
        Self { by_expert, came, ranks }
    }

    /// This rank's tokens in the order in which they are sent.
    pub(super) fn tokens(&self) -> impl Iterator<Item = usize> {
        self.by_expert.iter().flatten().copied()
    }

    /// How many elements this rank gives to each.
    pub(super) fn gives(&self, width: usize) -> Vec<usize> {
        let to_rank = |experts: &[Vec<usize>]| experts.iter().map(Vec::len).sum::<usize>() * width;
        self.by_expert.chunks(self.own()).map(to_rank).collect()
    }

    /// How many it gets of each.
    pub(super) fn gets(&self, width: usize) -> Vec<usize> {
        self.came.chunks(self.own()).map(|rows| rows.iter().sum::<usize>() * width).collect()
    }

    /// How many rows came for each of this rank's experts.
    fn rows_by_expert(&self) -> Vec<usize> {
        (0..self.own()).map(|expert| self.came.iter().skip(expert).step_by(self.own()).sum()).collect()
    }

    /// Where rows are among those that came, by expert; of one expert, by rank.
    fn pieces(&self) -> Vec<Range<usize>> {
        let mut begin = 0;
        let ranges: Vec<_> = self
            .came
            .iter()
            .map(|&rows| {
                begin += rows;
                begin - rows..begin
            })
            .collect();
        let of_expert = |expert| ranges.iter().skip(expert).step_by(self.own()).cloned();
        (0..self.own()).flat_map(of_expert).collect()
    }

    /// How many experts each rank has.
    fn own(&self) -> usize {
        self.by_expert.len() / self.ranks
    }
}
