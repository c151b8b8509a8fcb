//! Algorithms beside each other: which is the best at each size, and how far from it the automatic choice is.

use qpair::collectives::Algorithm;
use qpair::collectives::tune::Case;
use serde::Serialize;

use super::measure::Point;
use super::operation::{Placement, op_name};
use super::row::bytes;
use super::workload::Workload;
use crate::size::Size;

/// How a measurement stands to those of other algorithms for the same.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Standing {
    /// Whether it was the fastest. Of those that took the same time one is: the automatic choice, or else the first.
    best: bool,
    /// Whether it is what the library chooses by itself.
    auto: bool,
    /// Its time in times of the best.
    times_best: f64,
}

impl Standing {
    /// How `point` stands to those of `points` that are in the same placement.
    pub fn of(point: &Point, points: &[Point], workload: &Workload, ranks: usize) -> Self {
        let same = points.iter().filter(|other| other.call.placement == point.call.placement);
        let chosen = workload.chosen(&point.call, ranks);
        let order = |other: &Point| (other.seconds, other.algorithm != chosen);
        let best = same.min_by(|a, b| {
            let ((a, other_than_a), (b, other_than_b)) = (order(a), order(b));
            a.total_cmp(&b).then(other_than_a.cmp(&other_than_b))
        });
        let best = best.unwrap_or(point);
        Standing {
            best: best.asked == point.asked,
            auto: point.algorithm == chosen,
            times_best: point.seconds / best.seconds,
        }
    }
}

/// Which algorithm was the fastest at one size, in all placements together, of those that the library chooses from, which were all
/// measured: to be kept. What it chooses by itself stays where that is about as fast.
pub fn fastest(points: &[Point], workload: &Workload, ranks: usize) -> Option<Case> {
    let call = &points.first()?.call;
    let time = |algorithm: Algorithm| -> f64 {
        points.iter().filter(|point| point.asked == algorithm).map(|point| point.seconds).sum()
    };
    let spec = workload.operation.spec(call, 0, ranks);
    let all = workload.tuner.candidates(&spec).into_iter().map(|candidate| candidate.algorithm);
    let best = all.min_by(|&a, &b| time(a).total_cmp(&time(b)))?;
    let chosen = workload.chosen(call, ranks);
    let algorithm = if time(chosen) <= ALIKE * time(best) { chosen } else { best };
    Case::of(&spec, &workload.tuner.seats, &workload.tuner.model, algorithm)
}

/// Tables of algorithms and sizes. As many sizes as fit a line make a block.
#[derive(Debug, Default)]
pub struct Blocks {
    block: Vec<Column>,
    done: Vec<Column>,
}

/// What was measured at one size.
type Column = Vec<(Point, Standing, u64)>;

impl Blocks {
    /// Takes the measurements of the next size; gives the text of a block that it fills, or the one before if it is of
    /// another kind.
    pub fn add(
        &mut self,
        points: &[Point],
        standings: Vec<Standing>,
        workload: &Workload,
        ranks: usize,
    ) -> Option<String> {
        let size = |point: &Point| bytes(point, workload.operation, ranks);
        let column: Column = points.iter().zip(standings).map(|(&point, on)| (point, on, size(&point))).collect();
        let kind = |column: &Column| column.first().map(|(point, ..)| (point.call.dtype, point.call.op));
        let other = self.block.last().is_some_and(|last| kind(last) != kind(&column));
        let before = if other { self.rest(workload) } else { None };
        self.block.push(column);
        if self.block.len() == SIZES { self.rest(workload) } else { before }
    }

    /// The text of the sizes that are left, if any.
    pub fn rest(&mut self, workload: &Workload) -> Option<String> {
        let columns = std::mem::take(&mut self.block);
        let tables = workload.placements.iter().map(|&placement| table(&columns, placement, workload));
        let text = tables.collect::<Vec<_>>().join("\n");
        let some = !columns.is_empty();
        self.done.extend(columns);
        some.then_some(text)
    }

    /// How well the automatic choice did, if it was among what was measured.
    pub fn summary(&self, workload: &Workload) -> Option<String> {
        let auto = || self.done.iter().flatten().filter(|(_, standing, _)| standing.auto);
        let best = auto().filter(|(_, standing, _)| standing.best).count();
        let worst = auto().max_by(|a, b| a.1.times_best.total_cmp(&b.1.times_best))?;
        let (count, (point, standing, size)) = (auto().count(), worst);
        if best == count {
            return Some("auto takes the best in every case".to_owned());
        }
        let what = match workload.operation.has_elements() {
            true => format!("{} at {}, {}", point.algorithm, Size(*size), point.call.placement.name()),
            false => point.algorithm.to_string(),
        };
        let cases = if count == 1 { "case" } else { "cases" };
        let times = standing.times_best;
        Some(format!(
            "auto takes the best in {best} of {count} {cases}, and at most {times:.2} times its time ({what})"
        ))
    }
}

/// A line per algorithm, and one that says how far from the best the automatic choice is.
fn table(columns: &[Column], placement: Placement, workload: &Workload) -> String {
    let Some((first, ..)) = columns.first().and_then(|column| column.first()) else { return String::new() };
    let names = workload.algorithms.iter().map(|algorithm| algorithm.name().len());
    let wide = names.max().unwrap_or_default().max(LAST.len() + 2).max(8);
    let here = |column: &Column, algorithm: Algorithm| -> Option<(Point, Standing, u64)> {
        let at = |(point, ..): &&(Point, Standing, u64)| point.call.placement == placement && point.asked == algorithm;
        column.iter().find(at).copied()
    };
    let line = |name: &str, cells: &mut dyn Iterator<Item = String>| {
        let cells: String = cells.map(|cell| format!("{cell:>CELL$}")).collect();
        format!("{name:wide$}{cells}").trim_end().to_owned()
    };
    let mut lines = vec!["#".to_owned()];
    if workload.operation.has_elements() {
        let kind = match first.call.op {
            None => first.call.dtype.to_string(),
            op => format!("{} of {}", op_name(op), first.call.dtype),
        };
        lines.push(format!("# {}, {kind}: time (us) by size (B)", placement.name()));
        let sizes = columns.iter().filter_map(|column| column.first()).map(|(.., size)| format!("{}  ", Size(*size)));
        lines.push(line("#", &mut sizes.into_iter()));
    } else {
        lines.push(format!("{:wide$}{:>CELL$}", "# time (us)", ""));
    }
    for &algorithm in &workload.algorithms {
        let mut cells = columns.iter().map(|column| match here(column, algorithm) {
            None => "-  ".to_owned(),
            Some((point, standing, _)) => {
                let mark = |is, mark| if is { mark } else { ' ' };
                let time = point.seconds * 1e6;
                let time = if time < 9999.0 { format!("{time:.2}") } else { format!("{time:.0}") };
                format!("{time}{}{}", mark(standing.best, '*'), mark(standing.auto, 'a'))
            }
        });
        lines.push(line(algorithm.name(), &mut cells));
    }
    let mut ratios = columns.iter().map(|column| {
        let mut here = column.iter().filter(|(point, ..)| point.call.placement == placement);
        let auto = here.find(|(_, standing, _)| standing.auto);
        auto.map_or("-  ".to_owned(), |(_, standing, _)| format!("{:.2}  ", standing.times_best))
    });
    lines.push(line(&format!("# {LAST}"), &mut ratios));
    lines.join("\n")
}

/// Times that are no further apart may be the other way round the next time.
const ALIKE: f64 = 1.03;

/// So that a line has about a hundred characters.
const SIZES: usize = 8;
const CELL: usize = 11;
const LAST: &str = "auto / best";

#[cfg(test)]
mod tests {
    use qpair::verbs::calc::{DataType, ReduceOp};

    use super::super::operation::Call;
    use super::super::workload::tests::parsed;
    use super::*;

    /// A size whose measurements took these times.
    fn size(count: usize, workload: &Workload, us: &[f64]) -> Vec<Point> {
        let call = Call { dtype: DataType::F32, op: Some(ReduceOp::Sum), count, ..Call::default() };
        let point = |(&asked, us): (&Algorithm, &f64)| Point {
            call,
            asked,
            algorithm: asked,
            seconds: us / 1e6,
            spread: [us / 1e6; 2],
            operations: 1,
            wrong: Some(0),
        };
        workload.algorithms.iter().zip(us).map(point).collect()
    }

    #[test]
    fn the_best_and_the_choice_are_marked() {
        let line = "all-reduce --placement in --algorithm ring,exchange,direct";
        let workload = parsed(line).expect("it fits");
        let mut blocks = Blocks::default();
        for (count, us) in [(2, [4.0, 2.5, 3.0]), (1 << 20, [12345.0, 20000.0, 15431.25])] {
            let points = size(count, &workload, &us);
            let standings = points.iter().map(|point| Standing::of(point, &points, &workload, 2)).collect();
            assert_eq!(blocks.add(&points, standings, &workload, 2), None);
        }
        let expected = "\
#
# in-place, sum of f32: time (us) by size (B)
#                    8         4M
ring              4.00      12345*
exchange          2.50*a    20000
direct            3.00      15431 a
# auto / best     1.00       1.25";
        let is = blocks.rest(&workload).expect("two sizes");
        assert_eq!(is, expected, "{is}");
        let text = "auto takes the best in 1 of 2 cases, and at most 1.25 times its time (direct at 4M, in-place)";
        assert_eq!(blocks.summary(&workload).as_deref(), Some(text));
    }

    #[test]
    fn one_of_those_that_took_the_same_time_is_the_best() {
        let workload = parsed("all-reduce --placement in --algorithm ring,exchange,direct").expect("it fits");
        // The choice is exchange.
        for (us, best) in [([2.5, 2.5, 2.5], 1), ([2.0, 2.5, 2.0], 0), ([3.0, 2.5, 2.5], 1)] {
            let points = size(2, &workload, &us);
            let standings: Vec<_> = points.iter().map(|point| Standing::of(point, &points, &workload, 2)).collect();
            assert!(
                standings[1].auto && standings.iter().enumerate().all(|(at, on)| on.best == (at == best)),
                "{us:?}"
            );
        }
    }

    #[test]
    fn the_fastest_is_kept_but_for_a_choice_that_is_as_fast() {
        let workload = parsed("all-reduce --placement in --compare --keep").expect("it fits");
        // The choice is exchange.
        for (ring, exchange, kept) in
            [(2.0, 2.5, Algorithm::Ring), (2.45, 2.5, Algorithm::Exchange), (2.6, 2.5, Algorithm::Exchange)]
        {
            let us = workload.algorithms.iter().map(|algorithm| match algorithm {
                Algorithm::Ring => ring,
                Algorithm::Exchange => exchange,
                // On one node it is none that is chosen from.
                Algorithm::Hierarchical => 1.0,
                _ => 3.0,
            });
            let points = size(2, &workload, &us.collect::<Vec<_>>());
            let case = fastest(&points, &workload, 2).expect("it can be kept");
            assert_eq!((case.algorithm(), case.bytes()), (kept, 8));
        }
    }

    #[test]
    fn a_full_block_and_another_kind_begin_a_new_one() {
        let workload = parsed("all-reduce --placement in --algorithm ring,direct").expect("it fits");
        let mut blocks = Blocks::default();
        let mut add = |count, dtype| {
            let mut points = size(count, &workload, &[1.0, 2.0]);
            points.iter_mut().for_each(|point| point.call.dtype = dtype);
            let standings = points.iter().map(|point| Standing::of(point, &points, &workload, 2)).collect();
            blocks.add(&points, standings, &workload, 2)
        };
        let texts: Vec<_> = (1..=2 * SIZES).map(|count| add(count, DataType::F32).is_some()).collect();
        let full = |at: usize| at == SIZES || at == 2 * SIZES;
        assert_eq!(texts, (1..=2 * SIZES).map(full).collect::<Vec<_>>());
        assert_eq!(add(1, DataType::I8), None);
        assert!(add(1, DataType::U8).expect("that of i8").contains("sum of i8"));
    }
}
