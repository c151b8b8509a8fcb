//! What rank 0 prints: a header, rows or tables as results come, and a summary; or a JSON object per measurement.

use qpair::collectives::tune::Fastest;
use qpair::verbs::Gpu;

use super::compare::{Blocks, Standing, fastest};
use super::error::BenchError;
use super::measure::Point;
use super::operation::op_name;
use super::plot;
use super::progress::Progress;
use super::row::{MEASURED, Row, VALUES, columns};
use super::wanted::Root;
use super::workload::Workload;
use crate::machine;
use crate::output::{PrintError, print, print_object, write_file};
use crate::table::RowTable;

/// Prints as rank 0, and keeps what the summary needs.
#[derive(Debug)]
pub struct Report<'a> {
    workload: &'a Workload,
    ranks: usize,
    /// Where vectors are, if not in the processor's memory.
    gpu: Option<Gpu>,
    out: Option<Output>,
    progress: Progress,
    failed: Option<PrintError>,
    blocks: Blocks,
    /// The measurements of each size.
    sizes: Vec<Vec<Point>>,
}

/// How results are printed.
#[derive(Debug)]
enum Output {
    Rows(RowTable),
    Comparison,
    Objects,
}

impl<'a> Report<'a> {
    /// A report that prints on rank 0 only, header first.
    pub fn begin(workload: &'a Workload, rank: usize, ranks: usize, gpu: Option<Gpu>) -> Self {
        let mut report = Report {
            workload,
            ranks,
            gpu,
            out: None,
            progress: Progress::none(),
            failed: None,
            blocks: Blocks::default(),
            sizes: Vec::new(),
        };
        if rank == 0 {
            report.out = Some(report.output());
            report.failed = report.header().err();
            report.progress = Progress::new(workload, ranks);
        }
        report
    }

    fn output(&self) -> Output {
        match self.workload {
            workload if workload.json => Output::Objects,
            workload if workload.compare => Output::Comparison,
            workload => Output::Rows(RowTable::new(&columns(workload))),
        }
    }

    fn header(&self) -> Result<(), PrintError> {
        let bus = self.workload.operation.bus();
        match &self.out {
            None | Some(Output::Objects) => return Ok(()),
            Some(_) => print(&format!("# qpair {} {}", env!("CARGO_PKG_VERSION"), self.title()))?,
        }
        print(&format!("# {}", machine::describe_launcher()))?;
        if let Some(gpu) = self.gpu {
            print(&format!(
                "# vectors on GPUs, of rank 0 on {} at {}",
                gpu.attributes().name,
                gpu.attributes().pci_address
            ))?;
        }
        let time = match self.workload.turns() {
            1 => "time: mean of one operation, on the slowest rank".to_owned(),
            turns => format!("time: median of {turns} turns, each the mean of one operation, on the slowest rank"),
        };
        match &self.out {
            Some(Output::Rows(table)) => {
                print(&format!("# {time}; 1 GB = 10^9 B; {}", bus.formula()))?;
                let groups = self.workload.placements.iter().enumerate();
                let groups = groups.map(|(at, placement)| (MEASURED + at * VALUES, placement.name()));
                let groups = if self.workload.operation.has_elements() { table.groups(groups) } else { "#".to_owned() };
                print(&format!("#\n{groups}\n{}", table.header()))
            }
            _ => print(&format!("# {time}; * the best; a what auto takes")),
        }
    }

    fn title(&self) -> String {
        let Workload { operation, kinds, root, .. } = self.workload;
        let kind = match &kinds[..] {
            _ if !operation.has_elements() => None,
            [(dtype, None)] => Some(dtype.to_string()),
            [(dtype, op)] => Some(format!("{} of {dtype}", op_name(*op))),
            kinds => Some(format!("{} types and operations", kinds.len())),
        };
        let root = root.map(|root| match root {
            Root::Rank(rank) => format!("root {rank}"),
            Root::All => "each rank as root".to_owned(),
        });
        let what = kind.into_iter().chain(root).collect::<Vec<_>>().join(", ");
        let what = if what.is_empty() { what } else { format!(" ({what})") };
        let ranks = if self.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", self.ranks) };
        format!("bench {}{what}, {ranks}", operation.name())
    }

    /// Whether results can not be printed any more.
    pub fn is_broken(&self) -> bool {
        self.failed.is_some()
    }

    /// One of the measurements of a size is done.
    pub fn measured(&mut self) {
        self.progress.step();
    }

    /// Takes the measurements of the next size.
    pub fn add(&mut self, points: Vec<Point>) {
        self.sizes.push(points);
        if self.failed.is_none() {
            let progress = self.progress.clone();
            self.failed = progress.aside(|| self.print_last()).err();
        }
    }

    fn print_last(&mut self) -> Result<(), PrintError> {
        let Some(points) = self.sizes.last() else { return Ok(()) };
        let standings = || points.iter().map(|point| Standing::of(point, points, self.workload, self.ranks));
        match &self.out {
            None => Ok(()),
            Some(Output::Rows(table)) => print(&table.row(&Row::cells(points, self.workload, self.ranks))),
            Some(Output::Objects) => points.iter().zip(standings()).try_for_each(|(point, standing)| {
                let standing = self.workload.compare.then_some(standing);
                print_object(&Row::new(point, standing, self.workload, self.ranks))
            }),
            Some(Output::Comparison) => {
                let standings = standings().collect();
                let full = self.blocks.add(points, standings, self.workload, self.ranks);
                full.map_or(Ok(()), |text| print(&text))
            }
        }
    }

    /// Prints the summary, and draws the picture.
    ///
    /// # Errors
    /// [`BenchError::Print`], [`BenchError::Plot`], [`BenchError::Write`] or [`BenchError::Keep`] on rank 0 if anything could not be
    /// printed, drawn, written or kept;
    /// [`BenchError::Wrong`] on every rank if any element was wrong.
    pub fn end(mut self) -> Result<(), BenchError> {
        self.progress.end();
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        if self.out.is_some() {
            self.summary()?;
            if let Some(path) = &self.workload.plot {
                let drawn = plot::draw(&self.title(), &self.sizes, self.workload, self.ranks);
                let svg = drawn.map_err(|reason| BenchError::Plot { path: path.clone(), reason })?;
                write_file(path, &svg)?;
            }
        }
        let points = || self.sizes.iter().flatten();
        let wrong = || points().filter_map(|point| point.wrong).filter(|&wrong| wrong != 0);
        match wrong().sum() {
            0 if self.out.is_some() && self.workload.keep => self.keep(),
            0 => Ok(()),
            sum => Err(BenchError::Wrong { wrong: sum, failed: wrong().count(), measured: points().count() }),
        }
    }

    /// Keeps which algorithm was the fastest at each size, on the machine of rank 0.
    fn keep(&self) -> Result<(), BenchError> {
        let cases = self.sizes.iter().filter_map(|points| fastest(points, self.workload, self.ranks));
        let path = Fastest::keep(cases)?;
        if let Some(Output::Objects) = self.out {
            return Ok(());
        }
        let text = "programs that start from now on choose the best in communicators like this one: kept in";
        Ok(print(&format!("# {text} {}", path.display()))?)
    }

    fn summary(&mut self) -> Result<(), PrintError> {
        let checked = match (self.workload.operation.has_elements(), self.workload.check) {
            (false, _) => "there are no results to check",
            (true, true) => "all results checked",
            (true, false) => "results not checked",
        };
        match &self.out {
            Some(Output::Rows(_)) if !self.workload.operation.has_elements() => print(&format!("#\n# {checked}")),
            Some(Output::Rows(_)) => {
                let points = || self.sizes.iter().flatten();
                let sum: f64 = points().map(|point| Row::new(point, None, self.workload, self.ranks).busbw_gb_s).sum();
                let (average, measured) = (sum / points().count().max(1) as f64, self.sizes.len());
                let sizes = match (measured, self.workload.kinds.len()) {
                    (1, _) => "size",
                    (_, 1) => "sizes",
                    _ => "rows",
                };
                print(&format!("#\n# average busbw: {average:.3} GB/s over {measured} {sizes}; {checked}"))
            }
            Some(Output::Comparison) => {
                if let Some(text) = self.blocks.rest(self.workload) {
                    print(&text)?;
                }
                self.blocks.summary(self.workload).map_or(Ok(()), |text| print(&format!("#\n# {text}")))?;
                let wrong =
                    self.sizes.iter().flatten().filter_map(|point| point.wrong).filter(|&wrong| wrong > 0).count();
                print(&format!("# {}", if wrong == 0 { checked } else { "SOME RESULTS ARE WRONG; --json shows which" }))
            }
            _ => Ok(()),
        }
    }
}
