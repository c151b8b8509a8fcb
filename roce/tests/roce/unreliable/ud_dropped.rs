//! Datagrams that are not taken, by the sender with an error and by the receiver without a word.

use qpair_roce::wire::{Opcode, Packet, Service};
use qpair_roce::{Cause, Completion, Outcome, PostError, Qpn, State, Target};

use super::ud::{End, QKEY, carry, grh};

fn to(qkey: u32) -> Target<usize> {
    Target { qpn: Qpn(0x12), qkey, path: 0 }
}

/// Numbers of the receives that are over, in order, how, and the first byte behind the header's.
fn received(end: &End) -> Vec<(u64, Outcome, u8)> {
    let one = |completion: &Completion<usize>| match completion {
        Completion::Received { id, outcome, local, .. } => {
            (*id, *outcome, end.side.buffers[*local].get(40).copied().unwrap_or(0))
        }
        Completion::Sent { .. } => panic!("it sends nothing"),
    };
    end.side.completions.iter().map(one).collect()
}

#[test]
fn another_key_is_dropped_and_counted() {
    let (mut near, mut far) = (End::new(0x11, 5), End::new(0x12, QKEY));
    far.side.receive(5, 100);
    near.post(to(QKEY + 1), None, vec![1; 10]).unwrap();
    near.post(to(QKEY), None, vec![2; 10]).unwrap();
    carry(&mut near, &mut far);
    assert_eq!(received(&far), [(5, Outcome::Success, 2)]);
    assert_eq!((far.counters.qkey_viol_cntr, far.counters.rcvd_pkts), (1, 1));
}

#[test]
fn a_key_with_the_highest_bit_is_that_of_the_sender() {
    for asked in [0x8000_0000, 0xffff_ffff] {
        // A key that has the bit itself is sent too: that of queue pair 1 has it.
        for own in [QKEY, 0x8001_0000] {
            let (mut near, mut far) = (End::new(0x11, own), End::new(0x12, own));
            far.side.receive(5, 100);
            near.post(to(asked), None, vec![1; 10]).unwrap();
            carry(&mut near, &mut far);
            assert_eq!(received(&far), [(5, Outcome::Success, 1)], "{asked:#x} of {own:#x}");
        }
    }
}

#[test]
fn without_a_receive_it_is_dropped_and_counted() {
    let (mut near, mut far) = (End::new(0x11, 5), End::new(0x12, QKEY));
    near.post(to(QKEY), None, vec![1; 10]).unwrap();
    carry(&mut near, &mut far);
    far.side.receive(5, 100);
    near.post(to(QKEY), None, vec![2; 10]).unwrap();
    carry(&mut near, &mut far);
    assert_eq!(received(&far), [(5, Outcome::Success, 2)]);
    assert_eq!(far.counters.out_of_buffer, 1);
}

#[test]
fn a_receive_too_short_is_left_to_the_next() {
    for room in [0, 39, 40, 49] {
        let (mut near, mut far) = (End::new(0x11, 5), End::new(0x12, QKEY));
        far.side.receive(5, room);
        far.side.receive(6, 100);
        near.post(to(QKEY), None, vec![1; 10]).unwrap();
        carry(&mut near, &mut far);
        assert_eq!(received(&far), [], "room for {room}");
        assert_eq!((far.counters.out_of_buffer, far.side.receives.len()), (1, 2));
        let fits = room.checked_sub(40);
        if let Some(len) = fits {
            near.post(to(QKEY), None, vec![2; len as usize]).unwrap();
            near.post(to(QKEY), None, vec![3; 10]).unwrap();
            carry(&mut near, &mut far);
            let first = if len > 0 { 2 } else { 0 };
            assert_eq!(received(&far), [(5, Outcome::Success, first), (6, Outcome::Success, 3)]);
        }
    }
}

#[test]
fn one_longer_than_the_mtu_is_not_posted() {
    let mut near = End::new(0x11, 5);
    assert_eq!(near.post(to(QKEY), None, vec![1; 1025]), Err(PostError::TooLong { len: 1025, limit: 1024 }));
    assert_eq!(near.transmit(), []);
    near.post(to(QKEY), None, vec![1; 1024]).unwrap();
    assert_eq!(near.transmit()[0].0.len(), 12 + 8 + 1024 + 4);
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let mut near = End::new(0x11, 5);
    for _ in 0..1000 {
        near.post(to(QKEY), None, vec![]).unwrap();
    }
    assert_eq!(near.post(to(QKEY), None, vec![]), Err(PostError::SendQueueFull));
    near.transmit();
    near.post(to(QKEY), None, vec![]).unwrap();
}

#[test]
fn closing_flushes_what_is_posted_and_takes_nothing_in() {
    let (mut near, mut far) = (End::new(0x11, 5), End::new(0x12, QKEY));
    let before = near.post(to(QKEY), None, vec![1]).unwrap();
    near.ud.close(&mut near.side);
    let after = near.post(to(QKEY), None, vec![1]).unwrap();
    let flushed = |id: u64| Completion::Sent { id, outcome: Outcome::Flushed, local: id as usize };
    assert_eq!((near.ud.state(), &near.side.completions[..]), (State::Failed, &[flushed(before), flushed(after)][..]));
    assert_eq!(near.transmit(), []);
    far.side.receive(5, 100);
    far.ud.close(&mut far.side);
    let mut other = End::new(0x11, 5);
    other.post(to(QKEY), None, vec![1]).unwrap();
    carry(&mut other, &mut far);
    assert_eq!((far.side.completions.len(), far.side.receives.len()), (0, 1));
}

#[test]
fn packets_of_other_services_are_dropped_and_counted() {
    let mut far = End::new(0x12, 0);
    far.side.receive(5, 5000);
    let mut dropped = 0;
    for opcode in Opcode::ALL {
        if opcode.meaning().is_some_and(|meaning| meaning.service != Service::Ud) {
            let mut packet = [0; 64];
            packet[0] = opcode.0;
            far.ud.handle(&Packet::parse(&packet).unwrap(), &grh(), &mut far.side, &mut far.counters);
            dropped += 1;
        }
    }
    assert_eq!((far.counters.unsupported_opcode, far.counters.rcvd_pkts), (dropped, 0));
    assert_eq!((far.side.receives.len(), far.transmit()), (1, vec![]));
}

#[test]
fn memory_that_is_gone_fails_the_queue_pair() {
    let (mut near, mut far) = (End::new(0x11, 5), End::new(0x12, QKEY));
    far.side.receive(5, 100);
    far.side.gone.push(0);
    near.post(to(QKEY), None, vec![1]).unwrap();
    carry(&mut near, &mut far);
    assert!(matches!(
        far.side.completions[..],
        [Completion::Received { id: 5, outcome: Outcome::LocalProtection, .. }]
    ));
    assert_eq!((far.ud.state(), &far.side.failed[..]), (State::Failed, &[Cause::Memory][..]));
    let gone = near.post(to(QKEY), None, vec![1]).unwrap();
    near.side.gone.push(gone as usize);
    assert_eq!(near.transmit(), []);
    assert_eq!((near.ud.state(), &near.side.failed[..]), (State::Failed, &[Cause::Request][..]));
}
