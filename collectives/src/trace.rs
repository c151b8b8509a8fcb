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
    /// threads are the operations, and the steps by kind; of what is under way at the same time each has a thread of its own, since
    /// viewers show on one only what follows or is part of another. Times are microseconds since the epoch of Unix, to the
    /// nanosecond, so that files of several ranks of a host, put together, show them side by side.
    ///
    /// # Errors
    /// Those of `into`.
    pub fn write_chrome(&self, into: &mut impl Write) -> io::Result<()> {
        write!(into, "[")?;
        let mut lanes = Lanes::default();
        let threads: Vec<u32> = self.events.iter().map(|event| lanes.thread(event, self.end(event))).collect();
        let name = |kind: &str, tid: u32, name: String| Named {
            name: kind.to_owned(),
            ph: "M",
            pid: self.rank,
            tid,
            args: Name { name },
        };
        let mut lines = vec![serde_json::to_string(&name("process_name", 0, format!("rank {}", self.rank)))];
        lines.extend(lanes.names().map(|(tid, lane)| serde_json::to_string(&name("thread_name", tid, lane))));
        lines.extend(self.events.iter().zip(threads).map(|(event, tid)| self.complete(event, tid)));
        for (at, line) in lines.into_iter().enumerate() {
            write!(into, "{}{}", if at == 0 { "\n" } else { ",\n" }, line.map_err(io::Error::other)?)?;
        }
        writeln!(into, "\n]")
    }

    /// When an event ended, or the last of all did where it has not.
    fn end(&self, event: &Event) -> Duration {
        let last = || self.events.iter().filter_map(|event| event.end).max();
        event.end.or_else(last).unwrap_or(event.begin).max(event.begin)
    }

    fn complete(&self, event: &Event, tid: u32) -> serde_json::Result<String> {
        let (name, step, peer, bytes) = match event.what {
            Activity::Operation(call) => (call.to_string(), None, None, call.bytes() as usize),
            Activity::Step { step, kind, peer, bytes } => {
                let with = peer.map_or(String::new(), |peer| format!(" {peer}"));
                (format!("{kind}{with}"), Some(step), peer, bytes)
            }
        };
        let args = Args { operation: event.operation, step, peer, bytes, unfinished: event.end.is_none() };
        let (name, args) = (serde_json::to_string(&name)?, serde_json::to_string(&args)?);
        let (ts, dur, pid) = (us(self.origin + event.begin), us(self.end(event) - event.begin), self.rank);
        Ok(format!(r#"{{"name":{name},"ph":"X","ts":{ts},"dur":{dur},"pid":{pid},"tid":{tid},"args":{args}}}"#))
    }
}

/// Microseconds as a number of JSON: as one of 64 bits, those since the epoch would be a quarter of one off.
fn us(time: Duration) -> String {
    let nanoseconds = time.as_nanos();
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

/// The threads of the timeline: by kind, as many as events of it that were under way at the same time.
#[derive(Default)]
struct Lanes([Vec<Duration>; KINDS.len()]);

const KINDS: [&str; 7] = ["operation", "send", "recv", "recv-reduce", "copy", "reduce", "finish"];

/// Threads of a kind, at most: then they overlap.
const MOST: usize = 1000;

impl Lanes {
    /// The thread for the next event, which ends then: the first of its kind that is free.
    fn thread(&mut self, event: &Event, end: Duration) -> u32 {
        let kind = match event.what {
            Activity::Operation(_) => 0,
            Activity::Step { kind, .. } => KINDS.iter().position(|other| *other == kind).unwrap_or(0),
        };
        let busy = &mut self.0[kind];
        let free = busy.iter().position(|until| *until <= event.begin).unwrap_or(busy.len()).min(MOST - 1);
        if free == busy.len() {
            busy.push(end);
        }
        busy[free] = end;
        (kind * MOST + free) as u32
    }

    /// All that there are, with their names, and the first of each kind in any case.
    fn names(&self) -> impl Iterator<Item = (u32, String)> {
        let all = self.0.iter().zip(KINDS).enumerate();
        all.flat_map(|(kind, (busy, name))| {
            (0..busy.len().max(1)).map(move |at| {
                let number = if at == 0 { String::new() } else { format!(" {}", at + 1) };
                ((kind * MOST + at) as u32, format!("{name}{number}"))
            })
        })
    }
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

    fn timeline(recorder: &Recorder) -> Vec<serde_json::Value> {
        let mut file = Vec::new();
        recorder.trace(2).write_chrome(&mut file).unwrap();
        serde_json::from_slice(&file).unwrap()
    }

    #[test]
    fn the_timeline_is_json_with_a_thread_per_kind() {
        let mut recorder = Recorder::new(10);
        recorder.begin(0, step(5));
        recorder.end(0, Some(5));
        recorder.begin(0, step(6));
        let events = timeline(&recorder);
        assert_eq!(events.len(), 1 + KINDS.len() + 2);
        let (done, open) = (&events[1 + KINDS.len()], &events[2 + KINDS.len()]);
        assert_eq!(
            (done["name"].as_str(), done["tid"].as_u64(), done["pid"].as_u64()),
            (Some("recv-reduce 3"), Some(3000), Some(2))
        );
        assert_eq!((done["args"]["step"].as_u64(), done["args"]["unfinished"].as_bool()), (Some(5), None));
        assert_eq!(open["args"]["unfinished"].as_bool(), Some(true));
    }

    /// A viewer drops one of two that overlap on a thread.
    #[test]
    fn what_is_under_way_at_the_same_time_has_threads_of_its_own() {
        let mut recorder = Recorder::new(10);
        (0..3).for_each(|number| recorder.begin(0, step(number)));
        [1, 0, 2].into_iter().for_each(|number| _ = recorder.end(0, Some(number)));
        recorder.begin(0, step(3));
        recorder.end(0, Some(3));
        let events = timeline(&recorder);
        let of = |what: &str| events.iter().filter(|event| event["ph"] == what).cloned().collect::<Vec<_>>();
        let threads: Vec<_> = of("X").iter().map(|event| event["tid"].as_u64().unwrap()).collect();
        assert_eq!(threads, [3000, 3001, 3002, 3000]);
        let names = of("M").into_iter().map(|event| event["args"]["name"].as_str().unwrap().to_owned());
        let expected = ["recv-reduce", "recv-reduce 2", "recv-reduce 3"].map(str::to_owned);
        assert_eq!(names.filter(|name| name.starts_with("recv-reduce")).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        let call = |begin, end| Event {
            operation: 0,
            what: step(0),
            begin: Duration::from_nanos(begin),
            end: Some(Duration::from_nanos(end)),
        };
        let origin = Duration::new(1_764_000_000, 123_456_001);
        let trace = Trace { rank: 0, origin, events: vec![call(0, 150), call(160, 310)] };
        let mut file = Vec::new();
        trace.write_chrome(&mut file).unwrap();
        let text = String::from_utf8(file).unwrap();
        for part in [r#""ts":1764000000123456.001,"dur":0.150,"#, r#""ts":1764000000123456.161,"dur":0.150,"#] {
            assert!(text.contains(part), "{text}");
        }
    }
}
