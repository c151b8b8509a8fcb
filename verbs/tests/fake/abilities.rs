//! What a device tells of itself is asked for once where it lasts, again where it may change, and no more of it than is
//! needed; what it has little of is not posted.

use std::collections::HashSet;

use qpair_fake_ibverbs::control::Device as Fake;
use qpair_verbs::{Access, CmError, Context, CreateError, LinkLayer, OpenError, PostError, Rejected};

use crate::ground::{Ground, NAME, connect, in_fake, in_fake_with, settled};

#[test]
fn queue_pairs_and_address_handles_ask_for_their_own_side_only() {
    in_fake(|| {
        let ground = Ground::with(&[("ports", 2), ("pkey_tbl_len", 128)]);
        drop(ground.pair());
        let datagrams = ground.pd.ud(&ground.cq).build().unwrap().activate().unwrap();
        drop(datagrams.address_handle(&datagrams.address()).unwrap());
        let calls = ground.fake.calls();
        let tables: Vec<_> = calls.lines().filter(|line| line.starts_with("ibv_query_gid_table")).collect();
        assert_eq!(tables.len(), 4, "three queue pairs and a handle:\n{calls}");
        assert!(tables.iter().all(|line| line.ends_with("room=32")), "two ports of 16 rows: {tables:?}");
        assert!(!calls.contains("ibv_query_pkey"), "{calls}");
        let port = ground.ctx.port(1).unwrap();
        assert_eq!(port.pkeys.len(), 128);
        assert_eq!(port.gids[0].netdev.as_deref(), Some("lo"), "the interface of number 1");
        drop(datagrams);
        ground.close();
    });
}

#[test]
fn without_its_library_there_is_no_connection_manager() {
    in_fake_with(&[("QPAIR_LIBRDMACM", "/none/such/librdmacm.so.1")], || {
        let ground = Ground::new();
        let refusal = ground.ctx.listen(7471).unwrap_err();
        assert!(matches!(&refusal, CmError::NotSupported { device, .. } if device == ground.ctx.name()), "{refusal}");
        let prepared = ground.pd.rc(&ground.cq).build().unwrap();
        let refusal = ground.ctx.connect_to(([127, 0, 0, 1], 7471).into(), prepared, b"").unwrap_err();
        for part in ["/none/such/librdmacm.so.1", "rdma_ucm", "Prepared::connect"] {
            assert!(refusal.to_string().contains(part), "{refusal}");
        }
    });
}

#[test]
fn a_device_that_does_not_tell_its_limits_does_not_open() {
    in_fake(|| {
        let fake = Fake::new(NAME).unwrap();
        let silent: [(&[(&str, i32)], &str); 4] = [
            (&[("ibv_query_device_ex", libc::ENOMEM)], "its limits"),
            (&[("ibv_query_device_ex", libc::EOPNOTSUPP), ("ibv_query_device", libc::EIO)], "its limits"),
            (&[("ibv_query_device_ex", libc::EIO), ("ibv_query_device", libc::EIO)], "its limits"),
            (&[("ibv_query_port", libc::EIO)], "its port"),
        ];
        for (failures, asked) in silent {
            for (symbol, errno) in failures {
                fake.fail(symbol, 1, *errno).unwrap();
            }
            let error = Context::open(NAME).unwrap_err();
            let OpenError::Silent { name, what, source } = &error else { panic!("{error}") };
            let last = failures.last().map(|(_, errno)| *errno);
            assert_eq!((name.as_str(), *what, source.raw_os_error()), (NAME, asked, last));
            assert!(error.to_string().contains("dmesg"), "{error}");
            let ctx = Context::open(NAME).unwrap();
            assert_eq!((ctx.attributes().max_qp_wr, ctx.attributes().max_message), (16384, 1 << 30));
            drop(ctx);
            settled(&fake);
        }
        fake.assert_clean();
    });
}

#[test]
fn a_shortage_is_not_taken_for_a_limit() {
    in_fake(|| {
        let ground = Ground::new();
        let max_inline = || ground.ctx.attributes().max_inline;
        for (symbol, until_then) in [("ibv_alloc_pd", 0), ("ibv_create_cq", 0), ("ibv_create_qp", 128)] {
            ground.fake.fail(symbol, 1, libc::ENOMEM).unwrap();
            assert_eq!(max_inline(), until_then, "{symbol}");
        }
        assert_eq!(max_inline(), 256);
        let made = ground.fake.get("created.qp").unwrap();
        assert_eq!((max_inline(), ground.fake.get("created.qp").unwrap()), (256, made), "known from then on");
        ground.close();
    });
}

#[test]
fn devices_without_reliable_connections_have_room_for_inline_data() {
    in_fake(|| {
        let mut ground = Ground::with(&[("rc", 0), ("max_inline", 64)]);
        assert_eq!(ground.ctx.attributes().max_inline, 64);
        let prepared = ground.pd.ud(&ground.cq).build().unwrap();
        assert_eq!(prepared.max_inline(), 64);
        let mut datagrams = prepared.activate().unwrap();
        let to = datagrams.address_handle(&datagrams.address()).unwrap();
        datagrams.send_inline(&[7; 64], &to).signaled().post().unwrap();
        assert!(ground.done().status.is_success());
        drop((datagrams, to));
        ground.close();
    });
}

#[test]
fn less_room_for_inline_data_than_was_asked_for_is_what_there_is() {
    in_fake(|| {
        for extended in [0, 1] {
            let mut ground = Ground::with(&[("max_inline_given", 32), ("qp_ex", extended)]);
            assert_eq!(ground.ctx.attributes().max_inline, 32);
            let (plain, asked) = (ground.pd.rc(&ground.cq), ground.pd.rc(&ground.cq).max_inline(128));
            let (a, b) = (plain.build().unwrap(), asked.build().unwrap());
            assert_eq!((a.max_inline(), b.max_inline()), (32, 32));
            let (a, mut b) = connect(a, b);
            assert!(b.explain().contains("room for 32 bytes of inline data, not 128"), "{}", b.explain());
            let error = b.send_inline(&[1; 64]).post().unwrap_err().error;
            assert!(matches!(error, PostError::TooLong { len: 64, limit: 32, .. }), "{error}");
            let region = ground.exposed(32);
            b.write_inline(&[1; 32], region.remote(0..32)).signaled().post().unwrap();
            assert!(ground.done().status.is_success());
            drop((a, b, region));
            ground.close().reset().unwrap();
        }
    });
}

#[test]
fn deep_queues_have_less_room_for_inline_data() {
    in_fake(|| {
        let most = 16384;
        let mut ground = Ground::with(&[("send_bytes", most * 128)]);
        let deep = || ground.pd.rc(&ground.cq).send_depth(most as u32);
        let (a, b) = (deep().build().unwrap(), ground.pd.rc(&ground.cq).build().unwrap());
        assert_eq!((a.max_inline(), b.max_inline()), (64, 256));
        let (mut a, b) = connect(a, b);
        assert!(a.explain().contains("room for 64 bytes of inline data, not 256"), "{}", a.explain());
        assert!(!b.explain().contains("inline"), "{}", b.explain());
        let region = ground.exposed(64);
        let error = a.write_inline(&[1; 65], region.remote(0..64)).post().unwrap_err().error;
        assert!(matches!(error, PostError::TooLong { len: 65, limit: 64, .. }), "{error}");
        a.write_inline(&[1; 64], region.remote(0..64)).signaled().post().unwrap();
        let error = deep().max_inline(256).build().unwrap_err();
        assert!(is_no_room(&error), "asked for, so not given less: {error}");
        ground.fake.set("send_bytes", 0).unwrap();
        let error = deep().build().unwrap_err();
        assert!(is_no_room(&error), "{error}");
        assert!(ground.done().status.is_success());
        drop((a, b, region));
        ground.close();
    });

    /// Where a limit on locked memory holds, that may be the reason.
    fn is_no_room(error: &CreateError) -> bool {
        matches!(error, CreateError::Exhausted { .. } | CreateError::Memlock { .. })
    }
}

#[test]
fn more_pieces_than_the_device_takes_are_refused() {
    in_fake(|| {
        let mut ground = Ground::with(&[("max_sge", 2), ("max_sge_rd", 1), ("max_srq_sge", 1), ("qp_ex", 0)]);
        let (mut a, mut b) = ground.pair();
        let mut shared = ground.pd.create_srq(4).unwrap();
        let region = ground.pd.expose(192, Access::REMOTE_ALL).unwrap();
        let pd = ground.pd.clone();
        let list = |count: usize| (0..count).map(|_| pd.alloc(64).unwrap()).collect::<Vec<_>>();
        let too_many = |result: Result<(), Rejected>| match result.unwrap_err().into_parts() {
            (PostError::TooManyPieces { count, limit }, memory) => {
                assert_eq!(memory.len(), 64 * count);
                (count, limit)
            }
            (error, _) => panic!("{error}"),
        };
        assert_eq!(too_many(a.send(list(3)).post()), (3, 2));
        assert_eq!(too_many(a.write(list(3), region.remote(0..192)).post()), (3, 2));
        assert_eq!(too_many(a.read(list(2), region.remote(0..128)).post()), (2, 1));
        assert_eq!(too_many(b.recv(list(3)).post()), (3, 2));
        assert_eq!(too_many(shared.post(list(2), 1)), (2, 1));
        shared.post(list(1), 1).unwrap();
        b.recv(list(2)).post().unwrap();
        a.send(list(2)).signaled().post().unwrap();
        a.read(list(1), region.remote(0..64)).signaled().post().unwrap();
        for _ in 0..3 {
            assert!(ground.done().status.is_success());
        }
        drop((a, b, shared, region, pd));
        ground.close();
    });
}

/// Each is an interrupt, which one core serves.
#[test]
fn completion_queues_take_turns_at_the_vectors() {
    in_fake(|| {
        const VECTORS: usize = 3;
        let ground = Ground::with(&[("num_comp_vectors", VECTORS as u64)]);
        let plain: Vec<_> = (0..2 * VECTORS).map(|_| ground.ctx.create_cq(4).unwrap()).collect();
        let timed: Vec<_> = (0..VECTORS).map(|_| ground.ctx.create_cq_with_timestamps(4, None).unwrap()).collect();
        let calls = ground.fake.calls();
        for (made, queues) in [("ibv_create_cq ", plain.len() + 1), ("ibv_create_cq_ex ", timed.len())] {
            let lines = calls.lines().filter(|line| line.starts_with(made));
            let vectors: Vec<_> = lines.filter_map(|line| line.split("vector=").nth(1)).collect();
            assert_eq!(vectors.len(), queues, "{calls}");
            assert!(vectors.windows(VECTORS).all(|some| HashSet::<_>::from_iter(some).len() == VECTORS), "{vectors:?}");
        }
        drop((plain, timed));
        ground.close();
    });
}

#[test]
fn a_queue_pair_is_in_the_partition_that_was_asked_for() {
    in_fake(|| {
        let ground = Ground::with(&[("pkey_tbl_len", 5)]);
        assert_eq!(ground.ctx.port(1).unwrap().pkeys, [0xffff, 1, 0x8001, 2, 0x8002]);
        // As a full member, where the port is one.
        for (pkey, row) in [(0x7fff, 0), (1, 2), (0x8002, 4)] {
            drop(ground.pd.rc(&ground.cq).pkey(pkey).build().unwrap());
            let calls = ground.fake.calls();
            let init = calls.lines().rfind(|line| line.contains(" 0->1")).unwrap();
            assert_eq!(init.split("pkey_index=").nth(1).map_or(0, |row| row.parse().unwrap()), row, "{init}");
        }
        let error = ground.pd.rc(&ground.cq).pkey(3).build().unwrap_err();
        assert!(matches!(&error, CreateError::NoPkey { port: 1, pkey: 3, keys } if keys.len() == 5), "{error}");
        assert!(error.to_string().contains("0x0003; its keys: 0xffff, 0x0001, 0x8001"), "{error}");
        ground.close();
    });
}

/// EFA's ports say that they are of none, and have a LID all the same.
#[test]
fn ports_of_no_link_layer_are_infiniband_on_its_devices_alone() {
    const UNSPECIFIED: u64 = 4;
    in_fake(|| {
        for (transport, link_layer) in [(0, LinkLayer::InfiniBand), (UNSPECIFIED, LinkLayer::Unknown(0))] {
            let ground = Ground::with(&[("transport_type", transport), ("link_layer", 0), ("lid", 1)]);
            assert_eq!(ground.ctx.port(1).unwrap().link_layer, link_layer);
            let (a, b) = ground.pair();
            assert_eq!(a.explain().contains("at LID 1"), link_layer == LinkLayer::InfiniBand, "{}", a.explain());
            drop((a, b));
            ground.close().reset().unwrap();
        }
    });
}

#[test]
fn ports_that_demand_a_route_header_get_one() {
    in_fake(|| {
        for (flags, named_by_gid) in [(0, false), (1, true)] {
            let mut ground = Ground::with(&[("link_layer", 1), ("lid", 5), ("port_flags", flags)]);
            let (mut a, b) = ground.pair();
            assert_eq!(b.address().lid, 5);
            assert_ne!(a.explain().contains("at LID 5"), named_by_gid, "{}", a.explain());
            let region = ground.exposed(64);
            a.write(ground.filled(5), region.remote(0..64)).signaled().post().unwrap();
            assert!(ground.done().status.is_success());
            let datagrams = ground.pd.ud(&ground.cq).build().unwrap().activate().unwrap();
            drop(datagrams.address_handle(&datagrams.address()).unwrap());
            drop((a, b, region, datagrams));
            ground.close().reset().unwrap();
        }
    });
}
