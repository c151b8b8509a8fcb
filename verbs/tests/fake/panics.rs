//! What listens to the log for a program panics: no memory is freed by that which a device reaches still.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use qpair_fake_ibverbs::control::Device;
use qpair_verbs::{Access, Buffer, Context, MemoryError, ProtectionDomain};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::ground::{Ground, in_fake};

/// A subscriber of the log that panics at an error.
struct Bomb;

impl Subscriber for Bomb {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        panic!("as a test wants it");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Does something where errors that are logged panic; true if one was.
fn panics(act: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(|| tracing::subscriber::with_default(Bomb, act))).is_err()
}

/// Memory of a program, whose owner holds `alive` until it is dropped.
fn owned(pd: &ProtectionDomain, alive: &Arc<()>) -> Result<Buffer, MemoryError> {
    let mut owner = Box::new((vec![0_u8; 4096], alive.clone()));
    let base = NonNull::new(owner.0.as_mut_ptr()).unwrap();
    // SAFETY: the owner keeps its vector, which nobody else touches.
    unsafe { pd.register_raw(base, 4096, owner) }
}

/// Whether the only owner that held it was dropped.
fn is_dropped(alive: &Arc<()>) -> bool {
    Arc::strong_count(alive) == 1
}

#[test]
fn memory_that_a_device_keeps_is_leaked() {
    in_fake(|| {
        let ground = Ground::new();
        let (region, bytes) = (ground.exposed(4096), Bytes::from(vec![7; 4096]));
        let taken = region.remote(0..1).addr as usize;
        let of_bytes = ground.pd.expose_bytes(bytes.clone()).unwrap();
        let [alone, shown] = [(); 2].map(|()| Arc::new(()));
        let [buffer, exposed] = [&alone, &shown].map(|alive| owned(&ground.pd, alive).unwrap());
        let exposed = exposed.expose(Access::REMOTE_ALL).unwrap();
        ground.fake.fail_times("ibv_dereg_mr", 1, 0, libc::EIO).unwrap();
        assert!(panics(|| drop(region)));
        assert!(panics(|| drop(of_bytes)));
        assert!(panics(|| drop(buffer)));
        assert!(panics(|| drop(exposed)));
        assert!(!bytes.is_unique() && !is_dropped(&alone) && !is_dropped(&shown));
        let others: Vec<_> = (0..64).map(|_| ground.pd.alloc(4096).unwrap()).collect();
        assert!(others.iter().all(|buffer| buffer.as_ptr().addr() != taken));
    });
}

#[test]
fn memory_that_one_of_two_devices_refuses_and_the_other_keeps_is_leaked() {
    in_fake(|| {
        let ground = Ground::new();
        let fake = Device::new("beside").unwrap();
        let both = ground.pd.spanning(&[Context::open("beside").unwrap().alloc_pd().unwrap()]).unwrap();
        fake.fail("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
        ground.fake.fail("ibv_dereg_mr", 1, libc::EIO).unwrap();
        let alive = Arc::new(());
        assert!(panics(|| _ = owned(&both, &alive)));
        assert!(!is_dropped(&alive) && ground.fake.live().contains("mr"), "{}", ground.fake.live());
    });
}

#[test]
fn what_was_posted_to_a_queue_that_is_not_destroyed_is_leaked() {
    in_fake(|| {
        let ground = Ground::new();
        let ((mut a, b), mut srq) = (ground.pair(), ground.pd.create_srq(4).unwrap());
        let [of_pair, of_srq] = [(); 2].map(|()| Arc::new(()));
        a.recv(owned(&ground.pd, &of_pair).unwrap()).post().unwrap();
        srq.post(owned(&ground.pd, &of_srq).unwrap(), 1).unwrap();
        for symbol in ["ibv_destroy_qp", "ibv_destroy_srq"] {
            ground.fake.fail_times(symbol, 1, 0, libc::EBUSY).unwrap();
        }
        assert!(panics(|| drop(a)));
        assert!(panics(|| drop(srq)));
        drop((b, ground.cq));
        assert!(!is_dropped(&of_pair) && !is_dropped(&of_srq));
    });
}

#[test]
fn a_queue_pair_is_destroyed_before_anything_of_it_is_logged() {
    in_fake(|| {
        let ground = Ground::new();
        let (mut a, b) = ground.pair();
        let alive = Arc::new(());
        a.recv(owned(&ground.pd, &alive).unwrap()).post().unwrap();
        ground.fake.fail_times("ibv_modify_qp", 1, 0, libc::EIO).unwrap();
        assert!(panics(|| drop(a)), "it does not go to the error state");
        let calls = ground.fake.calls();
        assert!(calls.contains("ibv_destroy_qp") && is_dropped(&alive), "{calls}");
        ground.fake.reset().unwrap();
        drop(b);

        let (mut a, b) = ground.pair();
        let region = ground.pd.expose(64, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
        let window = ground.pd.create_window().unwrap();
        a.bind(&window, &region, 0..64, Access::REMOTE_READ).post().unwrap();
        ground.fake.fail_times("ibv_dealloc_mw", 1, 0, libc::EBUSY).unwrap();
        assert!(panics(|| drop(a)), "the window is not given back");
        let calls = ground.fake.calls();
        assert!(calls.contains("ibv_destroy_qp"), "{calls}");
        drop(b);
    });
}
