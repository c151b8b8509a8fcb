//! Messages that peers offer in parts.

use super::recovery::two;
use super::*;
use crate::engine::{Header, Kind, Offer};
use crate::worker::staging;

/// Bytes of each message, of which there is memory for one.
const LEN: usize = 20 << 10;

/// A worker that is connected to itself, and to a peer that has offered a message in parts and does not poll: the peer, the worker,
/// its end of that connection, and the end that sends over the other.
fn held_up() -> (Worker, Worker, EndpointId, EndpointId) {
    let (peer, _, mut worker, holder) = two(Config::default(), Config::default().pool_limit(32 << 10));
    let (ep, _) = join(&mut worker, |worker, address| worker.connect(address));
    let envelope = Envelope::bare(0);
    let length = LEN as u64;
    let header =
        Header { kind: Kind::ReadyToSend, envelope, epoch: 0, sequence: 0, credits: 0, length, acknowledged: 0 };
    worker.offered(holder, &header, Offer::in_parts(5));
    worker.pump(holder.index as usize);
    assert!(worker.staging.takes_from(holder));
    (peer, worker, holder, ep)
}

/// Some polls, and what comes.
fn polls(worker: &mut Worker) -> Vec<Event> {
    (0..500).filter_map(|_| worker.poll().unwrap()).filter(|event| !matches!(event, Event::Sent { .. })).collect()
}

#[test]
fn a_peer_that_offers_no_part_holds_others_up_for_a_while_only() {
    let (_peer, mut worker, holder, ep) = held_up();
    let message = worker.domain().alloc(LEN).unwrap();
    worker.send(ep, Tag(7), message).unwrap();
    assert!(polls(&mut worker).is_empty(), "it waits for memory");
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
                assert!(matches!(reason, CloseReason::PartsTimedOut(staging::PATIENCE)), "{reason}");
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

#[test]
fn a_peer_that_holds_nobody_up_has_all_time_for_its_parts() {
    let (_peer, mut worker, holder, _) = held_up();
    let start = worker.now();
    for hours in 1..=10 {
        worker.service(start + hours * Duration::from_secs(3600), Some(Duration::ZERO)).unwrap();
        let events = polls(&mut worker);
        assert!(events.is_empty(), "{events:?}");
    }
    assert!(worker.staging.takes_from(holder));
}
