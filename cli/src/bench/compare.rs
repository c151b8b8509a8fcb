//! Algorithms beside each other: which is the best at each size, and how far from it the automatic choice is.

use qpair::collectives::Algorithm;
use serde::Serialize;

use super::measure::Point;
use super::operation::{Placement, op_name};
use super::row::bytes;
use super::workload::Workload;
use crate::size::Size;

/// How a measurement stands to those of other algorithms for the same.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Standing {
    /// Whether no other was faster.
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
        let best = same.map(|other| other.seconds).fold(f64::INFINITY, f64::min);
        let auto = workload.algorithm(Algorithm::Auto, &point.call, ranks) == point.algorithm;
        Standing { best: point.seconds <= best, auto, times_best: point.seconds / best }
    }
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
            true => format!("{} of {} B, {}", point.algorithm, Size(*size), point.call.placement.name()),
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
    let here = |column: &Column, algorithm| -> Option<(Point, Standing, u64)> {
        let at =
            |(point, ..): &&(Point, Standing, u64)| point.call.placement == placement && algorithm == Some(point.asked);
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
        let mut cells = columns.iter().map(|column| match here(column, Some(algorithm)) {
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

/// So that a line has about a hundred characters.
const SIZES: usize = 8;
const CELL: usize = 11;
const LAST: &str = "auto / best";
