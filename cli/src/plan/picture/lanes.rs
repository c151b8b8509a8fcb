//! Where the lanes and bars stand: a lane per rank, with rows for sends above and below what the rank works at.

use qpair::collectives::StepKind;

use super::svg::Rect;
use crate::plan::examined::Examined;
use crate::plan::words::from_to;

/// What a bar is, by the step that it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Send,
    Receive,
    ReceiveReduce,
    Copy,
    Reduce,
    Finish,
}

impl Class {
    pub const ALL: [Class; 6] =
        [Self::Send, Self::Receive, Self::ReceiveReduce, Self::Reduce, Self::Copy, Self::Finish];

    fn of(kind: &StepKind) -> Self {
        match kind {
            StepKind::Send { .. } => Self::Send,
            StepKind::Recv { .. } => Self::Receive,
            StepKind::RecvReduce { .. } => Self::ReceiveReduce,
            StepKind::Copy { .. } => Self::Copy,
            StepKind::Reduce { .. } => Self::Reduce,
            StepKind::Finish { .. } => Self::Finish,
        }
    }

    /// Its name in the file, in the legend, and its colour.
    pub const fn look(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Send => ("send", "send, until taken", "#9db8d2"),
            Self::Receive => ("recv", "receive", "#4f8fd0"),
            Self::ReceiveReduce => ("recv-reduce", "receive and reduce", "#e0813c"),
            Self::Reduce => ("reduce", "reduce", "#f0b27a"),
            Self::Copy => ("copy", "copy", "#a3adb7"),
            Self::Finish => ("finish", "finish", "#57a773"),
        }
    }
}

/// A step, or some that are too short to tell apart.
#[derive(Debug, Clone)]
pub struct Bar {
    pub class: Class,
    /// From where to where, in pixels.
    pub from: f64,
    pub to: f64,
    /// What is told of it.
    pub tip: String,
    /// What may stand in it.
    pub text: String,
    steps: u32,
}

/// The lane of a rank.
#[derive(Debug)]
pub struct Lane {
    pub rank: u32,
    pub rect: Rect,
    /// Where the bars of its work stand.
    pub work_top: f64,
    pub work: Vec<Bar>,
    /// Rows of sends to lower ranks, from the work upwards; and to higher ones, downwards.
    pub up: Vec<Vec<Bar>>,
    pub down: Vec<Vec<Bar>>,
}

/// Time to the right.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub left: f64,
    pub width: f64,
    pub seconds: f64,
}

impl Scale {
    pub fn x(&self, seconds: f64) -> f64 {
        if self.seconds > 0.0 { self.left + self.width * seconds / self.seconds } else { self.left }
    }
}

impl Lane {
    /// The lane of `rank`, which begins at `top`.
    pub fn of(examined: &Examined, rank: u32, scale: &Scale, top: f64) -> Self {
        let (mut work, mut up, mut down) = (Vec::new(), Vec::new(), Vec::new());
        let steps = examined.plan().program(rank).into_iter().flat_map(|program| program.steps());
        for (step, (kind, moment)) in steps.map(|step| step.kind).zip(examined.timeline.steps(rank)).enumerate() {
            let class = Class::of(&kind);
            let tip = format!("step {step}: {kind}; {}", from_to(moment.begin, moment.end));
            let from = scale.x(moment.begin);
            let to = scale.x(moment.end).max(from + THIN);
            let bar = Bar { class, from, to, tip, text: text(&kind), steps: 1 };
            match kind {
                StepKind::Send { peer, .. } if peer < rank => up.push(bar),
                StepKind::Send { .. } => down.push(bar),
                _ => work.push(bar),
            }
        }
        let work = pack(work, 1).into_iter().next().unwrap_or_default();
        let (up, down) = (pack(up, ROWS), pack(down, ROWS));
        let above = PAD + up.len() as f64 * ROW;
        let height = above + WORK + down.len() as f64 * ROW + PAD;
        let rect = Rect { x: scale.left - 4.0, y: top, w: scale.width + 8.0, h: height };
        Self { rank, rect, work_top: top + above, work, up, down }
    }

    pub fn bottom(&self) -> f64 {
        self.rect.y + self.rect.h
    }

    /// The place of a bar of work.
    pub fn work_rect(&self, bar: &Bar) -> Rect {
        Rect { x: bar.from, y: self.work_top, w: bar.to - bar.from, h: WORK }
    }

    /// The places of sends, with their bars.
    pub fn sends(&self) -> impl Iterator<Item = (Rect, &Bar)> {
        let rect = |bar: &Bar, y| Rect { x: bar.from, y, w: bar.to - bar.from, h: ROW - 1.0 };
        let up = (1..).zip(&self.up).flat_map(move |(row, bars)| {
            let y = self.work_top - f64::from(row) * ROW;
            bars.iter().map(move |bar| (rect(bar, y), bar))
        });
        let down = (0..).zip(&self.down).flat_map(move |(row, bars)| {
            let y = self.work_top + WORK + 1.0 + f64::from(row) * ROW;
            bars.iter().map(move |bar| (rect(bar, y), bar))
        });
        up.chain(down)
    }
}

/// What may stand in a bar, after the bar's length.
fn text(kind: &StepKind) -> String {
    match kind {
        StepKind::Recv { peer, .. } => format!("from {peer}"),
        StepKind::RecvReduce { peer, .. } => format!("reduce {peer}"),
        StepKind::Send { peer, .. } => format!("to {peer}"),
        StepKind::Copy { .. } => "copy".to_owned(),
        StepKind::Reduce { .. } => "reduce".to_owned(),
        StepKind::Finish { .. } => "finish".to_owned(),
    }
}

/// Puts bars into as few rows as keep them apart, and what does not fit into the last one. Bars that are too short to tell
/// from their neighbours become one with them, so that there are no more than there is room for.
fn pack(mut bars: Vec<Bar>, most: usize) -> Vec<Vec<Bar>> {
    bars.sort_by(|a, b| a.from.total_cmp(&b.from).then(a.to.total_cmp(&b.to)));
    let mut rows: Vec<Vec<Bar>> = Vec::new();
    for bar in bars {
        let ends = rows.iter().map(|row| row.last().map_or(f64::MIN, |last| last.to));
        let free = ends.enumerate().find(|(_, end)| *end <= bar.from + SLACK).map(|(row, _)| row);
        match free {
            None if rows.len() < most => rows.push(vec![bar]),
            free => {
                let row = free.unwrap_or(most - 1);
                let last = rows[row].last_mut();
                match last {
                    Some(last) if free.is_none() || (bar.to < last.to + THIN && last.to - last.from < 2.0 * THIN) => {
                        last.join(&bar);
                    }
                    _ => rows[row].push(bar),
                }
            }
        }
    }
    rows
}

impl Bar {
    fn join(&mut self, other: &Bar) {
        self.steps += 1;
        self.to = self.to.max(other.to);
        self.tip = format!("{} steps, too short to tell apart", self.steps);
        self.text = String::new();
    }
}

/// The height of the bars of a rank's work.
pub const WORK: f64 = 22.0;
/// The height of a row of sends, with the line that keeps it apart from the next.
const ROW: f64 = 6.0;
/// Rows of sends up, and down.
const ROWS: usize = 3;
const PAD: f64 = 3.0;
/// The least width of a bar: what one can see.
const THIN: f64 = 0.8;
/// By how much bars may overlap: what rounding and the least width make.
const SLACK: f64 = 0.81;
