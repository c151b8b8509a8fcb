//! SEND and RECV over reliable connections.

use qpair_verbs::{Access, WcOpcode};

use crate::SIZES;
use crate::harness::{CqId, Env, Fill, Mem, Origin, Piece, QpId, QpSpec, Work, connect_pair};

two_sided! {
    messages_of_every_size_arrive,
    a_receive_may_be_longer_than_the_message,
    messages_are_gathered_and_scattered,
    part_of_a_buffer_can_be_sent,
    inline_messages_arrive,
    immediate_data_arrives,
    slabs_take_and_carry_messages,
    exposed_memory_takes_and_carries_messages,
    completions_name_queue_pair_and_request,
    many_messages_pass_both_ways_in_order,
    receives_complete_in_the_order_of_posting,
    receives_can_have_a_queue_of_their_own,
    receives_can_be_posted_before_connecting,
    a_message_sent_before_the_peer_connects_arrives,
    two_pairs_do_not_mix,
    messages_complete_though_the_receiver_does_not_poll,
}

fn messages_of_every_size_arrive(env: &Env) {
    let mut pair = env.rc();
    for (turn, size) in SIZES.into_iter().enumerate() {
        pair.far.recv(Mem::blank(size), turn as u64);
        let message = Mem::seeded(size, turn as u64);
        pair.near.post(Work::send(message.clone()).id(turn as u64).signaled());
        let received = pair.far.done().assert_success(WcOpcode::RECV);
        assert_eq!((received.byte_len as usize, received.wr_id), (size, turn as u64));
        received.memory.assert_is(&message.bytes());
        let sent = pair.near.done().assert_success(WcOpcode::SEND);
        assert_eq!(sent.wr_id, turn as u64);
        sent.memory.assert_is(&message.bytes());
    }
}

fn a_receive_may_be_longer_than_the_message(env: &Env) {
    let mut pair = env.rc();
    for size in SIZES.into_iter().filter(|size| *size <= 64 << 10) {
        pair.far.recv(Mem::blank(size + 65), 0);
        pair.near.post(Work::send(Mem::seeded(size, 3)).signaled());
        let received = pair.far.done().assert_success(WcOpcode::RECV);
        received.memory.assert_is(&Fill::Seed(3).bytes(size));
        assert!(received.memory.tail_blank, "{size}: bytes behind the message were written");
        pair.near.done().assert_success(WcOpcode::SEND);
    }
}

fn messages_are_gathered_and_scattered(env: &Env) {
    let mut pair = env.rc();
    let able = pair.near.abilities().max_sge >= 4 && pair.far.abilities().max_sge >= 4;
    if !env.able("lists of four pieces", able) {
        return;
    }
    let lists = [
        ([1, 39, 4096, 7], [100, 3, 4000, 40]),
        ([5, 5, 5, 5], [1, 2, 3, 14]),
        ([70_000, 1, 1, 30_000], [9, 99_000, 993, 1000]),
        ([64, 64, 64, 64], [300, 1, 1, 1]),
    ];
    for (turn, (from, into)) in lists.into_iter().enumerate() {
        let message = Mem::list(&from, 10 * turn as u64);
        pair.far.recv(Mem::blank_list(&into), 0);
        pair.near.post(Work::send(message.clone()).signaled());
        let received = pair.far.done().assert_success(WcOpcode::RECV);
        received.memory.assert_is(&message.bytes());
        assert_eq!((received.memory.form.as_str(), received.memory.tail_blank), ("a list of buffers", true));
        pair.near.done().assert_success(WcOpcode::SEND).memory.assert_is(&message.bytes());
    }
}

fn part_of_a_buffer_can_be_sent(env: &Env) {
    let mut pair = env.rc();
    let bytes = Fill::Seed(1).bytes(9000);
    for (start, end) in [(0, 9000), (1, 2), (100, 300), (4095, 8999), (77, 77)] {
        pair.far.recv(Mem::blank(9000), 0);
        pair.near.post(Work::send(Mem::seeded(9000, 1)).range(start, end).signaled());
        pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&bytes[start..end]);
        pair.near.done().assert_success(WcOpcode::SEND).memory.assert_is(&bytes);
    }
}

fn inline_messages_arrive(env: &Env) {
    let mut pair = env.rc();
    let most = pair.near.abilities().max_inline as usize;
    for size in [0, 1, 8, 39, 40, 41, 100, 219, 220, most].into_iter().filter(|size| *size <= most) {
        pair.far.recv(Mem::blank(most), 0);
        pair.near.post(Work::send(Mem::inline(size, 4)).signaled());
        pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(4).bytes(size));
        let sent = pair.near.done().assert_success(WcOpcode::SEND);
        assert_eq!(sent.memory.form, "no memory");
    }
}

fn immediate_data_arrives(env: &Env) {
    let mut pair = env.rc();
    for (size, imm) in [(0, Some(0)), (0, None), (100, Some(u32::MAX)), (10_000, Some(0x0102_0304)), (100, None)] {
        pair.far.recv(Mem::blank(size), 0);
        let mut work = Work::send(Mem::seeded(size, 5)).signaled();
        work.imm = imm;
        pair.near.post(work);
        let received = pair.far.done().assert_success(WcOpcode::RECV);
        assert_eq!((received.imm, received.byte_len as usize), (imm, size));
        assert_eq!(received.invalidated, None);
        pair.near.done().assert_success(WcOpcode::SEND);
    }
}

fn slabs_take_and_carry_messages(env: &Env) {
    let mut pair = env.rc();
    for size in [16, 1000, 100_000] {
        let slab = |fill| Mem::Slab(Piece { origin: Origin::Alloc, len: size, fill });
        pair.far.recv(slab(Fill::Byte(0)), 0);
        pair.near.post(Work::send(slab(Fill::Seed(6))).signaled());
        let received = pair.far.done().assert_success(WcOpcode::RECV);
        assert_eq!(received.memory.form, "a slab");
        received.memory.assert_is(&Fill::Seed(6).bytes(size));
        assert_eq!(pair.near.done().assert_success(WcOpcode::SEND).memory.form, "a slab");
    }
}

fn exposed_memory_takes_and_carries_messages(env: &Env) {
    let mut pair = env.rc();
    let piece = Piece { origin: Origin::Alloc, len: 20_000, fill: Fill::Seed(7) };
    let (from, into) = (pair.near.expose_piece(piece, Access::NONE), pair.far.expose(20_000, Access::NONE));
    for (start, end) in [(0, 20_000), (3, 33), (100, 5000)] {
        pair.far.recv(Mem::Region { region: into.id, start, end }, 0);
        pair.near.post(Work::send(Mem::Region { region: from.id, start, end }).signaled());
        pair.far.done().assert_success(WcOpcode::RECV);
        pair.near.done().assert_success(WcOpcode::SEND);
        pair.far.look_at(&into, start, end).assert_is(&Fill::Seed(7).bytes(20_000)[start..end]);
    }
    assert!(pair.near.revoke(&from).is_ok() && pair.far.revoke(&into).is_ok());
}

fn completions_name_queue_pair_and_request(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let (a, b) = (near.new_qp(&QpSpec::rc()), far.new_qp(&QpSpec::rc()));
    near.connect(a.qp, b.address);
    far.connect(b.qp, a.address);
    far.recv(Mem::blank(8), u64::MAX);
    near.post(Work::send(Mem::seeded(8, 0)).id(u64::MAX - 1).signaled());
    let received = far.done();
    assert_eq!((received.qpn, received.wr_id, received.src_qpn), (b.address.qpn, u64::MAX, None));
    let sent = near.done();
    assert_eq!((sent.qpn, sent.wr_id), (a.address.qpn, u64::MAX - 1));
}

fn many_messages_pass_both_ways_in_order(env: &Env) {
    let mut pair = env.rc();
    let len = |turn: u64| [8, 4096, 300, 40][turn as usize % 4];
    for round in 0..6 {
        let turns = round * 50..(round + 1) * 50;
        for turn in turns.clone() {
            pair.near.recv(Mem::blank(4096), turn);
            pair.far.recv(Mem::blank(4096), turn);
        }
        for turn in turns.clone() {
            for (side, offset) in [(&mut pair.near, 0), (&mut pair.far, 1000)] {
                let work = Work::send(Mem::seeded(len(turn), turn + offset)).imm(turn as u32).id(turn);
                // Only the last is signaled; it gives all send slots back.
                side.post(if turn + 1 == turns.end { work.signaled() } else { work });
            }
        }
        for (side, offset) in [(&mut pair.far, 0), (&mut pair.near, 1000)] {
            let (receives, sends): (Vec<_>, Vec<_>) =
                (0..=50).map(|_| side.done()).partition(|done| done.opcode().is_receive());
            assert_eq!(sends.iter().map(|done| done.wr_id).collect::<Vec<_>>(), [turns.end - 1]);
            assert_eq!(sends[0].retired.len(), 49);
            for (turn, done) in turns.clone().zip(receives) {
                assert_eq!((done.wr_id, done.imm), (turn, Some(turn as u32)));
                done.memory.assert_is(&Fill::Seed(turn + offset).bytes(len(turn)));
            }
        }
    }
}

fn receives_complete_in_the_order_of_posting(env: &Env) {
    let mut pair = env.rc();
    for turn in 0..20 {
        pair.far.recv(Mem::blank(if turn % 2 == 0 { 10 } else { 100_000 }), turn);
    }
    for turn in 0..20 {
        pair.near.post(Work::send(Mem::seeded(if turn % 2 == 0 { 10 } else { 100_000 }, turn)).id(turn).signaled());
    }
    for turn in 0..20 {
        assert_eq!(pair.far.done().assert_success(WcOpcode::RECV).wr_id, turn);
        assert_eq!(pair.near.done().assert_success(WcOpcode::SEND).wr_id, turn);
    }
}

fn receives_can_have_a_queue_of_their_own(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let recv_cq = Some(far.new_cq(16));
    connect_pair(&mut near, &QpSpec::rc(), &mut far, &QpSpec { recv_cq, ..QpSpec::rc() });
    far.recv(Mem::blank(8), 1);
    near.recv(Mem::blank(8), 2);
    near.post(Work::send(Mem::seeded(8, 0)).signaled());
    far.post(Work::send(Mem::seeded(8, 0)).id(3).signaled());
    assert_eq!(far.done_on(CqId(1)).assert_success(WcOpcode::RECV).wr_id, 1);
    assert_eq!(far.done_on(CqId(0)).assert_success(WcOpcode::SEND).wr_id, 3);
    far.assert_quiet();
}

fn receives_can_be_posted_before_connecting(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let (a, b) = (near.new_qp(&QpSpec::rc()), far.new_qp(&QpSpec::rc()));
    far.recv_on(b.qp, Mem::blank(8), 7);
    near.connect(a.qp, b.address);
    far.connect(b.qp, a.address);
    near.post(Work::send(Mem::seeded(8, 1)).signaled());
    let received = far.done().assert_success(WcOpcode::RECV);
    assert_eq!(received.wr_id, 7);
    received.memory.assert_is(&Fill::Seed(1).bytes(8));
}

fn a_message_sent_before_the_peer_connects_arrives(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let (a, b) = (near.new_qp(&QpSpec::rc()), far.new_qp(&QpSpec::rc()));
    far.recv_on(b.qp, Mem::blank(5000), 0);
    near.connect(a.qp, b.address);
    near.post(Work::send(Mem::seeded(5000, 2)).signaled());
    near.assert_quiet();
    far.connect(b.qp, a.address);
    far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(2).bytes(5000));
    near.done().assert_success(WcOpcode::SEND);
}

fn two_pairs_do_not_mix(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    for _ in 0..2 {
        connect_pair(&mut near, &QpSpec::rc(), &mut far, &QpSpec::rc());
    }
    for turn in 0..10 {
        for qp in [QpId(0), QpId(1)] {
            far.recv_on(qp, Mem::blank(64), 2 * turn + qp.0 as u64);
        }
    }
    for turn in 0..10 {
        for qp in [QpId(1), QpId(0)] {
            near.post_on(qp, Work::send(Mem::seeded(64, 2 * turn + qp.0 as u64)));
        }
    }
    for _ in 0..20 {
        let done = far.done().assert_success(WcOpcode::RECV);
        done.memory.assert_is(&Fill::Seed(done.wr_id).bytes(64));
    }
}

fn messages_complete_though_the_receiver_does_not_poll(env: &Env) {
    for len in [8, 220, 221, 5000] {
        let mut pair = env.rc();
        (0..128).for_each(|wr_id| pair.far.recv(Mem::blank(len), wr_id));
        for turn in 0..128 {
            pair.near.post(Work::send(Mem::seeded(len, turn)).id(turn).signaled());
        }
        for turn in 0..128 {
            assert_eq!(pair.near.done().assert_success(WcOpcode::SEND).wr_id, turn);
        }
        for turn in 0..128 {
            pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(turn).bytes(len));
        }
    }
}
