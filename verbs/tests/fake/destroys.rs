//! Objects that the device does not give back: that is logged, their memory is leaked rather than freed, and the process
//! goes on.

use qpair_fake_ibverbs::control::Device;
use qpair_verbs::{Access, Context, CqError, CreateError, Local, ProtectionDomain};

use crate::ground::{Ground, Log, NAME, connect, in_fake, wait_until};

/// One of each, used and closed.
fn tour() {
    let ctx = Context::open(NAME).unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let channel = ctx.create_channel().unwrap();
    let mut cq = ctx.create_cq_on(64, &channel).unwrap();
    let mut srq = pd.create_srq(4).unwrap();
    srq.post(pd.alloc(64).unwrap(), 1).unwrap();
    let receiver = pd.rc(&cq).srq(&srq).build().unwrap();
    let (mut a, mut b) = connect(pd.rc(&cq).thread_domain().build().unwrap(), receiver);
    let datagrams = pd.ud(&cq).build().unwrap().activate().unwrap();
    let _handle = datagrams.address_handle(&datagrams.address()).unwrap();
    let region = pd.expose(64, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
    let window = pd.create_window().unwrap();
    a.bind(&window, &region, 0..64, Access::REMOTE_READ).signaled().post().unwrap();
    cq.wait().unwrap().ok().unwrap();
    a.recv(pd.register(vec![1; 64]).unwrap()).post().unwrap();
    a.send(pd.alloc(64).unwrap()).signaled().post().unwrap();
    b.send(pd.alloc(8).unwrap()).post().unwrap();
}

/// The kernel has destroyed all of it, and says EIO of each: nothing is leaked, and nobody told to try again.
#[test]
fn what_a_removed_device_had_is_given_back() {
    in_fake(|| {
        let log = Log::start();
        let mut ground = Ground::new();
        let mut srq = ground.pd.create_srq(4).unwrap();
        srq.post(ground.pd.alloc(64).unwrap(), 1).unwrap();
        let receiver = ground.pd.rc(&ground.cq).srq(&srq).build().unwrap();
        let (mut a, b) = connect(ground.pd.rc(&ground.cq).thread_domain().build().unwrap(), receiver);
        let datagrams = ground.pd.ud(&ground.cq).build().unwrap().activate().unwrap();
        let handle = datagrams.address_handle(&datagrams.address()).unwrap();
        let region = ground.pd.expose(64, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
        let other = ground.exposed(1 << 20);
        let window = ground.pd.create_window().unwrap();
        a.bind(&window, &region, 0..64, Access::REMOTE_READ).signaled().post().unwrap();
        ground.done();
        a.recv(ground.pd.register(vec![1; 64]).unwrap()).post().unwrap();
        ground.fake.remove().unwrap();
        assert!(wait_until(|| matches!(ground.cq.poll(), Err(CqError::DeviceGone))));
        assert!(ground.pd.expose(64, Access::REMOTE_ALL).is_err());
        assert_eq!(other.revoke().unwrap().len(), 1 << 20);
        drop((a, b, srq, datagrams, handle, window, region));
        ground.close();
        let text = log.text();
        assert!(!text.contains("leaked") && !text.contains("not given back"), "{text}");
    });
}

#[test]
fn what_is_not_given_back_is_logged_and_the_process_goes_on() {
    in_fake(|| {
        let log = Log::start();
        let fake = Device::new(NAME).unwrap();
        let destroys = [
            "ibv_dereg_mr",
            "ibv_destroy_qp",
            "ibv_destroy_cq",
            "ibv_destroy_srq",
            "ibv_dealloc_mw",
            "ibv_destroy_ah",
            "ibv_destroy_comp_channel",
            "ibv_dealloc_pd",
            "ibv_dealloc_td",
            "ibv_close_device",
        ];
        for symbol in destroys {
            for errno in [libc::EBUSY, libc::EINVAL, libc::EIO] {
                let before = log.text().len();
                fake.reset().unwrap();
                fake.fail_times(symbol, 1, 0, errno).unwrap();
                tour();
                let calls = fake.calls();
                assert!(calls.contains(&format!("{symbol} ")) || calls.contains("errno"), "{symbol}: {calls}");
                assert!(wait_until(|| log.text().len() > before), "{symbol} failed with {errno} in silence");
                assert_eq!(fake.violations(), "", "{symbol} fails with {errno}");
            }
        }
        fake.reset().unwrap();
        tour();
        assert_eq!(fake.violations(), "", "a device that works again");
    });
}

#[test]
fn memory_that_a_device_does_not_let_go_of_is_never_given_out_again() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.pd.register(vec![1; 4096]).unwrap().expose(Access::REMOTE_ALL).unwrap();
        let small = ground.exposed(64);
        let remotes = [region.remote(0..64), small.remote(0..64)];
        ground.fake.fail_times("ibv_dereg_mr", 1, 0, libc::EIO).unwrap();
        drop((region, small));
        let others: Vec<_> = (0..2000).map(|_| ground.pd.alloc(64).unwrap()).collect();
        let vectors: Vec<_> = (0..50).map(|_| vec![0u8; 4096]).collect();
        // The keys work still, as the device let go of nothing.
        for remote in remotes {
            a.write(ground.filled(0xee), remote).signaled().post().unwrap();
            assert!(ground.done().status.is_success(), "the key is there still");
        }
        assert!(others.iter().all(|buffer| buffer[..] == [0; 64]));
        assert!(vectors.iter().flatten().all(|byte| *byte == 0));
        assert_eq!(ground.fake.violations(), "");
        drop((a, b));
    });
}

#[test]
fn what_was_posted_to_a_queue_pair_that_is_not_destroyed_is_leaked() {
    in_fake(|| {
        let ground = Ground::new();
        let (mut a, b) = ground.pair();
        a.recv(ground.filled(1)).post().unwrap();
        a.recv(ground.pd.register(vec![2; 64]).unwrap()).post().unwrap();
        ground.fake.fail_times("ibv_destroy_qp", 1, 0, libc::EBUSY).unwrap();
        let fake = ground.fake.clone();
        drop((a, b));
        drop((ground.cq, ground.pd, ground.ctx));
        let calls = fake.calls();
        assert!(!calls.contains("ibv_dereg_mr") && !calls.contains("ibv_dealloc_pd pd1"), "{calls}");
        assert!(fake.live().contains("qp") && fake.live().contains("mr"), "{}", fake.live());
        assert_eq!(fake.violations(), "");
    });
}

#[test]
fn a_queue_pair_that_does_not_fail_is_destroyed_all_the_same() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.exposed(64);
        ground.fake.fail_times("ibv_modify_qp", 1, 0, libc::EIO).unwrap();
        assert!(a.to_error().is_err());
        a.write(ground.filled(1), region.remote(0..64)).signaled().post().unwrap();
        let Ok(Local::Buffer(_)) = ground.cq.poll().map(|done| done.unwrap().into_memory()) else { panic!("a buffer") };
        drop((a, b, region));
        ground.close();
    });
}

/// From RESET the kernel takes none to the error state: that would be said beside the reason.
#[test]
fn a_queue_pair_that_was_not_brought_to_init_goes_without_a_word() {
    in_fake(|| {
        let log = Log::start();
        let ground = Ground::with(&[("refuse_attr", qpair_verbs_sys::IBV_QP_PKEY_INDEX.into())]);
        let error = ground.pd.rc(&ground.cq).build().unwrap_err();
        assert!(matches!(error, CreateError::Transition { .. }), "{error}");
        let calls = ground.fake.calls();
        assert!(calls.contains(" 0->1 ") && !calls.contains("->6"), "{calls}");
        ground.close();
        assert!(!log.text().contains("ERROR"), "{}", log.text());
    });
}

#[test]
fn a_region_that_is_not_given_back_can_be_revoked_again() {
    in_fake(|| {
        let ground = Ground::new();
        let region = ground.exposed(64);
        ground.fake.fail("ibv_dereg_mr", 1, libc::EIO).unwrap();
        let refused = region.try_revoke().unwrap_err();
        assert!(refused.to_string().contains("revoke again"), "{refused}");
        assert_eq!(refused.region.revoke().unwrap()[..], [0; 64]);
        ground.close();
    });
}

#[test]
fn memory_of_another_is_deregistered_before_its_owner_is_dropped() {
    /// Memory that notes which registrations there are when it goes.
    struct Owner(Vec<u8>, std::sync::mpsc::Sender<String>);

    impl Drop for Owner {
        fn drop(&mut self) {
            let left = Device::new(NAME).unwrap().live();
            self.1.send(left.lines().filter(|object| object.starts_with("mr")).collect()).unwrap();
        }
    }

    in_fake(|| {
        let ground = Ground::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        let register = |pd: &ProtectionDomain| {
            let mut owner = Box::new(Owner(vec![0; 4096], sender.clone()));
            let base = std::ptr::NonNull::new(owner.0.as_mut_ptr()).unwrap();
            // SAFETY: the owner keeps its vector, which nobody else touches.
            unsafe { pd.register_raw(base, 4096, owner) }
        };
        let buffer = register(&ground.pd).unwrap();
        assert!(ground.fake.live().contains("mr"), "{}", ground.fake.live());
        drop(buffer);
        assert_eq!(receiver.recv().unwrap(), "");

        // Two devices, of which one refuses it and one does not let go of it.
        let fake = Device::new("beside").unwrap();
        let beside = Context::open("beside").unwrap().alloc_pd().unwrap();
        let both = ground.pd.spanning(&[beside]).unwrap();
        fake.fail("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
        register(&both).unwrap_err();
        assert_eq!(receiver.recv().unwrap(), "");
        fake.fail("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
        ground.fake.fail("ibv_dereg_mr", 1, libc::EIO).unwrap();
        register(&both).unwrap_err();
        drop(both);
        assert!(receiver.try_recv().is_err(), "a device reaches it still");
    });
}
