//! CMP_SWAP and FETCH_ADD.

use qpair_verbs::{Access, WcOpcode, WcStatus};

use crate::harness::{
    Command, Env, Fill, Mem, Origin, Piece, QpId, QpSpec, Region, Side, Work, connect_pair, is_soft, turns,
};

two_sided! {
    fetch_add_adds_and_returns_what_was,
    compare_swap_replaces_only_what_is_equal,
    atomics_reach_memory_of_every_origin,
    misaligned_atomics_fail,
    local_memory_must_have_eight_bytes,
    what_was_is_scattered_to_a_list,
    adds_of_two_peers_and_the_cpu_are_all_counted,
}

fn word_of(side: &mut Side, region: &Region, offset: usize) -> u64 {
    side.look_at(region, offset, offset + 8).word()
}

fn fetch_add_adds_and_returns_what_was(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(64, Access::REMOTE_ATOMIC);
    let mut want = 0_u64;
    for add in [1, 41, u64::MAX, 0, 1 << 63, 1 << 63] {
        pair.near.post(Work::fetch_add(target.part(8, 16), add).signaled());
        let done = pair.near.done().assert_success(WcOpcode::FETCH_ADD);
        assert_eq!((done.memory.word(), done.byte_len), (want, 8));
        want = want.wrapping_add(add);
        assert_eq!(word_of(&mut pair.far, &target, 8), want);
    }
    assert_eq!((word_of(&mut pair.far, &target, 0), word_of(&mut pair.far, &target, 16)), (0, 0));
}

fn compare_swap_replaces_only_what_is_equal(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(16, Access::REMOTE_ATOMIC);
    for (compare, swap, before, after) in
        [(0, 5, 0, 5), (4, 9, 5, 5), (5, u64::MAX, 5, u64::MAX), (u64::MAX, 0, u64::MAX, 0), (1, 2, 0, 0)]
    {
        pair.near.post(Work::compare_swap(target.part(8, 16), compare, swap).signaled());
        let done = pair.near.done().assert_success(WcOpcode::COMP_SWAP);
        assert_eq!(done.memory.word(), before, "{compare} {swap}");
        assert_eq!(word_of(&mut pair.far, &target, 8), after, "{compare} {swap}");
    }
}

fn atomics_reach_memory_of_every_origin(env: &Env) {
    let mut pair = env.rc();
    for origin in Origin::ALL {
        let piece = Piece { origin, len: 4096, fill: Fill::Byte(0) };
        let target = pair.far.expose_piece(piece, Access::REMOTE_ATOMIC);
        // A vector may start anywhere; atomics are for multiples of 8.
        let at = target.remote.addr.next_multiple_of(8) - target.remote.addr;
        for turn in 0..3 {
            let mut work = Work::fetch_add(target.part(at, at + 8), 10).signaled();
            work.mem = Mem::from(origin, 8, Fill::Byte(0xee));
            pair.near.post(work);
            let done = pair.near.done().assert_success(WcOpcode::FETCH_ADD);
            assert_eq!(done.memory.word(), 10 * turn, "{origin:?}");
        }
        pair.near.post(Work::compare_swap(target.part(at, at + 8), 30, 1).signaled());
        assert_eq!(pair.near.done().assert_success(WcOpcode::COMP_SWAP).memory.word(), 30);
        assert_eq!(word_of(&mut pair.far, &target, at as usize), 1, "{origin:?}");
    }
}

fn misaligned_atomics_fail(env: &Env) {
    for offset in [1, 4, 7] {
        let mut pair = env.rc();
        let target = pair.far.expose(64, Access::REMOTE_ALL);
        let work = Work::fetch_add(target.part(offset, offset + 8), 1).signaled();
        match pair.near.try_post(QpId(0), work) {
            Ok(()) => {
                pair.near.done().assert_one_of(&[WcStatus::REM_INV_REQ_ERR, WcStatus::REM_ACCESS_ERR]);
                pair.near.assert_failed();
            }
            // A device may look at the address when it is posted.
            Err(refused) => assert!(refused.kind == "Refused" && !is_soft(), "offset {offset}: {refused:?}"),
        }
        pair.far.look(&target).assert_is(&[0; 64]);
    }
}

fn local_memory_must_have_eight_bytes(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(64, Access::REMOTE_ALL);
    for len in [0, 4, 16] {
        for work in [Work::fetch_add(target.part(0, 8), 1), Work::compare_swap(target.part(0, 8), 0, 1)] {
            let work = Work { mem: Mem::blank(len), ..work };
            let refused = pair.near.try_post(QpId(0), work).expect_err("it does not fit");
            assert_eq!((refused.kind.as_str(), refused.memory_len), ("LengthMismatch", len));
        }
    }
    for (start, end) in [(0, 4), (0, 16), (8, 8)] {
        let refused = pair.near.try_post(QpId(0), Work::fetch_add(target.part(start, end), 1));
        assert_eq!(refused.expect_err("it does not fit").kind, "LengthMismatch");
    }
    pair.near.post(Work::fetch_add(target.part(0, 8), 1).signaled());
    pair.near.done().assert_success(WcOpcode::FETCH_ADD);
}

fn what_was_is_scattered_to_a_list(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(8, Access::REMOTE_ATOMIC);
    let mut want = 0_u64;
    for lens in [&[4, 4][..], &[1, 7], &[3, 3, 2], &[8]] {
        if !env.able("lists of so many pieces", pair.near.abilities().max_sge as usize >= lens.len()) {
            continue;
        }
        let add = Fill::Seed(want).bytes(8);
        let add = u64::from_ne_bytes(add.try_into().unwrap());
        let mut work = Work::fetch_add(target.remote, add).signaled();
        work.mem = Mem::blank_list(lens);
        pair.near.post(work);
        let done = pair.near.done().assert_success(WcOpcode::FETCH_ADD);
        assert_eq!((done.memory.word(), done.byte_len), (want, 8), "{lens:?}");
        want = want.wrapping_add(add);
    }
}

fn adds_of_two_peers_and_the_cpu_are_all_counted(env: &Env) {
    let count = turns(2000);
    let (mut near, mut far, mut third) = (env.near(), env.far(), env.far());
    let (a, _) = connect_pair(&mut near, &QpSpec::rc(), &mut far, &QpSpec::rc());
    let (c, _) = connect_pair(&mut third, &QpSpec::rc(), &mut far, &QpSpec::rc());
    let target = far.expose(8, Access::REMOTE_ATOMIC);
    let with_cpu = env.able("atomics towards the CPU", far.abilities().atomics_with_cpu);
    std::thread::scope(|scope| {
        for (side, qp) in [(&mut near, a), (&mut third, c)] {
            let remote = target.remote;
            scope.spawn(move || side.ask::<u64>(Command::AddMany { qp, remote, count }));
        }
        if with_cpu {
            far.ask::<u64>(Command::HostAdd { region: target.id, offset: 0, add: 1, count });
        }
    });
    let want = u64::from(count) * if with_cpu { 3 } else { 2 };
    assert_eq!(word_of(&mut far, &target, 0), want);
}
