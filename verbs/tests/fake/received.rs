//! What a receive tells beside its contents: who sent it, how long it is, immediate data, and when it was.

use qpair_verbs::{
    AddressHandle, DatagramQueuePair, GRH_BYTES, Qpn, QueuePair, SharedReceiveQueue, WcOpcode, WcStatus, WorkCompletion,
};

use crate::ground::{Ground, connect, in_fake};

/// One whose queue tells when each completion was, or not.
fn ground(timed: bool) -> Ground {
    let mut ground = Ground::new();
    if timed {
        ground.cq = ground.ctx.create_cq_with_timestamps(64, None).unwrap();
    }
    ground
}

/// A pair of which the second takes receives from a shared queue.
fn connected(ground: &Ground, srq: &SharedReceiveQueue) -> (QueuePair, QueuePair) {
    connect(ground.pd.rc(&ground.cq).build().unwrap(), ground.pd.rc(&ground.cq).srq(srq).build().unwrap())
}

/// A sender of datagrams with receives of its own, and a receiver that takes them from a shared queue.
struct Datagrams {
    from: DatagramQueuePair,
    to: DatagramQueuePair,
    way: AddressHandle,
}

impl Datagrams {
    fn new(ground: &Ground, srq: &SharedReceiveQueue) -> Datagrams {
        let from = ground.pd.ud(&ground.cq).build().unwrap().activate().unwrap();
        let to = ground.pd.ud(&ground.cq).srq(srq).build().unwrap().activate().unwrap();
        let way = from.address_handle(&to.address()).unwrap();
        Datagrams { from, to, way }
    }
}

/// A message, by what it comes over.
enum Message<'a> {
    Connected(&'a mut (QueuePair, QueuePair)),
    Datagram(&'a mut Datagrams),
}
use Message::{Connected, Datagram};

/// Sends a message that takes a receive of the shared queue; what its completion is to say.
fn send(ground: &Ground, srq: &mut SharedReceiveQueue, wr_id: u64, message: Message<'_>) -> WorkCompletion {
    srq.post(ground.pd.alloc(100).unwrap(), wr_id).unwrap();
    let (qpn, src_qpn, header) = match message {
        Connected((near, far)) => {
            near.send_inline(b"message").post().unwrap();
            (far.number(), None, 0)
        }
        Datagram(Datagrams { from, to, way }) => {
            from.send_inline(b"message", way).post().unwrap();
            (to.number(), Some(from.number()), GRH_BYTES as u32)
        }
    };
    received(wr_id, qpn, header + 7, src_qpn)
}

fn received(wr_id: u64, qpn: Qpn, byte_len: u32, src_qpn: Option<Qpn>) -> WorkCompletion {
    let (status, opcode) = (WcStatus::SUCCESS, WcOpcode::RECV);
    WorkCompletion { wr_id, status, opcode, qpn, byte_len, src_qpn, ..WorkCompletion::default() }
}

/// Messages over both, some polled for at once and some in one go.
fn both(
    ground: &mut Ground,
    srq: &mut SharedReceiveQueue,
    pair: &mut (QueuePair, QueuePair),
    datagrams: &mut Datagrams,
) {
    for wr_id in 100..103 {
        let expected = send(ground, srq, wr_id, Connected(pair));
        assert_eq!(ground.done(), expected);
        let expected = send(ground, srq, wr_id, Datagram(datagrams));
        assert_eq!(ground.done(), expected);
    }
    let expected = [200, 201, 202, 203].map(|wr_id| {
        let message = if wr_id % 2 == 0 { Connected(pair) } else { Datagram(datagrams) };
        send(ground, srq, wr_id, message)
    });
    assert_eq!([(); 4].map(|()| ground.done()), expected);
    ground.nothing();
}

/// Messages while the receiver of datagrams goes, its last among them: they wait for the poller, or come later.
fn alone_again(
    ground: &mut Ground,
    srq: &mut SharedReceiveQueue,
    pair: &mut (QueuePair, QueuePair),
    mut datagrams: Datagrams,
) {
    let expected = [300, 301, 302].map(|wr_id| {
        let message = if wr_id == 301 { Datagram(&mut datagrams) } else { Connected(pair) };
        send(ground, srq, wr_id, message)
    });
    drop(datagrams);
    assert_eq!([(); 3].map(|()| ground.done()), expected);
    for wr_id in 303..306 {
        let expected = send(ground, srq, wr_id, Connected(pair));
        assert_eq!(ground.done(), expected);
    }
    ground.nothing();
}

#[test]
fn a_connection_shares_its_receives_with_datagrams_that_come_later() {
    in_fake(|| {
        for timed in [false, true] {
            let mut ground = ground(timed);
            let mut srq = ground.pd.create_srq(8).unwrap();
            let mut pair = connected(&ground, &srq);
            let expected = send(&ground, &mut srq, 1, Connected(&mut pair));
            assert_eq!(ground.done(), expected);
            // Three wait: one is taken by its poll, with the others, before the list of queue pairs changes.
            let expected = [2, 3, 4].map(|wr_id| send(&ground, &mut srq, wr_id, Connected(&mut pair)));
            assert_eq!(ground.done(), expected[0]);
            let left = send(&ground, &mut srq, 5, Connected(&mut pair));
            let mut datagrams = Datagrams::new(&ground, &srq);
            assert_eq!([(); 3].map(|()| ground.done()), [expected[1], expected[2], left]);
            both(&mut ground, &mut srq, &mut pair, &mut datagrams);
            alone_again(&mut ground, &mut srq, &mut pair, datagrams);
            drop((srq, pair));
            ground.close().reset().unwrap();
        }
    });
}

#[test]
fn datagrams_share_their_receives_with_a_connection_that_comes_later() {
    in_fake(|| {
        for timed in [false, true] {
            let mut ground = ground(timed);
            let mut srq = ground.pd.create_srq(8).unwrap();
            let mut datagrams = Datagrams::new(&ground, &srq);
            let expected = send(&ground, &mut srq, 1, Datagram(&mut datagrams));
            assert_eq!(ground.done(), expected);
            let expected = [2, 3, 4].map(|wr_id| send(&ground, &mut srq, wr_id, Datagram(&mut datagrams)));
            assert_eq!(ground.done(), expected[0]);
            let left = send(&ground, &mut srq, 5, Datagram(&mut datagrams));
            let mut pair = connected(&ground, &srq);
            assert_eq!([(); 3].map(|()| ground.done()), [expected[1], expected[2], left]);
            both(&mut ground, &mut srq, &mut pair, &mut datagrams);
            alone_again(&mut ground, &mut srq, &mut pair, datagrams);
            drop((srq, pair));
            ground.close().reset().unwrap();
        }
    });
}

/// More than are taken from the device at a time.
const MESSAGES: u64 = 20;

#[test]
fn lengths_and_immediate_data_are_told_with_times_and_without() {
    in_fake(|| {
        for timed in [false, true] {
            let mut ground = ground(timed);
            let (mut a, mut b) = ground.pair();
            let region = ground.exposed(64);
            for wr_id in 0..MESSAGES {
                b.recv(ground.pd.alloc(100).unwrap()).id(wr_id).post().unwrap();
            }
            let expected: Vec<_> = (0..MESSAGES)
                .map(|wr_id| {
                    let len = 3 * wr_id as u32;
                    let data = vec![wr_id as u8; len as usize];
                    let plain = received(wr_id, b.number(), len, None);
                    match wr_id % 3 {
                        0 => {
                            a.send_inline(&data).post().unwrap();
                            plain
                        }
                        1 => {
                            a.send_inline(&data).imm(0x0102_0304 + len).post().unwrap();
                            WorkCompletion { imm: Some(0x0102_0304 + len), ..plain }
                        }
                        _ => {
                            a.write(ground.filled(1), region.remote(0..64)).imm(len).post().unwrap();
                            let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
                            WorkCompletion { imm: Some(len), opcode, byte_len: 64, ..plain }
                        }
                    }
                })
                .collect();
            let (mut told, mut times) = (Vec::new(), Vec::new());
            while let Some(done) = ground.cq.poll().unwrap() {
                told.push(done.values());
                times.push(done.timestamp());
                let len = if done.opcode() == WcOpcode::RECV { done.byte_len() } else { 0 };
                let (wr_id, buffer) = (done.wr_id(), done.into_buffer().unwrap());
                assert!(buffer[..len].iter().all(|&byte| u64::from(byte) == wr_id) && buffer[len..] == [0; 100][len..]);
            }
            assert_eq!(told, expected);
            if timed {
                // The clock of the device counts nanoseconds, and is read once for each.
                assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{times:?}");
                assert!(times[0] < times[10] && times[10] < times[19], "{times:?}");
            } else {
                assert!(times.iter().all(Option::is_none), "{times:?}");
            }
            drop((a, b, region));
            ground.close().reset().unwrap();
        }
    });
}
