//! The best bandwidth over any part of a run, from when each message was posted and completed.

use std::time::Instant;

use super::settings::{MAX_QPS, PEAK_ITERATIONS};

/// When messages were posted, and when completions said how many are done.
#[derive(Clone, Debug)]
pub struct Stamps {
    start: Instant,
    /// Seconds at which message i was posted.
    posted: Vec<f64>,
    /// Messages done, and the second at which that was seen.
    completed: Vec<(u64, f64)>,
}

impl Stamps {
    /// Room for the stamps of so many messages, and no more where they are counted wrong.
    pub fn new(messages: u64) -> Self {
        let room = usize::try_from(messages.min(MAX_ROOM)).unwrap_or(0);
        Stamps { start: Instant::now(), posted: Vec::with_capacity(room), completed: Vec::with_capacity(room) }
    }

    /// A message is about to be posted.
    #[inline]
    pub fn posted(&mut self) {
        self.posted.push(self.start.elapsed().as_secs_f64());
    }

    /// So many messages are done.
    #[inline]
    pub fn completed(&mut self, messages: u64) {
        self.completed.push((messages, self.start.elapsed().as_secs_f64()));
    }

    /// The least time per message from the post of any one to the completion of any later one; none without messages.
    pub fn best(&self) -> Option<f64> {
        // From a guess, the part of the run that beats it most gives a better guess, until none beats it: each round is
        // linear, and the best part is found within a few.
        let mut guess = self.time_of(0, self.completed.len().checked_sub(1)?)?;
        for _ in 0..MAX_ROUNDS {
            let (first, last) = self.beats_most(guess)?;
            let better = self.time_of(first, last)?;
            if better >= guess {
                break;
            }
            guess = better;
        }
        Some(guess)
    }

    /// Seconds per message from the post of message `first` to completion `last`.
    fn time_of(&self, first: usize, last: usize) -> Option<f64> {
        let (messages, end) = *self.completed.get(last)?;
        let count = messages.checked_sub(first as u64).filter(|count| *count > 0)?;
        Some((end - self.posted.get(first)?) / count as f64)
    }

    /// The part of the run that took the least time above `each` second per message.
    fn beats_most(&self, each: f64) -> Option<(usize, usize)> {
        let (mut best, mut part) = (f64::INFINITY, None);
        // The best message to begin with among those posted so far: the latest against the guess.
        let (mut begin, mut begin_value, mut next) = (0, f64::NEG_INFINITY, 0);
        for (last, &(messages, end)) in self.completed.iter().enumerate() {
            while next < self.posted.len() && (next as u64) < messages {
                let value = self.posted[next] - each * next as f64;
                if value > begin_value {
                    (begin, begin_value) = (next, value);
                }
                next += 1;
            }
            let value = end - each * messages as f64 - begin_value;
            if value < best {
                (best, part) = (value, Some((begin, last)));
            }
        }
        part
    }
}

/// In no run with more messages is the best part looked for.
const MAX_ROOM: u64 = PEAK_ITERATIONS * MAX_QPS as u64;
const MAX_ROUNDS: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(posted: &[f64], completed: &[(u64, f64)]) -> Stamps {
        Stamps { start: Instant::now(), posted: posted.to_vec(), completed: completed.to_vec() }
    }

    /// All parts, one by one.
    fn plainly(stamps: &Stamps) -> Option<f64> {
        let pairs =
            (0..stamps.posted.len()).flat_map(|first| (0..stamps.completed.len()).map(move |last| (first, last)));
        pairs.filter_map(|(first, last)| stamps.time_of(first, last)).min_by(f64::total_cmp)
    }

    #[test]
    fn there_is_room_for_each_message_of_each_queue_pair() {
        let most = 3 * PEAK_ITERATIONS;
        let stamps = Stamps::new(most);
        assert!(stamps.posted.capacity() as u64 >= most && stamps.completed.capacity() as u64 >= most);
        assert!(Stamps::new(u64::MAX).posted.capacity() as u64 <= MAX_ROOM);
    }

    #[test]
    fn the_best_part_of_a_run_is_found() {
        let slow_then_fast = stamps(&[0.0, 10.0, 11.0, 12.0], &[(1, 10.0), (2, 11.0), (3, 12.0), (4, 13.0)]);
        assert_eq!(slow_then_fast.best(), Some(1.0));
        assert_eq!(stamps(&[], &[]).best(), None);
        assert_eq!(stamps(&[1.0], &[(1, 3.0)]).best(), Some(2.0));
    }

    #[test]
    fn it_is_the_one_that_a_search_of_all_parts_finds() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % 1000) as f64 / 1000.0
        };
        for every in [1, 1, 3, 5] {
            let (mut posted, mut completed, mut now) = (Vec::new(), Vec::new(), 0.0);
            for message in 1..=60 {
                now += random();
                posted.push(now);
                if message % every == 0 {
                    completed.push((message, now + 2.0 * random()));
                    now += 0.1 * random();
                }
            }
            let stamps = stamps(&posted, &completed);
            let (found, best) = (stamps.best().expect("messages"), plainly(&stamps).expect("messages"));
            assert!((found - best).abs() < 1e-12, "{found} {best}");
        }
    }
}
