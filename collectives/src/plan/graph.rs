//! A program seen from the other end: who waits for a step.

use std::collections::HashMap;

use super::program::{Program, Step};

/// What an executor needs to run a program by counting dependencies, computed once per plan.
///
/// To run: copy [`dep_counts`](Self::dep_counts) into a work array and start every step whose
/// count is 0. When a step completes, subtract 1 from the count of each of its
/// [`dependents`](Self::dependents), and start those that reach 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    dep_counts: Vec<u32>,
    /// Dependents of step i: `dependents[starts[i]..starts[i + 1]]`.
    dependents: Vec<u32>,
    starts: Vec<u32>,
    messages: Vec<u32>,
}

impl Graph {
    /// The graph of `program`.
    pub fn of(program: &Program) -> Self {
        let len = program.len();
        let mut starts = vec![0_u32; len + 1];
        let mut dep_counts = Vec::with_capacity(len);
        for step in program.steps() {
            dep_counts.push(step.deps.len() as u32);
            for dep in step.deps.iter().filter(|&dep| (dep as usize) < len) {
                starts[dep as usize + 1] += 1;
            }
        }
        for i in 0..len {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut dependents = vec![0; starts[len] as usize];
        for (number, step) in program.numbered() {
            for dep in step.deps.iter().filter(|&dep| (dep as usize) < len) {
                dependents[next[dep as usize] as usize] = number;
                next[dep as usize] += 1;
            }
        }
        Self { dep_counts, dependents, starts, messages: number_messages(program) }
    }

    /// For each step, how many steps it waits for.
    pub fn dep_counts(&self) -> &[u32] {
        &self.dep_counts
    }

    /// The steps that wait for `step`, ascending; none past the end.
    pub fn dependents(&self, step: u32) -> &[u32] {
        let step = step as usize;
        match (self.starts.get(step), self.starts.get(step + 1)) {
            (Some(&start), Some(&end)) => &self.dependents[start as usize..end as usize],
            _ => &[],
        }
    }

    /// For each step, which message it is of those that this rank sends to, or takes from, that
    /// peer, from 0; 0 for a step that is none. Sender and receiver number a message alike.
    pub fn messages(&self) -> &[u32] {
        &self.messages
    }
}

fn number_messages(program: &Program) -> Vec<u32> {
    let peers = || program.steps().iter().filter_map(|step| step.kind.peer());
    // By direction and peer. Mostly a peer is a rank, of which there are not many more than steps; a program of anyone may
    // name any number.
    let dense = peers().max().map_or(0, |peer| peer as usize + 1);
    let mut next = vec![0; if dense <= 8 * program.len() + MANY { 2 * dense } else { 0 }];
    let mut others: HashMap<usize, u32> = HashMap::new();
    let number = |step: Step<'_>| {
        let Some(peer) = step.kind.peer() else { return 0 };
        let place = 2 * peer as usize + usize::from(step.kind.is_send());
        let next = next.get_mut(place).unwrap_or_else(|| others.entry(place).or_default());
        *next += 1;
        *next - 1
    };
    program.steps().iter().map(number).collect()
}

/// Ranks of which a table is small, whatever the number of steps.
const MANY: usize = 1 << 14;
