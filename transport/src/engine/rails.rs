//! Which rail carries the next slice of a long transfer: the one on which it is there first, as far as can be told from what
//! each carried of late. A rail that fails, or takes far longer than it should, is left out, and comes back once a probe got
//! through; each time it has to wait longer for that.

use std::collections::VecDeque;
use std::time::Duration;

/// The rails of one connection.
#[derive(Debug)]
pub(crate) struct Rails {
    rails: Vec<Rail>,
    /// How long a slice may take at least before its rail is left out.
    patience: Duration,
}

#[derive(Debug)]
struct Rail {
    stage: RailStage,
    /// Bytes a millisecond, the average of late; `None`: it has carried nothing yet.
    rate: Option<u64>,
    /// What a probe takes: the least of late.
    latency: Duration,
    /// When a slice was posted on it last, and that what is known of its rate is older.
    tried: Duration,
    is_stale: bool,
    /// Lengths of the slices under way, oldest first, and all together.
    posted: VecDeque<u64>,
    bytes: u64,
    /// Since when the oldest is being carried.
    head: Duration,
    /// Bytes that were carried since then, not counted into the rate yet.
    counted: (u64, Duration),
    /// How long it waits when it fails the next time, and slices that it carried since the last time.
    pause: Duration,
    carried: u32,
    /// Bytes that it carried in all.
    total: u64,
}

/// How far a rail is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RailStage {
    /// One of the sides does not have it.
    Absent,
    /// It failed; the next try comes at that time.
    Down(Duration),
    /// Another queue pair is made; it failed if that is not done by then.
    Renewing(Duration),
    /// A probe is under way.
    Probing,
    /// It carries slices.
    Up,
}

impl Rails {
    /// So many rails, none of which can be used yet.
    pub(crate) fn new(count: usize, patience: Duration) -> Self {
        let rail = || Rail {
            stage: RailStage::Absent,
            rate: None,
            latency: Duration::ZERO,
            tried: Duration::ZERO,
            is_stale: false,
            posted: VecDeque::with_capacity(DEPTH),
            bytes: 0,
            head: Duration::ZERO,
            counted: (0, Duration::ZERO),
            pause: FIRST_PAUSE,
            carried: 0,
            total: 0,
        };
        Rails { rails: (0..count).map(|_| rail()).collect(), patience }
    }

    /// There are no more than so many after all.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.rails.truncate(count);
    }

    pub(crate) fn stage(&self, rail: usize) -> RailStage {
        self.rails.get(rail).map_or(RailStage::Absent, |rail| rail.stage)
    }

    /// Rails that carry slices.
    pub(crate) fn up(&self) -> usize {
        self.rails.iter().filter(|rail| rail.stage == RailStage::Up).count()
    }

    /// True if one of those that `can` says carries slices.
    pub(crate) fn has_up(&self, can: impl Fn(usize) -> bool) -> bool {
        self.rails.iter().enumerate().any(|(index, rail)| rail.stage == RailStage::Up && can(index))
    }

    /// What is known of each: how it stands, bytes a second that it carried of late, the time of a probe, bytes in all.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (RailStage, Option<u64>, Duration, u64)> + '_ {
        let second = |rate: u64| rate.saturating_mul(1000);
        self.rails.iter().map(move |rail| (rail.stage, rail.rate.map(second), rail.latency, rail.total))
    }

    /// It was never there.
    #[cfg(test)]
    pub(crate) fn lose(&mut self, rail: usize) {
        self.rails[rail].stage = RailStage::Absent;
    }

    /// Its queue pair is connected, and a probe under way.
    pub(crate) fn probing(&mut self, rail: usize) {
        if let Some(rail) = self.rails.get_mut(rail) {
            rail.stage = RailStage::Probing;
        }
    }

    /// A probe was answered. True if the rail is used from now on.
    pub(crate) fn probed(&mut self, rail: usize, took: Duration) -> bool {
        let Some(rail) = self.rails.get_mut(rail) else { return false };
        match rail.stage {
            RailStage::Probing => (rail.stage, rail.latency) = (RailStage::Up, took),
            // The first may have waited for anything; paths change.
            RailStage::Up if took < rail.latency => rail.latency = took,
            RailStage::Up => rail.latency += (took - rail.latency) / 8,
            _ => {}
        }
        rail.stage == RailStage::Up
    }

    /// It failed, or is too slow: nothing of it is under way any more. False if it was left out already.
    pub(crate) fn down(&mut self, rail: usize, now: Duration) -> bool {
        let Some(rail) = self.rails.get_mut(rail) else { return false };
        if matches!(rail.stage, RailStage::Absent | RailStage::Down(_)) {
            return false;
        }
        if rail.carried >= PROVEN {
            rail.pause = FIRST_PAUSE;
        }
        if rail.stage == RailStage::Up {
            // It is to show first that it is as fast as it was.
            rail.rate = rail.rate.map(|rate| (rate / 2).max(1));
        }
        rail.stage = RailStage::Down(now + rail.pause);
        rail.pause = (rail.pause * 2).min(LONGEST_PAUSE);
        (rail.bytes, rail.carried) = (0, 0);
        rail.posted.clear();
        true
    }

    /// Another queue pair is made for a rail that is left out, which takes so long at most.
    pub(crate) fn renewing(&mut self, rail: usize, until: Duration) {
        if let Some(rail) = self.rails.get_mut(rail) {
            rail.stage = RailStage::Renewing(until);
        }
    }

    /// A rail that is to be tried again, of those that `can` says.
    pub(crate) fn due(&self, now: Duration, can: impl Fn(usize) -> bool) -> Option<usize> {
        let is_due = |rail: &Rail| matches!(rail.stage, RailStage::Down(at) if now >= at);
        (0..self.rails.len()).find(|&index| is_due(&self.rails[index]) && can(index))
    }

    /// When a rail is to be tried again.
    pub(crate) fn next_try(&self) -> Option<Duration> {
        let tries = self.rails.iter().filter_map(|rail| match rail.stage {
            RailStage::Down(at) => Some(at),
            _ => None,
        });
        tries.min()
    }

    /// When another queue pair of a rail is to be connected at the latest.
    pub(crate) fn next_limit(&self) -> Option<Duration> {
        let limits = self.rails.iter().filter_map(|rail| match rail.stage {
            RailStage::Renewing(until) => Some(until),
            _ => None,
        });
        limits.min()
    }

    /// A rail that is to be left out: another queue pair was not made in time, or a slice takes far too long.
    pub(crate) fn overdue(&self, now: Duration) -> Option<usize> {
        self.rails.iter().position(|rail| match rail.stage {
            RailStage::Renewing(until) => now >= until,
            RailStage::Up => rail.posted.front().is_some_and(|&len| {
                let expected = rail.time_of(len) + rail.latency;
                now.saturating_sub(rail.head) >= (expected * SLOW).max(self.patience)
            }),
            _ => false,
        })
    }

    /// True if slices are under way on a rail.
    pub(crate) fn is_carrying(&self) -> bool {
        self.rails.iter().any(|rail| !rail.posted.is_empty())
    }

    /// The rail for the next slice, which can go over those that `can` says, of `len` bytes, of `left` that are still to be
    /// posted. `None`: the rails that have enough to do now will be done with all of it sooner, or there is none.
    pub(crate) fn pick(&self, len: u64, left: u64, now: Duration, can: impl Fn(usize) -> bool) -> Option<usize> {
        let mut best: Option<(Duration, usize)> = None;
        // Of the rails that have enough to do: what they carry together, and what they have carried by the time they are free.
        let (mut rates, mut ahead) = (0, 0);
        let up = |(index, rail): &(usize, &Rail)| rail.stage == RailStage::Up && can(*index);
        for (index, rail) in self.rails.iter().enumerate().filter(up) {
            if rail.has_room() {
                let is_forgotten = rail.posted.is_empty() && now.saturating_sub(rail.tried) >= FORGOTTEN;
                // What it did then says little of what it does now. A slice shows, of several that are left.
                let finish = if is_forgotten && left >= 4 * len { now } else { rail.free(now) + rail.time_of(len) };
                best = Some(best.map_or((finish, index), |best| best.min((finish, index))));
            } else {
                let rate = u128::from(rail.rate.unwrap_or(UNKNOWN_RATE));
                rates += rate;
                ahead += rate * (rail.free(now) - now).as_nanos();
            }
        }
        let (finish, index) = best?;
        let sooner = |nanos: u128| (finish - now).as_nanos() > nanos;
        let others = (u128::from(left) * NANOS_IN_MILLI + ahead).checked_div(rates);
        (!others.is_some_and(sooner)).then_some(index)
    }

    /// A slice was posted on that rail.
    pub(crate) fn posted(&mut self, rail: usize, len: u64, now: Duration) {
        let Some(rail) = self.rails.get_mut(rail) else { return };
        if rail.posted.is_empty() {
            // The way there is no part of the rate.
            (rail.head, rail.counted) = (now, (0, now + rail.latency));
            rail.is_stale |= now.saturating_sub(rail.tried) >= FORGOTTEN;
        }
        rail.tried = now;
        rail.posted.push_back(len);
        rail.bytes += len;
    }

    /// The oldest slice of that rail was carried.
    pub(crate) fn done(&mut self, rail: usize, now: Duration) {
        let Some(rail) = self.rails.get_mut(rail) else { return };
        let Some(len) = rail.posted.pop_front() else { return };
        rail.bytes -= len;
        rail.head = now;
        rail.carried = rail.carried.saturating_add(1);
        rail.total += len;
        let (bytes, since) = (rail.counted.0 + len, rail.counted.1);
        let took = now.saturating_sub(since);
        let known = rail.rate.filter(|_| !rail.is_stale);
        if took < if known.is_some() { SPAN } else { Duration::from_nanos(1) } {
            rail.counted.0 = bytes;
            return;
        }
        let sample = (u128::from(bytes) * NANOS_IN_MILLI / took.as_nanos()).clamp(1, u128::from(u64::MAX / 4)) as u64;
        rail.rate = Some(known.map_or(sample, |rate| (rate * 3 + sample) / 4).max(1));
        rail.is_stale = false;
        rail.counted = (0, now);
    }
}

impl Rail {
    /// One that has carried nothing yet is to show with one slice how long it takes.
    fn has_room(&self) -> bool {
        self.posted.len() < if self.rate.is_some() { DEPTH } else { 1 }
    }

    fn time_of(&self, len: u64) -> Duration {
        let nanos = u128::from(len) * NANOS_IN_MILLI / u128::from(self.rate.unwrap_or(UNKNOWN_RATE));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// When what is under way will have been carried.
    fn free(&self, now: Duration) -> Duration {
        let gone = now.saturating_sub(self.head);
        now + self.time_of(self.bytes).saturating_sub(gone) + self.latency
    }
}

/// How a transfer is cut: some slices for each rail, none so short that requests cost more than bytes, none so long that the
/// rails end at different times.
pub(crate) fn slice_len(total: u64, rails: usize) -> u64 {
    let even = total / (rails.max(1) as u64 * SLICES);
    even.clamp(SHORTEST, LONGEST).next_multiple_of(PAGE)
}

/// Slices under way on a rail at most: one is carried, and others wait for it to be done.
pub(crate) const DEPTH: usize = 4;
/// From this length on transfers are sliced.
pub(crate) const SLICED_FROM: u64 = 256 << 10;

/// Slices of a transfer for each rail.
const SLICES: u64 = 8;
const SHORTEST: u64 = 64 << 10;
const LONGEST: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// What a rail is taken to carry of which nothing is known, in bytes a millisecond: as much as a fast one, so that it is tried.
const UNKNOWN_RATE: u64 = 25_000_000;
const NANOS_IN_MILLI: u128 = 1_000_000;
/// The rate is an average over times no shorter than this: completions that are taken together tell nothing.
const SPAN: Duration = Duration::from_micros(50);
/// What a rail carried is forgotten when it has carried nothing for so long.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// How many times its time a slice may take.
const SLOW: u32 = 16;
/// The first time without a rail that failed, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Slices after which a rail that came back counts as sound.
const PROVEN: u32 = 256;

#[cfg(test)]
mod tests;
