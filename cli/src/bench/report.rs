//! What rank 0 prints: the header, a row per size, and the summary; or a JSON object per size.

use std::io;

use serde::Serialize;

use super::args::{Collective, Plan};
use super::error::BenchError;
use crate::machine;
use crate::table::{self, Column, RowTable};

/// The measurement of one size, equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Elements of the vector.
    pub count: usize,
    /// Seconds that one operation took on the slowest rank, on average.
    pub seconds: f64,
    /// Operations that were timed.
    pub iterations: u64,
    /// Wrong elements on all ranks; `None` if they were not checked.
    pub wrong: Option<u64>,
}

/// Prints as rank 0, and keeps what the summary needs.
#[derive(Debug)]
pub struct Report<'a> {
    plan: &'a Plan,
    ranks: usize,
    prints: bool,
    table: RowTable,
    busbw: Vec<f64>,
    wrong: Vec<u64>,
}

/// A row as JSON.
#[derive(Debug, Serialize)]
struct Row<'a> {
    collective: &'a str,
    ranks: usize,
    size: u64,
    count: usize,
    #[serde(rename = "type")]
    dtype: &'a str,
    op: &'a str,
    root: Option<usize>,
    algorithm: &'static str,
    time_us: f64,
    algbw_gbs: f64,
    busbw_gbs: f64,
    wrong: Option<u64>,
    iterations: u64,
}

impl<'a> Report<'a> {
    /// A report that prints on rank 0 only, header first.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn begin(plan: &'a Plan, rank: usize, ranks: usize, how: &str) -> io::Result<Self> {
        let prints = rank == 0;
        let table = RowTable::new(&COLUMNS);
        if prints && !plan.json {
            let version = env!("CARGO_PKG_VERSION");
            table::print(&format!("# qpair {version} {}, {how}", title(plan, ranks)))?;
            table::print(&format!("# {}", machine::describe()))?;
            table::print(&format!("# time: mean of one operation, on the slowest rank; 1 GB = 10^9 B; {}", bus(plan)))?;
            table::print("#")?;
            table::print(&table.header())?;
        }
        Ok(Report { plan, ranks, prints, table, busbw: Vec::new(), wrong: Vec::new() })
    }

    /// Takes the measurement of the next size.
    ///
    /// # Errors
    /// If standard output fails.
    pub fn add(&mut self, point: &Point) -> io::Result<()> {
        let row = self.row(point);
        self.busbw.push(row.busbw_gbs);
        self.wrong.push(point.wrong.unwrap_or_default());
        if !self.prints {
            return Ok(());
        }
        if self.plan.json {
            return table::print(&serde_json::to_string(&row)?);
        }
        table::print(&self.table.row(&[
            row.size.to_string(),
            row.count.to_string(),
            row.dtype.to_owned(),
            row.op.to_owned(),
            format!("{:.2}", row.time_us),
            format!("{:.3}", row.algbw_gbs),
            format!("{:.3}", row.busbw_gbs),
            row.wrong.map_or("-".to_owned(), |wrong| wrong.to_string()),
        ]))
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] if any element was wrong, on every rank.
    pub fn end(self) -> Result<(), BenchError> {
        let measured = self.busbw.len();
        let average = self.busbw.iter().sum::<f64>() / measured.max(1) as f64;
        if self.prints && !self.plan.json {
            let sizes = if measured == 1 { "size" } else { "sizes" };
            let checked = if self.plan.check { "all results checked" } else { "results not checked" };
            table::print(&format!("#\n# average busbw: {average:.3} GB/s over {measured} {sizes}; {checked}"))?;
        }
        let sizes = self.wrong.iter().filter(|&&wrong| wrong != 0).count();
        match self.wrong.iter().sum() {
            0 => Ok(()),
            wrong => Err(BenchError::Wrong { wrong, sizes, measured }),
        }
    }

    fn row(&self, point: &Point) -> Row<'a> {
        let size = point.count as u64 * self.plan.dtype.size() as u64;
        let algbw = size as f64 / point.seconds / 1e9;
        let (op, root) = match self.plan.collective {
            Collective::AllReduce(op) => (op.name(), None),
            Collective::Broadcast { root } => ("none", Some(root)),
        };
        Row {
            collective: self.plan.collective.name(),
            ranks: self.ranks,
            size,
            count: point.count,
            dtype: self.plan.dtype.name(),
            op,
            root,
            algorithm: self.plan.algorithm.name(),
            time_us: point.seconds * 1e6,
            algbw_gbs: algbw,
            busbw_gbs: algbw * self.plan.collective.bus_factor(self.ranks),
            wrong: point.wrong,
            iterations: point.iterations,
        }
    }
}

fn title(plan: &Plan, ranks: usize) -> String {
    let name = plan.collective.name();
    let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    match plan.collective {
        Collective::AllReduce(op) => format!("{name} ({op} of {}, in place), {ranks}", plan.dtype),
        Collective::Broadcast { root } => format!("{name} ({} from rank {root}), {ranks}", plan.dtype),
    }
}

fn bus(plan: &Plan) -> &'static str {
    match plan.collective {
        Collective::AllReduce(_) => "busbw = algbw x 2(n-1)/n",
        Collective::Broadcast { .. } => "busbw = algbw",
    }
}

const COLUMNS: [Column; 8] = [
    Column { name: "size", unit: "(B)", width: 11 },
    Column { name: "count", unit: "(elements)", width: 11 },
    Column { name: "type", unit: "", width: 5 },
    Column { name: "redop", unit: "", width: 5 },
    Column { name: "time", unit: "(us)", width: 11 },
    Column { name: "algbw", unit: "(GB/s)", width: 8 },
    Column { name: "busbw", unit: "(GB/s)", width: 8 },
    Column { name: "#wrong", unit: "", width: 6 },
];
