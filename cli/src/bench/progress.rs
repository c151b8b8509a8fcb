//! A bar on the terminal while there is little else to see.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use super::workload::{Effort, Workload};

/// Shows how many measurements are done, if somebody looks and it takes a while.
#[derive(Clone, Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Shows nothing.
    pub fn none() -> Self {
        Progress(ProgressBar::hidden())
    }

    /// For a whole workload. The bar is on standard error, or on the terminal of whoever started this process.
    pub fn new(workload: &Workload, ranks: usize) -> Self {
        let steps = workload.measurements(ranks);
        let quick = match workload.effort {
            Effort::Time(each) => each.saturating_mul(steps as u32) < LONG,
            Effort::Operations(_) => steps < MANY,
        };
        let target = match () {
            () if quick => ProgressDrawTarget::hidden(),
            () if io::stderr().is_terminal() => ProgressDrawTarget::stderr(),
            () if workload.progress => terminal().unwrap_or_else(ProgressDrawTarget::hidden),
            () => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} measurements, {eta} left");
        Progress(style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style)))
    }

    /// One more is done.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Does something that prints, with the bar out of the way.
    pub fn aside<R>(&self, then: impl FnOnce() -> R) -> R {
        self.0.suspend(then)
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// The terminal that this process belongs to, if any.
fn terminal() -> Option<ProgressDrawTarget> {
    let file = File::options().write(true).open("/dev/tty").ok()?;
    Some(ProgressDrawTarget::term_like_with_hz(Box::new(Terminal(Arc::new(file))), 5))
}

/// A terminal that takes the control sequences of a VT100.
#[derive(Clone, Debug)]
struct Terminal(Arc<File>);

impl Terminal {
    fn control(&self, count: usize, code: char) -> io::Result<()> {
        if count == 0 { Ok(()) } else { self.write_str(&format!("\x1b[{count}{code}")) }
    }
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        // Some terminals do not know.
        let columns = rustix::termios::tcgetwinsize(&*self.0).map_or(0, |size| size.ws_col);
        if columns == 0 { 80 } else { columns }
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.control(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.control(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.control(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.control(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.write_str("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        (&*self.0).write_all(text.as_bytes())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_str("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        (&*self.0).flush()
    }
}

/// Who waits longer wants to know how long.
const LONG: Duration = Duration::from_secs(2);
const MANY: usize = 20;
