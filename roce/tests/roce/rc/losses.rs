//! Losses while something is sent again.

use std::time::Duration;

use qpair_roce::wire::{RnrTimer, Syndrome};
use qpair_roce::{ReliableConfig, State};

use super::lone::{FINE, Lone, NOTHING, SEQUENCE};

/// The peer's NAK of it comes after the timeout, which took the last retry.
#[test]
fn a_loss_of_which_the_peer_tells_late_takes_one_retry() {
    let timeout = Duration::from_millis(1);
    let mut end = Lone::new(|config| ReliableConfig { ack_timeout: Some(timeout), retry_count: Some(1), ..config });
    (0..3).for_each(|_| end.post(NOTHING, 0));
    assert_eq!(end.sends().len(), 3);
    end.now += timeout;
    end.rc.handle_timeout(end.now, &mut end.side, &mut end.counters);
    assert_eq!(end.sends().len(), 3);
    end.is_answered(100, SEQUENCE);
    assert_eq!((end.sends().len(), end.rc.state()), (3, State::Ready));
    end.is_answered(102, FINE);
    assert_eq!(end.done(), 3);
}

/// What is sent again since the peer had no receive may be lost in turn, of which it tells once; and of what it dropped behind that.
#[test]
fn a_loss_while_it_is_sent_again_for_another_reason_is_made_good_at_once() {
    let mut end = Lone::new(|config| ReliableConfig { ack_timeout: None, ..config });
    (0..3).for_each(|_| end.post(NOTHING, 0));
    assert_eq!(end.sends().len(), 3);
    end.is_answered(100, Syndrome::ReceiverNotReady(RnrTimer::from_code(1)));
    end.is_answered(100, SEQUENCE);
    assert_eq!(end.sends(), [], "of what was dropped behind the first");
    end.now += RnrTimer::from_code(1).wait();
    assert_eq!(end.sends().len(), 3);
    end.is_answered(100, SEQUENCE);
    assert_eq!(end.sends().len(), 3);
    end.is_answered(100, SEQUENCE);
    assert_eq!(end.sends(), [], "it was told once");
    end.is_answered(102, FINE);
    assert_eq!((end.done(), end.rc.timeout()), (3, None));
}
