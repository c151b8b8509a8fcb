//! Tokens on their way to experts.

use std::fmt;

use qpair_verbs::calc::Element;

use super::error::DispatchError;
use super::grants::grant;
use super::routed::{Route, Routed};
use crate::communicator::{CommBuffer, Communicator};
use crate::error::CollectiveError;

/// Brings tokens to experts on other ranks, and back: the two all-to-alls of a mixture of experts.
///
/// A token is a row of `width` elements. Experts are spread evenly over the ranks: with 8 experts on 4 ranks, rank 0 has
/// experts 0 and 1. Each call may route otherwise; ranks first exchange how many rows each gives.
/// For several experts per token, give it several times, and add up what comes back.
///
/// ```
/// use qpair_collectives::{Communicator, training::Dispatch};
///
/// let comm = Communicator::group(1)?.remove(0);
/// let mut dispatch = Dispatch::<f32>::new(&comm, 2, 3)?; // 2 experts, rows of 3 elements
/// let tokens = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0];
/// let mut routed = dispatch.route(&tokens, &[1, 0])?; // the first token to expert 1
/// for (expert, rows) in routed.experts_mut() {
///     rows.iter_mut().for_each(|value| *value *= 10.0_f32.powi(expert as i32));
/// }
/// let mut output = [0.0; 6];
/// routed.combine(|token, row| output[3 * token..][..3].copy_from_slice(row))?; // a gate's weight would go here
/// assert_eq!(output, [10.0, 10.0, 10.0, 2.0, 2.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dispatch<'a, T: Element> {
    comm: &'a Communicator,
    experts: usize,
    width: usize,
    capacity: Option<usize>,
    /// Numbers of rows: what this rank gives to each expert, and what each rank gives to its own.
    counts: [CommBuffer<i64>; 2],
    /// Rows of the last call, used again where the lengths are the same.
    rows: [CommBuffer<T>; 2],
}

impl<'a, T: Element> Dispatch<'a, T> {
    /// For so many experts, and rows of `width` elements; the same on all ranks.
    ///
    /// # Errors
    /// [`DispatchError::Experts`] unless their number is a multiple of the ranks; [`CollectiveError::Memory`] if there is no
    /// memory.
    pub fn new(comm: &'a Communicator, experts: usize, width: usize) -> Result<Self, DispatchError> {
        let ranks = comm.size();
        if experts == 0 || !experts.is_multiple_of(ranks) {
            return Err(DispatchError::Experts { experts, ranks });
        }
        let counts = [comm.buffer(experts)?, comm.buffer(experts)?];
        let rows = [comm.buffer(0)?, comm.buffer(0)?];
        Ok(Self { comm, experts, width, capacity: None, counts, rows })
    }

    /// Each expert takes at most so many rows per call, from all ranks together: the ranks that want more than an even part
    /// share what is left. Of the tokens of a rank for an expert, the first ones go; [`Routed::dropped`] tells the others.
    /// The same on all ranks. It costs a second exchange of counts.
    #[must_use = "it is the dispatch that has the capacity"]
    pub fn with_capacity(self, rows: usize) -> Self {
        Self { capacity: Some(rows), ..self }
    }

    /// This rank's experts.
    pub fn own_experts(&self) -> std::ops::Range<usize> {
        self.comm.block(self.experts, self.comm.rank())
    }

    /// Brings each token to its expert: `experts` has one for each row of `tokens`. Ranks may give different numbers of
    /// tokens, or none.
    ///
    /// # Errors
    /// [`DispatchError`]. Where this rank has no memory for what others give it the communicator ends, so that nobody waits for it:
    /// [`RankFailed`](CollectiveError::RankFailed).
    pub fn route(&mut self, tokens: &[T], experts: &[usize]) -> Result<Routed<'_, 'a, T>, DispatchError> {
        let expected = experts.len().saturating_mul(self.width);
        if tokens.len() != expected {
            let (tokens, width, len) = (experts.len(), self.width, tokens.len());
            return Err(DispatchError::Length { tokens, width, expected, len });
        }
        let mut by_expert = vec![Vec::new(); self.experts];
        for (token, &expert) in experts.iter().enumerate() {
            let none = DispatchError::NoSuchExpert { token, expert, experts: self.experts };
            by_expert.get_mut(expert).ok_or(none)?.push(token);
        }
        let mut came = self.exchange(&by_expert.iter().map(Vec::len).collect::<Vec<_>>())?;
        let mut dropped = Vec::new();
        if let Some(capacity) = self.capacity {
            came = self.bounded(&came, capacity)?;
            for (list, &granted) in by_expert.iter_mut().zip(self.counts[1].iter()) {
                dropped.extend(list.drain((granted.max(0) as usize).min(list.len())..));
            }
            dropped.sort_unstable();
        }
        let route = Route::new(by_expert, came, self.comm.size());
        self.send(tokens, &route)?;
        Ok(Routed::new(self, route, dropped))
    }

    /// Tells each rank a number for each of its experts. Gives what the ranks tell of this rank's: rank by rank. The rows of all
    /// together are no more than memory can hold, so that they can be added and multiplied.
    fn exchange(&mut self, numbers: &[usize]) -> Result<Vec<usize>, DispatchError> {
        let [gives, gets] = &mut self.counts;
        gives.iter_mut().zip(numbers).for_each(|(place, &number)| *place = number as i64);
        self.comm.all_to_all_into(gives, gets)?;
        let own = self.experts / self.comm.size();
        let (row, mut all) = (self.width.saturating_mul(T::TYPE.size()).max(1), 0_usize);
        let comm = self.comm;
        let check = |(at, &rows): (usize, &i64)| {
            let sum = usize::try_from(rows).ok().and_then(|rows| all.checked_add(rows));
            let sum = sum.filter(|&sum| sum <= isize::MAX as usize / row);
            let Some(sum) = sum else {
                // The others wait for what this rank would send next.
                comm.end_for(at / own, format!("it announced {rows} rows of tokens"));
                return Err(DispatchError::Announced { rank: at / own, rows });
            };
            Ok(sum - std::mem::replace(&mut all, sum))
        };
        gets.iter().enumerate().map(check).collect()
    }

    /// Grants what the ranks want of this rank's experts as far as the capacity goes, and tells them; what they grant in turn
    /// is in `counts[1]` then.
    fn bounded(&mut self, wanted: &[usize], capacity: usize) -> Result<Vec<usize>, DispatchError> {
        let own = self.experts / self.comm.size();
        let mut granted = vec![0; wanted.len()];
        for expert in 0..own {
            let wanted: Vec<_> = wanted.iter().skip(expert).step_by(own).copied().collect();
            for (rank, rows) in grant(&wanted, capacity).into_iter().enumerate() {
                granted[rank * own + expert] = rows;
            }
        }
        self.exchange(&granted)?;
        Ok(granted)
    }

    fn send(&mut self, tokens: &[T], route: &Route) -> Result<(), CollectiveError> {
        let (comm, width) = (self.comm, self.width);
        let (gives, gets) = (route.gives(width), route.gets(width));
        let [input, output] = &mut self.rows;
        fit(comm, input, gives.iter().sum())?;
        fit(comm, output, gets.iter().sum())?;
        for (row, token) in rows_mut(input, width).zip(route.tokens()) {
            row.copy_from_slice(&tokens[token * width..][..width]);
        }
        comm.all_to_all_v(input, &gives, output, &gets)
    }

    /// The rows that came, and then go back.
    pub(super) fn came(&mut self) -> &mut CommBuffer<T> {
        &mut self.rows[1]
    }

    /// Gives the rows that came back to those who gave them; gives those of this rank's own tokens.
    pub(super) fn send_back(&mut self, route: &Route) -> Result<&[T], CollectiveError> {
        let (gives, gets) = (route.gives(self.width), route.gets(self.width));
        let [input, output] = &mut self.rows;
        self.comm.all_to_all_v(output, &gets, input, &gives)?;
        Ok(input)
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }
}

impl<T: Element> fmt::Debug for Dispatch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dispatch({} experts, rows of {} {})", self.experts, self.width, T::TYPE)
    }
}

/// The rows of a vector; none where they have no elements.
fn rows_mut<T>(vector: &mut [T], width: usize) -> impl Iterator<Item = &mut [T]> {
    vector.chunks_exact_mut(width.max(1))
}

fn fit<T: Element>(comm: &Communicator, vector: &mut CommBuffer<T>, len: usize) -> Result<(), CollectiveError> {
    if vector.len() != len {
        *vector = comm.needed(comm.buffer(len))?;
    }
    Ok(())
}
