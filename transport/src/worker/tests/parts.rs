//! Messages that peers offer in parts.

use super::recovery::two;
use super::*;
use crate::engine::{Header, Kind, Offer};

/// Bytes of a message, of which there is memory for one.
const LEN: usize = 20 << 10;

/// A worker that is connected to itself, and to a peer that does not poll and has offered messages of these lengths in parts: the
/// peer, the worker, its end of that connection, and the end that sends over the other.
fn held_up(lengths: &[usize]) -> (Worker, Worker, EndpointId, EndpointId) {
    let (peer, _, mut worker, holder) = two(Config::default(), Config::default().pool_limit(32 << 10));
    let (ep, _) = join(&mut worker, |worker, address| worker.connect(address));
    for (id, &len) in (5..).zip(lengths) {
        let (kind, envelope, length) = (Kind::ReadyToSend, Envelope::bare(id.into()), len as u64);
        let header = Header { kind, envelope, epoch: 0, sequence: 0, credits: 0, length, acknowledged: 0 };
        worker.offered(holder, &header, Offer::in_parts(id));
        worker.pump(holder.index as usize);
    }
    assert!(worker.staging.takes_from(holder));
    (peer, worker, holder, ep)
}

/// Sends a message of so many bytes, for which nothing is posted.
fn send(worker: &mut Worker, ep: EndpointId, len: usize) {
    let message = worker.domain().alloc(len).unwrap();
    worker.send(ep, Tag(7), message).unwrap();
}

/// The same, where there is no memory for it.
fn send_in_vain(worker: &mut Worker, ep: EndpointId) {
    send(worker, ep, LEN);
    assert!(polls(worker).is_empty() && worker.inbox.is_stalled());
}

/// Some polls, and what comes.
fn polls(worker: &mut Worker) -> Vec<Event> {
    (0..500).filter_map(|_| worker.poll().unwrap()).filter(|event| !matches!(event, Event::Sent { .. })).collect()
}

#[test]
fn a_peer_that_offers_no_part_holds_others_up_for_a_while_only() {
    let (_peer, mut worker, holder, ep) = held_up(&[LEN]);
    send_in_vain(&mut worker, ep);
    let start = worker.now();
    // A clock that jumps takes little of its time.
    for hours in 1..=5 {
        worker.service(start + hours * Duration::from_secs(3600), Some(Duration::ZERO)).unwrap();
        let events = polls(&mut worker);
        assert!(events.is_empty(), "{events:?}");
    }
    worker.service(start + 6 * Duration::from_secs(3600), Some(Duration::ZERO)).unwrap();
    let (mut ended, mut came) = (false, false);
    while !ended || !came {
        match worker.wait(Some(PATIENCE)).unwrap().expect("it goes on") {
            Event::Closed { ep, reason } if ep == holder => {
                assert!(matches!(reason, CloseReason::PartsTimedOut(_)), "{reason}");
                ended = true;
            }
            Event::Received { tag: Tag(7), message, .. } => {
                assert_eq!(message.len(), LEN);
                came = true;
            }
            Event::Sent { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Ten hours, of which nothing comes.
fn all_is_well(worker: &mut Worker, holder: EndpointId) {
    let start = worker.now();
    for hours in 1..=10 {
        worker.service(start + hours * Duration::from_secs(3600), Some(Duration::ZERO)).unwrap();
        let events = polls(worker);
        assert!(events.is_empty(), "{events:?}");
    }
    assert!(worker.staging.takes_from(holder));
}

#[test]
fn a_peer_that_holds_nobody_up_has_all_time_for_its_parts() {
    for own in [&[LEN][..], &[LEN, LEN]] {
        let (_peer, mut worker, holder, _) = held_up(own);
        assert_eq!(worker.inbox.is_stalled(), own.len() > 1, "it holds itself up at most");
        all_is_well(&mut worker, holder);
    }
}

#[test]
fn a_peer_whose_memory_would_help_nobody_is_left_in_peace() {
    let (_peer, mut worker, holder, ep) = held_up(&[LEN / 2]);
    send(&mut worker, ep, LEN / 2);
    let kept = polls(&mut worker);
    assert!(matches!(kept[..], [Event::Received { .. }]), "{kept:?}");
    send_in_vain(&mut worker, ep);
    all_is_well(&mut worker, holder);
}

#[test]
fn a_peer_whose_connection_is_interrupted_holds_up_nobody() {
    let (_peer, mut worker, holder, ep) = held_up(&[LEN]);
    send_in_vain(&mut worker, ep);
    worker.endpoints.get_mut(holder).unwrap().up = false;
    all_is_well(&mut worker, holder);
}

/// It found a receive's own memory meanwhile.
#[test]
fn a_message_that_waits_no_more_is_held_up_by_nobody() {
    let (_peer, mut worker, holder, ep) = held_up(&[LEN]);
    send_in_vain(&mut worker, ep);
    let own = worker.domain().alloc(LEN).unwrap();
    worker.recv_into(Source::Any, Tag(7), own, None).unwrap();
    let events = polls(&mut worker);
    assert!(matches!(events[..], [Event::ReceivedInto { len: LEN, .. }]), "{events:?}");
    all_is_well(&mut worker, holder);
    assert!(!worker.inbox.is_stalled() && worker.staging.look_due().is_none());
}
