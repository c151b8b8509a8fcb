//! A program seen from the other end: who waits for a step.

use std::collections::HashMap;

use super::program::Program;

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
        for step in 0..len as u32 {
            let deps = program.deps(step);
            dep_counts.push(deps.len() as u32);
            for &dep in deps.iter().filter(|&&dep| (dep as usize) < len) {
                starts[dep as usize + 1] += 1;
            }
        }
        for i in 0..len {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut dependents = vec![0; starts[len] as usize];
        for step in 0..len as u32 {
            for &dep in program.deps(step).iter().filter(|&&d| (d as usize) < len) {
                dependents[next[dep as usize] as usize] = step;
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
    let mut next: HashMap<(bool, u32), u32> = HashMap::new();
    let number = |(_, kind): (u32, &super::StepKind)| {
        let Some(peer) = kind.peer() else { return 0 };
        let next = next.entry((kind.is_send(), peer)).or_default();
        *next += 1;
        *next - 1
    };
    program.numbered().map(number).collect()
}
