//! The two ways to post hand the same requests to the device; thread domains, DMA-bufs, and memory that is not locked.

use std::fs::File;

use qpair_verbs::{Access, GRH_BYTES, Local, MemoryError, PostError, Rejected, Rkey, WcStatus, WorkCompletion};

use crate::ground::{Ground, connect, in_fake, in_fake_with, places};

/// Posts one of each kind; what the device was given, what came of it, and what the memory holds then.
fn one_of_each(extended: u64) -> (Vec<String>, Vec<WorkCompletion>, Vec<Vec<u8>>) {
    let mut ground = Ground::with(&[("qp_ex", extended)]);
    let (mut a, mut b) = ground.pair();
    let way = if extended == 1 { "posted by ibv_wr_*" } else { "posted by ibv_post_send" };
    assert!(a.explain().contains(way), "{}", a.explain());
    let region = ground.pd.expose(256, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
    let window = ground.pd.create_window().unwrap();
    let (mut values, mut memory) = (Vec::new(), Vec::new());
    let mut reap = |ground: &mut Ground, count: usize| {
        for _ in 0..count {
            let done = ground.cq.poll().unwrap().expect("a completion");
            values.push(done.values());
            let bytes: Vec<u8> = match done.into_memory() {
                Local::Buffer(buffer) => buffer.to_vec(),
                Local::List(list) => list.iter().flat_map(|buffer| buffer.to_vec()).collect(),
                _ => Vec::new(),
            };
            memory.push(bytes);
        }
    };
    for _ in 0..6 {
        b.recv(ground.filled(0)).post().unwrap();
    }
    a.send(ground.filled(1)).id(1).signaled().post().unwrap();
    a.send(vec![ground.pd.alloc(8).unwrap(), ground.filled(2)])
        .range(4..20)
        .id(2)
        .signaled()
        .solicited()
        .post()
        .unwrap();
    a.send_inline(b"inline").imm(0x0102_0304).id(3).signaled().post().unwrap();
    a.write_inline(b"written", region.remote(0..7)).id(4).signaled().post().unwrap();
    a.write(ground.filled(5), region.remote(64..128)).imm(77).id(5).signaled().fenced().post().unwrap();
    a.write(vec![ground.filled(6), ground.filled(7)], region.remote(128..256)).id(6).signaled().post().unwrap();
    a.read(ground.filled(0), region.remote(0..64)).id(7).signaled().fenced().post().unwrap();
    a.fetch_add(ground.pd.alloc(8).unwrap(), region.remote(8..16), 3).id(8).signaled().post().unwrap();
    a.compare_swap(ground.pd.alloc(8).unwrap(), region.remote(8..16), 3, 9).id(9).signaled().post().unwrap();
    a.bind(&window, &region, 0..64, Access::REMOTE_READ).id(10).signaled().post().unwrap();
    reap(&mut ground, 14);
    let rkey = window.remote().unwrap().rkey;
    a.invalidate(rkey).id(12).signaled().post().unwrap();
    a.send(ground.filled(8)).id(13).post().unwrap();
    a.read(ground.filled(0), region.remote(64..128)).id(14).signaled().post().unwrap();
    while let Some(done) = ground.cq.poll().unwrap() {
        values.push(done.values());
    }
    let datagrams = ground.pd.ud(&ground.cq).build().unwrap().activate();
    let mut u = datagrams.unwrap();
    let handle = u.address_handle(&u.address()).unwrap();
    u.recv(ground.pd.alloc(128).unwrap()).post().unwrap();
    u.send(ground.filled(9), &handle).id(15).signaled().post().unwrap();
    u.recv(ground.pd.alloc(128).unwrap()).post().unwrap();
    u.send_inline(b"datagram", &handle).imm(5).id(16).signaled().post().unwrap();
    while let Some(done) = ground.cq.poll().unwrap() {
        values.push(done.values());
        memory.push(done.into_buffer().map(|buffer| buffer[40..].to_vec()).unwrap_or_default());
    }
    let calls = ground.fake.calls();
    let posted = calls.lines().filter(|line| line.starts_with("ibv_post")).map(str::to_owned).collect();
    let mut held = vec![0; 256];
    region.read(0, &mut held).unwrap();
    memory.push(held);
    drop((u, handle, a, b, window, region));
    ground.close().reset().unwrap();
    (posted, values, memory)
}

#[test]
fn both_ways_to_post_hand_over_the_same_requests() {
    in_fake(|| {
        let [(posted, values, memory), (posted_ex, values_ex, memory_ex)] = [0, 1].map(one_of_each);
        let of_one = |word: &&str| !word.starts_with("qp");
        let request = |line: &String| line.split(' ').filter(of_one).collect::<Vec<_>>().join(" ");
        let [posted, posted_ex] = [posted, posted_ex].map(|lines| lines.iter().map(request).collect::<Vec<_>>());
        assert!(posted.len() > 20, "{posted:#?}");
        assert_eq!(posted, posted_ex);
        assert_eq!(memory, memory_ex);
        let told = |values: Vec<WorkCompletion>| {
            let told = values.into_iter().map(|done| (done.wr_id, done.status, done.opcode, done.byte_len, done.imm));
            told.collect::<Vec<_>>()
        };
        let [values, values_ex] = [values, values_ex].map(told);
        assert!(values.iter().all(|done| done.1.is_success()), "{values:#?}");
        assert_eq!(values, values_ex);
        let last = memory.last().unwrap();
        assert_eq!(last[..7], *b"written");
        assert_eq!((last[8], &last[64..128], &last[128..192]), (9, &[5; 64][..], &[6; 64][..]));
    });
}

#[test]
fn thread_domains_are_made_and_given_back_in_order() {
    in_fake(|| {
        let ground = Ground::new();
        let prepare = || ground.pd.rc(&ground.cq).thread_domain().build().unwrap();
        let (a, b) = connect(prepare(), prepare());
        assert!(a.explain().contains("no provider lock (thread domain)"), "{}", a.explain());
        drop((a, b));
        let calls = ground.fake.calls();
        let made = places(&calls, ["ibv_alloc_td td1", "ibv_alloc_parent_domain pd3", "ibv_create_qp_ex qp2 pd3"]);
        let gone = places(&calls, ["ibv_destroy_qp qp2", "ibv_dealloc_pd pd3", "ibv_dealloc_td td1"]);
        assert!(made.is_sorted() && gone.is_sorted() && made[2] < gone[0], "{calls}");
        let fake = ground.close();
        let calls = fake.calls();
        let [td, pd] = places(&calls, ["ibv_dealloc_td td1", "ibv_dealloc_pd pd1"]);
        assert!(td < pd, "the domain that it stands on goes last\n{calls}");
    });
}

#[test]
fn without_thread_domains_a_queue_pair_is_made_in_the_domain_itself() {
    in_fake(|| {
        for setting in ["td", "parent_domain"] {
            {
                let mut ground = Ground::with(&[(setting, 0)]);
                let prepare = || ground.pd.rc(&ground.cq).thread_domain().build().unwrap();
                let (mut a, b) = connect(prepare(), prepare());
                assert!(a.explain().contains("the provider has no thread domains"), "{}", a.explain());
                let region = ground.exposed(64);
                a.write(ground.filled(1), region.remote(0..64)).signaled().post().unwrap();
                assert!(ground.done().status.is_success());
                drop((a, b, region));
                ground.close().reset().unwrap();
            }
        }
    });
}

/// A handle takes the way of the queue pair that made it: one with a row of its own from that, one without from the row
/// that fits the peer.
#[test]
fn datagrams_go_the_way_that_their_queue_pair_was_given() {
    in_fake(|| {
        let ground = Ground::new();
        let ud = || ground.pd.ud(&ground.cq).service_level(3).traffic_class(96).hop_limit(5);
        let plain = ud().build().unwrap().activate().unwrap();
        let other = ud().gid_index(1).build().unwrap().activate().unwrap();
        let handles = [&plain, &other].map(|qp| qp.address_handle(&plain.address()).unwrap());
        let calls = ground.fake.calls();
        let ways: Vec<_> = calls.lines().filter(|line| line.contains("ibv_create_ah")).collect();
        assert!(
            matches!(ways[..], [first, second]
            if first.ends_with("port 1 row 3 sl 3 tc 96 hops 5") && second.ends_with("port 1 row 1 sl 3 tc 96 hops 5")),
            "{ways:#?}"
        );
        drop((plain, other, handles));
        ground.close();
    });
}

#[test]
fn windows_of_other_domains_and_beyond_their_region_or_its_registration_are_refused() {
    in_fake(|| {
        let ground = Ground::new();
        let (mut a, b) = ground.pair();
        let region = ground.pd.expose(64, Access::REMOTE_ALL | Access::WINDOW_BIND).unwrap();
        let (own, other) =
            (ground.pd.create_window().unwrap(), ground.ctx.alloc_pd().unwrap().create_window().unwrap());
        let error = a.bind(&other, &region, 0..64, Access::REMOTE_READ).post().unwrap_err().error;
        assert_eq!(error, PostError::WrongDomain);
        for (start, end) in [(0, 65), (64, 64), (40, 20), (usize::MAX, 3)] {
            let range = std::ops::Range { start, end };
            let error = a.bind(&own, &region, range, Access::REMOTE_READ).post().unwrap_err().error;
            assert_eq!(error, PostError::Range { start, end, len: 64 });
        }
        // Its registration ends at once, even where the memory is not given back yet.
        let part = region.local(0..8);
        let region = region.revoke().unwrap_err().region;
        let error = a.bind(&own, &region, 0..64, Access::REMOTE_READ).post().unwrap_err().error;
        assert_eq!(error, PostError::Withdrawn);
        drop(part);
        let region = region.revoke().unwrap();
        drop((a, b, region, own, other));
        ground.close();
    });
}

/// An empty piece is not handed over: its length means 2 GiB to some devices.
#[test]
fn empty_parts_of_regions_are_no_pieces() {
    in_fake(|| {
        let mut ground = Ground::with(&[("qp_ex", 0)]);
        let (mut a, mut b) = ground.pair();
        let region = ground.exposed(64);
        let mut srq = ground.pd.create_srq(4).unwrap();
        srq.post(region.local(5..5), 1).unwrap();
        b.recv(region.local(5..5)).id(2).post().unwrap();
        a.send(region.local(5..5)).id(3).signaled().post().unwrap();
        a.write(region.local(5..5), region.remote(5..5)).id(4).signaled().post().unwrap();
        a.read(region.local(5..5), region.remote(5..5)).id(5).signaled().post().unwrap();
        let calls = ground.fake.calls();
        let posts: Vec<_> = calls.lines().filter(|line| line.starts_with("ibv_post")).collect();
        assert_eq!(posts.len(), 5, "{calls}");
        assert!(posts.iter().all(|post| post.contains(" sge=0")), "{calls}");
        while let Some(done) = ground.cq.poll().unwrap() {
            assert_eq!((done.status(), done.byte_len()), (WcStatus::SUCCESS, 0));
        }
        drop((a, b, srq, region));
        ground.close();
    });
}

/// Nothing longer than a message comes, and a long piece means another thing to some devices.
#[test]
fn receives_are_handed_over_as_long_as_messages_are() {
    in_fake(|| {
        // Those of a shared queue may be for datagrams, with a route header in front.
        let mut ground = Ground::with(&[("max_msg_sz", 4096), ("max_recv_piece", 4096 + GRH_BYTES as u64)]);
        let mut srq = ground.pd.create_srq(2).unwrap();
        let (mut a, mut b) = ground.pair();
        let (mut c, d) =
            connect(ground.pd.rc(&ground.cq).build().unwrap(), ground.pd.rc(&ground.cq).srq(&srq).build().unwrap());
        let long = || ground.pd.alloc(10_000).unwrap();
        for (wr_id, memory) in [(1, Local::from(long())), (2, vec![long(), long()].into())] {
            b.recv(memory).id(wr_id).post().unwrap();
        }
        srq.post(long(), 3).unwrap();
        let message = || ground.pd.alloc(4096).unwrap();
        a.send(message()).post().unwrap();
        a.send(message()).post().unwrap();
        c.send(message()).post().unwrap();
        let mut received = Vec::new();
        while let Some(done) = ground.cq.poll().unwrap() {
            let values = done.values();
            received.push((values.wr_id, values.status, values.byte_len, done.into_memory().len()));
        }
        let whole = |wr_id, len| (wr_id, WcStatus::SUCCESS, 4096, len);
        assert_eq!(received, [whole(1, 10_000), whole(2, 20_000), whole(3, 10_000)]);
        drop((a, b, c, d, srq));
        ground.close();
    });
}

#[test]
fn sends_that_invalidate_are_for_reliable_connections() {
    for extended in [0, 1] {
        in_fake(|| {
            let ground = Ground::with(&[("qp_ex", extended)]);
            let prepare = || ground.pd.uc(&ground.cq).build().unwrap();
            let (mut a, b) = connect(prepare(), prepare());
            let refused = a.send(ground.filled(1)).invalidating(Rkey(1)).post().unwrap_err();
            assert!(matches!(refused.error, PostError::NotSupported { .. }), "{refused}");
            assert!(!ground.fake.calls().contains("post"), "{}", ground.fake.calls());
            drop((a, b, refused));
            ground.close();
        });
    }
}

#[test]
fn a_dma_buf_is_registered_as_it_is_and_given_back_before_its_descriptor() {
    in_fake(|| {
        let mut ground = Ground::new();
        let file = rustix::fs::memfd_create("dma-buf", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        File::from(file.try_clone().unwrap()).set_len(8192).unwrap();
        let region = ground.pd.register_dmabuf(file, 4096, 0x7000_0000_1000, 4096, Access::REMOTE_ALL).unwrap();
        let calls = ground.fake.calls();
        let line = calls.lines().find(|line| line.starts_with("ibv_reg_dmabuf_mr")).expect("it is registered");
        assert!(line.contains("offset=4096") && line.contains("iova=0x700000001000"), "{line}");
        assert!(line.contains("length=4096"), "{line}");
        let remote = region.remote(0..64);
        assert_eq!(remote.addr, 0x7000_0000_1000);
        drop(region.revoke().unwrap());
        assert!(ground.fake.calls().contains("ibv_dereg_mr"), "{}", ground.fake.calls());
        ground.nothing();
        ground.close();
    });
}

/// Whether receives into a DMA-buf are taken on a device of that vendor: by a connected queue pair, by a shared queue, and by a
/// queue pair of datagrams.
fn received_into_a_dma_buf(vendor: u64) -> [bool; 3] {
    let ground = Ground::with(&[("vendor_id", vendor)]);
    let mut srq = ground.pd.create_srq(4).unwrap();
    let mut a = ground.pd.rc(&ground.cq).build().unwrap();
    let mut datagrams = ground.pd.ud(&ground.cq).build().unwrap();
    let file = rustix::fs::memfd_create("dma-buf", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    File::from(file.try_clone().unwrap()).set_len(4096).unwrap();
    // The address of nothing here.
    let region = ground.pd.register_dmabuf(file, 0, 0x1000, 4096, Access::NONE).unwrap();
    // For WRITEs with immediate data, which go elsewhere.
    for nothing in [Local::None, region.local(5..5).into()] {
        a.recv(nothing).post().unwrap();
    }
    let part = || region.local(0..64);
    let posted = [a.recv(part()).post(), srq.post(part(), 1), datagrams.recv(part()).post()];
    let taken = posted.map(|posted| match posted {
        Ok(()) => true,
        Err(Rejected { error, memory }) => {
            assert_eq!(error, PostError::CopiedByProcessor { form: "part of a DMA-buf" });
            assert!(matches!(memory, Local::Dmabuf(_)), "{memory:?}");
            false
        }
    });
    drop((srq, a, datagrams, region));
    ground.close().reset().unwrap();
    taken
}

const MELLANOX: u64 = 0x02c9;
const HUAWEI: u64 = 0x19e5;
const BROADCOM: u64 = 0x14e4;

/// The processor copies what is received there, to an address that is none of its own.
#[test]
fn receives_into_a_dma_buf_are_refused_where_the_library_copies_them() {
    in_fake_with(&[("MLX5_SCATTER_TO_CQE", "1")], || {
        assert_eq!(received_into_a_dma_buf(MELLANOX), [false, false, true]);
        assert_eq!(received_into_a_dma_buf(HUAWEI), [false; 3]);
        assert_eq!(received_into_a_dma_buf(BROADCOM), [true; 3]);
    });
}

#[test]
fn receives_into_a_dma_buf_are_taken_where_libmlx5_is_told_not_to_copy() {
    in_fake_with(&[("MLX5_SCATTER_TO_CQE", "0")], || {
        assert_eq!(received_into_a_dma_buf(MELLANOX), [true; 3]);
        assert_eq!(received_into_a_dma_buf(HUAWEI), [false; 3]);
    });
}

#[test]
fn a_dma_buf_that_is_refused_leaves_nothing() {
    in_fake(|| {
        for value in [0, 1] {
            let ground = Ground::with(&[("dmabuf", value)]);
            let file = rustix::fs::memfd_create("dma-buf", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            if value == 1 {
                ground.fake.fail("ibv_reg_dmabuf_mr", 1, libc::EINVAL).unwrap();
            }
            let error = ground.pd.register_dmabuf(file, 0, 0, 4096, Access::REMOTE_READ).unwrap_err();
            let fits =
                matches!(error, MemoryError::NotSupported { .. }) || matches!(error, MemoryError::Refused { .. });
            assert!(fits, "{error:?}");
            ground.close().reset().unwrap();
        }
    });
}

#[test]
fn memory_on_demand_is_asked_for_as_such_or_refused() {
    in_fake(|| {
        const ON_DEMAND: u32 = qpair_verbs_sys::IBV_ACCESS_ON_DEMAND;
        let ground = Ground::new();
        let buffer = ground.pd.register_on_demand(vec![3; 4096]).unwrap();
        let calls = ground.fake.calls();
        let line = calls.lines().rfind(|line| line.starts_with("ibv_reg_mr")).expect("it is registered");
        let access = line.split("access=0x").nth(1).and_then(|text| text.split(' ').next());
        let access = u32::from_str_radix(access.expect("its rights"), 16).unwrap();
        assert_ne!(access & ON_DEMAND, 0, "{line}");
        assert_eq!(buffer.into_vec().unwrap(), [3; 4096]);
        ground.close().reset().unwrap();
        let ground = Ground::with(&[("odp", 0)]);
        let error = ground.pd.register_on_demand(vec![3; 4096]).unwrap_err();
        assert!(matches!(error, MemoryError::NotSupported { .. }), "{error}");
        assert!(!ground.fake.calls().contains("ibv_reg_mr"), "{}", ground.fake.calls());
        ground.close();
    });
}
