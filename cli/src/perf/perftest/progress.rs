//! A line now and then for who watches a terminal: a long run goes on.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use super::settings::Settings;
use super::units::unit;
use crate::output::tell;

/// How far a stream is, told every [`EVERY`].
#[derive(Clone, Debug)]
pub struct Progress {
    size: usize,
    gbits: bool,
    begun: Instant,
    /// When the last line was due, and the messages that were done then.
    told: (Instant, u64),
}

impl Progress {
    /// That of a stream of messages of `size` bytes, if standard error is a terminal and this side prints at all.
    pub fn on_terminal(settings: &Settings, size: usize) -> Option<Self> {
        let watched = !settings.quiet && io::stderr().is_terminal();
        watched.then(|| Self::new(size, settings.gbits, Instant::now()))
    }

    fn new(size: usize, gbits: bool, now: Instant) -> Self {
        Progress { size, gbits, begun: now, told: (now, 0) }
    }

    /// Prints the line if it is due, when so many messages are done.
    pub fn look(&mut self, messages: u64) {
        if let Some(line) = self.line(Instant::now(), messages) {
            tell(&line);
        }
    }

    /// The line if it is due at `now`: the time since the beginning, and the bandwidth since the last line.
    fn line(&mut self, now: Instant, messages: u64) -> Option<String> {
        let (last, before) = self.told;
        let since = now.saturating_duration_since(last);
        if since < EVERY {
            return None;
        }
        self.told = (now, messages);
        let bytes = messages.saturating_sub(before) as f64 * self.size as f64;
        let bandwidth = bytes / since.as_secs_f64() / unit(self.gbits);
        let name = if self.gbits { "Gb/s" } else { "MiB/s" };
        let seconds = now.saturating_duration_since(self.begun).as_secs();
        Some(format!(" {seconds:>5} s  {messages:>12} messages of {} B  {bandwidth:>10.2} {name}", self.size))
    }
}

/// Between two lines.
const EVERY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_every_ten_seconds_and_tells_what_was_done_since() {
        let begin = Instant::now();
        let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        let mut progress = Progress::new(1 << 20, false, begin);
        assert_eq!(progress.line(at(9.9), 500), None);
        let first = " ".repeat(4) + "10 s          1000 messages of 1048576 B      100.00 MiB/s";
        assert_eq!(progress.line(at(10.0), 1000), Some(first));
        assert_eq!(progress.line(at(19.0), 1100), None);
        let second = progress.line(at(30.0), 5000).expect("due");
        assert!(second.contains(" 30 s ") && second.contains(" 200.00 MiB/s"), "{second}");
        assert!(second.len() < 80, "{second}");
        let stalled = progress.line(at(40.0), 5000).expect("due");
        assert!(stalled.contains(" 0.00 MiB/s"), "{stalled}");
        let mut gbits = Progress::new(125_000, true, begin);
        assert!(gbits.line(at(10.0), 10_000).expect("due").ends_with(" 1.00 Gb/s"));
    }
}
