//! Watches over the ranks of a job until all have ended: one thread per wait, one loop that decides.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use signal_hook::iterator::Signals;

use super::error::{JobError, RankEnd};
use super::hosts::Seat;
use super::rank::{Away, Lifeline, Rank, Started, signal_group, write_to_host};
use super::relay::{copy, relay, wait_for};
use super::remote::Remote;
use super::signals;
use super::stream::{Progress, Watched};
use super::watch::Watcher;

/// The ranks of a job, and the events that come from them and from the user.
#[derive(Debug)]
pub struct Supervisor {
    ranks: Vec<Rank>,
    /// What ends the ranks' groups should this process be killed. Dropped after the ranks.
    watcher: Watcher,
    events: Receiver<Event>,
    sender: Sender<Event>,
    limit: Option<Duration>,
    grace: Duration,
    /// Time for another host to answer.
    answer: Duration,
    /// What reaches other hosts, as people write it.
    ssh: String,
    /// Output that is not at its end yet.
    streams: Vec<Arc<Progress>>,
    /// Why some of it could not be passed on, though somebody reads it.
    lost: Arc<Mutex<Option<io::Error>>>,
    /// Ranks that failed before any was asked to end, in the order of their ends.
    failures: Vec<(u32, RankEnd)>,
    /// Ranks that were asked to end.
    asked: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The rank's process ended and waits to be reaped.
    Ended(u32),
    /// The rank's host has answered.
    Up(u32),
    /// An output stream was passed on to its end.
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
    /// [`JobError::System`] if the system refuses a signal handler, thread or process.
    pub fn new(limit: Option<Duration>, grace: Duration, remote: &Remote) -> Result<Self, JobError> {
        let failed = |source| JobError::System { what: "listen for signals".to_owned(), source };
        let (sender, events) = channel();
        let mut signals = Signals::new(signals::heeded()).map_err(failed)?;
        let forward = sender.clone();
        // As long as this process: what is to be said last may find no reader, and then the next signal is to end it.
        spawn_thread("signals", move || {
            for signal in signals.forever() {
                if forward.send(Event::Signal(signal)).is_err() {
                    std::process::exit(RankEnd::Killed(signal).exit_code().into());
                }
            }
        })?;
        let failed =
            |source| JobError::System { what: "start what ends the ranks with the launcher".to_owned(), source };
        Ok(Supervisor {
            ranks: Vec::new(),
            watcher: Watcher::start().map_err(failed)?,
            events,
            sender,
            limit,
            grace,
            answer: remote.answer,
            ssh: remote.words(),
            streams: Vec::new(),
            lost: Arc::default(),
            failures: Vec::new(),
            asked: 0,
        })
    }

    /// Takes a rank that was just started; its piped output is relayed.
    fn add(&mut self, seat: &Seat, started: Started) -> Result<(), JobError> {
        let (number, Started { mut child, out_prefix, err_prefix, remote }) = (seat.rank, started);
        let (out, err) = (child.take_stdout(), child.take_stderr());
        let pid = child.pid();
        // It has not become its command yet, and until then would end with this process by itself.
        self.watcher.add(pid);
        let (mut away, mut mark) = (None, None);
        if let (Some(host), Some(Lifeline { input, script, mark: line })) = (seat.host.clone(), remote) {
            let (signals, to_pass_on) = channel();
            spawn_thread("input", move || {
                // One that does not read has ended, and says by its end why.
                let _ = write_to_host(input, &script, to_pass_on);
            })?;
            away = Some(Away { host, signals: Some(signals), until: Instant::now().checked_add(self.answer) });
            mark = Some(line);
        }
        self.ranks.push(Rank { number, child, pid, running: true, away });
        // Closed once it is known whether the host has answered.
        let (knowing, known) = channel::<()>();
        let mut progress = None;
        if let Some(out) = out {
            let (prefix, sender) = (out_prefix, self.sender.clone());
            let stream = self.stream(number, out, move |out| {
                let mut out = BufReader::new(out);
                if let Some(mark) = mark {
                    wait_for(&mark, &mut out, prefix.as_deref().unwrap_or_default(), io::stdout())?;
                    // Without a receiver nobody needs to know.
                    let _ = sender.send(Event::Up(number));
                }
                drop(knowing);
                match prefix {
                    Some(prefix) => relay(out, &prefix, io::stdout()),
                    None => copy(out, io::stdout()),
                }
            })?;
            progress = Some(stream);
        }
        if let Some(err) = err {
            self.stream(number, err, move |err| match err_prefix {
                Some(prefix) => relay(err, &prefix, io::stderr()),
                None => copy(err, io::stderr()),
            })?;
        }
        let sender = self.sender.clone();
        spawn_thread("wait", move || {
            wait_until_ended(pid);
            // An end before the host has answered means something else.
            if let Some(progress) = progress {
                wait_while_it_goes_on(&known, &progress);
            }
            let _ = sender.send(Event::Ended(number));
        })
    }

    /// Passes `from` on as `run` does.
    fn stream<R: Read + AsFd + Send + 'static>(
        &mut self,
        rank: u32,
        from: R,
        run: impl FnOnce(Watched<R>) -> io::Result<()> + Send + 'static,
    ) -> Result<Arc<Progress>, JobError> {
        let sender = self.sender.clone();
        let progress = Arc::new(Progress::default());
        self.streams.push(Arc::clone(&progress));
        let from = Watched::new(from, Arc::clone(&progress));
        let (own, lost) = (Arc::clone(&progress), Arc::clone(&self.lost));
        spawn_thread("relay", move || {
            // The rank sees a broken pipe, as it would without a launcher in between.
            if let Err(error) = run(from) {
                tracing::debug!(rank, %error, "output is not relayed any more");
                let is_left = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof);
                if !is_left && let Ok(mut lost) = lost.lock() {
                    lost.get_or_insert(error);
                }
            }
            own.end();
            let _ = sender.send(Event::Drained);
        })?;
        Ok(progress)
    }

    /// Starts ranks, waits until all have ended, and ends them when one fails, a signal comes, or the time is over.
    ///
    /// # Errors
    /// [`JobError`] with the first cause.
    pub fn run(mut self, seats: Vec<Seat>, start: impl Fn(&Seat) -> Result<Started, JobError>) -> Result<(), JobError> {
        let mut cause = None;
        let limit = self.limit.map(|limit| Instant::now() + limit);
        let mut phase = Phase::Running { until: limit };
        let mut waiting = VecDeque::from(seats);
        loop {
            match phase {
                Phase::Running { .. } => self.start_more(&mut waiting, &start)?,
                // None is started to fail with the others.
                _ => waiting.clear(),
            }
            if waiting.is_empty() && !self.ranks.iter().any(|rank| rank.running) {
                break;
            }
            match self.next_event(self.deadline(phase)) {
                Some(Event::Ended(number)) => {
                    let end = self.reap(number)?;
                    phase = self.ended(phase, number, end);
                }
                Some(Event::Up(number)) => self.answered(number),
                Some(Event::Drained) => self.drained(),
                Some(Event::Signal(signal)) if phase.is_free() => {
                    cause = Some(JobError::Interrupted { signal });
                    phase = self.end(forwarded(signal));
                }
                // Another one means: now.
                Some(Event::Signal(_)) => phase = self.kill(),
                None => match phase {
                    Phase::Running { .. } => {
                        cause = Some(self.silent_host().unwrap_or_else(|| self.timed_out()));
                        phase = self.end(Signal::TERM);
                    }
                    Phase::Settling { .. } => phase = self.end(Signal::TERM),
                    Phase::Ending { .. } | Phase::Killed => phase = self.kill(),
                },
            }
        }
        // Who had the ranks ended waits for no reader.
        let limit = if cause.is_some() { Some(Instant::now()) } else { limit };
        cause = cause.or(self.drain(limit));
        let failures = std::mem::take(&mut self.failures);
        let lost = self.lost.lock().ok().and_then(|mut lost| lost.take());
        // By a pipe without a reader, or as a shell tells of that.
        let broken = RankEnd::Killed(Signal::PIPE.as_raw()).exit_code();
        let by_that = |(_, end): &(u32, RankEnd)| end.exit_code() == broken;
        if let Some(source) = lost.filter(|_| cause.is_none() && failures.iter().all(by_that)) {
            return Err(JobError::Output { source });
        }
        let hosts = self.ranks.iter().filter_map(|rank| Some((rank.number, rank.away.as_ref()?.host.clone())));
        JobError::failed(failures, self.asked, &hosts.collect(), &self.ssh).or(cause).map_or(Ok(()), Err)
    }

    /// Starts those of the ranks that can start now: here all, on another host so many at a time, since a server refuses more
    /// that have not shown who they are.
    fn start_more(
        &mut self,
        waiting: &mut VecDeque<Seat>,
        start: impl Fn(&Seat) -> Result<Started, JobError>,
    ) -> Result<(), JobError> {
        let mut asked: HashMap<String, usize> = HashMap::new();
        for away in self.ranks.iter().filter(|rank| rank.running).filter_map(|rank| rank.away.as_ref()) {
            *asked.entry(away.host.clone()).or_default() += usize::from(away.until.is_some());
        }
        for seat in std::mem::take(waiting) {
            if let Some(host) = &seat.host {
                let asked = asked.entry(host.clone()).or_default();
                if *asked >= AT_ONCE {
                    waiting.push_back(seat);
                    continue;
                }
                *asked += 1;
            }
            let started = start(&seat)?;
            self.add(&seat, started)?;
        }
        Ok(())
    }

    fn answered(&mut self, number: u32) {
        let rank = self.ranks.iter_mut().find(|rank| rank.number == number);
        if let Some(away) = rank.and_then(|rank| rank.away.as_mut()) {
            away.until = None;
        }
    }

    /// When there is something to do although nothing comes.
    fn deadline(&self, phase: Phase) -> Option<Instant> {
        let hosts = self.ranks.iter().filter(|rank| rank.running).filter_map(|rank| rank.away.as_ref()?.until);
        let hosts = hosts.min().filter(|_| matches!(phase, Phase::Running { .. }));
        phase.deadline().into_iter().chain(hosts).min()
    }

    /// The host that has not answered in time.
    fn silent_host(&self) -> Option<JobError> {
        let now = Instant::now();
        let late = |away: &&Away| away.until.is_some_and(|until| until <= now);
        let away = self.ranks.iter().filter(|rank| rank.running).filter_map(|rank| rank.away.as_ref()).find(late)?;
        Some(JobError::Silent { host: away.host.clone(), ssh: self.ssh.clone(), limit: self.answer })
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
        self.watcher.remove(rank.pid);
        let mut end = RankEnd::from(rank.child.wait().map_err(failed)?);
        if let Some(away) = &mut rank.away {
            end = end.of_shell(away.until.is_none());
            away.signals = None;
        }
        tracing::debug!(rank = number, %end, "a rank ended");
        Ok(end)
    }

    fn end(&mut self, signal: Signal) -> Phase {
        self.asked = self.ranks.iter().filter(|rank| rank.running).count();
        self.signal_all(signal);
        Phase::Ending { kill_at: Instant::now() + self.grace }
    }

    fn kill(&mut self) -> Phase {
        self.signal_all(Signal::KILL);
        // Nor does a reader who takes nothing keep anyone from hearing that they have ended.
        self.streams.iter().for_each(|stream| stream.close());
        Phase::Killed
    }

    fn signal_all(&mut self, signal: Signal) {
        self.ranks.iter_mut().filter(|rank| rank.running).for_each(|rank| rank.signal(signal));
    }

    fn drained(&mut self) {
        self.streams.retain(|stream| !stream.is_over());
    }

    /// Lets the relays finish, however long who reads their output takes: until a signal comes, or the time is over, which is
    /// returned. Who left the rank's group may hold a stream open; that is not waited for.
    fn drain(&mut self, limit: Option<Instant>) -> Option<JobError> {
        // At the limit, what is read at once still comes through.
        let limit = limit.map(|limit| limit.max(Instant::now() + DRAIN));
        while !self.streams.is_empty() {
            let steps: Vec<_> = self.streams.iter().map(|stream| (Arc::clone(stream), stream.step())).collect();
            let until = Instant::now() + DRAIN;
            while !self.streams.is_empty() {
                match self.next_event(Some(limit.map_or(until, |limit| limit.min(until)))) {
                    Some(Event::Drained) => self.drained(),
                    Some(Event::Signal(signal)) => return Some(JobError::Interrupted { signal }),
                    Some(_) => {}
                    None => break,
                }
            }
            let is_held = |(stream, step): &(Arc<Progress>, _)| stream.is_over() || stream.has_waited_since(*step);
            if steps.iter().all(is_held) {
                break;
            }
            if limit.is_some_and(|limit| limit <= Instant::now()) {
                return Some(self.timed_out());
            }
            // From here on only what the ranks have left is passed on, and not what others say in their place.
            self.streams.iter().for_each(|stream| stream.close());
        }
        None
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.signal_all(Signal::KILL);
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

fn forwarded(signal: i32) -> Signal {
    Signal::from_named_raw(signal).unwrap_or(Signal::TERM)
}

/// Returns when the process has ended, and leaves it to be reaped.
fn wait_until_ended(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
}

/// Waits until nobody can send any more, for as long as the stream gives something and is not closed.
fn wait_while_it_goes_on(known: &Receiver<()>, progress: &Progress) {
    let mut step = progress.step();
    while known.recv_timeout(DRAIN) == Err(RecvTimeoutError::Timeout)
        && !progress.is_closing()
        && !progress.has_waited_since(step)
    {
        step = progress.step();
    }
}

fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), JobError> {
    let failed = |source| JobError::System { what: format!("start the thread `{name}`"), source };
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(run).map(drop).map_err(failed)
}

/// Time for ranks to fail because another did: far above what a broken connection takes to be noticed on one machine.
const SETTLE: Duration = Duration::from_millis(500);
/// Ranks that are started on another host at a time. OpenSSH's server refuses some where more than 10 have not shown who they are.
const AT_ONCE: usize = 4;
/// Time in which a stream that gives nothing after the end of its rank shows to be held open by someone else.
const DRAIN: Duration = Duration::from_secs(1);
/// The threads here only wait and copy.
const STACK: usize = 128 << 10;
