//! Operations that end early, or not well: closed, taken back, out of time, aborted, refused, or of a GPU that fails.

use std::time::Duration;

use qpair_fake_cuda::code;
use qpair_transport::{
    CloseReason, Config, Event, OneSidedFailure, OpError, OpId, Payload, RecvFailure, Returned, SendFailure, Tag,
    Unmatched,
};
use qpair_verbs::calc::{Calc, Combine, ReduceOp, UserOp};
use qpair_verbs::{Access, Local, MemoryError, PostError};

use super::*;

/// An operation of the program's own.
struct Last;

impl Combine for Last {
    type Element = u32;
    const NAME: &'static str = "last";
    fn combine(_: u32, b: u32) -> u32 {
        b
    }
}

/// What a failed operation gives back, whose error is that.
fn failed(event: Event, of: OpId, with: &OpError) -> Returned {
    match event {
        Event::Failed { op, error, returned, .. } => {
            assert_eq!((op, &error), (of, with));
            returned
        }
        other => panic!("{}", brief(&other)),
    }
}

#[test]
fn a_close_waits_for_what_was_sent_and_for_what_is_read_after_it() {
    let (gpu, fake) = gpu();
    for receiver_closes in [false, true] {
        let Pair { mut a, mut b, ep_a, ep_b } = Pair::new();
        let bytes = pattern(LONG, 2);
        b.recv_into(ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
        a.send(ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
        if receiver_closes {
            b.close(ep_b)
        } else {
            a.close(ep_a)
        }
        let mut pair = Pair { a, b, ep_a, ep_b };
        let (of_a, of_b) = pair.until(|of_a, of_b| count(of_a, is_closed) == 1 && count(of_b, is_closed) == 1);
        assert_eq!(count_sent(&of_a), 1);
        assert!(came(of_b) == [bytes]);
    }
    tidy(fake);
}

#[test]
fn a_send_can_be_taken_back_until_the_peer_wants_it() {
    let (gpu, _) = gpu();
    let hold = || Config::default().unmatched(Unmatched::Hold);
    let mut pair = Pair::with(hold(), hold());
    let bytes = pattern(LONG, 3);
    let op = pair.a.send(pair.ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
    pair.until(|_, of_b| count(of_b, |event| matches!(event, Event::Offered { .. })) == 1);
    assert!(pair.a.cancel(op));
    let (mut of_a, _) = pair.until(|of_a, _| of_a.len() == 1);
    let returned = failed(of_a.remove(0), op, &OpError::Cancelled);
    assert!(matches!(returned, Returned::Payload(Payload::Gpu(buffer)) if contents(&buffer) == bytes));
}

#[test]
fn a_receive_whose_time_is_over_ends_in_the_middle_and_the_next_message_comes() {
    let (gpu, Some(fake)) = gpu() else { return };
    let Pair { mut a, mut b, ep_a, ep_b } = Pair::new();
    let op = b.recv_into(ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
    a.send(ep_a, Tag(1), filled(gpu, &pattern(LONG, 4))).unwrap();
    // The peer wants it, and the sender's GPU fills no slot.
    fake.hold().unwrap();
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    let start = std::time::Instant::now();
    while !b.explain(ep_b).unwrap().to_string().contains("the peer offers") {
        of_a.extend(a.poll().unwrap());
        of_b.extend(b.poll().unwrap());
        assert!(start.elapsed() < patient_limit(), "no offer comes");
    }
    assert!(!b.cancel(op), "it is being read");
    b.set_deadline(op, Duration::ZERO);
    while of_b.len() < 2 {
        of_b.extend(b.poll().unwrap());
        assert!(start.elapsed() < patient_limit());
    }
    fake.let_go().unwrap();
    let over = of_b.remove(0);
    assert!(matches!(failed(over, op, &OpError::TimedOut), Returned::Withheld));
    let back = of_b.remove(0);
    assert!(matches!(back, Event::Released { op: of, returned: Returned::Memory(Local::Gpu(_)) } if of == op));
    let bytes = pattern(LONG, 6);
    b.recv_into(ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
    a.send(ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
    let mut pair = Pair { a, b, ep_a, ep_b };
    let (more, of_b) = pair.until(|more, of_b| count_sent(&of_a) + count_sent(more) == 2 && of_b.len() == 1);
    assert!(came(of_b) == [bytes]);
    drop((of_a, more, back, pair));
    tidy(Some(fake));
}

#[test]
fn the_end_of_a_connection_gives_all_back_whatever_is_under_way() {
    let (gpu, fake) = gpu();
    for polls in (0..40).step_by(4).chain([70, 120, 250]) {
        for aborts in [0, 1] {
            // Where nobody has a receive there is room for one message.
            let mut pair = Pair::with(Config::default(), Config::default().pool_limit(LONG));
            let own = pair.b.domain().alloc(LONG).unwrap();
            pair.b.recv_into(pair.ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
            pair.b.recv_into(pair.ep_b, Tag(2), gpu.alloc(LONG).unwrap(), None).unwrap();
            pair.b.recv_into(pair.ep_b, Tag(3), own, None).unwrap();
            pair.a.send(pair.ep_a, Tag(1), filled(gpu, &pattern(LONG, 7))).unwrap();
            pair.a.send(pair.ep_a, Tag(2), pattern(LONG, 8)).unwrap();
            pair.a.send(pair.ep_a, Tag(3), filled(gpu, &pattern(LONG, 9))).unwrap();
            pair.a.send(pair.ep_a, Tag(4), filled(gpu, &pattern(LONG, 10))).unwrap();
            let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
            for _ in 0..polls {
                of_a.extend(pair.a.poll().unwrap());
                of_b.extend(pair.b.poll().unwrap());
            }
            if aborts == 0 {
                pair.a.abort(pair.ep_a)
            } else {
                pair.b.abort(pair.ep_b)
            }
            let (more, rest) = pair.until(|more, rest| count(more, is_closed) + count(rest, is_closed) == 2);
            of_a.extend(more);
            of_b.extend(rest);
            let ends = |events: &[Event]| count(events, |event| event.op().is_some());
            let all = || [&of_a, &of_b].map(|events| events.iter().map(brief).collect::<Vec<_>>());
            assert_eq!((ends(&of_a), ends(&of_b)), (4, 3), "after {polls} polls: {:?}", all());
            let held = |event: &Event| matches!(event, Event::Failed { returned: Returned::Withheld, .. });
            assert_eq!(count(&of_a, held) + count(&of_b, held), 0, "after {polls} polls");
            drop((of_a, of_b));
            // The slots are free again, for all that others send, and the room of the message that nobody had a receive for.
            let (ep_a, ep_b) = Pair::connect(&mut pair.a, &mut pair.b);
            let bytes = pattern(LONG, 9);
            pair.b.recv_into(ep_b, Tag(1), gpu.alloc(LONG).unwrap(), None).unwrap();
            pair.a.send(ep_a, Tag(1), filled(gpu, &bytes)).unwrap();
            pair.a.send(ep_a, Tag(4), filled(gpu, &bytes)).unwrap();
            let is_whole = |event: &Event| matches!(event, Event::Received { message, .. } if message[..] == bytes);
            let (_, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 2 && of_b.len() == 2);
            assert_eq!(count(&of_b, is_whole), 1, "after {polls} polls");
            assert!(came(of_b) == [bytes], "after {polls} polls");
        }
    }
    tidy(fake);
}

#[test]
fn a_gpu_that_fails_ends_the_connection_of_what_it_sends_and_the_receive_of_what_it_takes() {
    // Of what is sent: the peer waits for it.
    let ((bad, Some(fake)), (good, _)) = (gpu(), gpu()) else { return };
    let mut pair = Pair::new();
    pair.a.prepare_gpu(bad).unwrap();
    let op = pair.a.send(pair.ep_a, Tag(1), filled(bad, &pattern(LONG, 1))).unwrap();
    fake.fail("cuMemcpyAsync", 3, code::ECC_UNCORRECTABLE).unwrap();
    pair.b.recv_into(pair.ep_b, Tag(1), good.alloc(LONG).unwrap(), None).unwrap();
    let (of_a, of_b) = pair.until(|of_a, of_b| count(of_a, is_closed) == 1 && count(of_b, is_closed) == 1);
    let why = of_a.iter().find_map(|event| match event {
        Event::Closed { reason: CloseReason::Resources(error), .. } => Some(error.to_string()),
        _ => None,
    });
    assert!(why.is_some_and(|why| why.contains("GPU")), "{:?}", of_a.iter().map(brief).collect::<Vec<_>>());
    let gone = |event: &Event| matches!(event, Event::Failed { error: OpError::Closed, .. });
    assert_eq!((count(&of_a, |event| gone(event) && event.op() == Some(op)), count(&of_b, gone)), (1, 1));
    // Of what is received: the message is lost, and those after it come.
    let ((bad, Some(fake)), mut pair) = (gpu(), Pair::new()) else { return };
    let op = pair.b.recv_into(pair.ep_b, Tag(1), bad.alloc(LONG).unwrap(), None).unwrap();
    pair.a.send(pair.ep_a, Tag(1), filled(good, &pattern(LONG, 1))).unwrap();
    fake.fail("cuMemcpyAsync", 3, code::ECC_UNCORRECTABLE).unwrap();
    let (_, mut of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 1 && of_b.len() == 1);
    match of_b.remove(0) {
        Event::Failed { op: of, error: OpError::Memory(why), returned: Returned::Memory(Local::Gpu(_)), .. } => {
            assert_eq!(of, op);
            assert!(why.contains("GPU"), "{why}");
        }
        other => panic!("{}", brief(&other)),
    }
    pair.b.recv_into(pair.ep_b, Tag(1), good.alloc(LONG).unwrap(), None).unwrap();
    pair.a.send(pair.ep_a, Tag(1), filled(good, &pattern(LONG, 2))).unwrap();
    let (_, of_b) = pair.until(|of_a, of_b| count_sent(of_a) == 1 && of_b.len() == 1);
    assert!(came(of_b) == [pattern(LONG, 2)]);
}

#[test]
fn what_can_not_be_is_refused_with_its_memory() {
    let (gpu, Some(fake)) = gpu() else { return };
    let mut pair = Pair::new();
    let calc = Calc::of::<u32>(ReduceOp::User(UserOp::of::<Last>()));
    let refused = pair.b.recv_into(pair.ep_b, Tag(1), gpu.alloc(64).unwrap(), Some(calc)).unwrap_err();
    assert!(matches!((refused.error, refused.memory), (RecvFailure::Form(_), Local::Gpu(_))));
    // Memory for the slots.
    fake.fail("cuMemHostRegister_v2", 1, code::OUT_OF_MEMORY).unwrap();
    let refused = pair.b.recv_into(pair.ep_b, Tag(1), gpu.alloc(64).unwrap(), None).unwrap_err();
    match (refused.error, refused.memory) {
        (RecvFailure::NoSlots(why), Local::Gpu(_)) => assert!(why.contains("memory"), "{why}"),
        (error, _) => panic!("{error}"),
    }
    fake.fail("cuMemHostRegister_v2", 1, code::OUT_OF_MEMORY).unwrap();
    let refused = pair.a.send(pair.ep_a, Tag(1), gpu.alloc(LONG).unwrap()).unwrap_err();
    assert!(matches!(refused.error, SendFailure::Memory(MemoryError::Gpu(_))), "{}", refused.error);
    assert!(matches!(refused.payload, Payload::Gpu(_)));
    // More than there is.
    let region = pair.a.domain().expose(65, Access::REMOTE_WRITE).unwrap();
    let refused = pair.a.put(pair.ep_a, gpu.alloc(64).unwrap(), region.remote(0..65)).unwrap_err();
    assert_eq!(refused.error, PostError::Range { start: 0, end: 65, len: 64 }.into());
    let refused = pair.a.get(pair.ep_a, region.remote(0..65), gpu.alloc(64).unwrap(), None).unwrap_err();
    assert_eq!(refused.error, PostError::Range { start: 0, end: 65, len: 64 }.into());
    // A GPU that fails.
    let memory = gpu.alloc(64).unwrap();
    fake.fail("cuMemcpyDtoH_v2", 1, code::ECC_UNCORRECTABLE).unwrap();
    fake.fail("cuMemcpyAsync", 1, code::ECC_UNCORRECTABLE).unwrap();
    let refused = pair.a.put(pair.ep_a, memory, region.remote(0..64)).unwrap_err();
    assert!(matches!((refused.error, refused.memory), (OneSidedFailure::Memory(_), Local::Gpu(_))));
}
