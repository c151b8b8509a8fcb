//! One run: senders come, share the link for a while, and then the first leaves.

use std::fmt;
use std::time::Duration;

use qpair_roce::congestion::Rate;

use super::bottleneck::{DEPLOYED, Usage};
use super::world::{Sample, World};

/// How senders come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// One after another, every other one at 1/20 of the link's rate, the rest at all of it.
    Staggered,
    /// At once, and all at the rate of the link.
    Together,
}

/// What a run came to, or the worst of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub senders: usize,
    pub arrival: Arrival,
    /// Bytes of the longest queue before all is settled, and the share of the time from the last start on in which the
    /// link had something to send.
    pub first_queue: u64,
    pub first_used: f64,
    /// From the last start on, until the index of fairness stays at least `FAIR`; ms.
    pub fair_after: u64,
    /// From `SETTLING` after the last start on.
    pub shared: Sharing,
    /// From the leave on, until the others have 90 % of the link; ms.
    pub taken_after: u64,
    /// From `SETTLING` after the leave on.
    pub left: Sharing,
}

/// How a link is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharing {
    /// The index of fairness.
    pub fairness: f64,
    /// The least and the greatest share, by the fair one.
    pub least: f64,
    pub most: f64,
    /// Mean and longest queue that a packet met; bytes.
    pub mean_queue: u64,
    pub queue: u64,
    /// Share of the time in which the link had something to send.
    pub used: f64,
}

impl Outcome {
    pub const HEADER: &str = concat!(
        "DCQCN with the paper's values on a link of 40 Gb/s; of several runs the worst, value by value.\n\n",
        "                    until settled                 settled                                                 one left   settled\n",
        "senders  come       queue    used    fair after   fairness  shares      queue: mean, longest  used       taken after  fairness  shares      used\n",
    );

    /// Runs it.
    pub fn of(senders: usize, arrival: Arrival, seed: u64) -> Self {
        let mut world = World::new(senders, LINK, DEPLOYED, seed);
        let mut last_start = Duration::ZERO;
        for sender in 0..senders {
            let (after, rate) = match arrival {
                Arrival::Staggered if sender % 2 == 1 => (STAGGER * sender as u32, Rate::from_bps(LINK.bps() / 20)),
                Arrival::Staggered => (STAGGER * sender as u32, LINK),
                Arrival::Together => (Duration::ZERO, LINK),
            };
            world.starts(sender, after, rate);
            last_start = after;
        }
        world.stops(0, last_start + SHARED);
        let mut run = |len: Duration| -> Vec<_> { (0..len.as_millis()).map(|_| world.run(MS)).collect() };
        let (starting, shared, left) = (run(last_start), run(SHARED), run(LEFT));
        let settled = SETTLING.as_millis() as usize;

        let windows: Vec<_> = shared.chunks(WINDOW).map(|window| jain(&joined(window).sent)).collect();
        let fair_windows = windows.iter().rev().take_while(|index| **index >= FAIR).count();
        let is_taken = |sample: &Sample| rate(&sample.sent[1..], sample.len) >= 0.9;
        let (settling, settled_shared) = shared.split_at(settled);
        let peaks = starting.iter().chain(settling).map(|sample| sample.usage.peak);
        Outcome {
            senders,
            arrival,
            first_queue: peaks.max().unwrap_or_default(),
            first_used: Sharing::of(&joined(settling), 0).used,
            fair_after: ((windows.len() - fair_windows) * WINDOW) as u64,
            shared: Sharing::of(&joined(settled_shared), 0),
            taken_after: left.iter().position(is_taken).unwrap_or(left.len()) as u64,
            left: Sharing::of(&joined(&left[settled..]), 1),
        }
    }

    /// The worse of both, value by value.
    pub fn worse(self, other: Self) -> Self {
        Outcome {
            first_queue: self.first_queue.max(other.first_queue),
            first_used: self.first_used.min(other.first_used),
            fair_after: self.fair_after.max(other.fair_after),
            shared: self.shared.worse(other.shared),
            taken_after: self.taken_after.max(other.taken_after),
            left: self.left.worse(other.left),
            ..self
        }
    }
}

impl Sharing {
    /// Among all senders but so many of the first.
    fn of(sample: &Sample, gone: usize) -> Self {
        let sent = &sample.sent[gone..];
        let mean = sent.iter().sum::<u64>() as f64 / sent.len() as f64;
        Sharing {
            fairness: jain(sent),
            least: sent.iter().fold(f64::INFINITY, |least, sent| least.min(*sent as f64)) / mean,
            most: sent.iter().fold(0.0f64, |most, sent| most.max(*sent as f64)) / mean,
            mean_queue: (sample.usage.met / u128::from(sample.usage.packets.max(1))) as u64,
            queue: sample.usage.peak,
            used: 1.0 - sample.usage.idle.as_secs_f64() / sample.len.as_secs_f64(),
        }
    }

    fn worse(self, other: Self) -> Self {
        Sharing {
            fairness: self.fairness.min(other.fairness),
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            mean_queue: self.mean_queue.max(other.mean_queue),
            queue: self.queue.max(other.queue),
            used: self.used.min(other.used),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { senders, arrival, first_queue, first_used, fair_after, shared, taken_after, left } = self;
        let kilobytes = |bytes: u64| bytes.div_ceil(1000);
        let come = match arrival {
            Arrival::Staggered => "staggered",
            Arrival::Together => "together",
        };
        write!(f, "{senders:>7}  {come:<9}  {:>4} kB  {:>4.1} %  ", kilobytes(*first_queue), first_used * 100.0)?;
        write!(f, "{fair_after:>6} ms    {:>8.3}  {:.2}, {:.2}  ", shared.fairness, shared.least, shared.most)?;
        write!(f, "{:>8} kB, {:>6} kB  ", kilobytes(shared.mean_queue), kilobytes(shared.queue))?;
        write!(f, "{:>4.1} %  {taken_after:>11} ms  ", shared.used * 100.0)?;
        write!(f, "{:>8.3}  {:.2}, {:.2}  {:>5.1} %", left.fairness, left.least, left.most, left.used * 100.0)
    }
}

/// Intervals that follow each other, as one.
fn joined(samples: &[Sample]) -> Sample {
    let sent = |at: usize| samples.iter().map(|sample| sample.sent[at]).sum();
    let senders = samples.first().map_or(0, |sample| sample.sent.len());
    let mut usage = Usage::default();
    for sample in samples {
        usage.peak = usage.peak.max(sample.usage.peak);
        usage.met += sample.usage.met;
        usage.packets += sample.usage.packets;
        usage.idle += sample.usage.idle;
    }
    Sample { sent: (0..senders).map(sent).collect(), usage, len: samples.iter().map(|sample| sample.len).sum() }
}

/// The index of fairness: 1 if all have the same, 1/n if one has all. Jain, Chiu, Hawe 1984.
fn jain(sent: &[u64]) -> f64 {
    let sum: f64 = sent.iter().map(|sent| *sent as f64).sum();
    let squares: f64 = sent.iter().map(|sent| *sent as f64 * *sent as f64).sum();
    sum * sum / (squares * sent.len() as f64)
}

/// By the rate of the link.
fn rate(sent: &[u64], len: Duration) -> f64 {
    sent.iter().sum::<u64>() as f64 * 8.0 / len.as_secs_f64() / LINK.bps() as f64
}

pub const LINK: Rate = Rate::from_gbps(40);
const MS: Duration = Duration::from_millis(1);
/// Between two starts.
const STAGGER: Duration = Duration::from_millis(3);
/// From the last start to the leave, and after that.
const SHARED: Duration = Duration::from_millis(80);
const LEFT: Duration = Duration::from_millis(60);
/// What the rates take to meet mostly, and then to take what one leaves: in 24 runs each 0 to 55 ms, with two senders
/// the longest, and 0 to 22 ms.
pub const SETTLING: Duration = Duration::from_millis(40);
/// Intervals of 1 ms that fairness is judged by, and the index at which it is reached.
const WINDOW: usize = 5;
pub const FAIR: f64 = 0.95;
