//! All-reduce round a ring.

use super::split::{Split, plan};
use crate::plan::{Collective, Elements, Grain, Plan, Program, Ranks, StepKind};

/// All-reduce as a reduce-scatter and an all-gather round a ring, pipelined in segments.
///
/// The vector is cut into one block per rank. In the first half each block travels once round and
/// every rank adds its part; in the second half the finished blocks travel round.
///
/// - Steps: 2(N - 1), each of one block, in segments which overlap.
/// - On the wire: each rank sends and receives 2 (N - 1) / N of the vector, the least there is.
/// - Wins: large vectors where each rank has a link of its own to its neighbour, and messages are
///   cheap beside them. Any number of ranks and elements.
///
/// One rank finishes each block and the others copy it, so all ranks end with the same bits.
///
/// ```
/// use qpair_collectives::{Elements, Grain, Ranks, algorithms};
///
/// algorithms::ring_all_reduce(Ranks(8), Elements(1 << 20), Grain::default()).verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn ring_all_reduce(ranks: Ranks, len: Elements, grain: Grain) -> Plan {
    let split = Split::new(len, ranks.0, grain);
    plan((Collective::AllReduce, "ring"), (ranks, len), grain, (split.segment_len(), 0), |rank| {
        Ring::new(rank, ranks.0, split).program()
    })
}

/// One rank's program in the making.
struct Ring {
    rank: u32,
    ranks: u32,
    split: Split,
    program: Program,
    /// By block and segment: the step that last received it, and the one that last sent it.
    received: Vec<Option<u32>>,
    sent: Vec<Option<u32>>,
    /// By segment number: the receive of the step of the ring before.
    last: Vec<Option<u32>>,
}

impl Ring {
    fn new(rank: u32, ranks: u32, split: Split) -> Self {
        let most = split.most_segments() as usize;
        Self {
            rank,
            ranks,
            split,
            program: Program::new(),
            received: vec![None; most * ranks as usize],
            sent: vec![None; most * ranks as usize],
            last: vec![None; most],
        }
    }

    fn program(mut self) -> Program {
        let (n, r) = (self.ranks, self.rank);
        for step in 0..n - 1 {
            self.exchange((r + n - step) % n, (r + n - step - 1) % n, true);
        }
        for step in 0..n - 1 {
            self.exchange((r + n + 1 - step) % n, (r + n - step) % n, false);
        }
        self.program
    }

    /// Sends one block on, and receives the one behind it.
    fn exchange(&mut self, outgoing: u32, incoming: u32, reduce: bool) {
        for segment in 0..self.split.most_segments() {
            self.send(outgoing, segment);
            self.receive(incoming, segment, reduce);
        }
    }

    fn send(&mut self, block: u32, segment: u32) {
        let Some(src) = self.split.segment(block, segment) else {
            return;
        };
        let peer = (self.rank + 1) % self.ranks;
        let at = self.index(block, segment);
        let send = StepKind::Send { peer, src };
        self.sent[at] = Some(self.program.push(send, self.received[at]));
    }

    /// Receives once the same bytes have been sent, if they were, and once the receive before is
    /// done: so at most one receive per segment is outstanding.
    fn receive(&mut self, block: u32, segment: u32, reduce: bool) {
        let Some(dst) = self.split.segment(block, segment) else {
            return;
        };
        let peer = (self.rank + self.ranks - 1) % self.ranks;
        let at = self.index(block, segment);
        let kind = if reduce { StepKind::RecvReduce { peer, dst } } else { StepKind::Recv { peer, dst } };
        let deps = [self.sent[at], self.last[segment as usize]];
        let step = self.program.push(kind, deps.into_iter().flatten());
        self.received[at] = Some(step);
        self.last[segment as usize] = Some(step);
    }

    fn index(&self, block: u32, segment: u32) -> usize {
        block as usize * self.split.most_segments() as usize + segment as usize
    }
}
