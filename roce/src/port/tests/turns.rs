//! Whose turn it is, and when.

use std::time::Instant;

use crate::congestion::{DcqcnParameters, Rate};
use crate::counters::Counters;
use crate::port::control::Control;
use crate::port::slot::{QueuePair, Route, Slot};
use crate::port::turns::Turns;
use crate::qp::{UnreliableConfig, UnreliableConnection};
use crate::types::{Psn, Qpn};
use crate::wire::{Addresses, DEFAULT_PKEY};

#[test]
fn a_queue_pair_has_one_entry_however_often_it_is_armed() {
    let (now, qpn) = (Instant::now(), Qpn(5));
    let addresses = Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let route = Route { addresses, source_port: 1, traffic_class: 0, hop_limit: 64 };
    let uc = UnreliableConnection::<usize>::new(UnreliableConfig::new(qpn, qpn, Psn::new(0), Psn::new(0)));
    let control = Control::new(now, (qpn, DEFAULT_PKEY), DcqcnParameters::new(Rate::from_mbps(1)), 0);
    let mut slot = Slot::new(QueuePair::Unreliable(uc, route), Some(Box::new(control)));
    let mut turns = Turns::default();
    let control = slot.control.as_mut().unwrap();
    control.handle_cnp(now, &mut Counters::default());
    control.sent(now, 1000);
    assert!(!control.lets_go(now, 1000), "held up");
    turns.arm(qpn, &mut slot);
    let held = turns.due().expect("until it may be sent");
    assert!(held > now);
    slot.control.as_mut().unwrap().notification.handle_marked(now, &mut Counters::default());
    for _ in 0..3 {
        turns.arm(qpn, &mut slot);
        turns.enqueue(qpn, &mut slot);
    }
    assert_eq!((turns.due(), turns.entries()), (Some(now), (1, 1)));
    turns.forget(qpn, &slot);
    assert_eq!((turns.due(), turns.next()), (None, None));
}
