//! What a rank did when: a recorder that is off unless asked for, and its export as a timeline.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::execute::Call;

/// What a rank recorded: the last operations, and their steps.
///
/// ```
/// use qpair_collectives::{Communicator, ReduceOp};
///
/// let comm = Communicator::group(1)?.remove(0);
/// comm.record(10_000);
/// comm.all_reduce(&mut comm.buffer::<f32>(100)?, ReduceOp::Sum)?;
/// let mut file = Vec::new();
/// comm.trace().write_chrome(&mut file)?; // for chrome://tracing, Perfetto and their like
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Trace {
    rank: u32,
    /// When recording began, since the epoch of Unix.
    origin: Duration,
    events: Vec<Event>,
}

/// Something that has a beginning, and an end unless it is under way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// The number of the operation on this communicator, from 0.
    pub operation: u64,
    /// What it is.
    pub what: Activity,
    /// When it began, since recording began.
    pub begin: Duration,
    /// When it ended; `None` if it was under way when the trace was taken.
    pub end: Option<Duration>,
}

/// What an [`Event`] is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activity {
    /// An operation, from its start to its end.
    Operation(Call),
    /// A step of its plan, from when it could start to its end.
    Step {
        /// Its number in this rank's program.
        step: u32,
        /// What it does: `send`, `recv`, `recv-reduce`, `copy`, `reduce` or `finish`.
        kind: &'static str,
        /// The other rank, if it is one side of a message.
        peer: Option<u32>,
        /// Bytes that it moves or combines.
        bytes: usize,
    },
}

/// Keeps the last events.
#[derive(Debug)]
pub(crate) struct Recorder {
    origin: Instant,
    since_epoch: Duration,
    capacity: usize,
    events: VecDeque<Event>,
    /// Events that are no longer kept.
    dropped: usize,
    /// Those that are under way: which operation, which step (none for the operation), and the event's number of all.
    open: Vec<(u64, Option<u32>, usize)>,
}

impl Recorder {
    /// Keeps up to `capacity` events.
    pub(crate) fn new(capacity: usize) -> Self {
        Recorder {
            origin: Instant::now(),
            since_epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            capacity: capacity.max(1),
            events: VecDeque::with_capacity(capacity.clamp(1, 1 << 16)),
            dropped: 0,
            open: Vec::new(),
        }
    }

    /// Something begins.
    pub(crate) fn begin(&mut self, operation: u64, what: Activity) {
        if self.events.len() == self.capacity {
            self.events.pop_front();
            self.dropped += 1;
        }
        let step = step_of(&what);
        self.open.push((operation, step, self.dropped + self.events.len()));
        self.events.push_back(Event { operation, what, begin: self.origin.elapsed(), end: None });
    }

    /// A step of an operation ends, or without a step the operation itself. False if it had not begun.
    pub(crate) fn end(&mut self, operation: u64, step: Option<u32>) -> bool {
        let Some(at) = self.open.iter().rposition(|open| (open.0, open.1) == (operation, step)) else { return false };
        let (_, _, number) = self.open.swap_remove(at);
        let end = self.origin.elapsed();
        let kept = number.checked_sub(self.dropped).and_then(|at| self.events.get_mut(at));
        if let Some(event) = kept {
            event.end = Some(end);
        }
        true
    }

    pub(crate) fn trace(&self, rank: u32) -> Trace {
        Trace { rank, origin: self.since_epoch, events: self.events.iter().copied().collect() }
    }
}

fn step_of(what: &Activity) -> Option<u32> {
    match what {
        Activity::Operation(_) => None,
        Activity::Step { step, .. } => Some(*step),
    }
}

impl Trace {
    /// What was recorded, in the order in which it began.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Writes it in the Chrome trace format (Google: Trace Event Format), one line per event: the process is the rank,
    /// threads are the operations, and the steps by kind. Times are microseconds since the epoch of Unix, so that files of
    /// several ranks of a host, put together, show them side by side.
    ///
    /// # Errors
    /// Those of `into`.
    pub fn write_chrome(&self, into: &mut impl Write) -> io::Result<()> {
        write!(into, "[")?;
        let name = |kind: &str, tid: u32, name: String| Named {
            name: kind.to_owned(),
            ph: "M",
            pid: self.rank,
            tid,
            args: Name { name },
        };
        let mut lines = vec![serde_json::to_string(&name("process_name", 0, format!("rank {}", self.rank)))];
        for (tid, lane) in (0..).zip(LANES) {
            lines.push(serde_json::to_string(&name("thread_name", tid, lane.to_owned())));
        }
        lines.extend(self.events.iter().map(|event| serde_json::to_string(&self.complete(event))));
        for (at, line) in lines.into_iter().enumerate() {
            write!(into, "{}{}", if at == 0 { "\n" } else { ",\n" }, line.map_err(io::Error::other)?)?;
        }
        writeln!(into, "\n]")
    }

    fn complete(&self, event: &Event) -> Complete {
        let us = |time: Duration| (self.origin + time).as_nanos() as f64 / 1e3;
        let last = || self.events.iter().filter_map(|event| event.end).max();
        let end = event.end.or_else(last).unwrap_or(event.begin).max(event.begin);
        let lane = |kind: &str| LANES.iter().position(|lane| *lane == kind).unwrap_or(0) as u32;
        let (name, tid, step, peer, bytes) = match event.what {
            Activity::Operation(call) => (call.to_string(), 0, None, None, call.bytes() as usize),
            Activity::Step { step, kind, peer, bytes } => {
                let with = peer.map_or(String::new(), |peer| format!(" {peer}"));
                (format!("{kind}{with}"), lane(kind), Some(step), peer, bytes)
            }
        };
        let args = Args { operation: event.operation, step, peer, bytes, unfinished: event.end.is_none() };
        let (ts, dur) = (us(event.begin), (end - event.begin).as_nanos() as f64 / 1e3);
        Complete { name, ph: "X", ts, dur, pid: self.rank, tid, args }
    }
}

/// The threads of the timeline.
const LANES: [&str; 7] = ["operation", "send", "recv", "recv-reduce", "copy", "reduce", "finish"];

#[derive(Serialize)]
struct Complete {
    name: String,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: u32,
    args: Args,
}

#[derive(Serialize)]
struct Args {
    operation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<u32>,
    bytes: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unfinished: bool,
}

#[derive(Serialize)]
struct Named {
    name: String,
    ph: &'static str,
    pid: u32,
    tid: u32,
    args: Name,
}

#[derive(Serialize)]
struct Name {
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u32) -> Activity {
        Activity::Step { step, kind: "recv-reduce", peer: Some(3), bytes: 64 }
    }

    #[test]
    fn the_last_events_are_kept_with_their_ends() {
        let mut recorder = Recorder::new(3);
        for number in 0..4 {
            recorder.begin(7, step(number));
        }
        // The first is forgotten.
        for number in [0, 2, 1] {
            recorder.end(7, Some(number));
        }
        let trace = recorder.trace(1);
        let ended: Vec<_> = trace.events().iter().map(|event| (step_of(&event.what), event.end.is_some())).collect();
        assert_eq!(ended, [(Some(1), true), (Some(2), true), (Some(3), false)]);
    }

    #[test]
    fn the_timeline_is_json_with_a_lane_per_kind() {
        let mut recorder = Recorder::new(10);
        recorder.begin(0, step(5));
        recorder.end(0, Some(5));
        recorder.begin(0, step(6));
        let mut file = Vec::new();
        recorder.trace(2).write_chrome(&mut file).unwrap();
        let events: Vec<serde_json::Value> = serde_json::from_slice(&file).unwrap();
        assert_eq!(events.len(), 1 + LANES.len() + 2);
        let (done, open) = (&events[1 + LANES.len()], &events[2 + LANES.len()]);
        assert_eq!(
            (done["name"].as_str(), done["tid"].as_u64(), done["pid"].as_u64()),
            (Some("recv-reduce 3"), Some(3), Some(2))
        );
        assert_eq!((done["args"]["step"].as_u64(), done["args"]["unfinished"].as_bool()), (Some(5), None));
        assert_eq!(open["args"]["unfinished"].as_bool(), Some(true));
    }
}
