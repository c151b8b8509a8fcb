//! What a device that nothing was told does.

use std::mem::zeroed;
use std::ptr::null_mut;

use qpair_verbs_sys::*;

use crate::ground::*;

#[test]
fn messages_arrive_with_immediate_data() {
    let mut ground = Ground::new("send0");
    let (a, b) = ground.pair(IBV_QPT_RC);
    let (from, to) = (ground.memory(100, 0), ground.memory(100, ALL));
    from.fill(7);
    assert_eq!(receive(b, 1, &mut [to.sge(0, 10), to.sge(20, 80)]), 0);
    let mut wr = request(2, IBV_WR_SEND_WITH_IMM);
    wr.__bindgen_anon_1.imm_data = 99;
    assert_eq!(post(a, wr, &mut [from.sge(0, 5), from.sge(5, 10)]), 0);

    let done = ground.poll(8);
    let [received, sent] = done[..] else { panic!("{} completions", done.len()) };
    assert_eq!((received.wr_id, received.status, received.opcode), (1, IBV_WC_SUCCESS, IBV_WC_RECV));
    assert_eq!((received.byte_len, received.wc_flags), (15, IBV_WC_WITH_IMM));
    // SAFETY: the flag says so.
    assert_eq!(unsafe { received.__bindgen_anon_1.imm_data }, 99);
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (2, IBV_WC_SUCCESS, IBV_WC_SEND));
    let bytes = to.bytes();
    assert_eq!((&bytes[..10], &bytes[10..20], &bytes[20..26]), (&[7; 10][..], &[0; 10][..], &[7, 7, 7, 7, 7, 0][..]));
}

#[test]
fn a_message_waits_for_a_receive() {
    let mut ground = Ground::new("rnr0");
    let (a, b) = ground.pair(IBV_QPT_RC);
    let memory = ground.memory(64, ALL);
    assert_eq!(post(a, request(1, IBV_WR_SEND), &mut [memory.sge(0, 8)]), 0);
    assert_eq!(post(a, request(2, IBV_WR_SEND), &mut [memory.sge(0, 8)]), 0);
    assert!(ground.poll(8).is_empty());
    assert_eq!(receive(b, 3, &mut [memory.sge(32, 32)]), 0);
    assert_eq!(ground.poll(8).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [3, 1]);
    assert_eq!(receive(b, 4, &mut [memory.sge(32, 32)]), 0);
    assert_eq!(ground.poll(8).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [4, 2]);
}

#[test]
fn one_sided_operations_reach_the_region() {
    let mut ground = Ground::new("onesided0");
    let (a, _b) = ground.pair(IBV_QPT_RC);
    let (near, far) = (ground.memory(64, ALL), ground.memory(64, ALL));
    near.fill(3);
    assert_eq!(post(a, at(request(1, IBV_WR_RDMA_WRITE), far.at(8), far.rkey), &mut [near.sge(0, 16)]), 0);
    assert_eq!((ground.done().status, &far.bytes()[..25]), (0, &[vec![0; 8], vec![3; 16], vec![0]].concat()[..]));
    far.fill(9);
    assert_eq!(post(a, at(request(2, IBV_WR_RDMA_READ), far.at(0), far.rkey), &mut [near.sge(32, 32)]), 0);
    assert_eq!((ground.done().byte_len, near.bytes()[31], near.bytes()[32]), (32, 3, 9));

    let mut wr = request(3, IBV_WR_ATOMIC_FETCH_AND_ADD);
    far.fill(0);
    wr.wr.atomic =
        ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr: far.at(0), compare_add: 5, swap: 0, rkey: far.rkey };
    for turn in 0..2u64 {
        assert_eq!(post(a, wr, &mut [near.sge(0, 8)]), 0);
        assert_eq!((ground.done().opcode, near.bytes()[0]), (IBV_WC_FETCH_ADD, 5 * turn as u8));
    }
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = (10, 77);
    assert_eq!(post(a, wr, &mut [near.sge(0, 8)]), 0);
    assert_eq!((ground.done().opcode, near.bytes()[0], far.bytes()[0]), (IBV_WC_COMP_SWAP, 10, 77));
}

#[test]
fn inline_data_is_taken_when_posted() {
    let mut ground = Ground::new("inline0");
    ground.device.set("defer", 1).expect("a setting");
    let (a, _b) = ground.pair(IBV_QPT_RC);
    let (near, far) = (ground.memory(64, 0), ground.memory(64, ALL));
    near.fill(1);
    let mut wr = at(request(1, IBV_WR_RDMA_WRITE), far.at(0), far.rkey);
    wr.send_flags |= IBV_SEND_INLINE;
    assert_eq!(post(a, wr, &mut [ibv_sge { lkey: 0, ..near.sge(0, 8) }]), 0);
    near.fill(2);
    assert!(ground.poll(8).is_empty(), "held back");
    ground.device.run().expect("a device");
    assert_eq!((ground.done().wr_id, far.bytes()[0]), (1, 1));
    assert_eq!(post(a, wr, &mut [near.sge(0, 64), near.sge(0, 1)]), libc::EINVAL, "longer than allowed");
}

#[test]
fn a_device_that_lags_behind_sends_after_so_many_polls_or_never() {
    let mut ground = Ground::new("lags0");
    ground.device.set("lag", 3).expect("a setting");
    let (a, b) = ground.pair(IBV_QPT_RC);
    let (near, far) = (ground.memory(64, 0), ground.memory(64, ALL));
    near.fill(7);
    let wr = at(request(1, IBV_WR_RDMA_WRITE), far.at(0), far.rkey);
    for turn in 1..3 {
        far.fill(0);
        assert_eq!(post(a, wr, &mut [near.sge(0, 8)]), 0);
        assert!(ground.poll(8).is_empty() && ground.poll(8).is_empty(), "turn {turn}");
        assert_eq!((far.bytes()[0], ground.done().wr_id, far.bytes()[0]), (0, 1, 7), "turn {turn}");
    }
    far.fill(0);
    assert_eq!(post(a, wr, &mut [near.sge(0, 8)]), 0);
    assert_eq!(modify(a, attributes(IBV_QPS_ERR), IBV_QP_STATE), 0);
    assert_eq!((ground.done().status, far.bytes()[0]), (IBV_WC_WR_FLUSH_ERR, 0), "cut off");
    let _ = b;
}

#[test]
fn wrong_keys_ranges_and_rights_fail_both_sides() {
    for (what, expected) in [("key", 10), ("range", 10), ("right", 10), ("local", 4), ("misaligned", 9)] {
        let mut ground = Ground::new(&format!("wrong-{what}"));
        let (a, b) = ground.pair(IBV_QPT_RC);
        let (near, far) = (ground.memory(64, ALL), ground.memory(64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
        assert_eq!(receive(b, 7, &mut [near.sge(0, 8)]), 0);
        let write = at(request(1, IBV_WR_RDMA_WRITE), far.at(0), far.rkey);
        let posted = match what {
            "key" => post(a, at(write, far.at(0), far.lkey), &mut [near.sge(0, 8)]),
            "range" => post(a, at(write, far.at(57), far.rkey), &mut [near.sge(0, 8)]),
            "right" => {
                let read = ibv_send_wr { opcode: IBV_WR_RDMA_READ, ..write };
                post(a, read, &mut [near.sge(0, 8)])
            }
            "local" => post(a, write, &mut [ibv_sge { lkey: far.rkey, ..near.sge(0, 8) }]),
            _ => {
                let mut wr = ibv_send_wr { opcode: IBV_WR_ATOMIC_FETCH_AND_ADD, ..write };
                wr.wr.atomic.remote_addr = far.at(1);
                post(a, wr, &mut [near.sge(0, 8)])
            }
        };
        assert_eq!(posted, 0, "{what}");
        assert_eq!(post(a, write, &mut [near.sge(0, 8)]), 0, "{what}: posting to a failed queue pair flushes");
        let done = ground.poll(8);
        let of = |wr_id: u64| done.iter().filter(|wc| wc.wr_id == wr_id).map(|wc| wc.status).collect::<Vec<_>>();
        assert_eq!(of(1), [expected, IBV_WC_WR_FLUSH_ERR], "{what}");
        let far_failed = expected != IBV_WC_LOC_PROT_ERR;
        assert_eq!(of(7), if far_failed { vec![IBV_WC_WR_FLUSH_ERR] } else { vec![] }, "{what}");
        assert_eq!(ground.device.violations(), "", "{what}");
    }
}

#[test]
fn datagrams_arrive_behind_a_header_or_not_at_all() {
    let mut ground = Ground::new("datagram0");
    let (a, b) = ground.pair(IBV_QPT_UD);
    let memory = ground.memory(256, ALL);
    let mut address = ground.address();
    // SAFETY: the domain and both queue pairs are alive.
    let (ah, b_qpn) = unsafe { ((library().ibv_create_ah)(ground.pd, &mut address), (*b).qp_num) };
    assert!(!ah.is_null());
    let mut wr = request(1, IBV_WR_SEND);
    wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn: b_qpn, remote_qkey: 0x2222 };
    assert_eq!(post(a, wr, &mut [memory.sge(0, 10)]), 0);
    assert_eq!(ground.done().wr_id, 1, "without a receive it is lost");
    assert_eq!(receive(b, 2, &mut [memory.sge(100, 60)]), 0);
    assert_eq!(post(a, wr, &mut [memory.sge(0, 10)]), 0);
    assert_eq!(ground.done().wr_id, 1, "with another key it is lost");
    wr.wr.ud.remote_qkey = 0x1111;
    memory.fill(5);
    assert_eq!(post(a, wr, &mut [memory.sge(0, 10)]), 0);
    let received = ground.poll(8)[0];
    assert_eq!((received.wr_id, received.byte_len, received.wc_flags), (2, 50, IBV_WC_GRH));
    let bytes = memory.bytes();
    assert_eq!((bytes[120], &bytes[140..151]), (0x45, &[5; 11][..]), "an IPv4 header in the second half");
    // SAFETY: made above.
    assert_eq!(unsafe { (library().ibv_destroy_ah)(ah) }, 0);
}

#[test]
fn a_shared_queue_serves_its_queue_pairs_and_tells_when_it_runs_low() {
    let mut ground = Ground::new("srq0");
    // SAFETY: objects that are alive.
    unsafe {
        let mut attr: ibv_srq_init_attr = zeroed();
        (attr.attr.max_wr, attr.attr.max_sge) = (4, 1);
        let srq = (library().ibv_create_srq)(ground.pd, &mut attr);
        let mut limit = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 1 };
        assert_eq!((library().ibv_modify_srq)(srq, &mut limit, IBV_SRQ_LIMIT as i32), 0);
        let (a, b) = (ground.qp(IBV_QPT_RC, null_mut()), ground.qp(IBV_QPT_RC, srq));
        ground.connect(a, b, IBV_QPT_RC);
        ground.connect(b, a, IBV_QPT_RC);
        let memory = ground.memory(64, ALL);
        let mut list = [memory.sge(0, 32)];
        let mut wr = ibv_recv_wr { wr_id: 5, next: null_mut(), sg_list: list.as_mut_ptr(), num_sge: 1 };
        assert_eq!(ibv_post_srq_recv(srq, &mut wr, &mut null_mut()), Ok(0));
        assert_eq!(post(a, request(1, IBV_WR_SEND), &mut [memory.sge(32, 4)]), 0);
        assert_eq!(ground.poll(8).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [5, 1]);
        let mut event: ibv_async_event = zeroed();
        assert_eq!((library().ibv_get_async_event)(ground.context, &mut event), 0);
        assert_eq!((event.event_type, event.element.srq), (IBV_EVENT_SRQ_LIMIT_REACHED, srq));
        assert_eq!((library().ibv_destroy_srq)(srq), libc::EBUSY, "a queue pair uses it");
        assert_eq!((library().ibv_destroy_qp)(b), 0);
        ground.forget(b);
        assert_eq!((library().ibv_destroy_srq)(srq), libc::EDEADLK, "an event is not acknowledged");
        (library().ibv_ack_async_event)(&mut event);
        assert_eq!((library().ibv_destroy_srq)(srq), 0);
    }
}

#[test]
fn windows_open_and_close_a_part_of_a_region() {
    let mut ground = Ground::new("window0");
    let (a, b) = ground.pair(IBV_QPT_RC);
    let (near, far) = (ground.memory(64, ALL), ground.memory(64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
    // SAFETY: objects that are alive.
    unsafe {
        let mw = ibv_alloc_mw(ground.pd, IBV_MW_TYPE_2).expect("there are windows");
        let key = ibv_inc_rkey((*mw).rkey);
        let mut bind = request(1, IBV_WR_BIND_MW);
        let mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
        let bind_info = ibv_mw_bind_info { mr: far.mr, addr: far.at(16), length: 16, mw_access_flags };
        bind.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey: key, bind_info };
        assert_eq!(post(b, bind, &mut []), 0);
        assert_eq!((ground.done().opcode, ground.device.get("live.mw").ok()), (IBV_WC_BIND_MW, Some(1)));
        assert_eq!((library().ibv_dereg_mr)(far.mr), libc::EBUSY, "a window is bound to it");
        assert_eq!(post(a, at(request(2, IBV_WR_RDMA_WRITE), far.at(16), key), &mut [near.sge(0, 16)]), 0);
        assert_eq!(ground.done().status, IBV_WC_SUCCESS);
        let mut invalidate = request(3, IBV_WR_LOCAL_INV);
        invalidate.__bindgen_anon_1.invalidate_rkey = key;
        assert_eq!(post(b, invalidate, &mut []), 0);
        assert_eq!(ground.done().opcode, IBV_WC_LOCAL_INV);
        assert_eq!(post(a, at(request(4, IBV_WR_RDMA_WRITE), far.at(16), key), &mut [near.sge(0, 16)]), 0);
        assert_eq!(ground.done().status, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(ibv_dealloc_mw(mw), Ok(0));
    }
}

#[test]
fn an_armed_queue_rings_once() {
    let mut ground = Ground::new("bell0");
    let (a, b) = ground.pair(IBV_QPT_RC);
    let memory = ground.memory(64, ALL);
    // SAFETY: objects that are alive.
    unsafe {
        let ready = || {
            let mut poll = libc::pollfd { fd: (*ground.channel).fd, events: libc::POLLIN, revents: 0 };
            libc::poll(&mut poll, 1, 0) == 1
        };
        assert_eq!(ibv_req_notify_cq(ground.cq, 0), Ok(0));
        assert!(!ready());
        for _ in 0..2 {
            assert_eq!(receive(b, 1, &mut [memory.sge(0, 8)]), 0);
            assert_eq!(post(a, request(2, IBV_WR_SEND), &mut [memory.sge(0, 8)]), 0);
        }
        assert!(ready());
        let (mut cq, mut user) = (null_mut(), null_mut());
        assert_eq!((library().ibv_get_cq_event)(ground.channel, &mut cq, &mut user), 0);
        assert_eq!((cq, ready()), (ground.cq, false));
        assert_eq!((library().ibv_destroy_cq)(cq), libc::EBUSY);
        (library().ibv_ack_cq_events)(cq, 1);
        assert_eq!(ground.poll(8).len(), 4);
    }
}

#[test]
fn built_requests_are_posted_together() {
    let mut ground = Ground::new("build0");
    // SAFETY: objects that are alive.
    unsafe {
        let plain = init_attr(ground.cq, IBV_QPT_RC, null_mut());
        let mut attr: ibv_qp_init_attr_ex = zeroed();
        (attr.send_cq, attr.recv_cq, attr.cap, attr.qp_type) = (ground.cq, ground.cq, plain.cap, IBV_QPT_RC);
        (attr.comp_mask, attr.pd) = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ground.pd);
        attr.send_ops_flags = u64::from(IBV_QP_EX_WITH_RDMA_WRITE);
        let a = ibv_create_qp_ex(ground.context, &mut attr).expect("extended");
        let b = ground.qp(IBV_QPT_RC, null_mut());
        ground.connect(a, b, IBV_QPT_RC);
        ground.connect(b, a, IBV_QPT_RC);
        let to_ex = library().ibv_qp_to_qp_ex().expect("it is exported");
        assert!(to_ex(b).is_null(), "it was not created so");
        let ex = to_ex(a);
        assert!((*ex).wr_send.is_none(), "it was not asked for");
        let (near, far) = (ground.memory(64, ALL), ground.memory(64, ALL));
        near.fill(4);
        (*ex).wr_start.expect("set")(ex);
        for wr_id in 1..3 {
            ((*ex).wr_id, (*ex).wr_flags) = (wr_id, IBV_SEND_SIGNALED);
            (*ex).wr_rdma_write.expect("set")(ex, far.rkey, far.at(8 * wr_id as usize));
            (*ex).wr_set_sge.expect("set")(ex, near.lkey, near.at(0), 8);
        }
        assert!(ground.poll(8).is_empty());
        assert_eq!((*ex).wr_complete.expect("set")(ex), 0);
        assert_eq!((ground.poll(8).len(), far.bytes()[7], far.bytes()[8], far.bytes()[23]), (2, 0, 4, 4));
        assert_eq!((library().ibv_destroy_qp)(a), 0);
    }
}

#[test]
fn a_null_device_gives_numbers_back() {
    let mut ground = Ground::new("null-count");
    let (a, _b) = ground.pair(IBV_QPT_RC);
    for wr_id in 0..200 {
        assert_eq!(post(a, request(wr_id, IBV_WR_RDMA_WRITE), &mut []), 0);
        let done = ground.done();
        // SAFETY: alive.
        assert_eq!((done.wr_id, done.status, done.qp_num), (wr_id, IBV_WC_SUCCESS, unsafe { (*a).qp_num }));
    }
    for wr_id in 0..128 {
        let posted = post(a, request(wr_id, IBV_WR_RDMA_WRITE), &mut []);
        assert!(posted == 0 || posted == libc::ENOMEM, "the ring is full");
    }
    assert_eq!(ground.poll(128)[63].wr_id, 63);
}
