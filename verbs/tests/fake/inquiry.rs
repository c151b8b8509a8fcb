//! Asking for a peer's port on an Ethernet network before a queue pair is connected to it: the kernel has whoever does that wait.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use qpair_fake_ibverbs::control::Device;
use qpair_verbs::{ConnectError, Inquiry, Prepared, QpAddress};

use crate::ground::{Ground, in_fake, wait_until};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A device; who is on its network is not known yet.
fn unknown() -> Ground {
    Ground::with(&[("neighbours", LOOKED_FOR)])
}

fn asking(ground: &Ground, address: &QpAddress) -> Inquiry {
    let mut inquiry = Inquiry::new(&Waker::from(Arc::new(Unpark(thread::current()))));
    inquiry.ask(&ground.ctx, address);
    inquiry
}

fn rc(ground: &Ground) -> Prepared {
    ground.pd.rc(&ground.cq).build().unwrap()
}

/// Waits until a call waits for the kernel.
#[track_caller]
fn waits(fake: &Device) {
    assert!(wait_until(|| fake.get("waiting").unwrap() == 1), "nobody asks");
}

/// How often queue pairs were to be brought to RTR.
fn transitions(ground: &Ground) -> usize {
    let to_rtr = |call: &&str| call.starts_with("ibv_modify_qp") && call.contains(" 1->2");
    ground.fake.calls().lines().filter(to_rtr).count()
}

#[test]
fn a_port_is_looked_for_by_another_thread() {
    in_fake(|| {
        let ground = unknown();
        let (near, far) = (rc(&ground), rc(&ground));
        let there = far.address();
        let inquiry = asking(&ground, &there);
        assert!(!inquiry.is_over());
        ground.fake.set("neighbours", KNOWN).unwrap();
        let start = Instant::now();
        while !inquiry.is_over() {
            thread::park_timeout(LIMIT);
            assert!(start.elapsed() < LIMIT, "nobody wakes this thread");
        }
        assert_eq!(transitions(&ground), 0);
        drop((inquiry.connect(near, &there).unwrap(), far));
        let fake = ground.close();
        assert_eq!(fake.get("created.ah").unwrap(), 1);
    });
}

#[test]
fn who_does_not_answer_costs_whoever_connects_nothing() {
    in_fake(|| {
        let ground = unknown();
        let (near, far) = (rc(&ground), rc(&ground));
        let there = far.address();
        // Two who ask, of whom one alone is waited for.
        let inquiries = [asking(&ground, &there), asking(&ground, &there)];
        waits(&ground.fake);
        ground.fake.set("neighbours", SILENT).unwrap();
        for (inquiry, qp) in inquiries.iter().zip([near, rc(&ground)]) {
            assert!(wait_until(|| inquiry.is_over()));
            let error = inquiry.connect(qp, &there).unwrap_err();
            assert!(matches!(&error, ConnectError::Unreachable { gid, .. } if *gid == there.gid), "{error}");
        }
        assert_eq!(transitions(&ground), 0);
        assert_eq!(ground.fake.calls().lines().filter(|call| call.starts_with("ibv_create_ah")).count(), 1);
        drop(far);
        ground.close();
    });
}

#[test]
fn without_an_inquiry_one_call_waits() {
    in_fake(|| {
        let ground = Ground::with(&[("neighbours", SILENT)]);
        let error = rc(&ground).connect(&rc(&ground).address()).unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        assert!(error.to_string().ends_with("Try to ping it"), "{error}");
        assert_eq!(transitions(&ground), 1, "no attribute is to blame");
        let datagrams = ground.pd.ud(&ground.cq).build().unwrap().activate().unwrap();
        let error = datagrams.address_handle(&datagrams.address()).unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        drop(datagrams);
        ground.close();
    });
}

#[test]
fn datagrams_go_by_what_was_asked_too() {
    in_fake(|| {
        let ground = unknown();
        let datagrams = ground.pd.ud(&ground.cq).build().unwrap().activate().unwrap();
        let there = datagrams.address();
        let inquiries = [KNOWN, SILENT].map(|becomes| {
            ground.fake.set("neighbours", LOOKED_FOR).unwrap();
            let inquiry = asking(&ground, &there);
            assert!(!inquiry.is_over());
            ground.fake.set("neighbours", becomes).unwrap();
            assert!(wait_until(|| inquiry.is_over()));
            inquiry
        });
        ground.fake.set("neighbours", KNOWN).unwrap();
        let [found, silent] = inquiries;
        drop(found.address_handle(&datagrams, &there).unwrap());
        let error = silent.address_handle(&datagrams, &there).unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        drop(datagrams);
        ground.close();
    });
}

#[test]
fn a_port_is_looked_for_from_where_its_queue_pair_will_be() {
    in_fake(|| {
        let ground = Ground::with(&[("ports", 2)]);
        let there = rc(&ground).address();
        let mut inquiry = Inquiry::new(Waker::noop());
        inquiry.ask_from(&ground.ctx, 2, Some(1), &there);
        assert!(wait_until(|| inquiry.is_over()));
        let calls = ground.fake.calls();
        let way = calls.lines().find(|call| call.starts_with("ibv_create_ah")).unwrap();
        assert!(way.contains("port 2 row 1 "), "{way}");
        ground.close();
    });
}

#[test]
fn nobody_is_asked_where_nobody_would_wait() {
    in_fake(|| {
        // InfiniBand has no such question.
        let ground = Ground::with(&[("link_layer", 1), ("lid", 7), ("neighbours", LOOKED_FOR)]);
        let there = rc(&ground).address();
        assert!(asking(&ground, &there).is_over());
        ground.fake.set("link_layer", 2).unwrap();
        // Nor is there a way to nowhere, or from a row that is empty or a port that does not exist.
        let nowhere = QpAddress { gid: qpair_verbs::Gid([0; 16]), lid: 0, ..there };
        assert!(asking(&ground, &nowhere).is_over());
        let mut inquiry = Inquiry::new(Waker::noop());
        inquiry.ask_from(&ground.ctx, 9, None, &there);
        inquiry.ask_from(&ground.ctx, 1, Some(300), &there);
        assert!(inquiry.is_over());
        ground.close();
    });
}

#[test]
fn a_device_without_address_handles_is_asked_when_connecting() {
    in_fake(|| {
        for symbol in ["ibv_create_ah", "ibv_alloc_pd"] {
            let ground = Ground::new();
            let (near, far) = (rc(&ground), rc(&ground));
            ground.fake.fail(symbol, 1, libc::EOPNOTSUPP).unwrap();
            let inquiry = asking(&ground, &far.address());
            assert!(wait_until(|| inquiry.is_over()));
            drop(inquiry.connect(near, &far.address()).unwrap());
            drop(far);
            ground.close();
        }
    });
}

#[test]
fn whoever_closes_the_device_waits_for_no_answer() {
    in_fake(|| {
        let ground = unknown();
        let there = rc(&ground).address();
        let inquiry = asking(&ground, &there);
        waits(&ground.fake);
        let Ground { fake, ctx, pd, cq } = ground;
        drop((cq, pd, ctx, inquiry));
        fake.set("neighbours", KNOWN).unwrap();
        assert!(wait_until(|| fake.live().is_empty()), "{}", fake.live());
        fake.assert_clean();
    });
}

/// What the setting `neighbours` means.
const LOOKED_FOR: u64 = 0;
const KNOWN: u64 = 1;
const SILENT: u64 = 2;
const LIMIT: Duration = Duration::from_secs(20);
