//! Queue pairs that take the place of others, and do no better.

use qpair_fake_ibverbs::control::Device;

use super::recovery::{to_error, two};
use super::*;

/// Short messages of the peer pass, and this side's long one does not.
#[test]
fn queue_pairs_that_fail_by_the_same_again_are_tried_until_the_limit() {
    fake::on_a_fake(|| {
        let (here, there) = (Device::new(fake::FAKE).unwrap(), Device::new("there0").unwrap());
        let limit = 10 * PATIENCE;
        let on = |device: &Device| Config::default().device(device.name()).recovery(PATIENCE).window(8);
        let (mut a, at_a, mut b, at_b) = two(on(&here).recovery(limit), on(&there));
        // It holds back what it is to send.
        here.set("defer", 1000).unwrap();
        a.send(at_a, Tag(1), vec![1; 400]).unwrap();
        to_error(&mut a, at_a);
        let (begin, mut failed) = (Instant::now(), 0);
        let reason = loop {
            assert!(begin.elapsed() < PATIENCE, "tried {failed} times");
            b.poll().unwrap();
            // There may be no room for it.
            let _ = b.send_copy(at_b, Tag(2), b"short");
            match a.poll().unwrap() {
                Some(Event::Closed { reason, .. }) => break reason,
                Some(Event::Received { .. }) if a.counters().recovered > failed => {
                    failed = a.counters().recovered;
                    // Of which a look counts an eighth at most.
                    a.start -= limit;
                    to_error(&mut a, at_a);
                }
                _ => {}
            }
        };
        assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
        assert!((2..20).contains(&failed), "tried {failed} times");
        here.set("defer", 0).unwrap();
    });
}

/// What goes out again is one message, for which nobody asks the device whether it has come, and the peer goes on talking, so that
/// nothing else asks.
#[test]
fn one_message_that_went_again_is_known_to_have_come() {
    fake::on_a_fake(|| {
        let config = || Config::default().device(fake::FAKE).recovery(PATIENCE).window(8);
        let (mut a, at_a, mut b, at_b) = two(config(), config());
        let here = Device::new(fake::FAKE).unwrap();
        here.set("defer", 1000).unwrap();
        a.send(at_a, Tag(1), vec![1; 40]).unwrap();
        to_error(&mut a, at_a);
        here.set("defer", 0).unwrap();
        let begin = Instant::now();
        let trial = |a: &mut Worker| a.endpoints.at(at_a.index as usize).unwrap().trial.is_some();
        while a.counters().recovered == 0 || trial(&mut a) {
            assert!(begin.elapsed() < PATIENCE, "nothing shows that it works");
            let _ = b.send_copy(at_b, Tag(2), b"short");
            a.poll().unwrap();
            b.poll().unwrap();
        }
        assert_eq!(b.counters().eager_received, 1);
    });
}
