//! Tries every assignment. It shares nothing with the crate's search, and allocates nothing while it
//! tries.

use std::cmp::Reverse;

/// What one user may choose: one way, or several to different NICs.
#[derive(Clone, Debug)]
pub struct Option {
    /// The NICs, as bits.
    pub nics: u64,
    /// For each way what it passes.
    pub ways: Vec<Vec<usize>>,
    /// How far they are together.
    pub far: u64,
}

/// What an assignment is worth: the least, the sum, both in MB/s, and how near.
pub type Worth = (u64, u64, Reverse<u64>);

/// The best of all assignments, of equals the first: for each user the place of its option. With it,
/// how many were looked at to their end.
pub fn best(options: &[Vec<Option>], capacity: &[u64]) -> (Worth, Vec<usize>, u64) {
    assert!(capacity.len() <= MOST, "{} resources", capacity.len());
    let single = options.iter().flatten().all(|option| option.ways.len() == 1);
    let (best, chosen) = ((0, 0, Reverse(u64::MAX)), vec![0; options.len()]);
    let state = State { flows: [0; MOST], used: 0, own: 0, far: 0 };
    let mut all = Brute { options, capacity, single, now: chosen.clone(), best, chosen, tried: 0 };
    all.user(0, &state);
    (all.best, all.chosen, all.tried)
}

const MOST: usize = 128;

/// What the first users have chosen, as far as it matters to the others.
#[derive(Clone)]
struct State {
    /// How many flows pass each resource.
    flows: [u16; MOST],
    /// NICs that somebody uses, and those that one has alone.
    used: u64,
    own: u64,
    far: u64,
}

struct Brute<'a> {
    options: &'a [Vec<Option>],
    capacity: &'a [u64],
    /// True if nobody may choose several ways.
    single: bool,
    now: Vec<usize>,
    best: Worth,
    chosen: Vec<usize>,
    tried: u64,
}

fn megabytes(bytes: u64) -> u64 {
    bytes.saturating_add(500_000) / 1_000_000
}

impl<'a> Brute<'a> {
    fn user(&mut self, user: usize, state: &State) {
        let options: &'a [Vec<Option>] = self.options;
        let Some(own) = options.get(user) else { return self.judge(state) };
        for (place, option) in own.iter().enumerate() {
            let several = option.ways.len() > 1;
            if option.nics & state.own != 0 || several && option.nics & state.used != 0 {
                continue;
            }
            let mut next = state.clone();
            option.ways.iter().flatten().for_each(|&r| next.flows[r] += 1);
            next.used |= option.nics;
            next.own |= if several { option.nics } else { 0 };
            next.far += option.far;
            self.now[user] = place;
            // With one flow for each, the one that has least has an equal share of some resource, and
            // more flows leave it no more: that needs no trying.
            if !self.single || megabytes(self.least_share(&next.flows)) >= self.best.0 {
                self.user(user + 1, &next);
            }
        }
    }

    fn least_share(&self, flows: &[u16; MOST]) -> u64 {
        full(self.capacity, flows).0
    }

    /// Raises the rates of all flows together, and fixes those that pass what gets full.
    fn judge(&mut self, state: &State) {
        self.tried += 1;
        let mut left = [0_u64; MOST];
        left[..self.capacity.len()].copy_from_slice(self.capacity);
        let mut flows = state.flows;
        let mut rates = [0_u64; 64];
        let mut fixed = 0_u64;
        loop {
            let (rate, full) = full(&left[..self.capacity.len()], &flows);
            if full == MOST {
                break;
            }
            let (mut flow, mut user) = (0, 0);
            while user < self.now.len() {
                for over in &self.options[user][self.now[user]].ways {
                    if fixed >> flow & 1 == 0 && over.contains(&full) {
                        fixed |= 1 << flow;
                        rates[user] += rate;
                        for &r in over {
                            left[r] -= rate;
                            flows[r] -= 1;
                        }
                    }
                    flow += 1;
                }
                user += 1;
            }
        }
        let rates = &rates[..self.options.len()];
        let least = rates.iter().copied().min().unwrap_or(u64::MAX);
        let worth = (megabytes(least), megabytes(rates.iter().sum()), Reverse(state.far));
        if worth > self.best {
            self.best = worth;
            self.chosen.copy_from_slice(&self.now);
        }
    }
}

/// The least equal share of what is left, and of which resource; with no flows, of none. It is a plain
/// loop, since tests are seldom built with optimisation.
fn full(left: &[u64], flows: &[u16; MOST]) -> (u64, usize) {
    let (mut least, mut r) = ((u64::MAX, MOST), 0);
    while r < left.len() {
        let count = u64::from(flows[r]);
        if count > 0 && (least.1 == MOST || left[r] / count < least.0) {
            least = (left[r] / count, r);
        }
        r += 1;
    }
    least
}
