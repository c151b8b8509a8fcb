//! Plans whose messages may overtake others, of which a peer takes none before those.

use super::*;
use crate::plan::{FORMAT, Plan, Program, Slice, StepKind};

/// Two ranks gather `messages` elements of each. The first message of rank 0 goes when it has all of rank 1's, and the others may
/// go at once; rank 1 takes that first.
fn late_first(messages: u64) -> Plan {
    let spec = Spec::new(Collective::AllGather, Ranks(2), Elements(messages), 8);
    let part = |rank, at, len| Slice { buffer: crate::plan::Buffer::Data, offset: rank * messages + at, len };
    let mut zero = Program::new();
    zero.push(StepKind::Recv { peer: 1, dst: part(1, 0, messages) }, []);
    zero.push(StepKind::Send { peer: 1, src: part(0, 0, 1) }, [0]);
    let mut one = Program::new();
    one.push(StepKind::Send { peer: 0, src: part(1, 0, messages) }, []);
    one.push(StepKind::Recv { peer: 0, dst: part(0, 0, 1) }, []);
    for at in 1..messages {
        zero.push(StepKind::Send { peer: 1, src: part(0, at, 1) }, []);
        one.push(StepKind::Recv { peer: 0, dst: part(0, at, 1) }, [1]);
    }
    Plan { format: FORMAT, spec, algorithm: "the first is late".into(), programs: vec![zero, one] }
}

#[test]
fn what_overtakes_a_message_leaves_it_room() {
    for (window, messages) in [(1, 20), (2, 20), (8, 40), (32, 40), (32, 1000)] {
        let settings = NetSettings { window, ..NetSettings::default() };
        let group = Communicator::group_knowing(2, settings, &Known::default()).unwrap();
        std::thread::scope(|scope| {
            for comm in group {
                scope.spawn(move || gathers(&comm, messages));
            }
        });
    }
}

fn gathers(comm: &Communicator, messages: u64) {
    comm.set_timeout(LIMIT);
    comm.set_plan(late_first(messages)).unwrap();
    let len = messages as usize;
    let values = |rank: usize| (0..len).map(move |at| (rank * len + at) as f64);
    for _ in 0..3 {
        let mut all = comm.buffer::<f64>(2 * len).unwrap();
        let own = comm.rank() as usize;
        for (element, value) in all[own * len..][..len].iter_mut().zip(values(own)) {
            *element = value;
        }
        comm.all_gather(&mut all).unwrap();
        assert!(all.iter().copied().eq(values(0).chain(values(1))));
    }
    comm.barrier().unwrap();
}
