//! READs that are combined into the local buffer, on devices that can.

use qpair_verbs::calc::{Calc, DataType, ReduceOp, combine};
use qpair_verbs::{Access, RemoteSlice, WcOpcode, WcStatus};

use crate::harness::{Env, Fill, Mem, Op, Origin, Pair, Piece, QpId, Work};

two_sided! {
    every_operation_and_type_is_combined,
    memory_of_every_origin_is_combined,
    part_of_a_buffer_is_combined,
    exposed_memory_is_combined,
    partial_elements_are_refused,
    pieces_hold_whole_elements,
    lengths_must_agree,
    a_wrong_right_fails,
}

fn pair(env: &Env) -> Option<Pair> {
    let mut pair = env.rc();
    let able = pair.near.abilities().read_reduce;
    env.able("combining READs", able).then_some(pair)
}

fn reduce(mem: Mem, remote: RemoteSlice, (data_type, op): (DataType, ReduceOp)) -> Work {
    Work::new(Op::ReadReduce(remote, data_type, op), mem).signaled()
}

/// `ours op theirs`, by the crate's own loops, which have tests of their own.
fn combined((data_type, op): (DataType, ReduceOp), ours: &[u8], theirs: &[u8]) -> Vec<u8> {
    let mut bytes = ours.to_vec();
    let calc = Calc::new(data_type, op).expect("an operation of that type");
    combine(calc, &mut bytes, theirs).expect("whole elements");
    bytes
}

const SUM: (DataType, ReduceOp) = (DataType::I64, ReduceOp::Sum);

fn every_operation_and_type_is_combined(env: &Env) {
    let Some(mut pair) = pair(env) else { return };
    for (turn, data_type) in DataType::ALL.into_iter().enumerate() {
        for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(data_type)) {
            // The long ones, which go in parts, of a few.
            let lens: &[usize] = if op == ReduceOp::Max { &[8, 24, 4096, 100_000, 1 << 20] } else { &[24, 4096] };
            for &len in lens {
                let fill = Fill::Seed(turn as u64 + 1);
                let source = pair.far.expose_piece(Piece { origin: Origin::Alloc, len, fill }, Access::REMOTE_READ);
                pair.near.post(reduce(Mem::seeded(len, 99), source.remote, (data_type, op)));
                let done = pair.near.done().assert_success(WcOpcode::READ_REDUCE);
                let want = combined((data_type, op), &Fill::Seed(99).bytes(len), &fill.bytes(len));
                done.memory.assert_is(&want);
                pair.far.revoke(&source).expect("nobody uses it").assert_is(&fill.bytes(len));
            }
        }
    }
}

fn memory_of_every_origin_is_combined(env: &Env) {
    let Some(mut pair) = pair(env) else { return };
    for (ours, theirs) in Origin::ALL.into_iter().flat_map(|a| Origin::ALL.map(|b| (a, b))) {
        for len in [16, 5000, 300_000] {
            let source = Piece { origin: theirs, len, fill: Fill::Seed(1) };
            let source = pair.far.expose_piece(source, Access::REMOTE_READ);
            pair.near.post(reduce(Mem::from(ours, len, Fill::Seed(2)), source.remote, SUM));
            let done = pair.near.done().assert_success(WcOpcode::READ_REDUCE);
            done.memory.assert_is(&combined(SUM, &Fill::Seed(2).bytes(len), &Fill::Seed(1).bytes(len)));
        }
    }
}

fn part_of_a_buffer_is_combined(env: &Env) {
    let Some(mut pair) = pair(env) else { return };
    let source =
        pair.far.expose_piece(Piece { origin: Origin::Alloc, len: 800, fill: Fill::Seed(1) }, Access::REMOTE_READ);
    // Neither end of the ranges is a multiple of the element's size.
    pair.near.post(reduce(Mem::seeded(1000, 2), source.part(5, 405), SUM).range(3, 403));
    let done = pair.near.done().assert_success(WcOpcode::READ_REDUCE);
    let mut want = Fill::Seed(2).bytes(1000);
    let part = combined(SUM, &want[3..403], &Fill::Seed(1).bytes(800)[5..405]);
    want[3..403].copy_from_slice(&part);
    done.memory.assert_is(&want);
}

fn exposed_memory_is_combined(env: &Env) {
    let Some(mut pair) = pair(env) else { return };
    let piece = |seed| Piece { origin: Origin::Alloc, len: 4096, fill: Fill::Seed(seed) };
    let ours = pair.near.expose_piece(piece(1), Access::REMOTE_ALL);
    let theirs = pair.far.expose_piece(piece(2), Access::REMOTE_ALL);
    let mem = Mem::Region { region: ours.id, start: 0, end: 4096 };
    pair.near.post(reduce(mem, theirs.remote, SUM));
    pair.near.done().assert_success(WcOpcode::READ_REDUCE);
    pair.near.look(&ours).assert_is(&combined(SUM, &Fill::Seed(1).bytes(4096), &Fill::Seed(2).bytes(4096)));
}

fn partial_elements_are_refused(env: &Env) {
    let Some(mut pair) = pair(env) else { return };
    let source = pair.far.expose(100, Access::REMOTE_READ);
    for len in [1, 7, 12, 99] {
        let refused = pair.near.try_post(QpId(0), reduce(Mem::seeded(len, 1), source.part(0, len as u64), SUM));
        let refused = refused.expect_err("not a whole number of elements");
        assert_eq!((refused.kind.as_str(), refused.retryable, refused.memory_len), ("PartialElement", false, len));
    }
    pair.near.post(reduce(Mem::seeded(16, 0), source.part(0, 16), SUM));
    pair.near.done().assert_success(WcOpcode::READ_REDUCE).memory.assert_is(&Fill::Seed(0).bytes(16));
}

fn pieces_hold_whole_elements(env: &Env) {
    let Some(mut pair) = pair(env) else { return };
    if !env.able("lists of three pieces", pair.near.abilities().max_sge >= 3) {
        return;
    }
    let fill = Fill::Seed(6);
    let source = pair.far.expose_piece(Piece { origin: Origin::Alloc, len: 48, fill }, Access::REMOTE_READ);
    for lens in [[16, 8, 24], [12, 20, 16], [1, 46, 1], [24, 20, 4]] {
        let ours = Mem::list(&lens, 1);
        let posted = pair.near.try_post(QpId(0), reduce(ours.clone(), source.remote, SUM));
        if lens.iter().all(|len| len % 8 == 0) {
            posted.expect("whole elements");
            let done = pair.near.done().assert_success(WcOpcode::READ_REDUCE);
            done.memory.assert_is(&combined(SUM, &ours.bytes(), &fill.bytes(48)));
        } else {
            assert_eq!(posted.expect_err("an element in two pieces").kind, "PartialElement");
        }
    }
}

fn lengths_must_agree(env: &Env) {
    let Some(mut pair) = pair(env) else { return };
    let source = pair.far.expose(100, Access::REMOTE_READ);
    let refused = pair.near.try_post(QpId(0), reduce(Mem::seeded(16, 0), source.part(0, 24), SUM));
    let refused = refused.expect_err("the lengths differ");
    assert_eq!((refused.kind.as_str(), refused.memory_len), ("LengthMismatch", 16));
}

fn a_wrong_right_fails(env: &Env) {
    let Some(mut pair) = pair(env) else { return };
    let source = pair.far.expose(64, Access::REMOTE_WRITE);
    pair.near.post(reduce(Mem::seeded(64, 3), source.remote, SUM));
    let done = pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
    done.memory.assert_is(&Fill::Seed(3).bytes(64));
    pair.near.assert_failed();
    pair.far.assert_failed();
}
