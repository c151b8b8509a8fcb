//! One small plan for each thing that the verifier names.

use qpair_collectives::{
    Collective, Elements, FORMAT, OutputFault, Plan, Program, Ranks, Slice, StepKind, VerifyError,
};

use StepKind::{Copy, Recv, RecvReduce, Reduce, Send};

const WHOLE: Slice = Slice::data(0, 4);

fn program<const N: usize>(steps: [(StepKind, &[u32]); N]) -> Program {
    let mut program = Program::new();
    for (kind, deps) in steps {
        program.push(kind, deps.iter().copied());
    }
    program
}

fn plan<const N: usize>(collective: Collective, programs: [Program; N]) -> Plan {
    let elements = if collective == Collective::Barrier { 0 } else { 4 };
    Plan {
        format: FORMAT,
        collective,
        algorithm: "by hand".to_owned(),
        ranks: Ranks(N as u32),
        elements: Elements(elements),
        element_size: 4,
        segment: elements,
        scratch: elements,
        programs: programs.into(),
    }
}

/// A sound all-reduce: rank 0 reduces, rank 1 gets the result.
fn sound() -> Plan {
    let zero = program([(RecvReduce { peer: 1, dst: WHOLE }, &[]), (Send { peer: 1, src: WHOLE }, &[0])]);
    let one = program([(Send { peer: 0, src: WHOLE }, &[]), (Recv { peer: 0, dst: WHOLE }, &[0])]);
    plan(Collective::AllReduce, [zero, one])
}

fn fault_of(plan: Plan) -> VerifyError {
    let error = plan.verify().unwrap_err();
    println!("{error}");
    error
}

#[test]
fn the_sound_one_passes() {
    assert_eq!(sound().verify(), Ok(()));
}

#[test]
fn headers() {
    let mut other = sound();
    other.format = 99;
    assert_eq!(fault_of(other), VerifyError::Format { format: 99 });

    let mut short = sound();
    short.programs.pop();
    let (ranks, programs) = (2, 1);
    assert_eq!(fault_of(short), VerifyError::Programs { ranks, programs });

    let nobody = plan(Collective::AllReduce, []);
    let (ranks, programs) = (0, 0);
    assert_eq!(fault_of(nobody), VerifyError::Programs { ranks, programs });

    let mut rootless = sound();
    rootless.collective = Collective::Broadcast { root: 2 };
    assert_eq!(fault_of(rootless), VerifyError::Root { root: 2, ranks: 2 });

    for (elements, element_size) in [(4, 0), (u64::MAX, 4)] {
        let mut sized = sound();
        (sized.elements, sized.element_size) = (Elements(elements), element_size);
        let expected = VerifyError::Size { elements, element_size };
        assert_eq!(fault_of(sized), expected);
    }

    let mut greedy = sound();
    greedy.scratch = 9;
    let (scratch, limit) = (9, 8);
    assert_eq!(fault_of(greedy), VerifyError::Scratch { scratch, limit });
}

#[test]
fn single_steps() {
    let one_rank = |kind, deps: &[u32]| plan(Collective::AllReduce, [program([(kind, deps)])]);
    let copy = Copy { src: Slice::data(0, 1), dst: Slice::data(1, 1) };
    let (rank, step) = (0, 0);
    for dep in [0, 1, u32::MAX] {
        let expected = VerifyError::Dependency { rank, step, dep };
        assert_eq!(fault_of(one_rank(copy, &[dep])), expected);
    }
    for peer in [0, 1, u32::MAX] {
        let send = Send { peer, src: WHOLE };
        let expected = VerifyError::Peer { rank, step, peer };
        assert_eq!(fault_of(one_rank(send, &[])), expected);
    }
    for slice in [Slice::scratch(1, 4), Slice::scratch(u64::MAX, 2), Slice::scratch(5, 0)] {
        let size = 4;
        let expected = VerifyError::Bounds { rank, step, slice, size };
        assert_eq!(fault_of(one_rank(Copy { src: WHOLE, dst: slice }, &[])), expected);
    }
    for (src, dst) in [(Slice::data(0, 2), Slice::data(1, 2)), (Slice::data(0, 2), Slice::data(2, 1))] {
        let expected = VerifyError::Operands { rank, step, src, dst };
        assert_eq!(fault_of(one_rank(Reduce { src, dst }, &[])), expected);
    }
}

#[test]
fn messages() {
    let send = |src| program([(Send { peer: 1, src }, &[])]);
    let recv = |dst| program([(Recv { peer: 0, dst }, &[])]);
    let broadcast = |programs| plan(Collective::Broadcast { root: 0 }, programs);
    assert_eq!(broadcast([send(WHOLE), recv(WHOLE)]).verify(), Ok(()));
    assert_eq!(
        fault_of(broadcast([send(WHOLE), Program::new()])),
        VerifyError::Unmatched { rank: 0, step: 0, peer: 1 }
    );
    assert_eq!(
        fault_of(broadcast([Program::new(), recv(WHOLE)])),
        VerifyError::Unmatched { rank: 1, step: 0, peer: 0 }
    );
    assert_eq!(
        fault_of(broadcast([send(WHOLE), recv(Slice::data(0, 3))])),
        VerifyError::MessageLength { rank: 1, step: 0, expected: 3, peer: 0, peer_step: 0, sent: 4 }
    );
}

#[test]
fn a_send_must_be_over_before_its_source_is_written() {
    let mut racing = sound();
    racing.programs[1] = program([(Send { peer: 0, src: WHOLE }, &[]), (Recv { peer: 0, dst: WHOLE }, &[])]);
    // It could not go wrong here, but only since rank 0's program happens to be what it is.
    let expected = VerifyError::Race { rank: 1, step: 1, other: 0, slice: WHOLE };
    assert_eq!(fault_of(racing), expected);
}

#[test]
fn a_receive_must_be_over_before_its_destination_is_read() {
    let mut racing = sound();
    racing.programs[0] =
        program([(RecvReduce { peer: 1, dst: WHOLE }, &[]), (Send { peer: 1, src: Slice::data(0, 4) }, &[])]);
    let expected = VerifyError::Race { rank: 0, step: 1, other: 0, slice: WHOLE };
    assert_eq!(fault_of(racing), expected);
}

#[test]
fn order_through_other_steps_counts() {
    let mut relayed = sound();
    relayed.programs[0] = program([
        (RecvReduce { peer: 1, dst: WHOLE }, &[]),
        (Copy { src: WHOLE, dst: Slice::scratch(0, 4) }, &[0]),
        (Send { peer: 1, src: WHOLE }, &[1]),
    ]);
    assert_eq!(relayed.verify(), Ok(()));
}

#[test]
fn each_sends_before_it_receives() {
    // Sound with eager messages only.
    let side = |peer| program([(Send { peer, src: Slice::EMPTY }, &[]), (Recv { peer, dst: Slice::EMPTY }, &[0])]);
    let plan = plan(Collective::Barrier, [side(1), side(0)]);
    let expected = VerifyError::Deadlock { rank: 0, step: 0, cycle: vec![(1, 1), (1, 0), (0, 1), (0, 0)] };
    let error = fault_of(plan);
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "rank 0, step 0: deadlock, waits for step 1 of rank 1, that for step 0 of rank 1, that for \
         step 1 of rank 0, that for step 0 of rank 0"
    );
}

#[test]
fn each_receives_before_it_sends() {
    let side = |peer| program([(Recv { peer, dst: Slice::EMPTY }, &[]), (Send { peer, src: Slice::EMPTY }, &[0])]);
    let plan = plan(Collective::Barrier, [side(1), side(0)]);
    assert!(matches!(fault_of(plan), VerifyError::Deadlock { rank: 0, .. }));
}

#[test]
fn contents() {
    let slice = Slice::scratch(0, 4);
    let mut undefined = sound();
    undefined.programs[1] = program([(Send { peer: 0, src: slice }, &[]), (Recv { peer: 0, dst: WHOLE }, &[0])]);
    let expected = VerifyError::Undefined { rank: 1, step: 0, slice };
    assert_eq!(fault_of(undefined), expected);

    let mut shifted = sound();
    shifted.programs[0] =
        program([(RecvReduce { peer: 1, dst: Slice::data(0, 3) }, &[]), (Send { peer: 1, src: WHOLE }, &[0])]);
    shifted.programs[1] =
        program([(Send { peer: 0, src: Slice::data(1, 3) }, &[]), (Recv { peer: 0, dst: WHOLE }, &[0])]);
    let slice = Slice::data(0, 3);
    let expected = VerifyError::Misplaced { rank: 0, step: 0, slice };
    assert_eq!(fault_of(shifted), expected);

    let mut twice = sound();
    twice.programs[0] = program([
        (RecvReduce { peer: 1, dst: WHOLE }, &[]),
        (RecvReduce { peer: 1, dst: WHOLE }, &[0]),
        (Send { peer: 1, src: WHOLE }, &[1]),
    ]);
    twice.programs[1] = program([
        (Send { peer: 0, src: WHOLE }, &[]),
        (Send { peer: 0, src: WHOLE }, &[]),
        (Recv { peer: 0, dst: WHOLE }, &[0, 1]),
    ]);
    let expected = VerifyError::Duplicate { rank: 0, step: 1, contributor: 1, slice: WHOLE };
    assert_eq!(fault_of(twice), expected);
}

#[test]
fn outputs() {
    let nothing = plan(Collective::AllReduce, [Program::new(), Program::new()]);
    let (rank, slice) = (0, WHOLE);
    let fault = OutputFault::Missing(1);
    assert_eq!(fault_of(nothing), VerifyError::Output { rank, slice, fault });

    let mut too_much = sound();
    too_much.collective = Collective::Broadcast { root: 1 };
    let fault = OutputFault::Foreign(0);
    assert_eq!(fault_of(too_much), VerifyError::Output { rank, slice, fault });

    let copy = Copy { src: Slice::data(0, 1), dst: Slice::data(3, 1) };
    let moved = plan(Collective::AllReduce, [program([(copy, &[])])]);
    let (slice, fault) = (Slice::data(3, 1), OutputFault::Misplaced);
    assert_eq!(fault_of(moved), VerifyError::Output { rank, slice, fault });
}

#[test]
fn a_barrier_one_way_only() {
    let send = program([(Send { peer: 1, src: Slice::EMPTY }, &[])]);
    let recv = program([(Recv { peer: 0, dst: Slice::EMPTY }, &[])]);
    let plan = plan(Collective::Barrier, [send, recv]);
    // With a rendezvous rank 0 would know of rank 1; with an eager message it does not.
    assert_eq!(fault_of(plan), VerifyError::Barrier { rank: 0, missing: 1 });
}
