//! Runs a plan on real data: all ranks in one thread, in a random order that the rules allow.
//!
//! A message is eager (copied out when its send starts) or rendezvous (read from the sender's
//! memory while the receive runs) at random. What moves data does so a few elements at a time,
//! with steps of other ranks and of the same rank in between, so that a missing dependency shows
//! as a wrong result.

use std::collections::HashMap;

use qpair_collectives::{Buffer, Graph, Plan, Slice, StepKind};

use crate::random::Random;

/// A rank's vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Vectors<T> {
    pub input: Vec<T>,
    pub data: Vec<T>,
}

/// Runs `plan` on every rank's vectors. `poison` fills scratch, `op` combines, `finish` finishes.
///
/// # Errors
/// What went wrong with the schedule: steps that never became possible, or a barrier left early.
pub fn run<T: Copy>(
    plan: &Plan,
    vectors: &mut [Vectors<T>],
    poison: T,
    op: impl Fn(T, T) -> T,
    finish: impl Fn(T) -> T,
    seed: u64,
) -> Result<(), String> {
    let mut machine = Machine::new(plan, vectors, poison, seed);
    while let Some(action) = machine.draw() {
        match action {
            Action::Enter(rank) => machine.enter(rank),
            Action::Start(at) => machine.start(at, &finish),
            Action::Move(running) => machine.advance(running, &op),
        }
        machine.check_barrier()?;
    }
    machine.finish()
}

type At = (u32, u32);

enum Action {
    Enter(u32),
    Start(At),
    Move(Running),
}

/// Something that moves data, element by element from `done` on.
struct Running {
    from: From,
    into: Option<(u32, Slice, bool)>,
    done: usize,
    completes: Vec<At>,
}

enum From {
    /// Copied out before; by number of the message store.
    Eager(usize),
    Memory(u32, Slice),
}

struct Machine<'a, T> {
    plan: &'a Plan,
    graphs: Vec<Graph>,
    counts: Vec<Vec<u32>>,
    vectors: &'a mut [Vectors<T>],
    scratch: Vec<Vec<T>>,
    random: Random,
    outside: Vec<u32>,
    ready: Vec<At>,
    running: Vec<Running>,
    /// Started sends and receives without their other side, by sender, receiver and number.
    sends: HashMap<(u32, u32, u32), (From, Option<At>)>,
    recvs: HashMap<(u32, u32, u32), At>,
    eager: Vec<Vec<T>>,
    open: Vec<usize>,
}

impl<'a, T: Copy> Machine<'a, T> {
    fn new(plan: &'a Plan, vectors: &'a mut [Vectors<T>], poison: T, seed: u64) -> Self {
        let graphs: Vec<Graph> = plan.programs.iter().map(Graph::of).collect();
        Self {
            plan,
            counts: graphs.iter().map(|g| g.dep_counts().to_vec()).collect(),
            graphs,
            vectors,
            scratch: plan.programs.iter().map(|p| vec![poison; p.scratch() as usize]).collect(),
            random: Random::new(seed),
            outside: (0..plan.spec.ranks.0).collect(),
            ready: Vec::new(),
            running: Vec::new(),
            sends: HashMap::new(),
            recvs: HashMap::new(),
            eager: Vec::new(),
            open: plan.programs.iter().map(|p| p.len()).collect(),
        }
    }

    fn draw(&mut self) -> Option<Action> {
        let (outside, ready) = (self.outside.len(), self.ready.len());
        let choices = outside + ready + self.running.len();
        if choices == 0 {
            return None;
        }
        let i = self.random.below(choices as u64) as usize;
        Some(if i < outside {
            Action::Enter(self.outside.swap_remove(i))
        } else if i < outside + ready {
            Action::Start(self.ready.swap_remove(i - outside))
        } else {
            Action::Move(self.running.swap_remove(i - outside - ready))
        })
    }

    fn enter(&mut self, rank: u32) {
        let counts = (0..).zip(&self.counts[rank as usize]);
        let free = counts.filter(|&(_, &count)| count == 0);
        self.ready.extend(free.map(|(step, _)| (rank, step)));
    }

    fn start(&mut self, at: At, finish: &impl Fn(T) -> T) {
        let (rank, step) = at;
        let kind = self.plan.programs[rank as usize].kind(step).unwrap();
        let number = self.graphs[rank as usize].messages()[step as usize];
        match kind {
            StepKind::Copy { src, dst } | StepKind::Reduce { src, dst } => {
                self.running.push(Running {
                    from: From::Memory(rank, src),
                    into: Some((rank, dst, kind.is_reduction())),
                    done: 0,
                    completes: vec![at],
                });
            }
            StepKind::Finish { dst } => {
                for i in dst.offset..dst.offset + dst.len {
                    let place = &mut self.buffer(rank, dst.buffer)[i as usize];
                    *place = finish(*place);
                }
                self.complete(at);
            }
            StepKind::Send { peer, src } => {
                let eager = self.random.below(2) == 0;
                let message = if eager {
                    let copy = src.len as usize;
                    let start = src.offset as usize;
                    let copy = self.buffer(rank, src.buffer)[start..start + copy].to_vec();
                    self.eager.push(copy);
                    self.complete(at);
                    (From::Eager(self.eager.len() - 1), None)
                } else {
                    (From::Memory(rank, src), Some(at))
                };
                self.sends.insert((rank, peer, number), message);
                self.meet((rank, peer, number));
            }
            StepKind::Recv { peer, .. } | StepKind::RecvReduce { peer, .. } => {
                self.recvs.insert((peer, rank, number), at);
                self.meet((peer, rank, number));
            }
        }
    }

    /// Sets a message going if both its sides have started.
    fn meet(&mut self, key: (u32, u32, u32)) {
        if !self.sends.contains_key(&key) || !self.recvs.contains_key(&key) {
            return;
        }
        let (from, send) = self.sends.remove(&key).unwrap();
        let recv = self.recvs.remove(&key).unwrap();
        let kind = self.plan.programs[recv.0 as usize].kind(recv.1).unwrap();
        self.running.push(Running {
            from,
            into: kind.dst().map(|dst| (recv.0, dst, kind.is_reduction())),
            done: 0,
            completes: send.into_iter().chain([recv]).collect(),
        });
    }

    /// Moves a random number of the next elements.
    fn advance(&mut self, mut running: Running, op: &impl Fn(T, T) -> T) {
        let (rank, dst, reduce) = running.into.unwrap();
        let left = dst.len as usize - running.done;
        let count = self.random.below(left as u64 + 1) as usize;
        // Long vectors in a few pieces, short ones in more.
        let count = count.max(left / 4).max(usize::from(left > 0));
        for i in running.done..running.done + count {
            let value = match running.from {
                From::Eager(message) => self.eager[message][i],
                From::Memory(rank, src) => self.buffer(rank, src.buffer)[src.offset as usize + i],
            };
            let place = &mut self.buffer(rank, dst.buffer)[dst.offset as usize + i];
            *place = if reduce { op(*place, value) } else { value };
        }
        running.done += count;
        if running.done < dst.len as usize {
            self.running.push(running);
            return;
        }
        if let From::Eager(message) = running.from {
            self.eager[message] = Vec::new();
        }
        for at in running.completes {
            self.complete(at);
        }
    }

    fn buffer(&mut self, rank: u32, buffer: Buffer) -> &mut Vec<T> {
        match buffer {
            Buffer::Input => &mut self.vectors[rank as usize].input,
            Buffer::Data => &mut self.vectors[rank as usize].data,
            Buffer::Scratch => &mut self.scratch[rank as usize],
        }
    }

    fn complete(&mut self, (rank, step): At) {
        let index = rank as usize;
        self.open[index] -= 1;
        for &dependent in self.graphs[index].dependents(step) {
            let count = &mut self.counts[index][dependent as usize];
            *count -= 1;
            if *count == 0 {
                self.ready.push((rank, dependent));
            }
        }
    }

    /// No rank is through a barrier while another is outside.
    fn check_barrier(&self) -> Result<(), String> {
        let barrier = self.plan.spec.collective == qpair_collectives::Collective::Barrier;
        let inside = |rank: usize| !self.outside.contains(&(rank as u32));
        if barrier && !self.outside.is_empty() {
            for (rank, &open) in self.open.iter().enumerate() {
                if open == 0 && inside(rank) {
                    return Err(format!("rank {rank} left, {:?} outside", self.outside));
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), String> {
        let left: usize = self.open.iter().sum();
        if left > 0 || !self.sends.is_empty() || !self.recvs.is_empty() {
            return Err(format!("{left} steps never became possible"));
        }
        Ok(())
    }
}
