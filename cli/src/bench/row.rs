//! A measurement as a row: in the columns of nccl-tests, and as JSON.

use serde::Serialize;

use super::compare::Standing;
use super::measure::Point;
use super::operation::{Operation, op_name};
use super::wanted::Root;
use super::workload::Workload;
use crate::table::Column;

/// A row as JSON.
#[derive(Debug, Serialize)]
pub struct Row {
    collective: &'static str,
    ranks: usize,
    size: u64,
    count: usize,
    #[serde(rename = "type")]
    dtype: &'static str,
    op: String,
    root: RootCell,
    algorithm: &'static str,
    in_place: bool,
    gpu: bool,
    time_us: f64,
    /// Of the fastest and the slowest turn.
    time_min_us: f64,
    time_max_us: f64,
    algbw_gb_s: f64,
    /// In units of 10^9 B/s.
    pub busbw_gb_s: f64,
    wrong: Option<u64>,
    operations: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    standing: Option<Standing>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum RootCell {
    None,
    Rank(usize),
    All(&'static str),
}

impl Row {
    /// The row of a measurement; with how it stands to others, if it is compared with them.
    pub fn new(point: &Point, standing: Option<Standing>, workload: &Workload, ranks: usize) -> Self {
        let size = bytes(point, workload.operation, ranks);
        let algbw = size as f64 / point.seconds / 1e9;
        Row {
            collective: workload.operation.name(),
            ranks,
            size,
            count: point.call.count,
            dtype: if workload.operation.has_elements() { point.call.dtype.name() } else { "none" },
            op: op_name(point.call.op),
            root: match workload.root {
                None => RootCell::None,
                Some(Root::Rank(rank)) => RootCell::Rank(rank),
                Some(Root::All) => RootCell::All("all"),
            },
            algorithm: point.algorithm.name(),
            in_place: point.call.placement == super::operation::Placement::InPlace,
            gpu: workload.gpu,
            time_us: point.seconds * 1e6,
            time_min_us: point.spread[0] * 1e6,
            time_max_us: point.spread[1] * 1e6,
            algbw_gb_s: algbw,
            busbw_gb_s: algbw * workload.operation.bus().factor(ranks),
            wrong: point.wrong,
            operations: point.operations,
            standing,
        }
    }

    /// The cells of a size, measured in each placement.
    pub fn cells(points: &[Point], workload: &Workload, ranks: usize) -> Vec<String> {
        let mut cells = Vec::new();
        for (at, point) in points.iter().enumerate() {
            let row = Row::new(point, None, workload, ranks);
            if at == 0 {
                let root = match row.root {
                    // As nccl-tests has it.
                    RootCell::None => "-1".to_owned(),
                    RootCell::Rank(rank) => rank.to_string(),
                    RootCell::All(all) => all.to_owned(),
                };
                cells.extend([row.size.to_string(), row.count.to_string(), row.dtype.to_owned(), row.op, root]);
            }
            cells.extend([
                format!("{:.2}", row.time_us),
                format!("{:.3}", row.algbw_gb_s),
                format!("{:.3}", row.busbw_gb_s),
                row.wrong.map_or("-".to_owned(), |wrong| wrong.to_string()),
            ]);
        }
        cells
    }
}

/// The size of a measurement in bytes.
pub fn bytes(point: &Point, operation: Operation, ranks: usize) -> u64 {
    (point.call.count * point.call.dtype.size() * operation.blocks(ranks)) as u64
}

/// The columns: [what was measured](MEASURED), and [four](VALUES) for each placement.
pub fn columns(workload: &Workload) -> Vec<Column> {
    let column = |name, unit, width| Column { name, unit, width };
    let widest = |text: &dyn Fn(&super::workload::Kind) -> String| {
        workload.kinds.iter().map(|kind| text(kind).len()).max().unwrap_or_default()
    };
    let mut columns = vec![
        column("size", "(B)", 11),
        column("count", "(elements)", 10),
        column("type", "", widest(&|(dtype, _)| dtype.to_string())),
        column("redop", "", widest(&|(_, op)| op_name(*op))),
        column("root", "", 4),
    ];
    for _ in &workload.placements {
        columns.extend([
            column("time", "(us)", 9),
            column("algbw", "(GB/s)", 7),
            column("busbw", "(GB/s)", 7),
            column("#wrong", "", 6),
        ]);
    }
    columns
}

/// Columns that say what was measured.
pub const MEASURED: usize = 5;
/// Columns for each placement.
pub const VALUES: usize = 4;
