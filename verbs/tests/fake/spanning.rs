//! Memory that several devices reach: each by a key of its own.

use bytes::Bytes;
use qpair_fake_ibverbs::control::Device;
use qpair_verbs::{
    Access, Context, CqError, CreateError, DividedMemory, Local, ProtectionDomain, RemoteSlice, RevokeBlocked,
};

use crate::ground::{Ground, connect, in_fake, settled, wait_until};

/// Another device, and a domain on it.
fn another(name: &str) -> (Device, Context, ProtectionDomain) {
    let fake = Device::new(name).expect("the library is there");
    let ctx = Context::open(name).expect("it opens");
    let pd = ctx.alloc_pd().expect("a domain");
    (fake, ctx, pd)
}

#[test]
fn each_device_reaches_it_by_a_key_of_its_own() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (fake, ctx, pd) = another("beside");
        let mut cq = ctx.create_cq(16).unwrap();
        // Keys that are taken there make for others than the first device has.
        let taken: Vec<_> = (0..3).map(|_| pd.expose(8, Access::REMOTE_ALL).unwrap()).collect();
        let both = ground.pd.spanning(std::slice::from_ref(&pd)).unwrap();
        let (mut near, near_peer) = ground.pair();
        let (mut far, far_peer) = connect(pd.rc(&cq).build().unwrap(), pd.rc(&cq).build().unwrap());

        let region = both.expose(128, Access::REMOTE_ALL).unwrap();
        let (first, further) = (region.rkey_in(&ground.pd).unwrap(), region.rkey_in(&pd).unwrap());
        assert_eq!(first, region.rkey());
        assert_ne!(first, further);
        let remote = |rkey, range| RemoteSlice { rkey, ..region.remote(range) };
        for (value, big) in [(3, 0x5000), (4, 0x9_0000)] {
            // One from an arena that is shared, and one that has its own.
            let mut buffer = both.alloc(big).unwrap();
            buffer.fill(value);
            near.write(buffer, remote(first, 0..64)).range(0..64).signaled().post().unwrap();
            let memory = ground.cq.poll().unwrap().expect("a completion").into_memory();
            far.write(memory, remote(further, 64..128)).range(0..64).signaled().post().unwrap();
            let done = cq.poll().unwrap().expect("a completion");
            assert!(done.status().is_success(), "{}", done.status());
            let mut all = [0; 128];
            region.read(0, &mut all).unwrap();
            assert_eq!(all, [value; 128]);
        }
        // Parts of one buffer, with both devices at once.
        let memory = DividedMemory::of(both.alloc(128).unwrap()).unwrap();
        near.read(memory.part(0..64), remote(first, 0..64)).signaled().post().unwrap();
        far.read(memory.part(64..128), remote(further, 64..128)).signaled().post().unwrap();
        for cq in [&mut ground.cq, &mut cq] {
            let done = cq.poll().unwrap().expect("a completion");
            assert!(done.status().is_success(), "{}", done.status());
        }
        let Ok(Local::Buffer(buffer)) = memory.join() else { panic!("no part is out") };
        assert_eq!(buffer[..], [4; 128]);

        let bytes = both.expose_bytes(Bytes::from(vec![7; 100])).unwrap();
        let rkey = bytes.rkey_in(&pd).unwrap();
        far.read(buffer, RemoteSlice { rkey, ..bytes.remote(0..100) }).range(0..100).signaled().post().unwrap();
        let done = cq.poll().unwrap().expect("a completion");
        assert_eq!(done.into_buffer().unwrap()[..100], [7; 100]);

        // Of neither: memory of the first device alone, and a domain that it does not span.
        let alone = ground.pd.expose(8, Access::REMOTE_ALL).unwrap();
        assert!(alone.rkey_in(&ground.pd).is_some() && alone.rkey_in(&pd).is_none());
        assert!(far.write(ground.filled(1), remote(further, 0..64)).post().is_err());

        bytes.revoke().unwrap();
        region.revoke().unwrap();
        drop((near, near_peer, far, far_peer, both, alone, taken, cq, pd, ctx));
        ground.close();
        settled(&fake);
        fake.assert_clean();
    });
}

#[test]
fn a_domain_that_spans_others_is_the_same_domain_and_can_span_more() {
    in_fake(|| {
        let ground = Ground::new();
        let (second, third) = (another("second"), another("third"));
        let srq = ground.pd.create_srq(4).unwrap();
        let both = ground.pd.spanning(std::slice::from_ref(&second.2)).unwrap();
        let all = both.spanning(&[third.2.clone(), second.2.clone()]).unwrap();
        drop(all.rc(&ground.cq).srq(&srq).build().unwrap());
        let region = all.expose(64, Access::REMOTE_ALL).unwrap();
        for pd in [&ground.pd, &second.2, &third.2] {
            assert!(region.rkey_in(pd).is_some());
        }
        // One of another domain of the device.
        let other = ground.ctx.alloc_pd().unwrap();
        let error = other.rc(&ground.cq).srq(&srq).build().unwrap_err();
        assert!(matches!(error, CreateError::ForeignObject { .. }) && error.to_string().contains("domain"), "{error}");
        drop((region, srq, both, all, other));
        ground.close();
        for (fake, ctx, pd) in [second, third] {
            drop((pd, ctx));
            settled(&fake);
            fake.assert_clean();
        }
    });
}

#[test]
fn a_device_that_is_removed_keeps_nothing_from_the_others() {
    in_fake(|| {
        let mut ground = Ground::new();
        let (fake, ctx, pd) = another("beside");
        let mut cq = ctx.create_cq(16).unwrap();
        let both = ground.pd.spanning(std::slice::from_ref(&pd)).unwrap();
        let before = both.expose(64, Access::REMOTE_ALL).unwrap();
        let buffer = both.alloc(0x9_0000).unwrap();
        fake.remove().unwrap();
        assert!(wait_until(|| matches!(cq.poll(), Err(CqError::DeviceGone))));
        let (mut near, near_peer) = ground.pair();
        // A buffer that was there, one from another arena, and memory of others.
        let had = buffer.expose(Access::REMOTE_ALL).unwrap();
        let bytes = both.expose_bytes(Bytes::from(vec![7; 100])).unwrap();
        assert!(had.rkey_in(&ground.pd).is_some() && had.rkey_in(&pd).is_none() && bytes.rkey_in(&pd).is_none());
        let mut source = both.alloc(0x9_0000).unwrap();
        source.fill(3);
        near.write(source, had.remote(0..64)).range(0..64).signaled().post().unwrap();
        assert!(ground.done().status.is_success());
        for region in [before, had] {
            region.revoke().unwrap();
        }
        drop((near, near_peer, bytes, both, cq, pd, ctx));
        ground.close();
        settled(&fake);
        fake.assert_clean();
    });
}

#[test]
fn what_one_device_refuses_no_device_keeps() {
    in_fake(|| {
        let ground = Ground::new();
        let (fake, ctx, pd) = another("beside");
        let both = ground.pd.spanning(std::slice::from_ref(&pd)).unwrap();
        let count = |fake: &Device| fake.live().matches("mr").count();
        let before = (count(&ground.fake), count(&fake));
        fake.fail("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
        both.register(vec![0; 5000]).unwrap_err();
        assert_eq!((count(&ground.fake), count(&fake)), before, "{}", ground.fake.live());

        let region = both.expose(64, Access::REMOTE_ALL).unwrap();
        fake.fail("ibv_dereg_mr", 1, libc::EBUSY).unwrap();
        let failed = region.revoke().unwrap_err();
        assert!(matches!(failed.why, RevokeBlocked::Refused { .. }), "{:?}", failed.why);
        let buffer = failed.region.revoke().expect("the other device is asked again");
        drop((buffer, both, pd, ctx));
        ground.close();
        settled(&fake);
        fake.assert_clean();
    });
}

#[test]
fn memory_that_a_device_keeps_after_another_refused_it_is_never_given_back() {
    /// Mappings of the domain's own memory.
    fn mappings() -> usize {
        std::fs::read_to_string("/proc/self/maps").unwrap().matches("qpair-arena").count()
    }

    in_fake(|| {
        let ground = Ground::new();
        let (fake, ctx, pd) = another("beside");
        let both = ground.pd.spanning(std::slice::from_ref(&pd)).unwrap();
        let buffers = [both.alloc(64).unwrap(), both.register(vec![1; 5000]).unwrap()];
        ground.fake.fail_times("ibv_dereg_mr", 1, 0, libc::EIO).unwrap();
        fake.fail_times("ibv_reg_mr", 1, 0, libc::ENOMEM).unwrap();
        for buffer in buffers {
            let failed = buffer.expose(Access::REMOTE_WRITE).unwrap_err();
            assert!(failed.buffer.is_none(), "the first device may write it: {}", failed.error);
        }
        // So is other memory, whoever it is of.
        let bytes = Bytes::from(vec![7; 100]);
        both.expose_bytes(bytes.clone()).unwrap_err();
        assert!(!bytes.is_unique(), "peers of the first device may read them");
        both.register(vec![0; 5000]).unwrap_err();
        let before = mappings();
        both.alloc(1 << 20).unwrap_err();
        assert_eq!(mappings(), before + 1);
        assert_eq!((ground.fake.violations(), fake.violations()), (String::new(), String::new()));

        // What every device let go of is the caller's.
        ground.fake.reset().unwrap();
        fake.reset().unwrap();
        let buffer = both.alloc(64).unwrap();
        fake.fail("ibv_reg_mr", 1, libc::ENOMEM).unwrap();
        assert!(buffer.expose(Access::REMOTE_WRITE).unwrap_err().buffer.is_some());
        drop((both, pd, ctx));
    });
}

#[test]
fn memory_of_the_software_device_is_its_own() {
    in_fake(|| {
        let ground = Ground::new();
        let soft = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let error = ground.pd.spanning(std::slice::from_ref(&soft)).unwrap_err();
        assert!(matches!(error, CreateError::NotSpanned), "{error}");
        let error = soft.spanning(std::slice::from_ref(&ground.pd)).unwrap_err();
        assert!(matches!(error, CreateError::NotSpanned), "{error}");
        assert!(soft.spanning(&[]).unwrap().alloc(10).is_ok());
        drop(soft);
        ground.close();
    });
}
