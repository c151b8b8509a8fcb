//! Plans whose messages may overtake others, of which a peer takes none before those.

use super::*;
use crate::plan::{Buffer as Named, FORMAT, Plan, Program, Slice, StepKind};

/// The elements of one rank's block, from `at` on.
fn part(block: u64, rank: u64, at: u64, len: u64) -> Slice {
    Slice { buffer: Named::Data, offset: rank * block + at, len }
}

fn plan(block: u64, programs: Vec<Program>) -> Plan {
    let spec = Spec::new(Collective::AllGather, Ranks(programs.len() as u32), Elements(block), 8);
    Plan { format: FORMAT, spec, algorithm: "by hand".into(), programs }
}

/// Ranks gather `messages` elements of each. The first message of rank 0 to another goes when it has all of that one's, and those
/// behind it may go at once; the other takes that first.
fn late_first(ranks: u64, messages: u64) -> Plan {
    let whole = |rank| part(messages, rank, 0, messages);
    let piece = |at| part(messages, 0, at, 1);
    let mut zero = Program::new();
    let mut others: Vec<Program> = (1..ranks).map(|_| Program::new()).collect();
    for (peer, other) in (1..ranks).zip(&mut others) {
        let came = zero.push(StepKind::Recv { peer: peer as u32, dst: whole(peer) }, []);
        zero.push(StepKind::Send { peer: peer as u32, src: piece(0) }, [came]);
        for to in (0..ranks).filter(|&to| to != peer) {
            other.push(StepKind::Send { peer: to as u32, src: whole(peer) }, []);
        }
        for from in (1..ranks).filter(|&from| from != peer) {
            other.push(StepKind::Recv { peer: from as u32, dst: whole(from) }, []);
        }
        let first = other.push(StepKind::Recv { peer: 0, dst: piece(0) }, []);
        for at in 1..messages {
            zero.push(StepKind::Send { peer: peer as u32, src: piece(at) }, []);
            other.push(StepKind::Recv { peer: 0, dst: piece(at) }, [first]);
        }
    }
    plan(messages, std::iter::once(zero).chain(others).collect())
}

/// The same where the pieces of rank 0 are copied before they go, and may be given away.
fn late_first_of_copies(messages: u64) -> Plan {
    let scratch = |at| Slice { buffer: Named::Scratch, offset: at, len: 1 };
    let mut plan = late_first(2, messages);
    let mut zero = Program::new();
    let came = zero.push(StepKind::Recv { peer: 1, dst: part(messages, 1, 0, messages) }, []);
    for at in 0..messages {
        let deps = if at == 0 { vec![came] } else { Vec::new() };
        let copy = zero.push(StepKind::Copy { src: part(messages, 0, at, 1), dst: scratch(at) }, deps);
        zero.push(StepKind::Send { peer: 1, src: scratch(at) }, [copy]);
    }
    plan.programs[0] = zero;
    plan
}

/// Two ranks gather long blocks, and send each other nothing, often: `late` if rank 0 gives its block when it has the other's, so that
/// what is empty may overtake it; else what is empty goes before what tells that the block was taken.
fn nothing_often(block: u64, late: bool) -> Plan {
    let whole = |rank| part(block, rank, 0, block);
    let (mut zero, mut one) = (Program::new(), Program::new());
    let nothing = part(block, 0, 0, 0);
    if late {
        zero.push(StepKind::Recv { peer: 1, dst: whole(1) }, []);
        zero.push(StepKind::Send { peer: 1, src: whole(0) }, [0]);
        one.push(StepKind::Send { peer: 0, src: whole(1) }, []);
        one.push(StepKind::Recv { peer: 0, dst: whole(0) }, []);
        for _ in 0..1000 {
            zero.push(StepKind::Send { peer: 1, src: nothing }, []);
            one.push(StepKind::Recv { peer: 0, dst: nothing }, [1]);
        }
    } else {
        zero.push(StepKind::Send { peer: 1, src: whole(0) }, []);
        for _ in 0..1000 {
            zero.push(StepKind::Recv { peer: 1, dst: nothing }, [0]);
            one.push(StepKind::Send { peer: 0, src: nothing }, []);
        }
        one.push(StepKind::Recv { peer: 0, dst: whole(0) }, []);
        one.push(StepKind::Send { peer: 0, src: whole(1) }, []);
        zero.push(StepKind::Recv { peer: 1, dst: whole(1) }, []);
    }
    plan(block, vec![zero, one])
}

/// All ranks gather by a plan, several times.
fn gather(plan: &Plan, window: u32) {
    let settings = NetSettings { window, ..NetSettings::default() };
    let group = Communicator::group_knowing(plan.programs.len(), settings, &Known::default()).unwrap();
    std::thread::scope(|scope| {
        for comm in group {
            scope.spawn(move || gather_here(&comm, plan));
        }
    });
}

fn gather_here(comm: &Communicator, plan: &Plan) {
    comm.set_timeout(LIMIT);
    comm.set_plan(plan.clone()).unwrap();
    let len = plan.spec.total() as usize / comm.size();
    let mut all = comm.buffer::<f64>(comm.size() * len).unwrap();
    for round in 0..3 {
        let value = |at: usize| (round * 1_000_000 + at) as f64;
        let own = comm.rank() * len..(comm.rank() + 1) * len;
        all.fill(-1.0);
        own.for_each(|at| all[at] = value(at));
        comm.all_gather(&mut all).unwrap();
        assert!(all.iter().copied().eq((0..all.len()).map(value)), "round {round}");
    }
    comm.barrier().unwrap();
}

#[test]
fn what_overtakes_a_message_leaves_it_room() {
    for (window, messages) in [(1, 200), (2, 200), (8, 400), (32, 10), (32, 40), (32, 1000)] {
        gather(&late_first(2, messages), window);
        gather(&late_first_of_copies(messages), window);
    }
}

#[test]
fn what_overtakes_is_held_back_for_each_peer() {
    gather(&late_first(3, 200), 2);
    gather(&late_first(3, 1000), 32);
}

#[test]
fn what_is_empty_takes_up_no_room() {
    // Blocks that are copied, and such that are read.
    for (window, block) in [(1, 100), (32, 100), (1, 100_000), (32, 100_000)] {
        for late in [true, false] {
            gather(&nothing_often(block, late), window);
        }
    }
}
