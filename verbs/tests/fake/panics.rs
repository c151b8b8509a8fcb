//! What listens to the log for a program panics: no memory is freed by that which a device reaches still, and nobody
//! waits for what does not come.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use qpair_fake_ibverbs::control::{About, Device};
use qpair_verbs::{Access, AsyncEvent, Buffer, Context, CqError, MemoryError, ProtectionDomain};
use qpair_verbs_sys as sys;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::ground::{Ground, connect, in_fake, wait_until};

/// A subscriber of the log that panics at what is of this kind.
struct Bomb(fn(&Event<'_>) -> bool);

impl Subscriber for Bomb {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        assert!(!(self.0)(event), "as a test wants it");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Does something where errors that are logged panic; true if one was.
fn panics(act: impl FnOnce()) -> bool {
    let bomb = Bomb(|event| *event.metadata().level() == Level::ERROR);
    catch_unwind(AssertUnwindSafe(|| tracing::subscriber::with_default(bomb, act))).is_err()
}

/// Has whatever a thread logs panic that reads what a device tells, from now on, in this process.
pub fn panic_where_events_are_read() {
    let reads_events = |_: &Event<'_>| matches!(std::thread::current().name(), Some("qpair-events" | "qpair-cm"));
    tracing::subscriber::set_global_default(Bomb(reads_events)).expect("it is the only one");
}

/// Memory of a program, whose owner holds a value until it is dropped.
fn owned<T: Send + Sync + 'static>(pd: &ProtectionDomain, held: T) -> Result<Buffer, MemoryError> {
    let mut owner = Box::new((vec![0_u8; 4096], held));
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
        let [buffer, exposed] = [&alone, &shown].map(|alive| owned(&ground.pd, alive.clone()).unwrap());
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
        assert!(panics(|| _ = owned(&both, alive.clone())));
        assert!(!is_dropped(&alive) && ground.fake.live().contains("mr"), "{}", ground.fake.live());
    });
}

#[test]
fn what_was_posted_to_a_queue_that_is_not_destroyed_is_leaked() {
    in_fake(|| {
        let ground = Ground::new();
        let ((mut a, b), mut srq) = (ground.pair(), ground.pd.create_srq(4).unwrap());
        let [of_pair, of_srq] = [(); 2].map(|()| Arc::new(()));
        a.recv(owned(&ground.pd, of_pair.clone()).unwrap()).post().unwrap();
        srq.post(owned(&ground.pd, of_srq.clone()).unwrap(), 1).unwrap();
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
        a.recv(owned(&ground.pd, alive.clone()).unwrap()).post().unwrap();
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

#[test]
fn a_device_whose_events_are_not_read_any_more_is_taken_to_be_gone() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (a, b) = ground.pair();
        let mut events = ground.ctx.events().unwrap();
        panic_where_events_are_read();
        ground.fake.event(sys::IBV_EVENT_COMM_EST, About::Qp(a.number().0)).unwrap();
        assert!(wait_until(|| matches!(ground.cq.poll(), Err(CqError::DeviceGone))));
        let told = [(); 3].map(|()| events.next_event());
        let established = AsyncEvent::CommunicationEstablished(a.number());
        assert_eq!(told, [Some(established), Some(AsyncEvent::DeviceFatal), None]);
        // Its event was acknowledged, for which destroying it waits.
        let closing = std::thread::spawn(|| drop((a, b)));
        assert!(wait_until(|| closing.is_finished()));
        ground.close();
    });
}

#[test]
fn an_owner_that_panics_as_it_is_dropped_keeps_no_slot_of_the_queue() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as a test wants it");
        }
    }

    in_fake(|| {
        let mut ground = Ground::new();
        let prepare = || ground.pd.rc(&ground.cq).send_depth(4).build().unwrap();
        let (mut a, b) = connect(prepare(), prepare());
        let (region, alive) = (ground.exposed(4096), Arc::new(()));
        for _ in 0..4 {
            a.write(owned(&ground.pd, Panics).unwrap(), region.remote(0..4096)).post().unwrap();
            a.write(owned(&ground.pd, alive.clone()).unwrap(), region.remote(0..4096)).post().unwrap();
            a.write(ground.filled(1), region.remote(0..64)).signaled().post().unwrap();
            let done = ground.cq.poll().unwrap().expect("a completion");
            assert!(catch_unwind(AssertUnwindSafe(|| drop(done))).is_err());
            ground.nothing();
        }
        // Elsewhere.
        assert!(wait_until(|| is_dropped(&alive)));
        drop((a, b, region));
        ground.close();
    });
}
