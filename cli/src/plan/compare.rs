//! `qpair plan compare`: the algorithms for a collective, side by side.

use clap::Args;
use qpair::collectives::tune::Tuner;
use qpair::collectives::{Algorithm, Collective, Spec};
use serde::Serialize;

use super::args::{Place, Terms, collective, collectives};
use super::error::PlanError;
use super::examined::{Known, refuted};
use super::figures::Figures;
use super::limits::{Limit, MAX_RANKS};
use super::load::Loaded;
use super::setting::Setting;
use super::show::Predicted;
use super::words::{Range, us};
use crate::output::{print, print_object};
use crate::period::Period;
use crate::size::Size;
use crate::table;

/// Compares the algorithms that do a collective: steps, messages in a row, bytes, and predicted time at several sizes.
///
/// What auto takes is marked. --nodes, --islands, --cores and --model say for which machine (`here` for this one's, as communicators have
/// it); `qpair bench` measures.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  qpair plan compare all-reduce -n 8
  qpair plan compare broadcast -n 16 -c 4K -c 16M --root 3
  qpair plan compare all-to-all -n 8 -c 64,1K --json")]
pub struct CompareArgs {
    #[arg(value_parser = collective, help = collectives())]
    collective: Collective,
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: u32,
    /// Elements of the vector, or of each block where the collective is of blocks; takes K, M, G; may be several
    #[arg(short, long, value_name = "COUNT", value_delimiter = ',', default_value = "1K,64K,1M,64M")]
    count: Vec<Size>,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    setting: Setting,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Give up after this time
    #[arg(long, value_name = "TIME", default_value = "60")]
    time_limit: Period,
}

/// Prints the table.
///
/// # Errors
/// [`PlanError`] if there is no such collective, or it takes too long.
pub fn run(args: CompareArgs) -> Result<(), PlanError> {
    let (limit, work) = (Limit(args.time_limit.0), args.clone());
    let comparison = limit.within(move || Comparison::of(&work))?;
    if args.json { Ok(print_object(&comparison)?) } else { Ok(print(&comparison.text(&args))?) }
}

/// All algorithms that do it.
#[derive(Debug, Serialize)]
struct Comparison {
    collective: &'static str,
    ranks: u32,
    element_size: u32,
    /// Elements of the vector, or of each block.
    counts: Vec<u64>,
    /// Those of them at which auto takes what was the fastest when it was measured.
    measured: Vec<u64>,
    algorithms: Vec<Row>,
    /// What is not in the table, and why.
    left_out: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    algorithm: &'static str,
    canonical: bool,
    /// By count.
    points: Vec<Point>,
}

/// An algorithm at a count.
#[derive(Debug, Serialize)]
struct Point {
    count: u64,
    #[serde(flatten)]
    figures: Figures,
    predicted: Predicted,
    /// Whether none is faster, by the model.
    best: bool,
    /// Whether communicators choose it.
    auto: bool,
}

/// What is asked for at a count.
struct Asked {
    count: u64,
    spec: Spec,
    /// What communicators choose, if they can.
    auto: Option<Algorithm>,
}

impl Asked {
    fn of(args: &CompareArgs, count: u64, tuner: &Tuner) -> Result<Self, PlanError> {
        let spec = args.terms.spec(args.collective, args.ranks, count)?;
        let auto = tuner.choose(&spec, Algorithm::Auto).ok();
        Ok(Self { count, spec, auto })
    }
}

impl Comparison {
    fn of(args: &CompareArgs) -> Result<Self, PlanError> {
        let tuner = args.terms.tuner(&args.place, &args.setting)?;
        let barrier = args.collective == Collective::Barrier;
        let mut counts: Vec<u64> = args.count.iter().map(|count| if barrier { 0 } else { count.0 }).collect();
        counts.sort_unstable();
        counts.dedup();
        let element_size = args.terms.spec(args.collective, args.ranks, 0)?.element_size;
        let mut all = Self {
            collective: args.collective.name(),
            ranks: args.ranks,
            element_size,
            counts,
            measured: Vec::new(),
            algorithms: Vec::new(),
            left_out: Vec::new(),
        };
        let candidates = Algorithm::ALL.into_iter().filter(|algorithm| {
            !matches!(algorithm, Algorithm::Auto | Algorithm::Listed) && algorithm.does(args.collective)
        });
        let asked: Result<Vec<_>, PlanError> = all.counts.iter().map(|&count| Asked::of(args, count, &tuner)).collect();
        let asked = asked?;
        all.measured =
            asked.iter().filter(|asked| tuner.case(&asked.spec).is_some()).map(|asked| asked.count).collect();
        for algorithm in candidates {
            match Row::of(args, algorithm, &asked, &tuner) {
                Ok(row) => all.algorithms.push(row),
                // Of one algorithm; others may do.
                Err(error @ (PlanError::Recipe(_) | PlanError::Steps)) => {
                    all.left_out.push(format!("{algorithm}: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        all.mark_best();
        Ok(all)
    }

    fn mark_best(&mut self) {
        for at in 0..self.counts.len() {
            let seconds = |row: &Row| row.points[at].predicted.seconds();
            let least = self.algorithms.iter().map(seconds).fold(f64::INFINITY, f64::min);
            self.algorithms.iter_mut().for_each(|row| row.points[at].best = seconds(row) <= least);
        }
    }

    fn text(&self, args: &CompareArgs) -> String {
        let times = self.counts.iter().map(|&count| match args.collective {
            Collective::Barrier => "time (us)".to_owned(),
            _ => format!("{} (us)", Size(count)),
        });
        let fixed = ["algorithm", "steps", "in a row", "sent", "scratch", "canonical"].map(str::to_owned);
        let header: Vec<String> = fixed.into_iter().chain(times).collect();
        let rows = self.algorithms.iter().map(Row::cells).collect();
        let table = table::whole(&header.iter().map(String::as_str).collect::<Vec<_>>(), rows);
        let title = format!("{} among {} ranks, elements of {} B", self.collective, self.ranks, self.element_size);
        format!("{title}\n\n{table}\n\n{}", self.remarks(args).join("\n"))
    }

    /// By what auto chooses.
    fn choice(&self) -> String {
        let counts: Vec<String> = self.measured.iter().map(|&count| Size(count).to_string()).collect();
        let kept = "what was the fastest when `qpair bench --compare --keep` measured it";
        let model = "by the same model in closed form, by which communicators choose unless told otherwise";
        match counts.len() {
            0 => format!("+  what auto takes, {model}"),
            some if some == self.counts.len() => format!("+  what auto takes: {kept}"),
            _ => format!("+  what auto takes: at {} {kept}; else {model}", counts.join(", ")),
        }
    }

    fn remarks(&self, args: &CompareArgs) -> Vec<String> {
        let mut remarks = vec![
            format!("*  the least time, step by step, by {}; qpair bench measures", args.setting.name()),
            self.choice(),
            "steps of all ranks and messages in a row: from the least size to the greatest".to_owned(),
        ];
        if args.collective != Collective::Barrier {
            let s = if args.collective.has_blocks() { "all blocks together" } else { "the vector" };
            remarks.push(format!("sent by the rank that sends most, and scratch, at the greatest size: S is {s}"));
        }
        if !args.place.has_parts() && Algorithm::Hierarchical.does(args.collective) {
            remarks.push("hierarchical: all ranks share a node here; --nodes and --islands say otherwise".to_owned());
        }
        remarks.extend(self.left_out.iter().map(|what| format!("left out: {what}")));
        remarks
    }
}

impl Row {
    fn of(args: &CompareArgs, algorithm: Algorithm, asked: &[Asked], tuner: &Tuner) -> Result<Self, PlanError> {
        let mut row = Row { algorithm: algorithm.name(), canonical: true, points: Vec::new() };
        for (at, Asked { count, spec, auto }) in asked.iter().enumerate() {
            let loaded = Loaded::of(args.terms.recipe(spec.clone(), algorithm, tuner)?)?;
            let known = Known::of(&loaded.plan, tuner).map_err(|fault| refuted(&loaded, fault))?;
            // The order does not depend on the size, and a proof takes longer than all the rest.
            if at == 0 {
                row.canonical = loaded.plan.verify().map_err(|fault| refuted(&loaded, fault))?.canonical;
            }
            let predicted = Predicted::of(known.timeline.cost());
            let auto = *auto == Some(algorithm);
            row.points.push(Point { count: *count, figures: known.figures, predicted, best: false, auto });
        }
        Ok(row)
    }

    fn cells(&self) -> Vec<String> {
        let range = |number: fn(&Figures) -> u64| {
            let numbers = || self.points.iter().map(|point| number(&point.figures));
            Range(numbers().min().unwrap_or(0), numbers().max().unwrap_or(0)).to_string()
        };
        let times = |bytes: u64, vector: u64| match (bytes, vector) {
            (0, _) | (_, 0) => "0".to_owned(),
            _ => format!("{:.2} S", bytes as f64 / vector as f64),
        };
        let greatest = |number: fn(&Figures) -> u64| {
            let last = self.points.last();
            last.map_or_else(String::new, |point| times(number(&point.figures), point.figures.vector))
        };
        let canonical = if self.canonical { "yes" } else { "no" };
        let mut cells = vec![
            self.algorithm.to_owned(),
            range(|figures| figures.steps),
            range(|figures| figures.messages_in_a_row),
            greatest(|figures| figures.sent.max),
            greatest(|figures| figures.scratch),
            canonical.to_owned(),
        ];
        cells.extend(self.points.iter().map(|point| {
            let marks = [(point.best, '*'), (point.auto, '+')];
            let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
            format!("{} {marks}", us(point.predicted.seconds())).trim_end().to_owned()
        }));
        cells
    }
}
