//! What a device does that was told to do wrong.

use std::ffi::CStr;
use std::mem::zeroed;
use std::ptr::null_mut;

use qpair_fake_ibverbs::control::{About, Completion, Device, fail_here};
use qpair_verbs_sys::*;

use crate::ground::*;

#[test]
fn a_call_fails_when_told() {
    let ground = Ground::new("fail0");
    ground.device.fail("ibv_alloc_pd", 2, libc::ENOMEM).expect("a device");
    // SAFETY: the context is open.
    unsafe {
        let first = (library().ibv_alloc_pd)(ground.context);
        assert!(!first.is_null());
        assert!((library().ibv_alloc_pd)(ground.context).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        ground.device.fail_times("ibv_dealloc_pd", 1, 2, libc::EIO).expect("a device");
        assert_eq!((library().ibv_dealloc_pd)(first), libc::EIO);
        assert_eq!((library().ibv_dealloc_pd)(first), libc::EIO);
        assert_eq!((library().ibv_dealloc_pd)(first), 0);
    }
    let calls = ground.device.calls();
    assert!(calls.contains("ibv_alloc_pd pd2\n") && calls.contains("ibv_dealloc_pd pd2 -> errno 5"), "{calls}");
}

#[test]
fn listing_fails_for_one_thread() {
    fail_here("ibv_get_device_list", 1, libc::ENOSYS).expect("the library is there");
    let list = || {
        let mut count = -1;
        // SAFETY: a local; the list is given back.
        unsafe {
            let list = (library().ibv_get_device_list)(&mut count);
            if !list.is_null() {
                (library().ibv_free_device_list)(list);
            }
        }
        count
    };
    let other = std::thread::spawn(list).join().expect("no panic");
    assert!(other > 0, "{other}");
    assert_eq!(list(), 0);
    assert!(list() > 0);
}

#[test]
fn a_list_stops_at_the_request_that_is_refused() {
    let mut ground = Ground::new("fail-list");
    let (a, _b) = ground.pair(IBV_QPT_RC);
    ground.device.fail("post_send_wr", 2, libc::ENOMEM).expect("a device");
    let mut second = request(2, IBV_WR_RDMA_WRITE);
    let mut first = ibv_send_wr { next: &mut second, ..request(1, IBV_WR_RDMA_WRITE) };
    let mut bad = null_mut();
    // SAFETY: locals.
    assert_eq!(unsafe { ibv_post_send(a, &mut first, &mut bad) }, Ok(libc::ENOMEM));
    assert!(std::ptr::eq(bad, &second));
    assert_eq!(ground.done().wr_id, 1);
}

#[test]
fn completions_lie_vanish_and_double_when_told() {
    let mut ground = Ground::new("forge0");
    let (a, _b) = ground.pair(IBV_QPT_RC);
    let forged = Completion::new().status(77).opcode(0x5555).wr_id(u64::MAX).qp_num(3);
    ground.device.forge(1, forged).expect("a device");
    ground.device.forge(2, Completion::new().dropped()).expect("a device");
    ground.device.forge(3, Completion::new().twice()).expect("a device");
    for wr_id in 1..=3 {
        assert_eq!(post(a, request(wr_id, IBV_WR_RDMA_WRITE), &mut []), 0);
    }
    let done = ground.poll(8);
    assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [u64::MAX, 3, 3]);
    assert_eq!((done[0].status, done[0].opcode, done[0].qp_num), (77, 0x5555, 3));
    ground.device.inject(0, Completion::new().wr_id(42)).expect("a queue");
    assert_eq!(ground.done().wr_id, 42);
}

#[test]
fn polling_fails_and_exaggerates_when_told() {
    let mut ground = Ground::new("poll0");
    let (a, _b) = ground.pair(IBV_QPT_RC);
    ground.device.fail("ibv_poll_cq", 1, libc::EIO).expect("a device");
    ground.device.poll_returns(1000).expect("a device");
    assert_eq!(post(a, request(1, IBV_WR_RDMA_WRITE), &mut []), 0);
    // SAFETY: numbers; memory for two.
    unsafe {
        let mut wc: [ibv_wc; 2] = zeroed();
        assert_eq!(ibv_poll_cq(ground.cq, 2, wc.as_mut_ptr()), Ok(-libc::EIO));
        assert_eq!(ibv_poll_cq(ground.cq, 2, wc.as_mut_ptr()), Ok(1000));
        assert_eq!((wc[0].wr_id, ibv_poll_cq(ground.cq, 2, wc.as_mut_ptr())), (1, Ok(0)));
    }
}

#[test]
fn events_come_when_told_known_or_not() {
    let mut ground = Ground::new("event0");
    let qp = ground.qp(IBV_QPT_RC, null_mut());
    // SAFETY: alive.
    let qpn = unsafe { (*qp).qp_num };
    ground.device.event(IBV_EVENT_PORT_ERR, About::Port(1)).expect("a device");
    ground.device.event(IBV_EVENT_QP_FATAL, About::Qp(qpn)).expect("a queue pair");
    ground.device.event(4711, About::Port(1)).expect("a device");
    assert!(ground.device.event(IBV_EVENT_CQ_ERR, About::Cq(99)).is_err());
    let next = || {
        // SAFETY: the context is open, and the event is acknowledged once.
        unsafe {
            let mut event: ibv_async_event = zeroed();
            assert_eq!((library().ibv_get_async_event)(ground.context, &mut event), 0);
            (library().ibv_ack_async_event)(&mut event);
            event
        }
    };
    assert_eq!(next().event_type, IBV_EVENT_PORT_ERR);
    let fatal = next();
    // SAFETY: the event is about a queue pair.
    assert_eq!((fatal.event_type, unsafe { fatal.element.qp }), (IBV_EVENT_QP_FATAL, qp));
    assert_eq!(next().event_type, 4711);
}

#[test]
fn a_device_claims_what_it_is_told() {
    let ground = Ground::new("claims0");
    for (setting, value) in [("port_state", 1), ("active_mtu", 99), ("link_layer", 250), ("active_speed", 200)] {
        ground.device.set(setting, value).expect("a setting");
    }
    assert!(ground.device.set("no_such", 1).is_err());
    ground.device.set_gid(5, [0xab; 16], 17, 3).expect("within the table");
    // SAFETY: numbers, and an open context.
    unsafe {
        let mut port: ibv_port_attr = zeroed();
        assert_eq!(ibv_query_port(library(), ground.context, 1, &mut port), 0);
        assert_eq!((port.state, port.active_mtu, port.link_layer, port.active_speed), (1, 99, 250, 200));
        assert_eq!(ibv_query_port(library(), ground.context, 2, &mut port), libc::EINVAL);
        let mut entry: ibv_gid_entry = zeroed();
        assert_eq!(ibv_query_gid_ex(library(), ground.context, 1, 5, &mut entry, 0), Ok(0));
        assert_eq!((entry.gid.raw, entry.gid_type, entry.ndev_ifindex), ([0xab; 16], 17, 3));
        assert_eq!(ibv_query_gid_ex(library(), ground.context, 1, 9, &mut entry, 0), Ok(libc::ENODATA));
        let mut table: [ibv_gid_entry; 8] = zeroed();
        assert_eq!(ibv_query_gid_table(library(), ground.context, table.as_mut_ptr(), 8, 0), Ok(5));
    }
}

#[test]
fn absent_features_are_told_apart() {
    let device = Device::new("old0").expect("the library is there");
    for (setting, value) in [("extended", 0), ("mw", 2), ("post_send", 2)] {
        device.set(setting, value).expect("a setting");
    }
    let context = open("old0");
    // SAFETY: the context is open.
    unsafe {
        assert!(verbs_get_ctx(context).is_none());
        let mut attr: ibv_device_attr_ex = zeroed();
        let missing = ibv_query_device_ex(context, std::ptr::null(), &mut attr).expect_err("a plain context");
        assert_eq!(missing, Missing { what: "ibv_query_device_ex" });
        let mut td = ibv_td_init_attr { comp_mask: 0 };
        assert_eq!(ibv_alloc_td(context, &mut td), Err(Missing { what: "ibv_alloc_td" }));
        assert_eq!(HotOps::of(context).expect_err("one is null").what, "ibv_post_send");
        let pd = (library().ibv_alloc_pd)(context);
        assert_eq!(ibv_alloc_mw(pd, IBV_MW_TYPE_1), Err(Missing { what: "ibv_alloc_mw" }));
        let mut port: ibv_port_attr = zeroed();
        assert_eq!((ibv_query_port(library(), context, 1, &mut port), port.state), (0, IBV_PORT_ACTIVE));
        device.set("dmabuf", 0).expect("a setting");
        let register = library().ibv_reg_dmabuf_mr().expect("it is exported");
        assert!(register(pd, 0, 4096, 0, 0, 0).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!((library().ibv_dealloc_pd)(pd), 0);
        assert_eq!((library().ibv_close_device)(context), 0);
    }
    device.assert_clean();
}

#[test]
fn a_dma_buf_is_reached_by_its_address() {
    let mut ground = Ground::new("dmabuf0");
    let (a, _b) = ground.pair(IBV_QPT_RC);
    let near = ground.memory(64, ALL);
    near.fill(6);
    // SAFETY: a file of this test, and objects that are alive.
    unsafe {
        let fd = libc::memfd_create(c"dmabuf".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(fd, 8192), 0);
        let register = library().ibv_reg_dmabuf_mr().expect("it is exported");
        let mr = register(ground.pd, 100, 4096, 0x7000, fd, ALL as i32);
        assert!(!mr.is_null());
        let wr = at(request(1, IBV_WR_RDMA_WRITE), 0x7000 + 8, (*mr).rkey);
        assert_eq!(post(a, wr, &mut [near.sge(0, 8)]), 0);
        assert_eq!(ground.done().status, IBV_WC_SUCCESS);
        let mut bytes = [0u8; 10];
        assert_eq!(libc::pread(fd, bytes.as_mut_ptr().cast(), 10, 107), 10);
        assert_eq!(bytes, [0, 6, 6, 6, 6, 6, 6, 6, 6, 0]);
        let line = "ibv_reg_dmabuf_mr mr2 pd1 length=4096 access=0x1f fd=";
        assert!(ground.device.calls().contains(line), "{}", ground.device.calls());
        assert_eq!((library().ibv_dereg_mr)(mr), 0);
        libc::close(fd);
    }
}

#[test]
fn limits_hold() {
    let ground = Ground::new("limits0");
    ground.device.set("max_locked", 4096).expect("a setting");
    ground.device.set("max_pd", 1).expect("a setting");
    let mut memory = [0u8; 8192];
    // SAFETY: memory that outlives the region; the context is open.
    unsafe {
        let start = memory.as_mut_ptr().cast();
        assert!((library().ibv_reg_mr)(ground.pd, start, 8192, 0).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        let mr = (library().ibv_reg_mr)(ground.pd, start, 4096, 0);
        assert!(!mr.is_null());
        assert_eq!((library().ibv_dereg_mr)(mr), 0);
        assert!(
            (library().ibv_reg_mr)(ground.pd, start, 64, IBV_ACCESS_REMOTE_WRITE as i32).is_null(),
            "no local write"
        );
        assert!((library().ibv_alloc_pd)(ground.context).is_null());
    }
}

#[test]
fn attributes_that_the_kernel_refuses_are_refused() {
    let mut ground = Ground::new("modify0");
    let qp = ground.qp(IBV_QPT_RC, null_mut());
    let (init, mask) = ground.to_init(IBV_QPT_RC);
    assert_eq!(modify(qp, init, mask & !IBV_QP_PORT), libc::EINVAL, "one is missing");
    assert_eq!(modify(qp, init, mask | IBV_QP_QKEY), libc::EINVAL, "one too many");
    assert_eq!(modify(qp, ibv_qp_attr { port_num: 2, ..init }, mask), libc::EINVAL, "no such port");
    assert_eq!(modify(qp, init, mask), 0);
    let (rtr, mask) = ground.to_rtr(IBV_QPT_RC, 1);
    let mut local = rtr;
    local.ah_attr.is_global = 0;
    assert_eq!(modify(qp, local, mask), libc::EINVAL, "over Ethernet there is no address but a GID");
    let mut empty = rtr;
    empty.ah_attr.grh.sgid_index = 9;
    assert_eq!(modify(qp, empty, mask), libc::EINVAL, "no such GID");
    assert_eq!(modify(qp, attributes(IBV_QPS_RTS), IBV_QP_STATE), libc::EINVAL, "not from here");
    assert_eq!(modify(qp, rtr, mask), 0);
}

#[test]
fn a_port_that_is_down_answers_nothing() {
    let mut ground = Ground::new("down0");
    let (a, _b) = ground.pair(IBV_QPT_RC);
    ground.device.set("port_state", 1).expect("a setting");
    assert_eq!(post(a, request(1, IBV_WR_RDMA_WRITE), &mut []), 0);
    let begin = std::time::Instant::now();
    let status = loop {
        if let Some(done) = ground.poll(1).first() {
            break done.status;
        }
        assert!(begin.elapsed().as_secs() < 10, "retries end");
    };
    assert_eq!(status, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn wrong_use_is_noted() {
    let mut ground = Ground::new("misuse0");
    let (_a, b) = ground.pair(IBV_QPT_RC);
    let memory = ground.memory(64, ALL);
    assert_eq!(receive(b, 1, &mut [memory.sge(0, 8)]), 0);
    // SAFETY: structures are never freed, so that using one that is destroyed can be noticed.
    unsafe {
        let mr = (library().ibv_reg_mr)(ground.pd, memory.start.cast(), 8, 0);
        let lkey = (*mr).lkey;
        assert_eq!(receive(b, 2, &mut [ibv_sge { lkey, ..memory.sge(0, 8) }]), 0);
        assert_eq!((library().ibv_dereg_mr)(mr), 0);
        assert_eq!((library().ibv_dereg_mr)(mr), libc::EINVAL);
        assert_eq!(ibv_post_send(b, null_mut(), &mut null_mut()), Ok(0));
        (library().ibv_ack_cq_events)(ground.cq, 1);
    }
    let violations = ground.device.violations();
    let expected = ["mr2: deregistered while posted on qp2", "mr2 was destroyed before", "an empty list", "not read"];
    for part in expected {
        assert!(violations.contains(part), "{part} in {violations}");
    }
    assert_eq!(violations.lines().count(), expected.len());
}

#[test]
fn names_are_answered_for_unknown_codes() {
    // SAFETY: C strings of the library.
    let text = |pointer| unsafe { CStr::from_ptr(pointer) }.to_str().expect("text").to_owned();
    // SAFETY: any number may be asked about.
    unsafe {
        assert_eq!(text((library().ibv_wc_status_str)(4711)), "unknown");
        assert_eq!(text((library().ibv_event_type_str)(4711)), "unknown");
    }
}
