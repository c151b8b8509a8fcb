//! One small plan for each thing that the verifier names.

use qpair_collectives::{
    Collective, Counts, Elements, FORMAT, OutputFault, Plan, Program, Ranks, Slice, Spec, StepKind, VerifyError,
};

use StepKind::{Copy, Finish, Recv, RecvReduce, Reduce, Send};

const WHOLE: Slice = Slice::data(0, 4);

fn program<const N: usize>(steps: [(StepKind, &[u32]); N]) -> Program {
    let mut program = Program::new();
    for (kind, deps) in steps {
        program.push(kind, deps.iter().copied());
    }
    program
}

fn plan<const N: usize>(collective: Collective, programs: [Program; N]) -> Plan {
    let spec = Spec::new(collective, Ranks(N as u32), Elements(4), 4);
    Plan { format: FORMAT, spec, algorithm: "by hand".to_owned(), programs: programs.into() }
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
    let proof = sound().verify().unwrap();
    assert_eq!((proof.canonical, proof.steps, proof.scratch), (true, 4, 0));
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
    rootless.spec.collective = Collective::Broadcast { root: 2 };
    assert_eq!(fault_of(rootless), VerifyError::Root { root: 2, ranks: 2 });

    for (elements, element_size) in [(4, 0), (u64::MAX, 4)] {
        let mut sized = sound();
        (sized.spec.counts, sized.spec.element_size) = (Counts::Even(elements), element_size);
        let expected = VerifyError::Size { elements, element_size };
        assert_eq!(fault_of(sized), expected);
    }

    for counts in [Counts::Ragged(vec![4, 4].into()), Counts::Pairs(vec![1; 4].into())] {
        let mut counted = sound();
        counted.spec.counts = counts;
        assert!(matches!(fault_of(counted), VerifyError::Counts { ranks: 2, .. }));
    }

    let mut greedy = sound();
    let far = Slice::scratch(24, 1);
    greedy.programs[0].push(Copy { src: Slice::data(0, 1), dst: far }, [1]);
    assert_eq!(fault_of(greedy), VerifyError::Scratch { rank: 0, scratch: 25, limit: 24 });
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
    for slice in [Slice::data(1, 4), Slice::data(u64::MAX, 2), Slice::data(5, 0)] {
        let size = 4;
        let expected = VerifyError::Bounds { rank, step, slice, size };
        assert_eq!(fault_of(one_rank(Reduce { src: WHOLE, dst: slice }, &[])), expected);
    }
    for len in [4, 0] {
        let mut separate = one_rank(Copy { src: Slice::data(0, len), dst: Slice::input(0, len) }, &[]);
        separate.spec.in_place = false;
        let expected = VerifyError::InputWritten { rank, step, slice: Slice::input(0, len) };
        assert_eq!(fault_of(separate), expected);
    }
    let expected = VerifyError::Finish { rank, step, slice: WHOLE };
    assert_eq!(fault_of(one_rank(Finish { dst: WHOLE }, &[])), expected);
    for (src, dst) in [(Slice::data(0, 2), Slice::data(1, 2)), (Slice::data(0, 2), Slice::data(2, 1))] {
        let expected = VerifyError::Operands { rank, step, src, dst };
        assert_eq!(fault_of(one_rank(Reduce { src, dst }, &[])), expected);
    }
}

/// The ranks between which nothing goes call nothing.
#[test]
fn a_transfer_is_of_two_ranks() {
    let transfer = Collective::Transfer { from: 0, to: 2 };
    let give = program([(Send { peer: 1, src: Slice::input(0, 4) }, &[])]);
    let get = program([(Recv { peer: 1, dst: WHOLE }, &[])]);
    let scratch = Slice::scratch(0, 4);
    let relay = program([(Recv { peer: 0, dst: scratch }, &[]), (Send { peer: 2, src: scratch }, &[0])]);
    let mut relayed = plan(transfer, [give, relay, get]);
    relayed.spec.in_place = false;
    assert_eq!(fault_of(relayed), VerifyError::NoPart { rank: 1, from: 0, to: 2 });
}

#[test]
fn messages() {
    let send = |src| program([(Send { peer: 1, src }, &[])]);
    let recv = |dst| program([(Recv { peer: 0, dst }, &[])]);
    let broadcast = |programs| plan(Collective::Broadcast { root: 0 }, programs);
    assert!(broadcast([send(WHOLE), recv(WHOLE)]).verify().is_ok());
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
    assert!(relayed.verify().is_ok());
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

/// Rank 0's last step goes first. In the order of its program, it would wait for rank 1, which waits for it.
#[test]
fn steps_may_go_in_another_order_than_they_are_written() {
    let (send, recv) = (|peer| Send { peer, src: Slice::EMPTY }, |peer| Recv { peer, dst: Slice::EMPTY });
    let nothing = Copy { src: Slice::EMPTY, dst: Slice::EMPTY };
    let zero = program([(recv(1), &[]), (nothing, &[0]), (send(1), &[])]);
    let one = |deps| program([(recv(0), &[]), (send(0), deps)]);
    assert!(plan(Collective::Barrier, [zero.clone(), one(&[0])]).verify().is_ok());
    let heard_first = program([(recv(1), &[]), (nothing, &[0]), (send(1), &[1])]);
    let cycle = vec![(1, 1), (1, 0), (0, 2), (0, 1), (0, 0)];
    let expected = VerifyError::Deadlock { rank: 0, step: 0, cycle };
    assert_eq!(fault_of(plan(Collective::Barrier, [heard_first, one(&[0])])), expected);
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
    too_much.spec.collective = Collective::Broadcast { root: 1 };
    let fault = OutputFault::Foreign(0);
    assert_eq!(fault_of(too_much), VerifyError::Output { rank, slice, fault });

    let copy = Copy { src: Slice::data(0, 1), dst: Slice::data(3, 1) };
    let moved = plan(Collective::AllReduce, [program([(copy, &[])])]);
    let (slice, fault) = (Slice::data(3, 1), OutputFault::Misplaced);
    assert_eq!(fault_of(moved), VerifyError::Output { rank, slice, fault });
}

/// Each rank adds the others' to its own, from the next one on: (0 + 1) + 2 is not (2 + 0) + 1, of floating point.
#[test]
fn ranks_that_end_with_different_bits() {
    let of = |order: [[u32; 2]; 3]| {
        let input = Slice { buffer: qpair_collectives::Buffer::Input, ..WHOLE };
        let programs = order.map(|peers| {
            let [first, second] = peers.map(|peer| RecvReduce { peer, dst: WHOLE });
            let [to_one, to_other] = peers.map(|peer| Send { peer, src: input });
            let copy = Copy { src: input, dst: WHOLE };
            program([(copy, &[]), (to_one, &[]), (to_other, &[]), (first, &[0]), (second, &[3])])
        });
        let mut plan = plan(Collective::AllReduce, programs);
        plan.spec.in_place = false;
        plan
    };
    let expected = VerifyError::Output { rank: 1, slice: WHOLE, fault: OutputFault::Differs };
    assert_eq!(fault_of(of([[1, 2], [2, 0], [0, 1]])), expected);
    // Only the first two may change places: the last rank has (2 + 0) + 1.
    let expected = VerifyError::Output { rank: 2, slice: WHOLE, fault: OutputFault::Differs };
    assert_eq!(fault_of(of([[1, 2], [0, 2], [0, 1]])), expected);
}

/// However many wait for each other, some are named.
#[test]
fn a_long_deadlock_is_told_in_few_words() {
    let nothing = Copy { src: Slice::EMPTY, dst: Slice::EMPTY };
    let mut zero = program([(Recv { peer: 1, dst: WHOLE }, &[])]);
    (0..100_000).for_each(|step| _ = zero.push(nothing, [step]));
    zero.push(Send { peer: 1, src: WHOLE }, [100_000]);
    let one = program([(Recv { peer: 0, dst: WHOLE }, &[]), (Send { peer: 0, src: WHOLE }, &[0])]);
    let error = fault_of(plan(Collective::AllReduce, [zero, one]));
    let VerifyError::Deadlock { cycle, .. } = &error else { panic!("{error}") };
    assert!(cycle.len() > 100_000 && error.to_string().len() < 1000, "{error}");
}

#[test]
fn a_barrier_one_way_only() {
    let send = program([(Send { peer: 1, src: Slice::EMPTY }, &[])]);
    let recv = program([(Recv { peer: 0, dst: Slice::EMPTY }, &[])]);
    let plan = plan(Collective::Barrier, [send, recv]);
    // With a rendezvous rank 0 would know of rank 1; with an eager message it does not.
    assert_eq!(fault_of(plan), VerifyError::Barrier { rank: 0, missing: 1 });
}

/// Sound where there is room for two messages of one pair: rank 0's first is taken only after its second has come.
#[test]
fn a_message_waits_for_the_one_before_it() {
    let (send, recv) = (|src| Send { peer: 1, src }, |dst| Recv { peer: 0, dst });
    let (first, second) = (Slice::data(0, 2), Slice::data(2, 2));
    let zero = program([(send(first), &[]), (send(second), &[])]);
    let one = program([(recv(first), &[]), (recv(second), &[])]);
    let mut plan = plan(Collective::Broadcast { root: 0 }, [zero, one]);
    assert!(plan.verify().is_ok());
    // The third rank hears of the second message, and lets the first be taken.
    let told = |peer| Send { peer, src: Slice::EMPTY };
    let heard = |peer| Recv { peer, dst: Slice::EMPTY };
    plan.spec.ranks = Ranks(3);
    (plan.spec.collective, plan.spec.counts) = (Collective::Scatter { root: 0 }, Counts::Ragged(vec![0, 4, 0].into()));
    plan.spec.in_place = false;
    let input = |slice: Slice| Slice { buffer: qpair_collectives::Buffer::Input, ..slice };
    plan.programs = vec![
        program([(send(input(first)), &[]), (send(input(second)), &[])]),
        program([(heard(2), &[]), (recv(first), &[0]), (recv(second), &[]), (told(2), &[2])]),
        program([(heard(1), &[]), (told(1), &[0])]),
    ];
    assert!(matches!(fault_of(plan), VerifyError::Deadlock { .. }));
}

#[test]
fn a_finish_comes_once_and_last() {
    let finished = |programs: [Program; 2]| {
        let mut plan = plan(Collective::AllReduce, programs);
        plan.spec.finish = true;
        plan
    };
    let one = program([(Send { peer: 0, src: WHOLE }, &[]), (Recv { peer: 0, dst: WHOLE }, &[0])]);
    let reduce = RecvReduce { peer: 1, dst: WHOLE };
    let send = Send { peer: 1, src: WHOLE };
    let right = program([(reduce, &[]), (Finish { dst: WHOLE }, &[0]), (send, &[1])]);
    assert!(finished([right, one.clone()]).verify().is_ok());
    let early = program([(Finish { dst: WHOLE }, &[]), (reduce, &[0]), (send, &[1])]);
    let expected = VerifyError::Finish { rank: 0, step: 0, slice: WHOLE };
    assert_eq!(fault_of(finished([early, one.clone()])), expected);
    let twice = program([(reduce, &[]), (Finish { dst: WHOLE }, &[0]), (Finish { dst: WHOLE }, &[1]), (send, &[2])]);
    let expected = VerifyError::Finish { rank: 0, step: 2, slice: WHOLE };
    assert_eq!(fault_of(finished([twice, one.clone()])), expected);
    let never = program([(reduce, &[]), (send, &[0])]);
    let expected = VerifyError::Output { rank: 0, slice: WHOLE, fault: OutputFault::Unfinished };
    assert_eq!(fault_of(finished([never, one])), expected);
}
