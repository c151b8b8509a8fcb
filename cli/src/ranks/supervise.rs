//! Watches over the ranks of a job until all have ended: one thread per wait, one loop that decides.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::child::TiedChild;
use super::error::{JobError, RankEnd};
use super::relay::relay;

/// The ranks of a job, and the events that come from them and from the user.
#[derive(Debug)]
pub struct Supervisor {
    ranks: Vec<Rank>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    signals: Handle,
    limit: Option<Duration>,
    grace: Duration,
    streams: usize,
    /// Ranks that failed before any was asked to end, in the order of their ends.
    failures: Vec<(u32, RankEnd)>,
    /// Ranks that were asked to end.
    asked: usize,
}

#[derive(Debug)]
struct Rank {
    number: u32,
    child: TiedChild,
    pid: Pid,
    running: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The rank's process ended and waits to be reaped.
    Ended(u32),
    /// An output stream was read to its end.
    Drained,
    /// The launcher got this signal.
    Signal(i32),
}

/// Where the job stands.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Running {
        until: Option<Instant>,
    },
    /// A rank failed. Those that fail with it have time to end by themselves, so that they can say why.
    Settling {
        until: Instant,
    },
    /// The ranks were asked to end.
    Ending {
        kill_at: Instant,
    },
    Killed,
}

impl Supervisor {
    /// Starts to listen for signals. `limit` counts from [`run`](Supervisor::run) on.
    ///
    /// # Errors
    /// [`JobError::System`] if the system refuses a signal handler or thread.
    pub fn new(limit: Option<Duration>, grace: Duration) -> Result<Self, JobError> {
        let failed = |source| JobError::System { what: "listen for signals".to_owned(), source };
        let (sender, events) = channel();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
        let handle = signals.handle();
        let forward = sender.clone();
        spawn_thread("signals", move || {
            signals.forever().take_while(|&signal| forward.send(Event::Signal(signal)).is_ok()).for_each(drop);
        })?;
        Ok(Supervisor {
            ranks: Vec::new(),
            events,
            sender,
            signals: handle,
            limit,
            grace,
            streams: 0,
            failures: Vec::new(),
            asked: 0,
        })
    }

    /// Takes a rank that was just started; its piped output is relayed with `prefix`.
    ///
    /// # Errors
    /// [`JobError::System`] if the system refuses a thread.
    pub fn add(&mut self, number: u32, mut child: TiedChild, prefix: &str) -> Result<(), JobError> {
        let (out, err) = (child.take_stdout(), child.take_stderr());
        let pid = child.pid();
        self.ranks.push(Rank { number, child, pid, running: true });
        if let Some(out) = out {
            let prefix = prefix.to_owned();
            self.stream(number, move || relay(out, &prefix, io::stdout()))?;
        }
        if let Some(err) = err {
            let prefix = prefix.to_owned();
            self.stream(number, move || relay(err, &prefix, io::stderr()))?;
        }
        let sender = self.sender.clone();
        spawn_thread("wait", move || {
            wait_until_ended(pid);
            // Without a receiver nobody needs to know.
            let _ = sender.send(Event::Ended(number));
        })
    }

    fn stream(&mut self, rank: u32, run: impl FnOnce() -> io::Result<()> + Send + 'static) -> Result<(), JobError> {
        let sender = self.sender.clone();
        self.streams += 1;
        spawn_thread("relay", move || {
            // The rank sees a broken pipe, as it would without a launcher in between.
            if let Err(error) = run() {
                tracing::debug!(rank, %error, "output is not relayed any more");
            }
            let _ = sender.send(Event::Drained);
        })
    }

    /// Waits until all ranks have ended, and ends them when one fails, a signal comes, or the time is over.
    ///
    /// # Errors
    /// [`JobError`] with the first cause.
    pub fn run(mut self) -> Result<(), JobError> {
        let mut cause = None;
        let mut phase = Phase::Running { until: self.limit.map(|limit| Instant::now() + limit) };
        while self.ranks.iter().any(|rank| rank.running) {
            match self.next_event(phase.deadline()) {
                Some(Event::Ended(number)) => {
                    let end = self.reap(number)?;
                    phase = self.ended(phase, number, end);
                }
                Some(Event::Drained) => self.streams -= 1,
                Some(Event::Signal(signal)) if phase.is_free() => {
                    cause = Some(JobError::Interrupted { signal });
                    phase = self.end(forwarded(signal));
                }
                // Another one means: now.
                Some(Event::Signal(_)) => phase = self.kill(),
                None => match phase {
                    Phase::Running { .. } => {
                        cause = Some(self.timed_out());
                        phase = self.end(Signal::TERM);
                    }
                    Phase::Settling { .. } => phase = self.end(Signal::TERM),
                    Phase::Ending { .. } | Phase::Killed => phase = self.kill(),
                },
            }
        }
        self.drain();
        let failures = std::mem::take(&mut self.failures);
        JobError::failed(failures, self.asked).or(cause).map_or(Ok(()), Err)
    }

    /// What the end of a rank means.
    fn ended(&mut self, phase: Phase, rank: u32, end: RankEnd) -> Phase {
        match phase {
            Phase::Running { .. } if end != RankEnd::Exited(0) => {
                self.failures.push((rank, end));
                Phase::Settling { until: Instant::now() + SETTLE }
            }
            Phase::Settling { .. } if end != RankEnd::Exited(0) => {
                self.failures.push((rank, end));
                phase
            }
            // It ended well; or it was asked to end, and how it did says nothing.
            _ => phase,
        }
    }

    fn timed_out(&self) -> JobError {
        let running = self.ranks.iter().filter(|rank| rank.running).map(|rank| rank.number).collect();
        JobError::TimedOut { limit: self.limit.unwrap_or_default(), running }
    }

    fn next_event(&self, deadline: Option<Instant>) -> Option<Event> {
        let Some(deadline) = deadline else { return self.events.recv().ok() };
        self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// Takes the status of a rank that ended, after killing what it left behind. Its number can not have been given
    /// to another process before.
    fn reap(&mut self, number: u32) -> Result<RankEnd, JobError> {
        let failed = |source| JobError::System { what: format!("take the status of rank {number}"), source };
        let Some(rank) = self.ranks.iter_mut().find(|rank| rank.number == number) else {
            return Err(failed(io::Error::other("there is no such rank")));
        };
        rank.running = false;
        signal_group(rank.pid, Signal::KILL);
        let end = RankEnd::from(rank.child.wait().map_err(failed)?);
        tracing::debug!(rank = number, %end, "a rank ended");
        Ok(end)
    }

    fn end(&mut self, signal: Signal) -> Phase {
        self.asked = self.ranks.iter().filter(|rank| rank.running).count();
        self.signal_all(signal);
        Phase::Ending { kill_at: Instant::now() + self.grace }
    }

    fn kill(&self) -> Phase {
        self.signal_all(Signal::KILL);
        Phase::Killed
    }

    fn signal_all(&self, signal: Signal) {
        self.ranks.iter().filter(|rank| rank.running).for_each(|rank| signal_group(rank.pid, signal));
    }

    /// Lets the relays finish. Who left the rank's group may hold a stream open; that is not waited for.
    fn drain(&mut self) {
        let until = Instant::now() + DRAIN;
        while self.streams > 0 {
            match self.next_event(Some(until)) {
                Some(Event::Drained) => self.streams -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.signals.close();
        self.ranks.iter().filter(|rank| rank.running).for_each(|rank| signal_group(rank.pid, Signal::KILL));
    }
}

impl Phase {
    fn deadline(&self) -> Option<Instant> {
        match self {
            Phase::Running { until } => *until,
            Phase::Settling { until } => Some(*until),
            Phase::Ending { kill_at } => Some(*kill_at),
            Phase::Killed => None,
        }
    }

    /// Whether no rank was asked to end yet.
    fn is_free(&self) -> bool {
        matches!(self, Phase::Running { .. } | Phase::Settling { .. })
    }
}

fn signal_group(group: Pid, signal: Signal) {
    // A group that is gone needs no signal.
    let _ = kill_process_group(group, signal);
}

fn forwarded(signal: i32) -> Signal {
    Signal::from_named_raw(signal).unwrap_or(Signal::TERM)
}

/// Returns when the process has ended, and leaves it to be reaped.
fn wait_until_ended(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}

fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), JobError> {
    let failed = |source| JobError::System { what: format!("start the thread `{name}`"), source };
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(run).map(drop).map_err(failed)
}

/// Time for ranks to fail because another did: far above what a broken connection takes to be noticed on one machine.
const SETTLE: Duration = Duration::from_millis(500);
/// Time for the last output to come through after all ranks have ended.
const DRAIN: Duration = Duration::from_secs(1);
/// The threads here only wait and copy.
const STACK: usize = 128 << 10;
