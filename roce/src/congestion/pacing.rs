//! Keeps a sender to its rate: a token bucket.

use std::time::{Duration, Instant};

use super::rate::Rate;

/// A token bucket: within any time it lets through what the rate makes in that, and one burst more at most, or one
/// packet if that is longer.
///
/// A packet may be sent once the bucket holds its bytes, or is full; so packets that are longer than the burst go as
/// well, at the rate. Arithmetic is exact: a sender that is woken at the next nanosecond after its time loses nothing
/// by that.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    rate: Rate,
    /// Capacity, in tokens.
    burst: i64,
    /// Tokens at `at`. A token is 10^-9 bits: what one bit a second makes in one nanosecond. Negative: more was sent.
    tokens: i64,
    at: Instant,
}

impl Pacer {
    /// A bucket that is full. `burst` is its capacity in bytes, [`MAX_BURST`](Pacer::MAX_BURST) at most: what may be
    /// sent at once after a pause. One packet is smoothest; what the system takes in one call is cheapest.
    pub fn new(now: Instant, rate: Rate, burst: u32) -> Self {
        let burst = tokens(burst.min(Pacer::MAX_BURST));
        Pacer { rate, burst, tokens: burst, at: now }
    }

    /// The largest burst in bytes.
    pub const MAX_BURST: u32 = 1 << 30;

    /// The rate.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Changes the rate from now on.
    pub fn set_rate(&mut self, now: Instant, rate: Rate) {
        if rate != self.rate {
            self.settle(now);
            self.rate = rate;
        }
    }

    /// Bytes that may be sent now.
    pub fn available(&self, now: Instant) -> u32 {
        let bytes = self.tokens_at(now).clamp(0, self.burst) / TOKENS_PER_BYTE;
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// When a packet of so many bytes may be sent, if nothing else is before; `now` if it may be now. At a rate of 0
    /// that is as if it were 1 bit a second.
    pub fn next(&self, now: Instant, bytes: u32) -> Instant {
        let missing = tokens(bytes).min(self.burst).saturating_sub(self.tokens_at(now));
        match u64::try_from(missing) {
            Err(_) | Ok(0) => now,
            Ok(missing) => {
                let wait = Duration::from_nanos(missing.div_ceil(self.rate.bps().max(1)));
                // From the last change if the clock has not got there yet.
                let from = now.max(self.at);
                from.checked_add(wait).unwrap_or(from)
            }
        }
    }

    /// Takes note of bytes that are sent now, whether they might be or not; what is too much is waited for later.
    pub fn sent(&mut self, now: Instant, bytes: u32) {
        self.settle(now);
        self.tokens = self.tokens.saturating_sub(tokens(bytes));
    }

    fn settle(&mut self, now: Instant) {
        self.tokens = self.tokens_at(now);
        self.at = self.at.max(now);
    }

    fn tokens_at(&self, now: Instant) -> i64 {
        let elapsed = u64::try_from(now.saturating_duration_since(self.at).as_nanos()).unwrap_or(u64::MAX);
        let made = i64::try_from(elapsed.saturating_mul(self.rate.bps())).unwrap_or(i64::MAX);
        // What the last nanosecond made above a full bucket is kept, since no one can come within it.
        let fraction = i64::try_from(self.rate.bps()).unwrap_or(i64::MAX);
        self.tokens.saturating_add(made).min(self.burst.saturating_add(fraction))
    }
}

/// Tokens of so many bytes.
fn tokens(bytes: u32) -> i64 {
    i64::from(bytes).saturating_mul(TOKENS_PER_BYTE)
}

const TOKENS_PER_BYTE: i64 = 8_000_000_000;
