//! What rank 0 prints: the header, a row per size, and the summary; or a JSON object per size.

use qpair::collectives::tune::{self, Tuning};
use qpair::collectives::{Elements, Ranks, Spec};
use serde::Serialize;

use super::args::{Subject, Workload};
use super::error::BenchError;
use crate::machine;
use crate::output::{PrintError, Results};
use crate::table::Column;

/// The measurement of one size, equal on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Elements of the vector.
    pub count: usize,
    /// Seconds that one operation took on the slowest rank, on average.
    pub seconds: f64,
    /// Operations that were timed.
    pub operations: u64,
    /// Wrong elements on all ranks; `None` if they were not checked.
    pub wrong: Option<u64>,
}

/// Prints as rank 0, and keeps what the summary needs.
#[derive(Debug)]
pub struct Report<'a> {
    workload: &'a Workload,
    ranks: usize,
    out: Option<Results>,
    failed: Option<PrintError>,
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
    algbw_gb_s: f64,
    busbw_gb_s: f64,
    wrong: Option<u64>,
    operations: u64,
}

impl<'a> Report<'a> {
    /// A report that prints on rank 0 only, header first.
    pub fn begin(workload: &'a Workload, rank: usize, ranks: usize) -> Self {
        let mut report = Report { workload, ranks, out: None, failed: None, busbw: Vec::new(), wrong: Vec::new() };
        if rank == 0 {
            let remarks = [
                machine::describe_launcher(),
                format!("time: mean of one operation, on the slowest rank; 1 GB = 10^9 B; {}", bus(workload)),
            ];
            match Results::begin(workload.json, &COLUMNS, &title(workload, ranks), &remarks) {
                Ok(out) => report.out = Some(out),
                Err(error) => report.failed = Some(error),
            }
        }
        report
    }

    /// Whether results can not be printed any more.
    pub fn is_broken(&self) -> bool {
        self.failed.is_some()
    }

    /// Takes the measurement of the next size.
    pub fn add(&mut self, point: &Point) {
        let row = self.row(point);
        let cells = [
            row.size.to_string(),
            row.count.to_string(),
            row.dtype.to_owned(),
            row.op.to_owned(),
            format!("{:.2}", row.time_us),
            format!("{:.3}", row.algbw_gb_s),
            format!("{:.3}", row.busbw_gb_s),
            row.wrong.map_or("-".to_owned(), |wrong| wrong.to_string()),
        ];
        if let Some(out) = &self.out {
            self.failed = out.row(&row, &cells).err();
        }
        self.busbw.push(row.busbw_gb_s);
        self.wrong.push(point.wrong.unwrap_or_default());
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// [`BenchError::Print`] on rank 0 if anything could not be printed; [`BenchError::Wrong`] on every rank if any
    /// element was wrong.
    pub fn end(self) -> Result<(), BenchError> {
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        let measured = self.busbw.len();
        if let Some(out) = &self.out {
            let average = self.busbw.iter().sum::<f64>() / measured.max(1) as f64;
            let sizes = if measured == 1 { "size" } else { "sizes" };
            let checked = if self.workload.check { "all results checked" } else { "results not checked" };
            out.end(&format!("average busbw: {average:.3} GB/s over {measured} {sizes}; {checked}"))?;
        }
        let sizes = self.wrong.iter().filter(|&&wrong| wrong != 0).count();
        match self.wrong.iter().sum() {
            0 => Ok(()),
            wrong => Err(BenchError::Wrong { wrong, sizes, measured }),
        }
    }

    fn row(&self, point: &Point) -> Row<'a> {
        let size = point.count as u64 * self.workload.dtype.size() as u64;
        let algbw = size as f64 / point.seconds / 1e9;
        let (op, root) = match &self.workload.subject {
            Subject::AllReduce(op) => (op.name(), None),
            Subject::Broadcast { root } => ("none", Some(*root)),
        };
        Row {
            collective: self.workload.subject.name(),
            ranks: self.ranks,
            size,
            count: point.count,
            dtype: self.workload.dtype.name(),
            op,
            root,
            algorithm: self.algorithm(size),
            time_us: point.seconds * 1e6,
            algbw_gb_s: algbw,
            busbw_gb_s: algbw * self.workload.subject.bus_factor(self.ranks),
            wrong: point.wrong,
            operations: point.operations,
        }
    }

    /// The algorithm that ran: what was asked for, or what communicators choose.
    fn algorithm(&self, size: u64) -> &'static str {
        let (asked, ranks) = (self.workload.algorithm, Ranks(self.ranks as u32));
        let spec = Spec::new(self.workload.subject.collective(), ranks, Elements(size), 1);
        let ran = tune::choose(&spec, &Tuning::default(), asked);
        ran.unwrap_or(asked).name()
    }
}

fn title(workload: &Workload, ranks: usize) -> String {
    let (name, dtype) = (workload.subject.name(), workload.dtype);
    let ranks = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    match workload.subject {
        Subject::AllReduce(op) => format!("bench {name} ({op} of {dtype}, in place), {ranks}"),
        Subject::Broadcast { root } => format!("bench {name} ({dtype} from rank {root}), {ranks}"),
    }
}

fn bus(workload: &Workload) -> &'static str {
    match workload.subject {
        Subject::AllReduce(_) => "busbw = algbw x 2(n-1)/n",
        Subject::Broadcast { .. } => "busbw = algbw",
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
